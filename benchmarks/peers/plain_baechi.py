"""m-ETF and m-SCT in plain Python, as one writes them down from Baechi's description.

The yardstick of `place_peers`: dicts, lists and a heap, the whole graph in one linear program.
Source: Jeon et al., "Baechi", SoCC 2020, section 3. Times are those of this package's model: a
tensor is copied once to a memory, one after the other on what its route occupies; a device runs one
task after the other, without insertion into gaps; memory by the static rule. Clusters must have one
unit per device and no host memory, as those of Moirai's suite.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from heteroplace.errors import SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.native.list import MeanGraph
from heteroplace.solve.lp.linear import optimal_values
from heteroplace.solve.lp.linear_program import MixedProgram
from heteroplace.solve.problem import Problem

Key = tuple[int, int, int, int, int]
"""(earliest start, -b-level, run time, task, device)"""


@dataclass
class PlainResult:
    """Where each task goes and the order in which they were placed."""

    placement: list[int]
    order: list[int]


def plain_m_etf(problem: Problem, mean: MeanGraph) -> PlainResult:
    """Of all ready tasks and devices with room, again and again the pair that starts first."""
    return _PlainScheduler(problem, mean, {}).run()


def plain_m_sct(problem: Problem, mean: MeanGraph, threshold: float = 0.1) -> PlainResult:
    """As m-ETF, with devices that wait for the favourite child of what they ran last."""
    return _PlainScheduler(problem, mean, plain_favourites(mean, threshold)).run()


class _PlainScheduler:
    """A schedule that grows.

    Starts only become later while others are placed, so an entry of the heap is a lower bound: it
    is looked at again when it comes up.
    """

    def __init__(self, problem: Problem, mean: MeanGraph, favourite: dict[int, int]) -> None:
        graph, cluster = problem.graph, problem.cluster
        self.graph, self.cluster, self.favourite = graph, cluster, favourite
        self.run_ns: list[list[int]] = problem.native.run_ns.tolist()
        self.blevel = _blevels(mean)
        self.memory = [device.memory for device in cluster.devices]
        self.routes = _routes(cluster)
        self.free_ns = [0] * len(cluster.devices)
        self.link_free_ns: dict[int, int] = {}
        self.room = [memory.bytes for memory in cluster.memories]
        self.there: dict[tuple[int, int], int] = {}
        """(tensor, memory) -> when it is there."""
        self.home: dict[int, int] = {}
        self.finish_ns = [0] * len(graph.tasks)
        self.device = [-1] * len(graph.tasks)
        self.order: list[int] = []
        self.workspace = [0] * len(cluster.devices)
        """Bytes of the largest workspace of each device's tasks, which they share."""
        self.last = [-1] * len(cluster.devices)
        """What each device ran last."""
        for tensor in graph.inputs:
            for memory in range(len(cluster.memories)):
                self.there[tensor, memory] = 0

    def run(self) -> PlainResult:
        graph = self.graph
        waiting = [len(before) for before in graph.predecessors]
        heap: list[Key] = []
        for task, count in enumerate(waiting):
            if count == 0:
                self._push(heap, task)
        while len(self.order) < len(graph.tasks):
            if not heap:
                raise SolverError("m-ETF in plain Python found no device with room for a task")
            key = heapq.heappop(heap)
            task, device = key[3], key[4]
            if self.device[task] >= 0:
                continue
            now = self._key(task, device)
            if now is None:
                continue
            if heap and now > heap[0] and now > key:
                heapq.heappush(heap, now)
                continue
            until = self._awake_until(task, device, now[0])
            if until > key[0]:
                heapq.heappush(heap, (until, *now[1:]))
                continue
            self._place(task, device)
            for reader in graph.successors[task]:
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    self._push(heap, reader)
        return PlainResult(self.device, self.order)

    def _push(self, heap: list[Key], task: int) -> None:
        for device in range(len(self.memory)):
            key = self._key(task, device)
            if key is not None:
                heapq.heappush(heap, key)

    def _key(self, task: int, device: int) -> Key | None:
        """What the heap sorts by; None: the device cannot run the task or has no room for it."""
        run, memory = self.run_ns[task][device], self.memory[device]
        if run < 0 or self._need_bytes(task, device) > self.room[memory]:
            return None
        start = max(self.free_ns[device], self._fetch(task, memory, is_kept=False))
        return (start, -self.blevel[task], run, task, device)

    def _need_bytes(self, task: int, device: int) -> int:
        graph, memory = self.graph, self.memory[device]
        need = graph.tasks[task].weight_bytes
        need += max(0, graph.tasks[task].workspace_bytes - self.workspace[device])
        need += sum(graph.tensors[tensor].bytes for tensor in graph.task_outputs[task])
        for tensor in graph.task_inputs[task]:
            if (tensor, memory) not in self.there:
                need += graph.tensors[tensor].bytes
        return need

    def _fetch(self, task: int, memory: int, is_kept: bool) -> int:
        """When all inputs are in the memory; whether their copies are kept or only tried."""
        free_ns = self.link_free_ns if is_kept else dict(self.link_free_ns)
        ready = 0
        for tensor in self.graph.task_inputs[task]:
            arrived = self.there.get((tensor, memory))
            if arrived is None:
                home = self.home[tensor]
                route, resources = self.routes[home, memory]
                begin = self.there[tensor, home]
                for resource in resources:
                    begin = max(begin, free_ns.get(resource, 0))
                num_bytes = self.graph.tensors[tensor].bytes
                arrived = begin + self.cluster.transfer_ns(route, num_bytes)
                free_ns.update(dict.fromkeys(resources, arrived))
                if is_kept:
                    self.there[tensor, memory] = arrived
            ready = max(ready, arrived)
        return ready

    def _place(self, task: int, device: int) -> None:
        memory = self.memory[device]
        self.room[memory] -= self._need_bytes(task, device)
        used = self.graph.tasks[task].workspace_bytes
        self.workspace[device] = max(self.workspace[device], used)
        start = max(self.free_ns[device], self._fetch(task, memory, is_kept=True))
        finish = start + self.run_ns[task][device]
        self.free_ns[device] = self.finish_ns[task] = finish
        for tensor in self.graph.task_outputs[task]:
            self.there[tensor, memory] = finish
            self.home[tensor] = memory
        self.device[task] = device
        self.last[device] = task
        self.order.append(task)

    def _awake_until(self, task: int, device: int, start: int) -> int:
        """When the device is no longer kept for the favourite child of what it ran last.

        That child must be ready and start nowhere earlier; it itself and urgent tasks, which would
        start nowhere later, may run at once.
        """
        child = self.favourite.get(self.last[device], -1)
        if child in (-1, task) or self.device[child] >= 0:
            return start
        before = self.graph.predecessors[child]
        if any(self.device[one] < 0 or self.finish_ns[one] > start for one in before):
            return start
        starts = self._starts(child)
        if device not in starts or starts[device] > min(starts.values()):
            return start
        if start >= max(self._starts(task).values()):
            return start
        return starts[device] + self.run_ns[child][device]

    def _starts(self, task: int) -> dict[int, int]:
        keys = {device: self._key(task, device) for device in range(len(self.memory))}
        return {device: key[0] for device, key in keys.items() if key is not None}


def _routes(cluster: Cluster) -> dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]]:
    """(from, to) -> links of the route, and what a copy over it occupies."""
    routes = {}
    memories = range(len(cluster.memories))
    for pair in [(src, dst) for src in memories for dst in memories if src != dst]:
        route = cluster.route(*pair)
        routes[pair] = route, cluster.route_resources(route)
    return routes


def plain_favourites(mean: MeanGraph, threshold: float) -> dict[int, int]:
    """Return the favourite child of each task that has one: one program for the whole graph."""
    run, paid = mean.run_ns.astype(float), mean.transfer_ns.astype(float)
    src, dst, count, num_edges = mean.src, mean.dst, len(mean.run_ns), len(mean.src)
    unit = max(1.0, float(run.max()), float(paid.max(initial=0)))
    edge, ones = np.arange(num_edges), np.ones(num_edges)
    program = MixedProgram()
    program.add_columns(count)
    program.add_columns(num_edges, upper=1.0)
    program.add_column(0.0, np.inf, cost=1.0)
    starts = (edge, src, ones), (edge, dst, -ones), (edge, count + edge, paid / unit)
    program.add_rows(-run[src] / unit, *starts)
    for node in (src, dst):
        degree = np.bincount(node, minlength=count)
        # A task without edges is a row 0 <= 0.
        program.add_rows(np.minimum(0.0, 1.0 - degree), (node, count + edge, -ones))
    task, last = np.arange(count), np.full(count, count + num_edges)
    program.add_rows(-run / unit, (task, task, np.ones(count)), (task, last, -np.ones(count)))
    values = optimal_values(program, "plain m-SCT")
    if values is None:
        raise SolverError("the linear program of m-SCT in plain Python has no solution")
    child: dict[int, int] = {}
    parent: dict[int, int] = {}
    for index in np.flatnonzero(values[count:-1] <= threshold).tolist():
        begin, end = int(src[index]), int(dst[index])
        if begin in child:
            del parent[child[begin]]
        if end in parent:
            del child[parent[end]]
        child[begin], parent[end] = end, begin
    return child


def _blevels(mean: MeanGraph) -> list[int]:
    """Longest way from the start of each task to the end, transfers included."""
    run: list[int] = mean.run_ns.tolist()
    edges = list(zip(mean.src.tolist(), mean.dst.tolist(), mean.transfer_ns.tolist(), strict=True))
    levels = list(run)
    # Edges come by ascending source, and every source is before its readers.
    for src, dst, transfer in reversed(edges):
        levels[src] = max(levels[src], run[src] + transfer + levels[dst])
    return levels
