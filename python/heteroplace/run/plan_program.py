"""Run a plan with kernels that are compiled already: no library is linked for it.

Measuring needs many plans of one network; their kernels are the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heteroplace.codegen.artifact import weights_blob
from heteroplace.codegen.compile import CompiledRows
from heteroplace.codegen.lower import Lowered, lower
from heteroplace.codegen.shared_weights import share_weights
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.model.timeline import Span, Timeline
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.tvm_bridge import library_path


class PlanProgram:
    """A plan of a compiled network, loaded; its inputs are filled with random numbers."""

    def __init__(
        self, compiled: CompiledRows, plan: Plan, lowered: Lowered, blob: np.ndarray, num_tasks: int
    ) -> None:
        self.plan = plan
        self.executor = NativeExecutor(
            str(library_path()), str(compiled.library.path), lowered.program.to_text(), blob=blob
        )
        self.queue_kinds = tuple(queue.kind for queue in lowered.program.queues)
        """"cpu", "cuda" or "copy" for each queue of the executor."""
        self._num_tasks = num_tasks
        fill_inputs(self.executor)

    def task_runs(self, num_runs: int) -> np.ndarray:
        """Run with clocks; return the ns of every task in every run, [num_runs, num_tasks].

        A task that has no kernel of its own takes 0 ns.
        """
        times = np.zeros((num_runs, self._num_tasks), dtype=np.int64)
        durations = self.executor.profile_runs(num_runs)
        for column, instruction in enumerate(self.executor.instructions):
            step = self.plan.steps[instruction.step]
            if isinstance(step, Run) and instruction.kernel is not None:
                times[:, step.task] += durations[:, column]
        return times


def load_programs(
    compiled: CompiledRows,
    graph: TaskGraph,
    cluster: Cluster,
    plans: Sequence[tuple[Plan, Timeline]],
) -> list[PlanProgram]:
    """Write and load the programs of plans over the same kernels and one copy of the weights.

    Parameters
    ----------
    compiled
        Kernels of the network, for every target that the plans use.
    plans
        Each with its predicted timeline, which decides which memory is reused by whom.

    Raises
    ------
    InfeasibleError
        A plan does not fit in some memory.
    """
    programs = share_weights(
        [lower(compiled.rows, graph, cluster, plan, order) for plan, order in plans]
    )
    blob = weights_blob(programs[0])
    return [
        PlanProgram(compiled, plan, lowered, blob, len(graph.tasks))
        for (plan, _), lowered in zip(plans, programs, strict=True)
    ]


def fill_inputs(executor: NativeExecutor) -> None:
    """Give every input a value: normally distributed numbers, or zeros where they are integers."""
    random = np.random.default_rng(0)
    for port in executor.inputs:
        executor.set_input(port.name, made_up(port.shape, port.dtype, random))


def made_up(shape: tuple[int, ...], dtype: str, random: np.random.Generator) -> np.ndarray:
    """Return data for an input; whatever integers mean (token ids, indices), 0 is one of them."""
    if dtype.startswith("float"):
        return random.standard_normal(shape).astype(dtype)
    return np.zeros(shape, "uint16" if dtype == "bfloat16" else dtype)


def serial_plan(
    graph: TaskGraph, cluster: Cluster, placement: Sequence[int]
) -> tuple[Plan, Timeline]:
    """Return the plan of one task after the other, and a timeline that only says the order.

    Copies are not among its steps; the program has what it needs all the same.
    """
    steps = tuple(Run(task, device) for task, device in enumerate(placement))
    plan = Plan(graph.digest(), cluster.digest(), steps, "one after the other")
    spans = tuple(
        Span(step, cluster.devices[run.device].name, step, step + 1)
        for step, run in enumerate(steps)
    )
    return plan, Timeline(spans, "simulated", (), len(steps))
