"""Searches of the core: over plans, and over mappings in one fixed order of the tasks.

See `src/search/search.h` and `src/search/mapping_search.h`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import heteroplace._core as _core
from heteroplace.model.plan import Step
from heteroplace.native.core_problem import NativePlan, NativeProblem

AnyPlan = NativePlan | Sequence[Step]
Rule = Literal["annealing", "evolution"]
"""Simulated annealing, one gene per move; or the (1+1) evolutionary algorithm."""


@dataclass(frozen=True)
class MappingReport:
    """What a search over mappings did."""

    placement: tuple[int, ...]
    """Device of each task: the best mapping that was evaluated."""
    num_evaluations: int
    was_interrupted: bool
    """Ctrl-C ended it."""


@dataclass(frozen=True)
class SearchReport:
    """What a search did."""

    native_plan: NativePlan
    num_evaluations: int
    was_interrupted: bool
    """Ctrl-C ended it."""
    prices: tuple[float, ...]
    """For each memory what a byte is worth in the best plan, in ns."""
    bound_ns: int
    """The best proven bound on the makespan: the one given, or one found on the way."""
    can_go_on: bool
    """Only the turn has ended, by its time or because it stalled."""
    stalled_s: float
    """Seconds of all turns since the last gain of 0.05 %; given plans count as well."""


@dataclass(frozen=True)
class Stall:
    """When a turn of a search ends for want of gains, between two rounds."""

    share: float
    """Part of the time of all turns so far without a gain of 0.05 %."""
    least_s: float
    """Seconds that it is at least."""


PlanSearch = _core.PlanSearch
search_mapping = _core.search_mapping


def search_plans(
    native: NativeProblem,
    initial: Sequence[AnyPlan],
    *,
    max_evaluations: int | None,
    time_limit_s: float,
    seed: int,
    bound_ns: int = 0,
    patience: int = 0,
    threads: int = 1,
    placements: Sequence[Sequence[int]] = (),
    prices: Sequence[float] = (),
    finds_bound: bool = True,
    progress: Callable[[int, int, int], None] | None = None,
) -> SearchReport:
    """Improve the best of some plans; see `src/search/search.h`.

    Parameters
    ----------
    initial
        Initial solutions for this problem, as native plans or as steps; at least one.
    max_evaluations
        Number of plans tried; None: no limit.
    time_limit_s
        A search that ends by it is not reproducible.
    bound_ns
        A makespan that cannot be beaten; the search ends when it is reached.
    patience
        The search ends after so many evaluations without gain; 0: never.
    threads
        Threads of the search. They do not change the result of a search that ends by
        `max_evaluations`.
    placements
        More initial solutions: a device for each task, ordered by list scheduling.
    prices
        Lagrange multipliers of the memories to begin with: what a byte is worth, in ns,
        [num_memories]; empty: nothing.
    finds_bound
        Whether to look for better bounds and for the placements that come with them.
    progress
        Called about 20 times a second with (evaluations, best makespan in ns, bound in ns).
    """
    begin = time.perf_counter()
    search = PlanSearch(
        native,
        initial,
        max_evaluations=max_evaluations,
        seed=seed,
        patience=patience,
        threads=threads,
        placements=placements,
        prices=prices,
        finds_bound=finds_bound,
    )
    left_s = time_limit_s - (time.perf_counter() - begin)
    return search.run(left_s, bound_ns=bound_ns, progress=progress)
