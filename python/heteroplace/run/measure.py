"""Measure what each task costs on each device, in place.

Kernel times add up only when each kernel runs where it will run, with the caches that its
neighbours leave behind: measured alone with warm caches they are up to 11 % too short, with cold
ones up to 72 % too long. So the whole network runs on one device, with a clock around every
kernel, and a task's cost is the median over the runs. What is costed is what is run: the kernels
are those of the one-device plan, and a plan on one target uses exactly these.

Where a device is too small for the whole network, its kernels are measured one by one instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    mod: tvm.IRModule, graph: TaskGraph, cluster: Cluster, progress: Progress | None = None
) -> CostTable:
    """Measure every task on every device that it may run on.

    Devices with the same target and the same number of cores are alike: one of them is measured.
    Tasks that may not run on the device that is being measured run elsewhere meanwhile.

    Parameters
    ----------
    mod
        Neutral module whose spans name the tasks of `graph`.

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
        times[alike] = _task_times(compiled, graph, cluster, placement, index)

    def cost(task: int, index: int) -> Cost:
        return Cost.measured(times[_likeness(cluster, index)][task])

    return build_table(graph, cluster, cost)


def _likeness(cluster: Cluster, index: int) -> tuple[str, int]:
    """What two devices have in common that take equally long for everything."""
    device = cluster.devices[index]
    return device.target, len(device.cores)


def _task_times(
    compiled: CompiledRows,
    graph: TaskGraph,
    cluster: Cluster,
    placement: Sequence[int],
    device: int,
) -> list[int]:
    """Median time of each task that `placement` has on `device`, in ns; 0 for the others."""
    try:
        return _times_in_place(compiled, compiled.rows, graph, cluster, placement, device)
    except InfeasibleError:
        times = [0] * len(graph.tasks)
        task_id = {task.name: index for index, task in enumerate(graph.tasks)}
        for row in compiled.rows.rows:
            if placement[task_id[row.task]] != device:
                continue
            alone = _with_own_inputs(compiled.rows, row)
            found = _times_in_place(compiled, alone, graph, cluster, placement, device)
            times = [total + time for total, time in zip(times, found, strict=True)]
        return times


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


def _times_in_place(
    compiled: CompiledRows,
    rows: Rows,
    graph: TaskGraph,
    cluster: Cluster,
    placement: Sequence[int],
    device: int,
) -> list[int]:
    plan, order = serial_plan(graph, cluster, placement)
    lowered = lower(rows, graph, cluster, plan, order)
    executor = NativeExecutor(
        str(library_path()),
        str(compiled.library.path),
        lowered.program.to_text(),
        blob=weights_blob(lowered),
    )
    random = np.random.default_rng(0)
    for port in executor.inputs:
        if port.dtype.startswith("float"):
            executor.set_input(port.name, random.standard_normal(port.shape).astype(port.dtype))
        else:  # whatever integers mean here (token ids, indices), 0 is one of them
            dtype = "uint16" if port.dtype == "bfloat16" else port.dtype
            executor.set_input(port.name, np.zeros(port.shape, dtype))
    warm_ns = max(1, int(min(executor.benchmark(3))))
    num_runs = min(_MAX_RUNS, max(_MIN_RUNS, _TARGET_TOTAL_NS // warm_ns))
    times = [0] * len(graph.tasks)
    medians = executor.profile(num_runs)
    for instruction, median_ns in zip(executor.instructions, medians, strict=True):
        action = plan.steps[instruction.step]
        is_kernel = isinstance(action, Run) and instruction.kernel is not None
        if is_kernel and action.device == device:
            times[action.task] += int(median_ns)
    return times


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
