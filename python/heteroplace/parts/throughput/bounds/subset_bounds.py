"""Proven bounds of sets of tasks, each as a problem of its own; equal ones share what is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heteroplace.parts.throughput.bounds.subproblem import Key, subproblem_key
from heteroplace.parts.throughput.decompose.reach import longest_path_ns
from heteroplace.solve.bounds.load import Loads
from heteroplace.solve.bounds.paths import find_paths
from heteroplace.solve.problem import Problem

Subset = tuple[int, ...]
"""Task ids, ascending."""


@dataclass
class _Known:
    """What is known about a subset, and about all that equal it."""

    bound_ns: int
    num_solves: int = 0
    is_final: bool = False
    """Solving it again does not help."""


class SubsetBounds:
    """Bounds of subsets of the tasks of one problem. Not thread-safe."""

    def __init__(self, problem: Problem) -> None:
        """Every task needs a device."""
        self._problem = problem
        self._loads = Loads(problem.native)
        self._key: dict[Subset, Key] = {}
        self._known: dict[Key, _Known] = {}

    def bound_ns(self, tasks: Subset) -> int:
        """Return what is proven about a subset, at first by its path and its load."""
        return self._of(tasks).bound_ns

    def load_ns(self, tasks: Subset) -> int:
        """Return the load of some tasks."""
        return self._loads.bound_ns(np.array(tasks))

    def open_subsets(self, critical: tuple[Subset, ...] | None, max_tasks: int) -> list[Subset]:
        """Return those of some subsets (None: of all) that a solve may improve, of equal ones one,
        those with the fewest solves first; larger ones are left out."""
        subsets: dict[Key, Subset] = {}
        for tasks in tuple(self._key) if critical is None else critical:
            if not self._of(tasks).is_final and len(tasks) <= max_tasks:
                subsets.setdefault(self._key[tasks], tasks)
        return sorted(subsets.values(), key=lambda t: (self._of(t).num_solves, -len(t), t))

    def learn(self, tasks: Subset, bound_ns: int, is_final: bool) -> None:
        """Keep what a solve of a subset proved."""
        subset = self._of(tasks)
        subset.bound_ns = max(subset.bound_ns, bound_ns)
        subset.is_final = subset.is_final or is_final
        subset.num_solves += 1

    def _of(self, tasks: Subset) -> _Known:
        if tasks not in self._key:
            self._key[tasks] = subproblem_key(self._problem, tasks)
        key = self._key[tasks]
        if key not in self._known:
            path = longest_path_ns(self._problem.graph, tasks, self._fastest_ns)
            self._known[key] = _Known(max(path, self.load_ns(tasks)))
        return self._known[key]

    @cached_property
    def _fastest_ns(self) -> list[int]:
        times: list[int] = find_paths(self._problem.native).fastest_ns.tolist()
        return times
