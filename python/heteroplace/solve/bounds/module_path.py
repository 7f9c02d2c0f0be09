"""DiviML's recursive bound (section IV-E) over a path of modules joined by a few channels.

The last task of a module M to end is one of its outputs O, so all that follows O lies after the
whole of M; mirrored, the first task of the rest G to start is one of its inputs I, so all that
comes before I lies before the whole of G:

    OPT(M + G) >= OPT(M) + min over outputs O of OPT(what of G comes after O)
    OPT(M + G) >= OPT(G) + min over inputs I of OPT(what of M comes before I)

applied recursively from module to module. Transfers on the channels count 0. Unlike DiviML: each
OPT is a proven bound of the part (`Parts`), never an incumbent; the load of all tasks counts where
it is larger than such a sum; and where an output has several channels, all of them lie behind it,
so that the largest counts (the minimum is over outputs, not over channels).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from heteroplace.decompose.narrow_cuts import (
    End,
    ModulePath,
    edge_connected_modules,
    prefix_modules,
    single_channel_modules,
)
from heteroplace.model.graph import TaskGraph
from heteroplace.solve.bounds.parts import MAX_SOLVED_TASKS, Part, Parts
from heteroplace.solve.problem import Problem

MAX_MODULE_PATH_TASKS = 5000
"""Larger graphs have too many modules to solve them one by one."""
_CHANNELS = (2, 3, 4, 6, 9, 16)
"""Numbers of channels tried, in this order, until all modules are small enough."""
_MAX_EDGE_CONNECTED_TASKS = 400
"""Above this only prefixes of orders are tried: edge-connected components take a flow per task."""


@dataclass(frozen=True)
class _Value:
    """A bound and the parts whose bounds it is a sum of."""

    ns: int
    parts: tuple[Part, ...] = ()

    def __add__(self, other: _Value) -> _Value:
        return _Value(self.ns + other.ns, self.parts + other.parts)


_ZERO = _Value(0)


def module_bound(problem: Problem, path: ModulePath, time_limit_s: float, threads: int = 1) -> int:
    """Return the recursive bound in ns over a path of modules.

    Every task needs a device. The modules that the bound depends on are solved first; it grows with
    the time and is one whenever that ends.
    """
    begin = time.perf_counter()
    recursion = ModuleRecursion(problem, path)
    while True:
        value, critical = recursion.bound()
        left = time_limit_s - (time.perf_counter() - begin)
        if left <= 0 or not recursion.parts.improve(critical, left, threads):
            return value


def find_modules(graph: TaskGraph) -> ModulePath | None:
    """Return a path of modules of at most MAX_SOLVED_TASKS tasks; None if none is found."""
    if not 0 < len(graph.tasks) <= MAX_MODULE_PATH_TASKS:
        return None
    for path in _paths(graph):
        if max(map(len, path.modules), default=0) <= MAX_SOLVED_TASKS:
            return path
    return None


def _paths(graph: TaskGraph) -> Iterator[ModulePath]:
    yield single_channel_modules(graph, max_tasks=MAX_SOLVED_TASKS)
    target = MAX_SOLVED_TASKS * 3 // 4
    for channels in _CHANNELS:
        yield prefix_modules(graph, channels, target)
        if len(graph.tasks) <= _MAX_EDGE_CONNECTED_TASKS:
            yield edge_connected_modules(graph, channels, target)


class ModuleRecursion:
    """The recursive bound of one problem over one path of modules."""

    def __init__(self, problem: Problem, path: ModulePath) -> None:
        """Find what comes before and after each channel. Checks what the argument needs of a path:
        every task of a module reaches an output of it, and is reached from an input."""
        self.parts = Parts(problem)
        self._graph = problem.graph
        self._load: dict[Part, int] = {}
        self._path = path
        self._module_of = {
            task: index for index, module in enumerate(path.modules) for task in module
        }
        self._successors: list[list[int]] = [[] for _ in problem.graph.tasks]
        for task, before in enumerate(problem.graph.predecessors):
            for other in before:
                self._successors[other].append(task)
        for index in range(len(path.boundaries)):
            reach = self._before(index, self._ends(index, is_output=True))
            assert reach == path.modules[index], f"module {index}: a task reaches no output"
            reach = self._after(index + 1, self._ends(index, is_output=False))
            assert reach == path.modules[index + 1], f"module {index + 1}: no input reaches a task"

    def bound(self) -> tuple[int, tuple[Part, ...]]:
        """Return the bound in ns with what is proven so far, and the parts that it is made of."""
        last = len(self._path.modules) - 1
        memo: dict[tuple[int, Part], _Value] = {}
        whole = self._opt(self._path.modules[last])
        for module in range(last - 1, -1, -1):
            tasks = self._path.modules[module]
            whole = self._at_least_load(
                tasks,
                self._opt(tasks) + self._rest(module, tasks, memo),
                whole + self._least_before(module, tasks),
            )
        return whole.ns, whole.parts

    def _opt(self, tasks: Part) -> _Value:
        return _Value(self.parts.bound_ns(tasks), (tasks,)) if tasks else _ZERO

    def _at_least_load(self, tasks: Part, *sums: _Value) -> _Value:
        """The largest of some sums, and no less than the load of some tasks and of all that comes
        after them, in all modules. The load is of no part: those of the sum could still beat it."""
        best = max(sums, key=_ns)
        if tasks not in self._load:
            waiting, seen = list(tasks), set(tasks)
            while waiting:
                for other in self._successors[waiting.pop()]:
                    if other not in seen:
                        seen.add(other)
                        waiting.append(other)
            self._load[tasks] = self.parts.load_ns(tuple(sorted(seen)))
        return _Value(max(best.ns, self._load[tasks]), best.parts)

    def _rest(self, module: int, tasks: Part, memo: dict[tuple[int, Part], _Value]) -> _Value:
        """Least over the outputs in `tasks` of what comes after one, in all later modules."""
        inside = set(tasks)
        after: dict[int, list[End]] = {}
        for src, dst in self._path.boundaries[module].channels:
            if src in inside and src is not None:
                after.setdefault(src, []).append(dst)
        values = [
            max((self._from(module + 1, end, memo) for end in ends), key=_ns)
            for ends in after.values()
        ]
        return min(values, key=_ns, default=_ZERO)

    def _from(self, module: int, end: End, memo: dict[tuple[int, Part], _Value]) -> _Value:
        """LB(s, k) of DiviML: what comes after the input `end` in `module` and all later ones."""
        tasks = self._after(module, [end])
        if not tasks:
            return _ZERO
        if module == len(self._path.modules) - 1:
            return self._opt(tasks)
        if (module, tasks) not in memo:
            inside = set(tasks)
            inputs = [dst for src, dst in self._path.boundaries[module].channels if src in inside]
            deepest = max((self._from(module + 1, dst, memo) for dst in inputs), key=_ns)
            memo[module, tasks] = self._at_least_load(
                tasks,
                self._opt(tasks) + self._rest(module, tasks, memo),
                deepest + self._least_before(module, tasks),
            )
        return memo[module, tasks]

    def _least_before(self, module: int, tasks: Part) -> _Value:
        """Least over the inputs of the next module of what of `tasks` comes before one."""
        inside = set(tasks)
        before: dict[int, list[End]] = {}
        for src, dst in self._path.boundaries[module].channels:
            if dst is not None and (src in inside or src is None):
                before.setdefault(dst, []).append(src)
        values = []
        for ends in before.values():
            reach = [t for t in self._before(module, ends) if t in inside]
            values.append(self._opt(tuple(reach)))
        return min(values, key=_ns, default=_ZERO)

    def _ends(self, boundary: int, is_output: bool) -> list[End]:
        side = 0 if is_output else 1
        return [channel[side] for channel in self._path.boundaries[boundary].channels]

    def _after(self, module: int, ends: Iterable[End]) -> Part:
        """Tasks of a module that come after one of its inputs, the input included."""
        return self._closure(module, ends, self._successors)

    def _before(self, module: int, ends: Iterable[End]) -> Part:
        """Tasks of a module that come before one of its outputs, the output included."""
        return self._closure(module, ends, self._graph.predecessors)

    def _closure(
        self, module: int, ends: Iterable[End], neighbours: Sequence[Sequence[int]]
    ) -> Part:
        # A split task is in the module before: it is passed through but not counted.
        waiting = [end for end in ends if end is not None]
        seen = set(waiting)
        while waiting:
            for other in neighbours[waiting.pop()]:
                if other not in seen and self._module_of[other] == module:
                    seen.add(other)
                    waiting.append(other)
        return tuple(sorted(task for task in seen if self._module_of[task] == module))


def _ns(value: _Value) -> int:
    return value.ns
