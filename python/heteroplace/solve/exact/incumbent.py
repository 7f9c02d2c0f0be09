"""What an exact engine returns, and what one starts from."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from heteroplace.model.plan import Step
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.exact.schedule import Schedule
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.search.initial_solutions import InitialSolutions
from heteroplace.solve.search.search_solver import run_search

INCUMBENT_EVALUATIONS = 50_000
"""Schedules tried by the search that makes the incumbent."""
_SHARE = 0.25
"""Share of the time for the list schedulers, the same again for the search."""
_BOUND_SHARE = 0.45
"""Share of the time for thorough bounds; they need less where the graph falls into modules."""


@dataclass(frozen=True)
class EngineEnd:
    """How a run of an exact engine ended."""

    schedule: Schedule | None
    """The best it found itself; None: nothing."""
    bound_ns: int
    is_infeasible: bool
    """It is proven that no schedule is within the horizon."""
    was_interrupted: bool = False
    """Ctrl-C ended it."""
    note: str = ""
    """How it went, for people."""


@dataclass(frozen=True)
class Incumbent:
    """The heuristics' best plan: horizon and hint of an exact engine, and its fallback."""

    steps: tuple[Step, ...] | None
    """None: they found none that fits."""
    bound_ns: int
    """A proven bound on the makespan."""
    was_interrupted: bool = False
    """Ctrl-C ended the search; the plan is the result then."""
    is_infeasible: bool = False
    """It is proven that no plan fits."""


def find_incumbent(
    problem: Problem, options: SolveOptions, num_evaluations: int = INCUMBENT_EVALUATIONS
) -> Incumbent:
    """Run the list schedulers and a short search, in half of the time at most, or by a budget in
    iterations in all of it.

    Parameters
    ----------
    num_evaluations
        Schedules that the search tries.
    """
    deadline, limit = Deadline.after(options.time_limit_s), options.part_s(_SHARE)
    bound = lower_bound(problem, time_limit_s=limit / 2).ns
    initial = [native_plan for _, native_plan in InitialSolutions(problem).native_plans(limit)]
    if not initial:
        return Incumbent(None, bound)
    short = SolveOptions(seed=options.seed, iterations=num_evaluations)
    search_end = run_search(problem, initial, short, deadline.within(limit), bound)
    steps = search_end.native_plan.steps if search_end.native_plan.violation == 0 else None
    return Incumbent(steps, max(bound, search_end.bound_ns), search_end.was_interrupted)


def with_thorough_bound(problem: Problem, options: SolveOptions, incumbent: Incumbent) -> Incumbent:
    """Return the incumbent with all bounds that a share of the time allows.

    Not where a deterministic budget is given: these bounds end by the clock.
    """
    if options.iterations is not None or incumbent.steps is None:
        return incumbent
    makespan = simulate_steps(problem.native, incumbent.steps).makespan_ns
    if makespan <= incumbent.bound_ns:
        return incumbent
    limit = options.time_limit_s * _BOUND_SHARE
    try:
        bound = lower_bound(
            problem, "thorough", time_limit_s=limit, threads=options.threads, target_ns=makespan
        )
    except KeyboardInterrupt:
        return replace(incumbent, was_interrupted=True)
    return replace(incumbent, bound_ns=max(incumbent.bound_ns, bound.ns))


def seconds_left(options: SolveOptions, begin: float) -> float:
    """Return what is left of the time limit, but enough to try."""
    return max(0.1, options.time_limit_s - (time.perf_counter() - begin))
