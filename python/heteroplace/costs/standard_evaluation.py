"""Graphs and cost tables at small batch sizes -> those at a batch too large to be measured.

Celeritas ("Celeritas: Fast Optimizer for Large Dataflow Graphs", section 4.1), step 1 of its
Standard Evaluation: run a model at a few batch sizes that fit, fit a line per node, evaluate it at
the batch that is requested. Sizes of tensors are lines in the batch exactly; workspaces nearly; run
times only where the caches treat the large batch as they treat the small ones. So times had best
be measured with the traffic of the large batch (`heteroplace.measure.batches`).

The tasks of all sizes must be the same ones, by name, ops and edges; that is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heteroplace.costs.prediction.regression import BatchFit, fit_batches
from heteroplace.errors import CostMismatchError, GraphError
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, Tensor

SLOW_BYTES_PER_SECOND = 10_000_000_000
"""Bandwidth by which weights are fetched where the cluster does not say: that of one core."""
MIN_LAUNCH_NS = 1_000
"""No kernel has less than this of its own, with its first misses."""

MEDIAN_OF_DEVIATIONS = 0.6745
"""Half of normal deviations are within this part of their standard deviation."""


def regressed_cost(fit: BatchFit, batch: int) -> Cost:
    """Return the cell of a cost table for a time that `fit` predicts."""
    sizes = ", ".join(map(str, fit.batches))
    return Cost.regressed(
        round(fit.predict(batch)),
        f"{fit.form} in the batch, from batches {sizes}",
        round(MEDIAN_OF_DEVIATIONS * fit.error_ratio(batch), 4),
    )


def scaled_cost(rough: Cost, factor: float) -> Cost:
    """Return a rough cell times what its device was found to be slower or faster by."""
    assert rough.ns is not None
    reason = f"{rough.reason}, times {factor:.3g} measured on other tasks".removeprefix(", ")
    return replace(rough, ns=round(rough.ns * factor), reason=reason)


def check_same_tasks(graphs: Mapping[int, TaskGraph]) -> None:
    """Raise CostMismatchError unless the graphs of all batch sizes have the same tasks and edges.

    Names count by their position: the task of one name must be of the same ops everywhere.
    """
    sizes = sorted(graphs)
    if not sizes:
        raise CostMismatchError("no graph is given; measure at two batch sizes or more")
    first = graphs[sizes[0]]
    for size in sizes[1:]:
        other = graphs[size]
        where = f"between batch {sizes[0]} and batch {size} of {first.name!r}"
        if len(other.tasks) != len(first.tasks):
            raise CostMismatchError(
                f"{where} the number of tasks changes from {len(first.tasks)} to "
                f"{len(other.tasks)}: they were optimised differently, and times of one say "
                f"nothing about the other. Measure at sizes where they agree"
            )
        for old, new in zip(first.tasks, other.tasks, strict=True):
            if (old.name, old.op) != (new.name, new.op):
                raise CostMismatchError(
                    f"{where} task {old.name!r} ({old.op}) becomes {new.name!r} ({new.op}); "
                    f"measure at sizes where they agree"
                )
        if first.task_inputs != other.task_inputs or first.task_outputs != other.task_outputs:
            raise CostMismatchError(f"{where} the edges change; measure at sizes where they agree")


def estimate_graph(graphs: Mapping[int, TaskGraph], batch: int) -> TaskGraph:
    """Return the task graph at a batch size, every size of it fitted by a line.

    Parameters
    ----------
    graphs
        By batch size: two or more; the same tasks in all.
    batch
        The size that is requested, >= 1.

    Raises
    ------
    CostMismatchError
        The graphs differ in more than sizes, or are too few.
    GraphError
        The extents of a tensor do not grow by whole numbers.
    """
    check_same_tasks(graphs)
    sizes = sorted(graphs)
    first = graphs[sizes[0]]

    def at(values: list[int]) -> int:
        return max(0, round(fit_batches(sizes, values, "memory").predict(batch)))

    tasks = []
    for index, task in enumerate(first.tasks):
        same = [graphs[size].tasks[index] for size in sizes]
        tasks.append(
            replace(
                task,
                flops=at([each.flops for each in same]),
                workspace_bytes=at([each.workspace_bytes for each in same]),
                weight_bytes=max(each.weight_bytes for each in same),
            )
        )
    tensors = [
        _tensor_at([graphs[size].tensors[index] for size in sizes], sizes, batch)
        for index in range(len(first.tensors))
    ]
    return replace(first, tasks=tuple(tasks), tensors=tuple(tensors))


def _tensor_at(same: list[Tensor], sizes: list[int], batch: int) -> Tensor:
    """The tensor with each extent and its bytes at another batch size."""
    shape = []
    for extents in zip(*(tensor.shape for tensor in same), strict=True):
        extent = fit_batches(sizes, extents, "memory").predict(batch)
        if abs(extent - round(extent)) > 1e-6 * max(1.0, extent):
            raise GraphError(
                f"tensor {same[0].name!r} has extents {list(extents)} at batches {sizes}, and "
                f"{extent:g} at {batch}: not a whole number. Export the model with that batch"
            )
        shape.append(round(extent))
    bytes_ = fit_batches(sizes, [tensor.bytes for tensor in same], "memory").predict(batch)
    return replace(same[0], shape=tuple(shape), bytes=round(bytes_))


def likely_intercept_ns(task: Task, device: Device) -> float:
    """Return what a run of a task may take whatever the batch: a launch, and its weights once."""
    bandwidth = device.memory_bytes_per_second or SLOW_BYTES_PER_SECOND
    return max(device.launch_ns, MIN_LAUNCH_NS) + 1e9 * task.weight_bytes / bandwidth


def fit_times(
    tables: Mapping[int, CostTable], task_id: int, device_id: int, likely_intercept: float
) -> BatchFit | None:
    """Return the fit of one task on one device; None: the device cannot run it.

    Raises
    ------
    MissingCostError
        A time is unknown.
    CostMismatchError
        Fewer than two batch sizes have a time.
    """
    times = {size: tables[size].run_ns(task_id, device_id) for size in sorted(tables)}
    times_by_size = {size: ns for size, ns in times.items() if ns is not None}
    if not times_by_size:
        return None
    return fit_batches(list(times_by_size), list(times_by_size.values()), "time", likely_intercept)


def estimate_costs(
    graph: TaskGraph, cluster: Cluster, tables: Mapping[int, CostTable], batch: int
) -> CostTable:
    """Return the costs of the graph at a batch size, each cell predicted by its own fit.

    Parameters
    ----------
    graph
        The graph at `batch` (see `estimate_graph`).
    tables
        By batch size, the costs of the graph at that size, one run each (batch 1 of the table).
        What all of them do not know stays unknown.

    Raises
    ------
    As `fit_times`.
    """

    def cost(task: int, device: int) -> Cost:
        if all(table.cost(task, device).source == "unknown" for table in tables.values()):
            return Cost.unknown()
        likely = likely_intercept_ns(graph.tasks[task], cluster.devices[device])
        fit = fit_times(tables, task, device, likely)
        if fit is None:
            return tables[min(tables)].cost(task, device)
        return regressed_cost(fit, batch)

    return build_table(graph, cluster, cost)
