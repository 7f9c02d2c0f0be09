"""How often each route decision was made: what plans of routed networks are chosen by.

The dynamic profile of Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023).
Values here are counts only, so that the profiles of two traces add up to the profile of both;
probabilities and means are made of them when they are asked for. Unlike the paper's statistics
(mean, maximum and sum of each branch's load) the whole histogram is kept: percentiles, distances of
distributions and expected costs need it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from heteroplace.errors import RoutingError

Histogram = tuple[tuple[int, int], ...]
"""(load, in how many runs) of one branch, by ascending load; what no run had is left out."""
Cells = tuple[tuple[int, ...], ...]
"""For each cell the branches that it takes, ascending; (): it is dropped."""


@dataclass(frozen=True, slots=True)
class RouterShape:
    """What a router decides about."""

    name: str
    """The same whatever the cluster, the plan and the capacities are."""
    num_cells: int
    num_branches: int


@dataclass(frozen=True, slots=True)
class RouteRecord:
    """What one router decided in one run."""

    run: int
    """Number of the run; of each router that decides in it there is one record, of one in a branch
    without cells none."""
    router: str
    loads: tuple[int, ...]
    """Cells of each branch. [num_branches]"""
    cells: Cells | None = None
    """The decision itself (level 2); None: the loads alone are known (level 1). [num_cells]"""

    @property
    def active(self) -> tuple[int, ...]:
        """Branches with at least one cell, ascending."""
        return tuple(branch for branch, load in enumerate(self.loads) if load)

    def at_level(self, level: int) -> RouteRecord:
        """Return the record without what a recording of level 1 leaves out."""
        return self if level > 1 else replace(self, cells=None)


@dataclass(frozen=True)
class RouterProfile:
    """The decisions of one router in some runs, counted.

    In each histogram the counts add up to `num_runs`, and so do those of the active sets; a branch
    has load 0 as often as it is in no active set (checked when a file is read).
    """

    name: str
    num_cells: int
    num_branches: int
    num_runs: int
    loads: tuple[Histogram, ...]
    """[num_branches]"""
    active_sets: tuple[tuple[tuple[int, ...], int], ...]
    """(branches with a cell, in how many runs just these), by the branches."""

    def load_pmf(self, branch: int) -> tuple[tuple[int, float], ...]:
        """Return (load, probability) of a branch by ascending load; () of no runs."""
        return tuple((load, count / self.num_runs) for load, count in self.loads[branch])

    def total_load(self, branch: int) -> int:
        """Return the cells that a branch got in all runs together."""
        return sum(load * count for load, count in self.loads[branch])

    def mean_load(self, branch: int) -> float:
        """Return the mean number of cells of a branch in a run; 0.0 of no runs."""
        return self.total_load(branch) / self.num_runs if self.num_runs else 0.0

    def max_load(self, branch: int) -> int:
        """Return the most cells that a branch got in a run; 0 of no runs."""
        return max((load for load, _ in self.loads[branch]), default=0)

    def activation(self, branch: int) -> float:
        """Return in what share of the runs a branch had a cell; 0.0 of no runs."""
        idle = sum(count for load, count in self.loads[branch] if load == 0)
        return 1 - idle / self.num_runs if self.num_runs else 0.0

    def set_probability(self, branches: Iterable[int]) -> float:
        """Return in what share of the runs just these branches had cells; 0.0 of no runs."""
        branch_set = tuple(sorted(branches))
        num_runs = sum(count for active, count in self.active_sets if active == branch_set)
        return num_runs / self.num_runs if self.num_runs else 0.0


@dataclass(frozen=True)
class Transition:
    """Which branch of the next router the cells of each branch take."""

    src: str
    """Router."""
    dst: str
    """The next router that decides about as many cells."""
    num_runs: int
    """In which both decisions were recorded cell by cell."""
    counts: tuple[tuple[int, int, int, int], ...]
    """(branch of src, branch of dst, number of branches of dst that such a cell takes, cells in all
    runs), ascending."""

    def cells_per_run(self) -> dict[tuple[int, int], float]:
        """Return the mean number of cells that take a branch of each: {(of src, of dst): cells}.

        A cell that takes several branches of dst counts as a part of one for each, so that the sum
        over them is the number of its cells that are not dropped.
        """
        cells: dict[tuple[int, int], float] = {}
        for of_src, of_dst, num_taken, count in self.counts:
            key = of_src, of_dst
            cells[key] = cells.get(key, 0.0) + count / num_taken / self.num_runs
        return cells


@dataclass(frozen=True)
class RouteProfile:
    """The route decisions of one model in some runs, counted."""

    model_digest: str
    """Of the model whose decisions these are; plans of another one do not take it."""
    routers: tuple[RouterProfile, ...]
    """In the order in which they decide."""
    transitions: tuple[Transition, ...] = ()
    """Of neighbours in that order whose decisions were recorded cell by cell."""

    def router(self, name: str) -> RouterProfile:
        """Return the profile of a router.

        Raises
        ------
        RoutingError
            There is none of that name.
        """
        for profile in self.routers:
            if profile.name == name:
                return profile
        names = ", ".join(repr(each.name) for each in self.routers) or "none"
        raise RoutingError(f"the profile has no router {name!r}; it has: {names}")

    def transition(self, src: str, dst: str) -> Transition | None:
        """Return how cells go from one router to another; None: it was not recorded."""
        for transition in self.transitions:
            if (transition.src, transition.dst) == (src, dst):
                return transition
        return None

    def check_model(self, digest: str) -> None:
        """Raise RoutingError if the profile is that of another model."""
        if digest != self.model_digest:
            raise RoutingError(
                f"the profile is of a model with digest {self.model_digest}, this one has "
                f"{digest}: route decisions of another model say nothing about it; record runs of "
                f"this one (executor.record), or bind its weights if they are not in it"
            )


Profile = RouteProfile | str | os.PathLike[str]
"""A profile, or the path of one or of a recording."""


def following_routers(routers: Iterable[RouterShape]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of which transitions are counted: each router and the next as large.

    Parameters
    ----------
    routers
        In the order in which they decide.

    >>> shapes = [RouterShape(name, cells, 2) for name, cells in (("a", 4), ("b", 1), ("c", 4))]
    >>> following_routers(shapes)
    ((0, 2),)
    """
    latest: dict[int, int] = {}
    pairs = []
    for index, router in enumerate(routers):
        if router.num_cells in latest:
            pairs.append((latest[router.num_cells], index))
        latest[router.num_cells] = index
    return tuple(sorted(pairs))
