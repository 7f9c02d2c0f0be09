"""Stated skew and co-activation -> route decisions, as a model with such habits would make them.

Two habits of the routers in Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI
2023): loads are unbalanced, here by Zipf's law over the branches in a random order; and a cell that
took some branch takes one of a few branches of the next router (in TaskMoE after expert 0 of one
layer experts 14 or 15 of the next). Reproducible: equal options give equal decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from heteroplace.errors import RoutingError
from heteroplace.model.routed.route_profile import RouteRecord, RouterShape
from heteroplace.options import option

NUM_PARTNERS = 2
_MAX_CHOICES = 1 << 26
"""Cells times branches of a router."""
_MAIN_PARTNER_SHARE = 0.7
"""Of the cells that follow a partner; the others take the second one."""


@dataclass(frozen=True)
class TraceOptions:
    """How the decisions are distributed.

    Raises
    ------
    RoutingError
        A number is out of range.
    """

    num_runs: int = option(100, "runs", name="runs", metavar="N", parse=int)
    skew: float = option(
        1.0,
        "exponent of Zipf's law: the i-th most popular branch is as likely as 1 / i^skew; 0: all "
        "are alike",
        metavar="S",
        parse=float,
    )
    coactivation: float = option(
        0.0,
        "share of the cells that take a partner of the branch that they took before, 0..1",
        metavar="SHARE",
        parse=float,
    )
    top_k: int = option(
        1, "branches that a cell takes; all where there are fewer", metavar="K", parse=int
    )
    seed: int = option(0, "seed of every random choice, >= 0", metavar="N", parse=int)

    def __post_init__(self) -> None:
        limits = (
            ("runs", self.num_runs, self.num_runs >= 1, ">= 1"),
            ("skew", self.skew, 0 <= self.skew <= 10, "in 0..10"),
            ("coactivation", self.coactivation, 0 <= self.coactivation <= 1, "in 0..1"),
            ("top_k", self.top_k, self.top_k >= 1, ">= 1"),
            ("seed", self.seed, self.seed >= 0, ">= 0"),
        )
        faults = [
            f"{name} must be {rule}, got {value}"
            for name, value, is_in, rule in limits
            if not is_in
        ]
        if faults:
            raise RoutingError("; ".join(faults))


def synthesise(routers: Sequence[RouterShape], options: TraceOptions) -> Iterator[RouteRecord]:
    """Return the decisions of `options.num_runs` runs, router by router, made as they are taken.

    Cells keep their place: co-activation is between a router and the one before it, where both
    decide about as many cells. Each router decides in every run; see `reached_records`.

    Raises
    ------
    RoutingError
        A router has too many cells and branches to be held in memory: told at once.
    """
    for router in routers:
        if router.num_cells * router.num_branches > _MAX_CHOICES:
            raise RoutingError(
                f"router {router.name!r} decides about {router.num_cells} cells and "
                f"{router.num_branches} branches; at most {_MAX_CHOICES} pairs of both are made up"
            )
    return _decisions(routers, options)


def _decisions(routers: Sequence[RouterShape], options: TraceOptions) -> Iterator[RouteRecord]:
    random = np.random.default_rng(options.seed)
    popularity = [_popularity(router.num_branches, options.skew, random) for router in routers]
    partners = [
        _partners(before.num_branches, router.num_branches, random)
        for before, router in pairwise(routers)
    ]
    for run in range(options.num_runs):
        first: npt.NDArray[np.int64] | None = None
        for index, router in enumerate(routers):
            weights = np.log(popularity[index])
            scores = weights + random.gumbel(size=(router.num_cells, router.num_branches))
            if first is not None and len(first) == router.num_cells:
                follows = random.random(router.num_cells) < options.coactivation
                second = random.random(router.num_cells) >= _MAIN_PARTNER_SHARE
                chosen = partners[index - 1][first, second.astype(np.int64)]
                scores[follows, chosen[follows]] = np.inf
            top_k = min(options.top_k, router.num_branches)
            order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
            first = order[:, 0]
            yield _record(run, router, np.sort(order, axis=1))


def reached_records(
    records: Iterable[RouteRecord], parents: Mapping[str, tuple[str, int]]
) -> Iterator[RouteRecord]:
    """Yield the decisions of routers that are reached; outer ones are expected before inner ones.

    Parameters
    ----------
    parents
        Nested router -> router and branch that it is in. It decides only in runs in which that
        branch has cells.

    >>> records = [RouteRecord(run, "outer", (run, 1 - run), None) for run in (0, 1)]
    >>> records += [RouteRecord(run, "inner", (1, 0), None) for run in (0, 1)]
    >>> [(each.run, each.router) for each in reached_records(records, {"inner": ("outer", 0)})]
    [(0, 'outer'), (1, 'outer'), (1, 'inner')]
    """
    active: set[tuple[int, tuple[str, int]]] = set()
    for record in records:
        parent = parents.get(record.router)
        if parent is None or (record.run, parent) in active:
            yield record
            active |= {(record.run, (record.router, branch)) for branch in record.active}


def _popularity(
    num_branches: int, skew: float, random: np.random.Generator
) -> npt.NDArray[np.float64]:
    """The share of each branch."""
    shares = 1.0 / np.arange(1, num_branches + 1) ** skew
    return random.permutation(shares / shares.sum())


def _partners(
    num_before: int, num_after: int, random: np.random.Generator
) -> npt.NDArray[np.int64]:
    """The partners of each branch, [num_before][NUM_PARTNERS]: pairs of branches go to pairs."""
    before, after = random.permutation(num_before), random.permutation(num_after)
    partners = np.zeros((num_before, NUM_PARTNERS), dtype=np.int64)
    for place, branch in enumerate(before):
        for turn in range(NUM_PARTNERS):
            partners[branch, turn] = after[(place ^ turn) % num_after]
    return partners


def _record(run: int, router: RouterShape, taken: npt.NDArray[np.int64]) -> RouteRecord:
    loads = np.bincount(taken.ravel(), minlength=router.num_branches)
    cells = tuple(tuple(row) for row in taken.tolist())
    return RouteRecord(run, router.name, tuple(loads.tolist()), cells)
