"""The recursive bound over a path of modules joined by a few channels.

Ghannane and Abdelfattah, DiviML: A Module-based Heuristic for Mapping Neural Networks onto
Heterogeneous Platforms, section IV-E, DOI 10.48550/arXiv.2308.00127.

The last task of a module M to end is one of its outputs O, so all that follows O lies after the
whole of M; mirrored, the first task of the rest G to start is one of its inputs I, so all that
comes before I lies before the whole of G:

    OPT(M + G) >= OPT(M) + min over outputs O of OPT(what of G comes after O)
    OPT(M + G) >= OPT(G) + min over inputs I of OPT(what of M comes before I)

applied recursively from module to module. Transfers on the channels count 0. Unlike DiviML: each
OPT is a proven bound of a subset of tasks (`SubsetBounds`), never an incumbent; the load of all
tasks counts where it is larger than such a sum; and where an output has several channels, all of
them lie behind it, so that the largest counts (the minimum is over outputs, not over channels).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heteroplace.parts.throughput.bounds.subset_bounds import Subset, SubsetBounds
from heteroplace.parts.throughput.decompose.narrow_cuts import End, ModulePath
from heteroplace.parts.throughput.decompose.reach import reached
from heteroplace.solve.problem import Problem


@dataclass(frozen=True)
class _Value:
    """A bound and the subsets whose bounds it is a sum of."""

    ns: int
    subsets: tuple[Subset, ...] = ()

    def __add__(self, other: _Value) -> _Value:
        return _Value(self.ns + other.ns, self.subsets + other.subsets)


_ZERO = _Value(0)


class ModuleRecursion:
    """The recursive bound of one problem over one path of modules."""

    def __init__(self, problem: Problem, path: ModulePath) -> None:
        """Find what comes before and after each channel. Checks what the argument needs of a path:
        every task of a module reaches an output of it, and is reached from an input."""
        self.subsets = SubsetBounds(problem)
        self._graph = problem.graph
        self._load: dict[Subset, int] = {}
        self._path = path
        self._inside = [frozenset(module) for module in path.modules]
        for index in range(len(path.boundaries)):
            reach = self._before(index, self._ends(index, is_output=True))
            assert reach == path.modules[index], f"module {index}: a task reaches no output"
            reach = self._after(index + 1, self._ends(index, is_output=False))
            assert reach == path.modules[index + 1], f"module {index + 1}: no input reaches a task"

    def bound(self) -> tuple[int, tuple[Subset, ...]]:
        """Return the bound in ns with what is proven so far, and the subsets that it is made of."""
        last = len(self._path.modules) - 1
        memo: dict[tuple[int, Subset], _Value] = {}
        whole = self._opt(self._path.modules[last])
        for module in range(last - 1, -1, -1):
            tasks = self._path.modules[module]
            whole = self._at_least_load(
                tasks,
                self._opt(tasks) + self._rest(module, tasks, memo),
                whole + self._least_before(module, tasks),
            )
        return whole.ns, whole.subsets

    def _opt(self, tasks: Subset) -> _Value:
        return _Value(self.subsets.bound_ns(tasks), (tasks,)) if tasks else _ZERO

    def _at_least_load(self, tasks: Subset, *sums: _Value) -> _Value:
        """The largest of some sums, and no less than the load of some tasks and of all that comes
        after them, in all modules. The load is of no subset: the sum could still beat it."""
        best = max(sums, key=_ns)
        if tasks not in self._load:
            later = reached(tasks, self._graph.successors)
            self._load[tasks] = self.subsets.load_ns(tuple(sorted(later)))
        return _Value(max(best.ns, self._load[tasks]), best.subsets)

    def _rest(self, module: int, tasks: Subset, memo: dict[tuple[int, Subset], _Value]) -> _Value:
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

    def _from(self, module: int, end: End, memo: dict[tuple[int, Subset], _Value]) -> _Value:
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

    def _least_before(self, module: int, tasks: Subset) -> _Value:
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

    def _after(self, module: int, ends: Iterable[End]) -> Subset:
        """Tasks of a module that come after one of its inputs, the input included."""
        return self._closure(module, ends, self._graph.successors)

    def _before(self, module: int, ends: Iterable[End]) -> Subset:
        """Tasks of a module that come before one of its outputs, the output included."""
        return self._closure(module, ends, self._graph.predecessors)

    def _closure(
        self, module: int, ends: Iterable[End], neighbours: Sequence[Sequence[int]]
    ) -> Subset:
        # A split task is in the module before: it is passed through but not counted.
        inside = self._inside[module]
        nodes = reached((end for end in ends if end is not None), neighbours, inside)
        return tuple(sorted(nodes & inside))


def _ns(value: _Value) -> int:
    return value.ns
