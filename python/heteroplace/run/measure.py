"""Measure what each task costs on each device, in place.

Kernel times add up only when each kernel runs where it will run, with the caches that its
neighbours leave behind: measured alone with warm caches they are up to 11 % too short, with cold
ones up to 72 % too long. So the whole network runs on one device, with a clock around every
kernel, and a task's cost is the median over the runs. What is costed is what is run: the kernels
are those of the one-device plan, and a plan on one target uses exactly these.

Each distinct kernel can also be measured alone: that is quicker, enough for a first plan, and the
only way where a device is too small for the whole network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm

from heteroplace.codegen.artifact import weights_blob
from heteroplace.codegen.compile import CompiledRows, compile_network
from heteroplace.codegen.kernels import Row, Rows
from heteroplace.codegen.lower import lower
from heteroplace.codegen.targets import cluster_targets
from heteroplace.errors import InfeasibleError, MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, allowed_devices, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.model.timeline import Span, Timeline
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.executor import missing_devices
from heteroplace.tvm_bridge import library_path

Progress = Callable[[str], None]
"""Called with a line of text whenever something long begins."""

_MIN_RUNS = 15
_MAX_RUNS = 200
_TARGET_TOTAL_NS = 600_000_000
"""Each device is run for about this long, within the limits above."""


def measure_costs(
    mod: tvm.IRModule,
    graph: TaskGraph,
    cluster: Cluster,
    progress: Progress | None = None,
    is_in_place: bool = True,
) -> CostTable:
    """Measure every task on every device that it may run on.

    Devices with the same target and the same number of cores are alike: one of them is measured.
    Tasks that may not run on the device that is being measured run elsewhere meanwhile.

    Parameters
    ----------
    mod
        Neutral module whose spans name the tasks of `graph`.
    is_in_place
        Measure within a run of the whole network where that fits; else each kernel alone.

    Raises
    ------
    MissingCostError
        A device that some task may run on is not in this machine.
    LoweringError
        An op cannot be compiled for some target.
    """
    allowed = allowed_devices(graph, cluster)
    used = [index for index in range(len(cluster.devices)) if any(index in ids for ids in allowed)]
    names = [cluster.devices[index].name for index in used]
    absent = missing_devices(cluster, names)
    if absent:
        raise MissingCostError(
            "cannot measure on devices that are not in this machine: " + "; ".join(absent) + ". "
            'Give costs=... (a table from that machine, or "estimate"), or exclude=... them'
        )
    times: dict[tuple[str, int], list[int]] = {}
    targets, target_of_device = cluster_targets(cluster)
    for index in used:
        device = cluster.devices[index]
        alike = _likeness(cluster, index)
        if alike in times:
            continue
        same = {other for other in used if _likeness(cluster, other) == alike}
        placement = [index if same & set(ids) else ids[0] for ids in allowed]
        if progress is not None:
            progress(f"measuring {len(graph.tasks)} tasks on {device.name}")
        target_of_task = {
            task.name: target_of_device[placement[task_id]]
            for task_id, task in enumerate(graph.tasks)
        }
        compiled = compile_network(mod, graph.digest(), targets, target_of_task)
        run = _Run(compiled, graph, cluster, placement, index)
        times[alike] = run.task_times() if is_in_place else run.isolated_times()

    def cost(task: int, index: int) -> Cost:
        return Cost.measured(times[_likeness(cluster, index)][task])

    return build_table(graph, cluster, cost)


def _likeness(cluster: Cluster, index: int) -> tuple[str, int]:
    """What two devices have in common that take equally long for everything."""
    device = cluster.devices[index]
    return device.target, len(device.cores)


@dataclass(frozen=True)
class _Run:
    """What one device is measured on: tasks it may not run are placed elsewhere."""

    compiled: CompiledRows
    graph: TaskGraph
    cluster: Cluster
    placement: Sequence[int]
    device: int

    def task_times(self) -> list[int]:
        """Median time in place of each task on the device, in ns; 0 for those placed elsewhere."""
        try:
            return self._times_of(self.compiled.rows)
        except InfeasibleError:  # the whole network is too large for the device, its parts are not
            return self.isolated_times()

    def isolated_times(self) -> list[int]:
        """Median time of each task with every distinct kernel run alone, over and over, in ns."""
        times = [0] * len(self.graph.tasks)
        task_id = {task.name: index for index, task in enumerate(self.graph.tasks)}
        kernel_ns: dict[str, int] = {}
        for row in self.compiled.rows.rows:
            task = task_id[row.task]
            if self.placement[task] != self.device:
                continue
            if row.kernel not in kernel_ns:
                alone = self._times_of(_with_own_inputs(self.compiled.rows, row))
                kernel_ns[row.kernel] = alone[task]
            times[task] += kernel_ns[row.kernel]
        return times

    def _times_of(self, rows: Rows) -> list[int]:
        plan, order = serial_plan(self.graph, self.cluster, self.placement)
        lowered = lower(rows, self.graph, self.cluster, plan, order)
        executor = NativeExecutor(
            str(library_path()),
            str(self.compiled.library.path),
            lowered.program.to_text(),
            blob=weights_blob(lowered),
        )
        _fill_inputs(executor)
        warm_ns = max(1, int(min(executor.benchmark(3))))
        num_runs = min(_MAX_RUNS, max(_MIN_RUNS, _TARGET_TOTAL_NS // warm_ns))
        times = [0] * len(self.graph.tasks)
        medians = executor.profile(num_runs)
        for instruction, median_ns in zip(executor.instructions, medians, strict=True):
            action = plan.steps[instruction.step]
            is_kernel = isinstance(action, Run) and instruction.kernel is not None
            if is_kernel and action.device == self.device:
                times[action.task] += int(median_ns)
        return times


def _fill_inputs(executor: NativeExecutor) -> None:
    random = np.random.default_rng(0)
    for port in executor.inputs:
        if port.dtype.startswith("float"):
            executor.set_input(port.name, random.standard_normal(port.shape).astype(port.dtype))
        else:  # whatever integers mean here (token ids, indices), 0 is one of them
            dtype = "uint16" if port.dtype == "bfloat16" else port.dtype
            executor.set_input(port.name, np.zeros(port.shape, dtype))


def _with_own_inputs(rows: Rows, row: Row) -> Rows:
    """The program of a single row; what it reads are inputs."""
    values = list(rows.values)
    for value in row.reads:
        if values[value].constant is None:
            old = values[value]
            values[value] = type(old)(old.shape, old.dtype, input_name=f"value{value}")
    kept = {*row.reads, *row.writes}
    values = [
        value
        if index in kept or value.input_name is None
        else type(value)(value.shape, value.dtype)
        for index, value in enumerate(values)
    ]
    return Rows(tuple(values), (row,), (), rows.kernels)


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
