"""A model that no single device can hold -> true times of its tasks, measured over several devices.

Celeritas ("Celeritas: Fast Optimizer for Large Dataflow Graphs", section 4.2), step 2 of its
Standard Evaluation: place the model on as few devices as hold it (`sequential_placement`), run that
with a clock around every kernel, give the measured times to the placer. A task keeps the time
that was measured, wherever it is placed later; copies are not counted.

What even all devices together cannot hold is measured group by group: the tasks that follow each
other on one device run alone, on made-up inputs, in halves where they do not fit. Times of devices
on which a task did not run are the rough ones, times a factor of the device (measured over rough).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from heteroplace.costs.standard_evaluation import scaled_cost
from heteroplace.errors import InfeasibleError, MissingCostError
from heteroplace.lower.compile import CompiledKernels, CompiledNetwork
from heteroplace.measure.devices_under_test import device_class
from heteroplace.measure.kernels.kernel_calls import only_calls
from heteroplace.measure.plan_program import serial_program
from heteroplace.measure.rounds import ROUND_NS, Rounds, sample_until_settled
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.run.missing_devices import missing_devices
from heteroplace.solve.list.sequential_placement import (
    PIPELINE,
    SequentialPlacement,
    sequential_placement,
)

_NUM_ROUNDS = 5


@dataclass(frozen=True)
class SequentialMeasurement:
    """The times of one sequential run, and what they make of the rough costs."""

    placement: SequentialPlacement
    """Where the tasks ran."""
    times: tuple[int, ...]
    """Measured time of each task on its device, in ns."""
    in_groups: bool
    """Whether the model did not fit on all devices together, so that its parts ran alone."""
    factors: Mapping[int, float]
    """For each device with measured tasks, measured over rough time of those tasks."""
    costs: CostTable
    """The rough table with what was measured in place of what was estimated."""


def measure_sequential(
    compiled: CompiledNetwork,
    cluster: Cluster,
    rough: CostTable,
    order: str = PIPELINE,
) -> SequentialMeasurement:
    """Measure a network on a placement that fills one device after the other.

    Parameters
    ----------
    compiled
        The network.
    rough
        Costs to place by, e.g. those of `heteroplace.costs.standard_evaluation`.
    order
        See `sequential_placement`.

    Raises
    ------
    MissingCostError
        A device that is needed is not in this machine.
    InfeasibleError
        No device can run some task, or one task alone does not fit on its device.
    LoweringError
        An op cannot be compiled for its device.
    """
    graph = compiled.graph
    rough.check(graph, cluster)
    placement = sequential_placement(graph, cluster, rough, order)
    used = sorted(set(placement.devices))
    absent = missing_devices(cluster, [cluster.devices[device].name for device in used])
    if absent:
        raise MissingCostError(
            f"cannot measure on devices that are not in this machine: {'; '.join(absent)}"
        )
    kernels = compiled.kernels(cluster, placement.devices)
    try:
        times, in_groups = _measured(kernels, graph, cluster, placement.devices), False
    except InfeasibleError:
        times, in_groups = _times_in_groups(kernels, graph, cluster, placement.devices), True
    factors = _factors(placement.devices, times, rough)
    costs = _corrected(graph, cluster, rough, placement.devices, times, factors)
    return SequentialMeasurement(placement, tuple(times), in_groups, factors, costs)


def _measured(
    kernels: CompiledKernels, graph: TaskGraph, cluster: Cluster, devices: Sequence[int]
) -> list[int]:
    """Run the kernels one after the other; return the time of each task, 0 ns without one."""
    rounds = Rounds(serial_program(kernels, graph, cluster, devices), ROUND_NS)
    sample_until_settled([rounds], _NUM_ROUNDS)
    return rounds.task_times()


def _times_in_groups(
    kernels: CompiledKernels, graph: TaskGraph, cluster: Cluster, devices: Sequence[int]
) -> list[int]:
    """Run the tasks of each segment of one device alone; a segment that does not fit, in halves."""
    segments = [list(tasks) for _, tasks in groupby(range(len(devices)), devices.__getitem__)]
    segments.reverse()
    times = [0] * len(devices)
    while segments:
        tasks = segments.pop()
        names = {graph.tasks[task].name for task in tasks}
        calls = [call for call in kernels.calls.calls if call.task in names]
        if not calls:
            continue  # nothing but reshapes, which take no time
        part = replace(kernels, calls=only_calls(kernels.calls, calls))
        try:
            group_times = _measured(part, graph, cluster, devices)
        except InfeasibleError as err:
            if len(tasks) == 1:
                raise InfeasibleError(
                    f"task {graph.tasks[tasks[0]].name!r} cannot be measured even alone: {err}"
                ) from err
            middle = len(tasks) // 2
            segments += [tasks[middle:], tasks[:middle]]
            continue
        for task in tasks:
            times[task] = group_times[task]
    return times


def _factors(devices: Sequence[int], times: Sequence[int], rough: CostTable) -> dict[int, float]:
    factors = {}
    for device in sorted(set(devices)):
        tasks = [task for task, at in enumerate(devices) if at == device]
        expected = sum(rough.run_ns(task, device) or 0 for task in tasks)
        if expected:
            factors[device] = sum(times[task] for task in tasks) / expected
    return factors


def _corrected(
    graph: TaskGraph,
    cluster: Cluster,
    rough: CostTable,
    devices: Sequence[int],
    times: Sequence[int],
    factors: Mapping[int, float],
) -> CostTable:
    """The rough table, measured where a task ran, and else times the factor of the device."""
    alike = [device_class(cluster, device) for device in range(len(cluster.devices))]
    factor_of = {alike[device]: factor for device, factor in factors.items()}

    def cost(task: int, device: int) -> Cost:
        if alike[device] == alike[devices[task]]:
            return Cost.measured(times[task], reason="in a sequential placement")
        old, factor = rough.cost(task, device), factor_of.get(alike[device])
        is_measured = old.source in ("measured", "given")
        if old.ns is None or factor is None or is_measured:
            return old
        return scaled_cost(old, factor)

    return build_table(graph, cluster, cost)
