"""Run a plan with kernels that are compiled already, and a clock around every one.

Measuring needs many plans of one network; their kernels are the same ones, so no library is linked
for a plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heteroplace.lower.compile import CompiledKernels
from heteroplace.lower.lower import lower
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.shared_weights import share_weights
from heteroplace.measure.example_inputs import input_arrays
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run, Step
from heteroplace.native.execute import Executor
from heteroplace.run.tvm_library import library_if_needed

_WARM_RUNS = 3
_LONG_NS = 50_000_000
"""One run that takes so long is enough to warm up."""


class PlanProgram:
    """A plan of a compiled network, loaded; its inputs are set (`example_inputs.py`)."""

    def __init__(
        self,
        compiled: CompiledKernels,
        plan: Plan,
        lowered: Lowered,
        blob: np.ndarray,
        num_tasks: int,
    ) -> None:
        self.plan = plan
        self.held_bytes = lowered.memory_bytes
        """Of each memory of the cluster."""
        program = lowered.alone()
        code, text = compiled.library.sealed(), program.to_text()
        # What a task takes must not hang on who was idle meanwhile.
        libtvm = library_if_needed(code.path, text)
        self.executor = Executor(libtvm, code.path, text, blob=blob, helping=False)
        # Loaders know the code by its path, which is another's as soon as the code is gone.
        self._code = code
        for name, array in input_arrays(compiled.calls.values).items():
            for port in lowered.state.get(name, ()):
                self.executor.set_own_input(port, array)
            if name not in lowered.state:
                self.executor.set_input(name, array)
        self.queue_kinds = tuple(queue.kind for queue in program.queues)
        """"cpu", "cuda" or "copy" for each queue of the executor."""
        kernels = compiled.calls.kernels
        self.task_of = tuple(
            _task_of(plan.steps[at.step], at.kernel is not None and bool(kernels[at.kernel].op))
            for at in self.executor.instructions
        )
        """The task of each instruction that counts; None: a copy, a helper, or a kernel that is no
        part of the network."""
        self._num_tasks = num_tasks

    def count_runs(self, round_ns: int, min_runs: int, max_runs: int) -> int:
        """Warm up; return the number of runs that take about `round_ns`, within the limits."""
        run_ns = int(self.executor.benchmark(1)[0])
        if run_ns < _LONG_NS:
            run_ns = max(1, int(min(self.executor.benchmark(_WARM_RUNS - 1))))
        return min(max_runs, max(min_runs, round_ns // run_ns))

    def task_runs(self, num_runs: int) -> np.ndarray:
        """Run with clocks; return the ns of every task in every run, [num_runs, num_tasks]."""
        return self.by_task(self.executor.profile_runs(num_runs))

    def by_task(self, times: np.ndarray) -> np.ndarray:
        """Sum ns of instructions, [..., num_instructions], to those of tasks, [..., num_tasks].

        A task that has no kernel of its own takes 0 ns.
        """
        sums = np.zeros((*times.shape[:-1], self._num_tasks), dtype=np.int64)
        for index, task in enumerate(self.task_of):
            if task is not None:
                sums[..., task] += times[..., index]
        return sums


def _task_of(step: Step, is_kernel: bool) -> int | None:
    return step.task if is_kernel and isinstance(step, Run) else None


def load_programs(
    compiled: CompiledKernels,
    graph: TaskGraph,
    cluster: Cluster,
    plans: Sequence[Plan],
) -> list[PlanProgram]:
    """Write and load serial programs over the same kernels and one copy of the weights.

    Parameters
    ----------
    compiled
        Kernels of the network, for every target that the plans use.
    plans
        Of which the steps are done one after the other; see `serial_plan`.

    Raises
    ------
    InfeasibleError
        A plan does not fit in some memory.
    LoweringError
        A plan is for several hosts.
    """
    layout = compiled.calls.weights
    own = [lower(compiled.calls, graph, cluster, plan, None) for plan in plans]
    programs = share_weights(own, layout)
    return [
        PlanProgram(compiled, plan, lowered, layout.blob, len(graph.tasks))
        for plan, lowered in zip(plans, programs, strict=True)
    ]


def serial_program(
    compiled: CompiledKernels, graph: TaskGraph, cluster: Cluster, placement: Sequence[int]
) -> PlanProgram:
    """Load the program of one task after the other, each on its device of `placement`.

    Raises
    ------
    InfeasibleError
        A memory is too small for it.
    """
    plan = serial_plan(graph, cluster, placement)
    (program,) = load_programs(compiled, graph, cluster, [plan])
    return program


def serial_plan(graph: TaskGraph, cluster: Cluster, placement: Sequence[int]) -> Plan:
    """Return the plan of one task after the other.

    Copies are not among its steps; the program has what it needs all the same.
    """
    steps = tuple(Run(task, device) for task, device in enumerate(placement))
    return Plan(graph.digest(), cluster.digest(), steps, "one after the other")
