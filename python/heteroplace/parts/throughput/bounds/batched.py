"""Bounds of the makespan of several items in batches, after the throughput bound of DiviML.

Section IV-E, DOI 10.48550/arXiv.2308.00127.

For modules M and G joined by channels, and any b of the L items: before b items have left M at
least OPT_b(M) has passed, and of the other items, each blocked until then at one of the outputs of
M, some output blocks at least their number over the number of outputs, rounded up. So

    T >= OPT_b(M) + min over outputs O of OPT_n(what of G comes after O),  n = ceil((L - b + 1) / c)

and mirrored in time. Here M is all modules up to one, itself bounded in the same way. Transfers on
the channels count 0. Throughput is at most L over the bound.

Unlike DiviML: n is as above, where the paper takes L - b + 1, which is wrong as soon as items are
blocked at different outputs (`BlockedItems`); and OPT_b allows batches that are larger than the
items in them, since those of the whole plan may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heteroplace.errors import SolverError
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.core_graph import BoolArray
from heteroplace.parts.throughput.bounds.batched_subset_bounds import BatchedSubsetBounds
from heteroplace.parts.throughput.decompose.decomposition import modules_of
from heteroplace.parts.throughput.decompose.narrow_cuts import Boundary, ModulePath
from heteroplace.parts.throughput.decompose.reach import longest_path_ns, reached
from heteroplace.solve.bounds.bound import Bound
from heteroplace.solve.bounds.load import Loads
from heteroplace.solve.bounds.quick import best_of
from heteroplace.solve.deadline import NEVER, Deadline, TimeUpError
from heteroplace.solve.problem import Problem

_NEVER_NS = 1 << 62
"""Longer than any task. Times of all items together that are not smaller have no load bound: they
do not fit an array."""

BlockedItems = Literal["corrected", "published"]
"""How many items wait at one output: their number over that of the outputs, or all of them."""


def batched_lower_bound(
    problem: Problem,
    items: int,
    *,
    rounds: int = 1,
    time_limit_s: float = 0.0,
    path: ModulePath | None = None,
    blocked: BlockedItems = "corrected",
    deadline: Deadline = NEVER,
) -> Bound:
    """Return a makespan of `items` items that no plan is below.

    Parameters
    ----------
    rounds
        Batches of a task on one device at most, for the modules that are solved.
    time_limit_s
        For solving modules; 0: critical paths and loads alone, the same on every machine.
    path
        The modules; None: they are found, and if there are none the whole is one.
    blocked
        "published" is not valid where modules have several outputs: only for comparison.
    deadline
        Past it modules prove nothing.
    """
    if blocked not in ("corrected", "published"):
        raise SolverError(f"blocked is {blocked!r}; there are: corrected, published")
    if not problem.graph.tasks or not _runs(problem, items).any(axis=(0, 2)).all():
        return Bound(0, "none")
    bounds = _direct_bounds(problem, items)
    if deadline.is_over():
        return best_of(bounds)
    path = modules_of(problem).path if path is None else path
    if path is not None and len(path.modules) > 1:
        try:
            forward, mirrored, largest = batched_module_bounds(
                problem,
                items,
                path,
                rounds=rounds,
                time_limit_s=time_limit_s,
                blocked=blocked,
                deadline=deadline,
            )
        except TimeUpError:
            return best_of(bounds)
        bounds += [
            Bound(forward, "modules"),
            Bound(mirrored, "modules, mirrored"),
            Bound(largest, "largest module"),
        ]
    return best_of(bounds)


def batched_module_bounds(
    problem: Problem,
    items: int,
    path: ModulePath,
    *,
    rounds: int = 1,
    time_limit_s: float = 0.0,
    blocked: BlockedItems = "corrected",
    deadline: Deadline = NEVER,
) -> tuple[int, int, int]:
    """Return bounds in ns: the recursion from the first module on, mirrored, the largest module.

    Every task needs a device. Parameters as `batched_lower_bound`.

    Raises
    ------
    TimeUpError
        Past the deadline.
    """
    subsets = BatchedSubsetBounds(problem, rounds, Deadline.after(time_limit_s), deadline)
    forward = _Side(problem, path, subsets, blocked, is_mirrored=False)
    backward = _Side(problem, path, subsets, blocked, is_mirrored=True)
    largest = max(subsets.bound_ns(module, items) for module in path.modules)
    return forward.bound_ns(items), backward.bound_ns(items), largest


def _direct_bounds(problem: Problem, items: int) -> list[Bound]:
    """Critical path, each task in its shortest batch; and load, each item with its share of the
    batch in which that is least. Transfers and memory are ignored."""
    native, graph = problem.native, problem.graph
    sizes = np.array(problem.costs.batches)
    is_possible = _runs(problem, items)
    run_ns = native.batch_run_ns[sizes <= items]
    shortest = np.where(is_possible, run_ns, _NEVER_NS).min(axis=(0, 2))
    load = 0
    if int(run_ns.max(initial=0)) * items < _NEVER_NS:
        # Rounded down for each task and device, so that the load stays below the true one.
        shares = run_ns * items // sizes[sizes <= items][:, None, None]
        least = np.where(is_possible, shares, _NEVER_NS).min(axis=0)
        least[~is_possible.any(axis=0)] = IMPOSSIBLE
        load = Loads(native, least).bound_ns(slice(None))
    path = longest_path_ns(graph, range(len(graph.tasks)), shortest.tolist())
    return [Bound(path, "critical path"), Bound(load, "load")]


def _runs(problem: Problem, items: int) -> BoolArray:
    """Whether a task runs in batches of at most so many items: [num_batches, tasks, devices]."""
    sizes = np.array(problem.costs.batches)
    runs: BoolArray = problem.native.batch_run_ns[sizes <= items] != IMPOSSIBLE
    return runs


@dataclass
class _Side:
    """The recursion from the first module on, or mirrored from the last one back."""

    problem: Problem
    path: ModulePath
    subsets: BatchedSubsetBounds
    blocked: BlockedItems
    is_mirrored: bool

    def __post_init__(self) -> None:
        order = range(len(self.path.modules))
        self._order = list(reversed(order)) if self.is_mirrored else list(order)
        graph = self.problem.graph
        self._ahead: Sequence[Sequence[int]] = (
            graph.predecessors if self.is_mirrored else graph.successors
        )
        self._back: Sequence[Sequence[int]] = (
            graph.successors if self.is_mirrored else graph.predecessors
        )
        self._waiting = [self._waiting_sets(step) for step in range(len(self._order) - 1)]

    def bound_ns(self, items: int) -> int:
        """Return the recursive bound for all modules. O(modules * items^2)."""
        counts = range(1, items + 1)
        first: list[int] = []
        """For each number of items, less one, the least time for the modules up to a step."""
        for step, module in enumerate(self._order[:-1]):
            alone = [self.subsets.bound_ns(self.path.modules[module], n) for n in counts]
            both = alone
            if step:
                rest = {n: self._rest(step - 1, n) for n in counts}
                both = [max(_sum(first, rest, n), first[n - 1]) for n in counts]
            first = list(map(max, alone, both))
        # All items first: where the time for modules ends, that is worth most.
        return _sum(first, {n: self._rest(len(self._order) - 2, n) for n in counts[::-1]}, items)

    def _rest(self, step: int, items: int) -> int:
        """Least time for so many items behind the outputs of a module, at the next one."""
        waiting = self._waiting[step]
        if not waiting:
            return 0
        if self.blocked == "corrected":
            items = -(-items // len(waiting))
        return min(self.subsets.bound_ns(tasks, items) if tasks else 0 for tasks in waiting)

    def _waiting_sets(self, step: int) -> list[tuple[int, ...]]:
        """For each output of a module what waits for it in the next; none: no bound from here."""
        here, there = self._order[step], self._order[step + 1]
        boundary = self.path.boundaries[min(here, there)]
        ends = self._channels(boundary)
        if any(one is None or other is None for one, other in ends):
            return []
        outputs = sorted({one for one, _ in ends if one is not None})
        inside = set(self.path.modules[here])
        # What the argument needs: the last of an item's tasks here is one of the outputs.
        if reached(inside.intersection(outputs), self._back, inside) != inside:
            return []
        next_tasks = set(self.path.modules[there])
        sets = []
        for output in outputs:
            inputs = [other for one, other in ends if one == output and other is not None]
            if boundary.split is not None:
                inputs = [task for task in self._ahead[output] if task in next_tasks]
            waiting = reached(next_tasks.intersection(inputs), self._ahead, next_tasks)
            sets.append(tuple(sorted(waiting)))
        return sets

    def _channels(self, boundary: Boundary) -> list[tuple[int | None, int | None]]:
        if boundary.split is not None and self.is_mirrored:
            # The split task is an output of the module before: mirrored, its readers are.
            reads = set(self.path.modules[self.path.boundaries.index(boundary) + 1])
            readers = self.problem.graph.successors[boundary.split]
            return [(task, boundary.split) for task in readers if task in reads]
        pairs = boundary.channels
        return [(dst, src) if self.is_mirrored else (src, dst) for src, dst in pairs]


def _sum(first: Sequence[int], rest: Mapping[int, int], items: int) -> int:
    """Time up to the module before, and of what then still waits at its outputs."""
    return max(first[left - 1] + rest[items - left + 1] for left in range(1, items + 1))
