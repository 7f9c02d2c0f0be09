"""Throughput, or several items in one run -> the plan of `auto`, and a bound on plans like one.

The core asks for them in its group `heteroplace.objectives`.
"""

from __future__ import annotations

import time
from dataclasses import replace

from heteroplace.entries import load_entry
from heteroplace.model.plan import Plan
from heteroplace.native.core_loads import placement_loads
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.objective import (
    THROUGHPUT,
    gains_enough,
    least_gain_ratio,
    num_devices,
    objective_ns,
    single_objectives,
    single_plan_of_items,
    single_plans_of_items,
)
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, status_of
from heteroplace.solve.solvers import SOLVERS

_BATCHED = "heteroplace.parts.throughput.split.batched_solver:BatchedSplit"
_BATCH_BOUND = "heteroplace.parts.throughput.batched.list_solver:batch_bound"
_PRICE_BOUND = "heteroplace.parts.throughput.steady_state.prices:price_bound"
_WORK_BOUND = "heteroplace.parts.throughput.steady_state.work_bound:work_bound"
"""Each is loaded when it first solves: they load OR-Tools or scipy."""
_PRICE_EVALUATIONS = 100
"""For the bound of a plan for throughput; most graphs need fewer."""


class SeveralItems:
    """Least makespan of several items: `split` with pipelines next to its modules
    (`BatchedSplit.is_divi`)."""

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `ObjectiveSolver.solve`."""
        begin, items = time.perf_counter(), options.items
        plans = dict(single_plans_of_items(problem, items))
        batched = load_entry(_BATCHED)(problem, options, is_divi=False, singles=plans, begin=begin)
        singles = {
            name: objective_ns(problem, plan, options.objective) for name, plan in plans.items()
        }
        return with_least_gain(problem, batched.run(), options, singles)

    def bound_ns(
        self, problem: Problem, plan: Plan, known_ns: int, deadline: Deadline, *, is_usual: bool
    ) -> int:
        """See `ObjectiveSolver.bound_ns`."""
        if not is_usual:
            return 0
        bound: int = load_entry(_BATCH_BOUND)(problem, plan.items, deadline)
        return bound


class SteadyThroughput:
    """Least time per item in a steady state: the solver `throughput`."""

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `ObjectiveSolver.solve`."""
        result = SOLVERS[THROUGHPUT].solve(problem, options)
        singles = single_objectives(problem, THROUGHPUT)
        return with_least_gain(problem, result, options, singles)

    def bound_ns(
        self, problem: Problem, plan: Plan, known_ns: int, deadline: Deadline, *, is_usual: bool
    ) -> int:
        """See `ObjectiveSolver.bound_ns`."""
        bound: int
        if not is_usual or not _fits_at_once(problem, plan):
            bound = load_entry(_WORK_BOUND)(problem, deadline)
            return bound

        def is_met(bound_ns: int) -> bool:
            return bound_ns >= known_ns

        left_s = deadline.left_s()
        price_bound = load_entry(_PRICE_BOUND)
        bound = price_bound(problem, known_ns, _PRICE_EVALUATIONS, left_s, is_met).bound_ns
        return bound


def _fits_at_once(problem: Problem, plan: Plan) -> bool:
    """Whether memories hold all tensors of an item at once, as prices have it."""
    loads = placement_loads(problem.native, problem.native.placement(plan.steps))
    return loads.fits(problem.cluster)


def with_least_gain(
    problem: Problem, result: SolveResult, options: SolveOptions, singles: dict[str, int]
) -> SolveResult:
    """Return a result; or the best of `singles`, of each device by objective, if that is almost as
    good: by `gains_enough`."""
    least = least_gain_ratio(problem, options)
    name = min(singles, key=lambda device: singles[device], default=None)
    if name is None or num_devices(problem, result.plan) <= 1:
        return result
    if gains_enough(result.objective_ns, singles[name], least):
        return result
    plan = single_plan_of_items(problem, problem.cluster.device_id(name), options.items)
    assert plan is not None  # it has an objective
    note = f"the plan takes {result.objective_ns} ns; min_gain_ratio is {least}"
    # A bound above it is that of plans in batches of another kind (see SolveResult.bound_ns).
    bound = result.bound_ns if result.bound_ns <= singles[name] else 0
    status = status_of(singles[name], bound, result.status == "interrupted")
    tried = (*result.candidates, (f"single {name}", singles[name], note))
    return replace(
        result,
        plan=plan,
        objective_ns=singles[name],
        bound_ns=bound,
        status=status,
        candidates=tried,
    )


ITEMS = SeveralItems()
THROUGHPUTS = SteadyThroughput()
