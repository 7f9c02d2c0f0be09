"""Weights of tasks and edges that stand for no device in particular, and the levels they give.

Celeritas, section 4.1 (DOI 10.48550/arXiv.2208.00184): t-level, b-level, critical path and CCR
(equations 1 to 3). Unlike Celeritas, whose devices are all equal: the weight of a task is the mean
over the devices where it may be, and that of an edge the mean over ordered pairs of different
devices, as in HEFT (Topcuoglu et al. 2002), rounded to whole nanoseconds once per tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heteroplace.coarsen.transfers import mean_transfer_ns
from heteroplace.errors import InfeasibleError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.native.core_arrays import IMPOSSIBLE, allowed_run_ns, group_ids
from heteroplace.native.core_graph import BoolArray, Dag, IntArray, Levels


@dataclass(frozen=True)
class LevelWeights:
    """A graph with one weight for each node and edge."""

    dag: Dag
    task_ns: IntArray
    """[num_tasks], run times."""
    edge_ns: IntArray
    """[num_edges], transfer times if the ends are on different devices."""

    def levels(self) -> Levels:
        """Return t-level, b-level and a critical path. O(n + m)."""
        return self.dag.levels(self.task_ns, self.edge_ns)

    @property
    def ccr(self) -> float:
        """Communication to computation, sum / sum (Celeritas, equation 3).

        Fusion lowers it, since it removes edges and keeps the run times. Without any run time it
        is infinite, or 0 if there is no communication either.
        """
        return _ratio(int(self.edge_ns.sum()), int(self.task_ns.sum()))


def level_weights(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, *, items: int = 1
) -> LevelWeights:
    """Return the mean run and transfer times of a graph. O(n K + m).

    An edge between two tasks weighs as much as the transfers of all tensors that the second reads
    from the first. Model inputs and outputs are no edges.

    Parameters
    ----------
    items
        As of `run_times`.

    Raises
    ------
    InfeasibleError
        No device can run some task.
    MissingCostError
        A cost is unknown.
    """
    dag, edge_of_read, tensor_of_read = _edges(graph)
    sizes = np.array([tensor.bytes for tensor in graph.tensors], dtype=np.float64)
    distinct, size_of_tensor = np.unique(sizes, return_inverse=True)
    tensor_ns = np.rint(mean_transfer_ns(cluster, distinct)).astype(np.int64)[size_of_tensor]
    edge_ns = np.zeros(dag.num_edges, dtype=np.int64)
    np.add.at(edge_ns, edge_of_read, tensor_ns[tensor_of_read])
    return LevelWeights(dag, _mean_run_ns(graph, cluster, costs, items), edge_ns)


def task_dag(graph: TaskGraph) -> Dag:
    """Return the tasks of a graph with an edge for each pair that shares a tensor."""
    return _edges(graph)[0]


def usable_devices(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, *, items: int = 1
) -> BoolArray:
    """Return [num_tasks, num_devices]: the task, with its colocation group, may be there.

    Raises
    ------
    MissingCostError
        A cost is unknown.
    """
    usable: BoolArray = run_times(graph, cluster, costs, items=items) != IMPOSSIBLE
    return usable


def run_times(graph: TaskGraph, cluster: Cluster, costs: CostTable, *, items: int = 1) -> IntArray:
    """Return [num_tasks, num_devices] of run times of one item; IMPOSSIBLE: as solvers have it.

    Parameters
    ----------
    items
        Of the plans that are made: where a device takes larger batches only, its time is that of
        an item in the smallest batch of at most so many.

    Raises
    ------
    MissingCostError
        A cost is unknown.
    """
    groups = group_ids(graph)
    times = allowed_run_ns(graph, cluster, costs, groups, 1)
    for batch in costs.batches[1:]:
        if batch <= items:
            in_batch = allowed_run_ns(graph, cluster, costs, groups, batch)
            is_new = (times == IMPOSSIBLE) & (in_batch != IMPOSSIBLE)
            times[is_new] = in_batch[is_new] // batch
    return times


def _edges(graph: TaskGraph) -> tuple[Dag, IntArray, IntArray]:
    """The graph of tasks; the edge and the tensor of each (tensor, consumer) pair."""
    src: list[int] = []
    dst: list[int] = []
    tensors: list[int] = []
    for tensor_id, tensor in enumerate(graph.tensors):
        if tensor.producer is not None:
            for consumer in tensor.consumers:
                src.append(tensor.producer)
                dst.append(consumer)
                tensors.append(tensor_id)
    dag = Dag.of_edges(len(graph.tasks), src, dst)
    return dag, dag.edge_ids(src, dst), np.array(tensors, dtype=np.int64)


def _mean_run_ns(graph: TaskGraph, cluster: Cluster, costs: CostTable, items: int) -> IntArray:
    """Of each task over the devices where it may be, rounded half up."""
    times = run_times(graph, cluster, costs, items=items)
    is_usable = times != IMPOSSIBLE
    count = is_usable.sum(axis=1)
    for task in np.flatnonzero(count == 0)[:1].tolist():
        group = graph.tasks[task].together
        with_group = "" if group is None else f", with its colocation group {group!r},"
        raise InfeasibleError(
            f"task {graph.tasks[task].name!r}{with_group} can run on no device of cluster "
            f"{cluster.name!r}; give it a cost on one, or allow more devices for it"
        )
    # Divided before they are added up, so that no sum is above the longest time.
    parts, rests = np.divmod(np.where(is_usable, times, 0), count[:, None])
    mean: IntArray = parts.sum(axis=1) + (2 * rests.sum(axis=1) + count) // (2 * count)
    return mean


def _ratio(part: int, whole: int) -> float:
    if whole == 0:
        return float("inf") if part else 0.0
    return part / whole
