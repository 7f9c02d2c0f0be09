"""An order of the tasks, cut into one stage for each device, by dynamic programming.

For a topological order and an order of the devices the cuts with the least largest load are exact,
where the load of a stage is its run time, or its copies in or out at the mean speed of the links
of its memory, and a stage must fit in its memory. Tasks of one colocation group, and all that lies
between them, are one node of the order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, permutations

import numpy as np

from heteroplace.coarsen.transfers import mean_ns_per_byte
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_graph import Dag
from heteroplace.solve.deadline import NEVER, Deadline, TimeUpError
from heteroplace.solve.lp.linear_program import FloatArray
from heteroplace.solve.problem import Problem

MAX_SPLIT_NODES = 600
"""Nodes of an order that are cut: time and memory grow with their square."""
_MAX_LOADS = 2**25
"""Loads of stages on all devices, 8 bytes each."""
_MAX_DEVICE_ORDERS = 60
_TRIED_ORDERS = 50_000
"""Orders of devices that are looked at for some that differ: of 7 devices there are 5040."""
_ORDERS_PER_LOOK = 100
"""Of those between looks at the clock."""


@dataclass(frozen=True)
class _Order:
    """Nodes in order, and what each two cuts would enclose."""

    nodes: list[list[int]]
    """Tasks of each node."""
    read_bytes: FloatArray
    """[first, last + 1], of tensors that come from nodes before."""
    sent_bytes: FloatArray
    """[first, last + 1], of tensors that go to nodes behind."""


def stage_splits(problem: Problem, deadline: Deadline = NEVER) -> list[IntArray]:
    """Return placements in stages, for some orders of tasks and devices.

    Parameters
    ----------
    deadline
        Past it what was found so far is returned; too many nodes or devices give nothing.
    """
    splits: list[IntArray] = []
    try:
        device_orders = _device_orders(problem, deadline)
        for order in _orders(problem, deadline):
            loads = []
            for device in range(len(problem.cluster.devices)):
                loads.append(_loads(problem, order, device))
                deadline.check()
            for devices in device_orders:
                placement = _cut(order, [loads[device] for device in devices], devices, deadline)
                if placement is not None:
                    splits.append(placement)
    except TimeUpError:
        pass
    return splits


def _orders(problem: Problem, deadline: Deadline) -> Iterable[_Order]:
    graph, groups = problem.graph, problem.native.task_group
    edges = [(p, t) for t, before in enumerate(graph.predecessors) for p in before]
    first: dict[int, int] = {}
    node_of = np.arange(len(graph.tasks))
    for task, group in enumerate(groups):
        if group >= 0:
            node_of[task] = first.setdefault(group, task)
    merged = Dag.of_edges(
        len(graph.tasks), [int(node_of[a]) for a, _ in edges], [int(node_of[b]) for _, b in edges]
    )
    # What lies between tasks of one group goes with them.
    component = merged.strong_components()[node_of]
    names, component = np.unique(component, return_inverse=True)
    num_loads = len(problem.cluster.devices) * (len(names) + 1) ** 2
    if len(names) > MAX_SPLIT_NODES or num_loads > _MAX_LOADS:
        return
    pairs = [(int(component[a]), int(component[b])) for a, b in edges]
    pairs = [(a, b) for a, b in pairs if a != b]
    dag = Dag.of_edges(len(names), [a for a, _ in pairs], [b for _, b in pairs])
    members: list[list[int]] = [[] for _ in names]
    for task, node in enumerate(component.tolist()):
        members[node].append(task)
    for order in (dag.breadth_first_order(), dag.depth_first_order()):
        nodes = [members[node] for node in order.tolist()]
        yield _Order(nodes, *_crossing_bytes(problem, nodes, deadline))


def _crossing_bytes(
    problem: Problem, nodes: list[list[int]], deadline: Deadline
) -> tuple[FloatArray, FloatArray]:
    graph = problem.graph
    count = len(nodes)
    position = {task: index for index, tasks in enumerate(nodes) for task in tasks}
    read, sent = np.zeros((count + 1, count + 1)), np.zeros((count + 1, count + 1))
    for tensor in graph.tensors:
        if tensor.producer is None:
            continue
        maker = position[tensor.producer]
        readers = sorted({position[task] for task in tensor.consumers} - {maker})
        if not readers:
            continue
        deadline.check()
        # Stages that hold the producer but not the last reader.
        sent[: maker + 1, maker + 1 : readers[-1] + 1] += tensor.bytes
        # Stages that begin behind the producer: those with some reader, by the first of them.
        begin = maker + 1
        for reader in readers:
            read[begin : reader + 1, reader + 1 :] += tensor.bytes
            begin = reader + 1
    return read, sent


def _loads(problem: Problem, order: _Order, device: int) -> FloatArray:
    """[first, last + 1], load of a stage in ns; infinite where it cannot be."""
    graph, cluster, native = problem.graph, problem.cluster, problem.native
    run_ns = native.run_ns[:, device]
    held = native.weight_bytes.astype(float)
    for tensor in graph.tensors:
        if tensor.producer is not None:
            held[tensor.producer] += tensor.bytes
    workspace = max((task.workspace_bytes for task in graph.tasks), default=0)
    is_bad = run_ns == IMPOSSIBLE
    sums = []
    for values in (np.where(is_bad, 0, run_ns), is_bad, held):
        of_node = [float(values[tasks].sum()) for tasks in order.nodes]
        total = np.concatenate([[0.0], np.cumsum(of_node)])
        sums.append(total[None, :] - total[:, None])
    run, num_bad, num_bytes = sums
    memory = cluster.devices[device].memory
    sizes = native.tensor_bytes[native.producer >= 0].astype(np.float64)
    speed = mean_ns_per_byte(cluster, memory, sizes)
    load: FloatArray = np.maximum(run, np.maximum(order.read_bytes, order.sent_bytes) * speed)
    room = cluster.memories[memory].bytes - workspace
    load[(num_bad > 0) | (num_bytes + order.read_bytes > room)] = np.inf
    np.fill_diagonal(load, 0.0)
    return load


def _device_orders(problem: Problem, deadline: Deadline) -> list[tuple[int, ...]]:
    """Orders of the devices, one for all that differ by equal devices only."""
    cluster, run_ns = problem.cluster, problem.native.run_ns
    orders_of_times: dict[tuple[bytes, int], int] = {}
    kinds = []
    for device_id, device in enumerate(cluster.devices):
        kind = run_ns[:, device_id].tobytes(), cluster.memories[device.memory].bytes
        kinds.append(orders_of_times.setdefault(kind, len(orders_of_times)))
    if len(orders_of_times) == 1:
        return [tuple(range(len(kinds)))]
    seen = set()
    orders = []
    for number, order in enumerate(islice(permutations(range(len(kinds))), _TRIED_ORDERS)):
        if number % _ORDERS_PER_LOOK == 0:
            deadline.check()
        pattern = tuple(kinds[device] for device in order)
        if pattern not in seen:
            seen.add(pattern)
            orders.append(order)
        if len(orders) >= _MAX_DEVICE_ORDERS:
            break
    return orders


def _cut(
    order: _Order, loads: list[FloatArray], devices: tuple[int, ...], deadline: Deadline
) -> IntArray | None:
    """The cuts of least largest load; None: no stages fit."""
    count = len(order.nodes)
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    choices = []
    for load in loads:
        deadline.check()
        worst = np.maximum(best[:, None], np.where(np.tri(count + 1, k=-1) > 0, np.inf, load))
        choice = worst.argmin(axis=0)
        best = worst[choice, np.arange(count + 1)]
        choices.append(choice)
    if not np.isfinite(best[count]):
        return None
    placement = np.zeros(sum(map(len, order.nodes)), dtype=np.int64)
    end = count
    for device, choice in zip(reversed(devices), reversed(choices), strict=True):
        begin = int(choice[end])
        for tasks in order.nodes[begin:end]:
            placement[tasks] = device
        end = begin
    return placement
