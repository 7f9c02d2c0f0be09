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
from heteroplace.native.core_arrays import IntArray, ints, run_order
from heteroplace.native.core_problem import NativePlan, NativeProblem

_MAPPING_RULES = {"annealing": 0, "evolution": 1}

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


class PlanSearch:
    """A search in several turns; see `src/search/search.h`. Not thread-safe.

    One that stalled goes on as if nothing had been between, unless it is given plans.
    """

    def __init__(
        self,
        native: NativeProblem,
        initial: Sequence[NativePlan | Sequence[Step]],
        *,
        max_evaluations: int | None,
        seed: int,
        patience: int = 0,
        threads: int = 1,
        placements: Sequence[Sequence[int]] = (),
        prices: Sequence[float] = (),
        finds_bound: bool = True,
    ) -> None:
        """See `search_plans` for the parameters; budgets are of all turns together."""
        self._native = native
        none = ints(())
        solutions = [_solution(native, plan) for plan in initial]
        solutions += [(ints(placement), none) for placement in placements]
        self._core = _core.PlanSearch(
            native.core,
            solutions,
            max_evaluations=-1 if max_evaluations is None else max_evaluations,
            seed=seed,
            patience=patience,
            threads=threads,
            prices=list(prices),
            finds_bound=finds_bound,
        )

    def run(
        self,
        time_limit_s: float,
        *,
        bound_ns: int = 0,
        stall: Stall | None = None,
        plans: Sequence[NativePlan] = (),
        progress: Callable[[int, int, int], None] | None = None,
    ) -> SearchReport:
        """Search on for one turn; return the best plan of all turns.

        Parameters
        ----------
        stall
            None: the turn does not end for want of gains.
        plans
            Found elsewhere since the turn before.
        """
        found, evaluations, was_interrupted, prices, found_bound_ns, can_go_on, stalled_s = (
            self._core.run(
                [_solution(self._native, plan) for plan in plans],
                time_limit_s=max(0.0, time_limit_s),
                bound_ns=bound_ns,
                stall_share=0.0 if stall is None else stall.share,
                stall_s=0.0 if stall is None else stall.least_s,
                progress=progress,
            )
        )
        return SearchReport(
            found,
            evaluations,
            was_interrupted,
            tuple(prices),
            found_bound_ns,
            can_go_on,
            stalled_s,
        )


def search_plans(
    native: NativeProblem,
    initial: Sequence[NativePlan | Sequence[Step]],
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


def _solution(
    native: NativeProblem, plan: NativePlan | Sequence[Step]
) -> tuple[IntArray, IntArray]:
    """The device of each task, and the order of the tasks."""
    if isinstance(plan, NativePlan):
        return plan.devices(len(native.graph.tasks)), plan.order
    return ints(native.placement(plan)), ints(run_order(plan))


def search_mapping(
    native: NativeProblem,
    initial: Sequence[int],
    order: Sequence[int],
    *,
    rule: Rule,
    max_evaluations: int | None,
    time_limit_s: float,
    seed: int,
    bound_ns: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> MappingReport:
    """Improve a mapping; its value is the makespan when tasks go in `order`.

    Parameters
    ----------
    initial
        Device of each task, [num_tasks]: allowed ones, one for each colocation group.
    order
        A topological order of the tasks, [num_tasks].
    max_evaluations
        Number of mappings tried, the initial one included; None: no limit. With it, equal seeds
        give equal results unless the time runs out.
    bound_ns
        A makespan that cannot be beaten; the search ends when it is reached.
    progress
        Called about 20 times a second with (evaluations, best makespan in ns).
    """
    placement, evaluations, was_interrupted = _core.search_mapping(
        native.core,
        ints(initial),
        ints(order),
        rule=_MAPPING_RULES[rule],
        max_evaluations=-1 if max_evaluations is None else max_evaluations,
        time_limit_s=time_limit_s,
        seed=seed,
        bound_ns=bound_ns,
        progress=progress,
    )
    return MappingReport(tuple(placement.tolist()), evaluations, was_interrupted)
