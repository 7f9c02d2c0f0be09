"""A task graph -> a tree of layers to fold it by, for pictures of graphs of any size.

A layer is a run of neighbours in the order of the graph, so layers never wait for each other in a
circle. Where names have paths ("h.3/attn/MatMul") a layer is what shares the beginning of one; else
graphs are cut where the fewest tensors cross, as between the blocks of a network.
"""

from __future__ import annotations

from itertools import accumulate

from heteroplace.model.demands import layers_of
from heteroplace.model.graph import TaskGraph

MAX_CHILDREN = 24
_Tree = list[object]
"""[name, first task, last task + 1, [children]]; no children: the tasks themselves."""


def layer_tree(graph: TaskGraph) -> _Tree:
    """Return the tree of all tasks."""
    return _Folder(graph).fold(0, len(graph.tasks), graph.name, 0)


class _Folder:
    def __init__(self, graph: TaskGraph) -> None:
        # A task of an imported model has the names that its user knows.
        layers = [layers_of(task) for task in graph.tasks]
        pairs = zip(graph.tasks, layers, strict=True)
        self._names = [own[0].strip("/") if own else task.name for task, own in pairs]
        self._paths = [tuple(name.split("/")[:-1]) for name in self._names]
        # crossing[i]: tensors that tasks before i make and tasks from i on read.
        change = [0] * (len(graph.tasks) + 1)
        for tensor in graph.tensors:
            if tensor.producer is not None and tensor.consumers:
                change[tensor.producer + 1] += 1
                change[tensor.consumers[-1] + 1] -= 1
        self._crossing = list(accumulate(change))

    def fold(self, first: int, end: int, name: str, depth: int) -> _Tree:
        """The tree of some neighbours, whose paths are equal up to a depth."""
        if end - first <= MAX_CHILDREN:
            return [name, first, end, []]
        parts = self._by_path(first, end, depth)
        if len(parts) == 1 and self._paths[first][depth : depth + 1]:
            return self.fold(first, end, name, depth + 1)
        deeper = 1
        if not 2 <= len(parts) <= MAX_CHILDREN:
            parts, deeper = self._by_cuts(first, end), 0
        children = [
            self.fold(low, high, self._label(low, high, depth if deeper else None), depth + deeper)
            for low, high in parts
        ]
        return [name, first, end, children]

    def _by_path(self, first: int, end: int, depth: int) -> list[tuple[int, int]]:
        starts = [first]
        for task in range(first + 1, end):
            before, own = (self._paths[t][depth : depth + 1] for t in (task - 1, task))
            if own != before:
                starts.append(task)
        return list(zip(starts, [*starts[1:], end], strict=True))

    def _by_cuts(self, first: int, end: int) -> list[tuple[int, int]]:
        """About equal parts, each cut where the fewest tensors cross nearby."""
        count = min(MAX_CHILDREN, -(-(end - first) // 8))
        size = (end - first) / count
        starts = [first]
        for number in range(1, count):
            middle = first + round(number * size)
            low = max(starts[-1] + 1, middle - int(size / 3))
            high = min(end, middle + int(size / 3) + 1)
            cut = min(range(low, high), key=lambda i: (self._crossing[i], abs(i - middle)))
            starts.append(cut)
        return list(zip(starts, [*starts[1:], end], strict=True))

    def _label(self, first: int, end: int, depth: int | None) -> str:
        if depth is not None and len(self._paths[first]) > depth:
            return "/".join(self._paths[first][: depth + 1])
        if end - first == 1:
            return self._names[first]
        return f"{self._names[first]} .. {self._names[end - 1]}"
