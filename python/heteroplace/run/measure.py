"""Measure what each task costs on each device, in place.

Kernel times add up only when each kernel runs where it will run, with the caches that its
neighbours leave behind: measured alone with warm caches they are up to 11 % too short, with cold
ones up to 72 % too long. So the whole network runs on one device, with a clock around every
kernel, and a task's cost is the median over the runs. What is costed is what is run: the kernels
are those of the one-device plan, and a plan on one target uses exactly these.

Where a device is too small for the whole network, its kernels are measured one by one instead.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm

from heteroplace.build.artifact import weights_blob
from heteroplace.build.compile import CompiledRows, compile_network
from heteroplace.build.kernels import Row, Rows
from heteroplace.build.lower import lower
from heteroplace.build.targets import cluster_targets
from heteroplace.errors import InfeasibleError, MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.model.timeline import Span, Timeline
from heteroplace.native.execute import NativeExecutor
from heteroplace.run.executor import missing_devices
from heteroplace.tvm_bridge import library_path

Progress = Callable[[str], None]
"""Called with a line of text whenever something long begins."""

_MIN_RUNS = 15
_MAX_RUNS = 200
_TARGET_TOTAL_NS = 600_000_000
"""Each device is run for about this long, within the limits above."""


def measure_costs(
    mod: tvm.IRModule, graph: TaskGraph, cluster: Cluster, progress: Progress | None = None
) -> CostTable:
    """Measure every task on every device of the cluster that is in this machine.

    Devices with the same target and the same number of cores are alike: one of them is measured.

    Parameters
    ----------
    mod
        Neutral module whose spans name the tasks of `graph`.

    Raises
    ------
    MissingCostError
        A device of the cluster is not in this machine, so it cannot be measured.
    LoweringError
        An op cannot be compiled for some target.
    """
    names = [device.name for device in cluster.devices]
    absent = missing_devices(cluster, names)
    if absent:
        raise MissingCostError(
            "cannot measure on devices that are not in this machine: " + "; ".join(absent) + ". "
            "Give costs=... (a table from that machine, or \"estimate\"), or leave them out"
        )
    times: dict[tuple[str, int], list[int]] = {}
    targets, target_of_device = cluster_targets(cluster)
    for index, device in enumerate(cluster.devices):
        alike = (device.target, len(device.cores))
        if alike in times:
            continue
        if progress is not None:
            progress(f"measuring {len(graph.tasks)} tasks on {device.name}")
        target = targets[target_of_device[index]]
        compiled = compile_network(
            mod, graph.digest(), (target,), {task.name: 0 for task in graph.tasks}
        )
        times[alike] = _task_times(compiled, graph, cluster, index)

    def cost(task: int, index: int) -> Cost:
        device = cluster.devices[index]
        return Cost.measured(times[device.target, len(device.cores)][task])

    return build_table(graph, cluster, cost)


def _task_times(
    compiled: CompiledRows, graph: TaskGraph, cluster: Cluster, device: int
) -> list[int]:
    """Median time of each task on `device`, in ns."""
    try:
        return _times_in_place(compiled, compiled.rows, graph, cluster, device)
    except InfeasibleError:
        times = [0] * len(graph.tasks)
        for row in compiled.rows.rows:
            alone = Rows(compiled.rows.values, (row,), (), compiled.rows.kernels)
            found = _times_in_place(compiled, _with_own_inputs(alone, row), graph, cluster, device)
            times = [total + time for total, time in zip(times, found, strict=True)]
        return times


def _with_own_inputs(rows: Rows, row: Row) -> Rows:
    """Make what a single row reads inputs of a program of its own."""
    values = list(rows.values)
    for value in row.reads:
        if values[value].constant is None:
            old = values[value]
            values[value] = type(old)(old.shape, old.dtype, input_name=f"value{value}")
    kept = {*row.reads, *row.writes}
    values = [
        value if index in kept or value.input_name is None else type(value)(value.shape, value.dtype)
        for index, value in enumerate(values)
    ]
    return Rows(tuple(values), rows.rows, (), rows.kernels)


def _times_in_place(
    compiled: CompiledRows, rows: Rows, graph: TaskGraph, cluster: Cluster, device: int
) -> list[int]:
    plan, order = one_device_plan(graph, cluster, device)
    lowered = lower(rows, graph, cluster, plan, order)
    executor = NativeExecutor.from_module(
        library_path(), compiled.library, weights_blob(lowered), lowered.program.to_text()
    )
    warm_ns = max(1, min(executor.benchmark(3)))
    num_runs = min(_MAX_RUNS, max(_MIN_RUNS, _TARGET_TOTAL_NS // warm_ns))
    times = [0] * len(graph.tasks)
    for step, median_ns in executor.profile(num_runs):
        action = plan.steps[step]
        if isinstance(action, Run):
            times[action.task] += median_ns
    return times


def one_device_plan(graph: TaskGraph, cluster: Cluster, device: int) -> tuple[Plan, Timeline]:
    """Return the plan of everything on one device, and a timeline that only says the order."""
    steps = tuple(Run(task, device) for task in range(len(graph.tasks)))
    plan = Plan(graph.digest(), cluster.digest(), steps, "one device")
    name = cluster.devices[device].name
    spans = tuple(Span(step, name, step, step + 1) for step in range(len(steps)))
    return plan, Timeline(spans, "simulated", (), len(steps))
