"""Loads that a branch was seen with -> the few sizes that it is compiled for.

Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023), dynamic horizontal
fusion: a kernel is tuned for some percentiles of the load, and a branch is padded to the nearest
one that is not smaller. Unlike the paper, sizes can also be chosen to cost least in all runs
together, by dynamic programming. In both ways runs in which a branch is idle do not count, since it
is skipped then, and the largest load is always a size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from heteroplace.errors import RoutingError
from heteroplace.model.routed.capacities import padded_load
from heteroplace.model.routed.route_profile import Histogram, RouterProfile
from heteroplace.parts.routing.dynamic.recorded_routes import merge_histograms

MODES = ("optimal", "percentile")
PERCENTS = (50, 90, 100)
"""Those of the paper's example."""
MIN_RUNS = 30
"""Fewer say nothing about a router: it keeps what it has without a profile."""

RowCost = Callable[[int], float]
"""Time of a branch by its rows, in any unit."""


def percentile_sizes(histogram: Histogram, percents: Sequence[int] = PERCENTS) -> tuple[int, ...]:
    """Return percentiles of the loads above 0, ascending and each once; () if there are none.

    A percentile is an observed load: the smallest with so many per cent of the runs at or below it.

    >>> percentile_sizes(((1, 50), (2, 10), (17, 30), (18, 5), (40, 4), (64, 1)))
    (1, 17, 64)
    """
    active = [(load, count) for load, count in histogram if load]
    total = sum(count for _, count in active)
    sizes = {active[-1][0]} if active else set()
    for percent in percents:
        _check_percent(percent)
        rank, seen = max(1, -(-percent * total // 100)), 0
        for load, count in active:
            seen += count
            if seen >= rank:
                sizes.add(load)
                break
    return tuple(sorted(sizes))


def optimal_sizes(
    histogram: Histogram,
    num_sizes: int,
    cost: RowCost | None = None,
    largest: int | None = None,
) -> tuple[int, ...]:
    """Return at most `num_sizes` sizes with which all runs together cost least, ascending.

    Parameters
    ----------
    histogram
        Loads; those of 0 do not count.
    num_sizes
        At least 1.
    cost
        Of a run with so many rows; None: the rows themselves.
    largest
        A size that must be among them, at least the largest load; None: the largest load.

    Raises
    ------
    RoutingError
        `num_sizes` or `largest` is too small.

    Notes
    -----
    O(num_sizes * n^2) for n different loads. With sizes s_1 < s_2 < .. the loads in (s_i-1, s_i]
    cost cost(s_i) each, so the best j sizes for the loads up to u_i are some load u_i on top of the
    best j - 1 for those up to some smaller u_a. Of equally good choices the one with fewer sizes is
    taken, then the one with larger gaps at the top.

    >>> optimal_sizes(((1, 50), (2, 10), (17, 30), (18, 5), (40, 4), (64, 1)), 3)
    (2, 18, 64)
    """
    if num_sizes < 1:
        raise RoutingError(f"num_sizes must be at least 1, got {num_sizes}")
    counts = {load: count for load, count in histogram if load}
    top = max(counts, default=0)
    if largest is not None:
        if largest < max(top, 1):
            raise RoutingError(
                f"the largest size must hold the largest load: expected at least {max(top, 1)}, "
                f"got {largest}"
            )
        counts.setdefault(largest, 0)
    if not counts:
        return ()
    loads = sorted(counts)
    costs = np.array([load if cost is None else cost(load) for load in loads], dtype=np.float64)
    runs = np.array([0, *np.cumsum([counts[load] for load in loads])], dtype=np.float64)
    best, chosen = _cheapest(costs, runs, min(num_sizes, len(loads)))
    num_chosen = int(np.argmin(best))
    sizes, end = [], len(loads)
    for level in range(num_chosen, -1, -1):
        sizes.append(loads[end - 1])
        end = int(chosen[level][end])
    return tuple(reversed(sizes))


def _cheapest(
    costs: np.ndarray, runs: np.ndarray, num_sizes: int
) -> tuple[list[float], list[np.ndarray]]:
    """The least cost of all loads by number of sizes - 1, and where each size's loads begin.

    `runs[i]` is how many runs have one of the first i loads. chosen[j][i]: with j + 1 sizes for the
    first i loads, the largest of which is load i - 1, so many loads are left to the j others.
    """
    num_loads = len(costs)
    ends = np.arange(num_loads + 1)
    values = np.full(num_loads + 1, np.inf)
    values[1:] = costs * runs[1:]
    chosen = [np.zeros(num_loads + 1, dtype=np.int64)]
    best = [float(values[-1])]
    for _ in range(1, num_sizes):
        before, values = values, np.full(num_loads + 1, np.inf)
        starts = np.zeros(num_loads + 1, dtype=np.int64)
        for end in ends[2:]:
            totals = before[1:end] + costs[end - 1] * (runs[end] - runs[1:end])
            start = int(np.argmin(totals))
            starts[end], values[end] = start + 1, totals[start]
        chosen.append(starts)
        best.append(float(values[-1]))
    return best, chosen


def executed_rows(histogram: Histogram, sizes: Sequence[int], overflow: str = "rounds") -> int:
    """Return the rows that all runs together compute with these sizes, padding included.

    >>> executed_rows(((3, 1), (4, 1), (9, 1)), (4, 30))
    38
    """
    return sum(count * padded_load(load, sizes, overflow) for load, count in histogram if load)


def useful_rows(histogram: Histogram) -> int:
    """Return the rows that hold cells, in all runs together."""
    return sum(load * count for load, count in histogram)


def choose_capacities(
    router: RouterProfile,
    num_sizes: int,
    *,
    mode: str = "optimal",
    kinds: Sequence[int] | None = None,
    costs: Mapping[int, RowCost] | None = None,
    largest: Sequence[int | None] | None = None,
) -> tuple[tuple[int, ...], ...] | None:
    """Return the capacities of each branch of a router; None: too few runs to say.

    Parameters
    ----------
    num_sizes
        At most so many for each kind of branches. With mode "percentile" and 3 those of the paper's
        example, else as many percentiles, evenly apart up to the maximum.
    kinds
        A label for each branch: those of one label are equal but for their weights, so their loads
        are pooled and they share their sizes. None: all are equal. [num_branches]
    costs
        Time by rows of the branches of each label; None, or for a label that is missing: the rows.
    largest
        For each branch a capacity that it must have, as where loads above it are dropped (they
        count as that load then); beside the percentiles, or one of the optimal sizes. None: its
        largest load. [num_branches]

    Raises
    ------
    RoutingError
        An unknown mode, no sizes, or sequences of another length.
    """
    if mode not in MODES:
        raise RoutingError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
    if num_sizes < 1:
        raise RoutingError(f"num_sizes must be at least 1, got {num_sizes}")
    kinds = [0] * router.num_branches if kinds is None else kinds
    largest = [None] * router.num_branches if largest is None else largest
    if len(kinds) != router.num_branches or len(largest) != router.num_branches:
        raise RoutingError(
            f"router {router.name!r} has {router.num_branches} branches, got {len(kinds)} kinds "
            f"and {len(largest)} largest capacities"
        )
    if router.num_runs < MIN_RUNS:
        return None
    capacities: list[tuple[int, ...]] = [()] * router.num_branches
    for label in dict.fromkeys(zip(kinds, largest, strict=True)):
        same = [b for b, pair in enumerate(zip(kinds, largest, strict=True)) if pair == label]
        kind, limit = label
        pooled = merge_histograms(_limited(router.loads[branch], limit) for branch in same)
        if mode == "percentile":
            sizes = percentile_sizes(pooled, _percents(num_sizes))
            if limit is not None:
                sizes = tuple(sorted({*sizes, limit}))
        else:
            cost = None if costs is None else costs.get(kind)
            sizes = optimal_sizes(pooled, num_sizes, cost, limit)
        for branch in same:
            # Never seen with a cell: a single row, repeated as often as it takes.
            capacities[branch] = sizes or (1,)
    return tuple(capacities)


def _limited(histogram: Histogram, limit: int | None) -> Histogram:
    """The loads as they are padded where none above a limit is computed at once."""
    if limit is None:
        return histogram
    return merge_histograms([((min(load, limit), count),) for load, count in histogram])


def _percents(num_sizes: int) -> tuple[int, ...]:
    if num_sizes == len(PERCENTS):
        return PERCENTS
    return tuple(100 * (index + 1) // num_sizes for index in range(num_sizes))


def _check_percent(percent: int) -> None:
    if not 0 <= percent <= 100:
        raise RoutingError(f"a percentile is in 0..100, got {percent}")
