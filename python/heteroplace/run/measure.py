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
from dataclasses import dataclass, replace

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

_NUM_ROUNDS = 5
_MIN_RUNS = 9
_MAX_RUNS = 100
_ROUND_NS = 200_000_000
"""A round of one device takes about this long, within the limits above."""


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
    runs = []
    for index, placement in _devices_to_measure(graph, cluster):
        compiled = _compile_placed(mod, graph, cluster, placement)
        runs.append(_Run(compiled, graph, cluster, placement, index))
    if progress is not None:
        names = ", ".join(cluster.devices[run.device].name for run in runs)
        progress(f"measuring {len(graph.tasks)} tasks on {names}")
    probes = [run.in_place() if is_in_place else None for run in runs]
    for _ in range(_NUM_ROUNDS):  # in turns, so that all devices see the same state of the machine
        for probe in probes:
            if probe is not None:
                probe.sample()
    times = {
        _likeness(cluster, run.device): run.isolated_times() if probe is None else probe.times()
        for run, probe in zip(runs, probes, strict=True)
    }

    def cost(task: int, index: int) -> Cost:
        return Cost.measured(times[_likeness(cluster, index)][task])

    return build_table(graph, cluster, cost)


def with_workspaces(mod: tvm.IRModule, graph: TaskGraph, cluster: Cluster) -> TaskGraph:
    """Return `graph` with the scratch memory that the compiled kernels of each task use.

    The largest of all devices that can be measured; parameters and errors as `measure_costs`. The
    kernels are compiled for it, and found again by the measuring that follows.
    """
    largest = {task.name: task.workspace_bytes for task in graph.tasks}
    for _, placement in _devices_to_measure(graph, cluster):
        rows = _compile_placed(mod, graph, cluster, placement).rows
        for row in rows.rows:
            used = rows.kernels[row.kernel].workspace_bytes
            largest[row.task] = max(largest[row.task], used)
    tasks = [replace(task, workspace_bytes=largest[task.name]) for task in graph.tasks]
    return replace(graph, tasks=tuple(tasks))


def _devices_to_measure(graph: TaskGraph, cluster: Cluster) -> list[tuple[int, list[int]]]:
    """One device of each likeness, and the placement under which it is measured."""
    allowed = allowed_devices(graph, cluster)
    used = [index for index in range(len(cluster.devices)) if any(index in ids for ids in allowed)]
    absent = missing_devices(cluster, [cluster.devices[index].name for index in used])
    if absent:
        raise MissingCostError(
            "cannot measure on devices that are not in this machine: " + "; ".join(absent) + ". "
            'Give costs=... (a table from that machine, or "estimate"), or exclude=... them'
        )
    found: dict[tuple[str, int], tuple[int, list[int]]] = {}
    for index in used:
        alike = _likeness(cluster, index)
        same = {other for other in used if _likeness(cluster, other) == alike}
        placement = [index if same & set(ids) else ids[0] for ids in allowed]
        found.setdefault(alike, (index, placement))
    return list(found.values())


def _compile_placed(
    mod: tvm.IRModule, graph: TaskGraph, cluster: Cluster, placement: Sequence[int]
) -> CompiledRows:
    targets, target_of_device = cluster_targets(cluster)
    target_of_task = {
        task.name: target_of_device[device]
        for task, device in zip(graph.tasks, placement, strict=True)
    }
    return compile_network(mod, targets, target_of_task)


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

    def in_place(self) -> _Probe | None:
        """A probe of the whole network; None if the device is too small for it."""
        try:
            return self._probe(self.compiled.rows)
        except InfeasibleError:
            return None

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
                probe = self._probe(_with_own_inputs(self.compiled.rows, row))
                probe.sample()
                kernel_ns[row.kernel] = probe.times()[task]
            times[task] += kernel_ns[row.kernel]
        return times

    def _probe(self, rows: Rows) -> _Probe:
        plan, order = serial_plan(self.graph, self.cluster, self.placement)
        lowered = lower(rows, self.graph, self.cluster, plan, order)
        executor = NativeExecutor(
            str(library_path()),
            str(self.compiled.library.path),
            lowered.program.to_text(),
            blob=weights_blob(lowered),
        )
        _fill_inputs(executor)
        return _Probe(executor, plan, self.device, len(self.graph.tasks))


class _Probe:
    """A program that is run again and again, with a clock around every kernel."""

    def __init__(self, executor: NativeExecutor, plan: Plan, device: int, num_tasks: int) -> None:
        self._executor = executor
        self._plan = plan
        self._device = device
        self._num_tasks = num_tasks
        self._samples: list[list[int]] = []
        warm_ns = max(1, int(min(executor.benchmark(3))))
        self._num_runs = min(_MAX_RUNS, max(_MIN_RUNS, _ROUND_NS // warm_ns))

    def sample(self) -> None:
        """Note the median time of each task over one round of runs."""
        times = [0] * self._num_tasks
        medians = self._executor.profile(self._num_runs)
        for instruction, median_ns in zip(self._executor.instructions, medians, strict=True):
            action = self._plan.steps[instruction.step]
            is_kernel = isinstance(action, Run) and instruction.kernel is not None
            if is_kernel and action.device == self._device:
                times[action.task] += int(median_ns)
        self._samples.append(times)

    def times(self) -> list[int]:
        """The times of the second shortest round, in ns; 0 for tasks that ran elsewhere.

        Other programs only ever lengthen a run, so long rounds say more about them than about the
        device; one round is kept whole, as times of different rounds do not add up.
        """
        return sorted(self._samples, key=sum)[min(1, len(self._samples) - 1)]


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
