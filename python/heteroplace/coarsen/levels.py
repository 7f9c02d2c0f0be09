"""Weights of tasks and edges that stand for no device in particular, and the levels they give.

Celeritas, section 4.1 (DOI 10.48550/arXiv.2208.00184): t-level, b-level, critical path and CCR
(equations 1 to 3). Unlike Celeritas, whose devices are all equal: the weight of a task is the mean
over the devices able to run it, and that of an edge the mean over ordered pairs of different
devices, as in HEFT (Topcuoglu et al. 2002). Transfers are linear in bytes, so the mean over pairs
is linear too: it is one slope and one intercept for a cluster, rounded to whole nanoseconds once
per tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heteroplace.errors import InfeasibleError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable, without_barred
from heteroplace.model.graph import TaskGraph
from heteroplace.native.graph import BoolArray, Dag, IntArray, Levels


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


def level_weights(graph: TaskGraph, cluster: Cluster, costs: CostTable) -> LevelWeights:
    """Return the mean run and transfer times of a graph. O(n K + m).

    An edge between two tasks weighs as much as the transfers of all tensors that the second reads
    from the first. Model inputs and outputs are no edges.

    Raises
    ------
    InfeasibleError
        No device can run some task.
    MissingCostError
        A cost is unknown.
    """
    dag, edge_of_read, tensor_of_read = _edges(graph)
    sizes = np.array([tensor.bytes for tensor in graph.tensors], dtype=np.float64)
    slope, intercept = _mean_transfer(cluster)
    tensor_ns = np.rint(intercept + slope * sizes).astype(np.int64)
    edge_ns = np.zeros(dag.num_edges, dtype=np.int64)
    np.add.at(edge_ns, edge_of_read, tensor_ns[tensor_of_read])
    return LevelWeights(dag, _mean_run_ns(graph, cluster, costs), edge_ns)


def task_dag(graph: TaskGraph) -> Dag:
    """Return the tasks of a graph with an edge for each pair that shares a tensor."""
    return _edges(graph)[0]


def usable_devices(graph: TaskGraph, cluster: Cluster, costs: CostTable) -> BoolArray:
    """Return [num_tasks, num_devices]: the device can run all of the task's colocation group."""
    num_devices = len(cluster.devices)
    usable = np.zeros((len(graph.tasks), num_devices), dtype=bool)
    costs = without_barred(costs, graph, cluster)
    for task in range(len(graph.tasks)):
        for device in range(num_devices):
            usable[task, device] = costs.run_ns(task, device) is not None
    colocated: dict[str, list[int]] = {}
    for task_id, task_value in enumerate(graph.tasks):
        if task_value.together is not None:
            colocated.setdefault(task_value.together, []).append(task_id)
    for tasks in colocated.values():
        usable[tasks] = usable[tasks].all(axis=0)
    return usable


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


def _mean_run_ns(graph: TaskGraph, cluster: Cluster, costs: CostTable) -> IntArray:
    weights = np.zeros(len(graph.tasks), dtype=np.int64)
    devices = range(len(cluster.devices))
    costs = without_barred(costs, graph, cluster)
    for task in range(len(graph.tasks)):
        times = [costs.run_ns(task, device) for device in devices]
        known = [time for time in times if time is not None]
        if not known:
            raise InfeasibleError(
                f"task {graph.tasks[task].name!r} can run on no device of cluster "
                f"{cluster.name!r}; give it a cost on one, or allow more devices for it"
            )
        weights[task] = (2 * sum(known) + len(known)) // (2 * len(known))  # Rounded half up.
    return weights


def _mean_transfer(cluster: Cluster) -> tuple[float, float]:
    """Nanoseconds per byte and fixed nanoseconds, over ordered pairs that reach each other.

    Devices of one memory count as pairs with no transfer time.
    """
    slopes: list[float] = []
    intercepts: list[int] = []
    for src_id, src in enumerate(cluster.devices):
        for dst_id, dst in enumerate(cluster.devices):
            if src_id == dst_id or not cluster.is_reachable(src.memory, dst.memory):
                continue
            links = [cluster.links[link] for link in cluster.route(src.memory, dst.memory)]
            widths = [link.bytes_per_second for link in links]
            slopes.append(1e9 / min(widths) if widths else 0.0)
            intercepts.append(sum(link.latency_ns for link in links))
    count = max(1, len(slopes))
    return sum(slopes) / count, sum(intercepts) / count


def _ratio(part: int, whole: int) -> float:
    if whole == 0:
        return float("inf") if part else 0.0
    return part / whole
