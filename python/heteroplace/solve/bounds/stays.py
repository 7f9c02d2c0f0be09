"""Stays: what a path through the graph takes if no memory may hold more of it than it has room for.

Along a path each task waits for the one before it and for the copy of its tensor where they are
in different memories. Tasks that follow each other in one memory are a stay; their weights are
there together, so a stay has at most that memory's bytes of them. The cheapest cut of the path into
stays, by dynamic programming, is a bound: wherever a memory is full a tensor has to be copied, or
the work is done on a device of a larger one. That a memory may be left and entered again is allowed
here, with all of its room.

Prices per byte (`src/bounds`) do not see this where many memories have room together: in fractions
a task is everywhere, and no tensor has to be copied. As they, this covers no copies that are
relayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.core_graph import Dag
from heteroplace.native.core_problem import NativeProblem

_SCALE = 1 << 30
"""Sum of a kind of weights that a path is chosen by: integers."""
_MAX_WORK = 200_000
"""Tasks of a path times pairs of memories, half a second: of a longer path nothing is proven."""
_Edges = dict[tuple[int, int], list[int]]
"""The tensors from one task to another."""


def stays_bound(native: NativeProblem) -> int:
    """Return the bound in ns, 0 if nothing is proven; every task needs a device.

    O(num_edges + num_path_tasks * num_memories^2).
    """
    graph = native.graph
    edges: _Edges = {}
    for index, tensor in enumerate(graph.tensors):
        if tensor.producer is None:
            continue
        for consumer in tensor.consumers:
            edges.setdefault((tensor.producer, consumer), []).append(index)
    paths = [_longest_path(native, edges, share) for share in (0.0, 0.5)]
    if paths[0] == paths[1]:
        paths.pop()
    most = _MAX_WORK // max(1, len(native.cluster.memories) ** 2)
    return max((_Stays(native, edges).bound_ns(p) for p in paths if len(p) <= most), default=0)


def _longest_path(native: NativeProblem, edges: _Edges, byte_share: float) -> list[int]:
    """A path of much time on the fastest devices, and of many bytes as `byte_share` says."""
    # IMPOSSIBLE is no number to choose by.
    run = np.where(native.run_ns == IMPOSSIBLE, np.iinfo(np.int64).max, native.run_ns)
    weights = np.zeros(len(run))
    for values, share in ((run.min(axis=1), 1 - byte_share), (native.weight_bytes, byte_share)):
        weights += share * values / max(1.0, float(values.sum(dtype=np.float64)))
    dag = Dag.of_edges(len(run), [src for src, _ in edges], [dst for _, dst in edges])
    scaled = np.rint(weights * _SCALE).astype(np.int64)
    levels = dag.levels(scaled, np.zeros(dag.num_edges, dtype=np.int64))
    path: list[int] = levels.critical_path.tolist()
    return path


class _Stays:
    """The dynamic program over one path after the other."""

    def __init__(self, native: NativeProblem, edges: _Edges) -> None:
        self._native, self._edges = native, edges
        cluster = native.cluster
        self._room = [memory.bytes for memory in cluster.memories]
        self._devices: list[list[int]] = [[] for _ in cluster.memories]
        for index, device in enumerate(cluster.devices):
            self._devices[device.memory].append(index)
        self._known: dict[tuple[int, int, int], int] = {}

    def bound_ns(self, path: Sequence[int]) -> int:
        """Return the least time of a path, cut into stays."""
        count = len(self._room)
        # For each memory where a stay may have begun: the time before it less the run times before
        # it, and the bytes before it; times increase, as a later one that is less serves longer.
        begins: list[deque[tuple[int, int]]] = [deque() for _ in range(count)]
        done_ns, run_ns, num_bytes = [0] * count, [0] * count, 0
        for index, task in enumerate(path):
            tensors = self._edges[path[index - 1], task] if index else []
            size = int(self._native.weight_bytes[task])
            next_ns = [IMPOSSIBLE] * count
            for memory, room in enumerate(self._room):
                enters_ns = self._enters_ns(memory, done_ns, tensors) if index else 0
                took_ns = self._run_ns(task, memory)
                if took_ns == IMPOSSIBLE:
                    begins[memory].clear()
                    continue
                if enters_ns != IMPOSSIBLE:
                    self._note(begins[memory], enters_ns - run_ns[memory], num_bytes)
                run_ns[memory] += took_ns
                while begins[memory] and num_bytes - begins[memory][0][1] + size > room:
                    begins[memory].popleft()
                if begins[memory]:
                    next_ns[memory] = begins[memory][0][0] + run_ns[memory]
            num_bytes += size
            done_ns = next_ns
        possible = [ns for ns in done_ns if ns != IMPOSSIBLE]
        return min(possible, default=0)  # Without one there is no plan: nothing to be proven.

    @staticmethod
    def _note(begins: deque[tuple[int, int]], before_ns: int, num_bytes: int) -> None:
        while begins and begins[-1][0] >= before_ns:
            begins.pop()
        begins.append((before_ns, num_bytes))

    def _run_ns(self, task: int, memory: int) -> int:
        row = self._native.run_ns[task]
        possible = [int(row[d]) for d in self._devices[memory] if row[d] != IMPOSSIBLE]
        return min(possible, default=IMPOSSIBLE)

    def _enters_ns(self, memory: int, done_ns: Sequence[int], tensors: Sequence[int]) -> int:
        """The earliest time at which all the tensors can be in a memory, from another one."""
        sizes = {self._native.graph.tensors[tensor].bytes for tensor in tensors}
        times = [
            done + max(self._transfer_ns(size, src, memory) for size in sizes)
            for src, done in enumerate(done_ns)
            if src != memory and done != IMPOSSIBLE and self._is_reachable(src, memory)
        ]
        return min(times, default=IMPOSSIBLE)

    def _is_reachable(self, src: int, dst: int) -> bool:
        return self._native.cluster.is_reachable(src, dst)

    def _transfer_ns(self, num_bytes: int, src: int, dst: int) -> int:
        key = num_bytes, src, dst
        if key not in self._known:
            cluster = self._native.cluster
            self._known[key] = cluster.transfer_ns(cluster.route(src, dst), num_bytes)
        return self._known[key]
