"""Simulated annealing over placement and order, in the core; see `src/sched/search.h`.

Based on the annealing baseline of DiviML (section V), with moves of the order and of chains, which
their random walk on the mapping lacks: without order moves results stay 5-6 % longer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.model.plan import Plan, Step
from heteroplace.solve.base import Problem, SolveOptions, SolveResult, make_result, report
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.heft import check_possible, device_sets, heft_steps, no_placement_error
from heteroplace.solve.order_place import order_place
from heteroplace.solve.single import single_plan

PATIENCE_PER_TASK = 20_000
"""The search ends after so many evaluations per task without a gain of 0.05 %."""


@dataclass(frozen=True)
class SearchEnd:
    """What a search from given starts returned."""

    steps: tuple[Step, ...]
    num_evaluations: int
    was_interrupted: bool
    bound_ns: int
    """The given bound, or a better one that the search found."""


class SearchSolver:
    """Annealing from all single-device plans and all HEFT plans."""

    name = "search"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        begin = time.perf_counter()
        check_possible(problem)
        starts = [plan.steps for _, plan in start_plans(problem, options.time_limit_s / 2)]
        if not starts:
            raise no_placement_error(problem)
        bound = lower_bound(problem).ns
        left = max(0.01, options.time_limit_s - (time.perf_counter() - begin))
        end = run_search(problem, starts, options, left, bound)
        plan = problem.native.plan(end.steps, f"search seed {options.seed}")
        wall = time.perf_counter() - begin
        return make_result(
            problem, plan, end.bound_ns, self.name, wall, was_interrupted=end.was_interrupted
        )


def start_plans(problem: Problem, time_limit_s: float) -> list[tuple[str, Plan]]:
    """Return (name, plan) for every single device, every HEFT set and Order-Place, where valid.

    HEFT sets that the time does not reach are left out; the first one, all devices, always runs.
    """
    begin = time.perf_counter()
    cluster, native = problem.cluster, problem.native
    plans = []
    for device_id, device in enumerate(cluster.devices):
        plan = single_plan(problem, device_id)
        if isinstance(plan, Plan):
            plans.append((f"single {device.name}", plan))
    if len(cluster.devices) == 1 or not problem.graph.tasks:
        return plans
    if len(cluster.memories) > 1:
        draft = order_place(problem)
        if draft.violation == 0:
            plans.append(("order-place", native.plan(draft.steps, "order-place")))
    for index, devices in enumerate(device_sets(problem)):
        left = time_limit_s - (time.perf_counter() - begin)
        if index and left <= 0:
            break
        steps = heft_steps(problem, devices, max(left, 0.1))
        if steps is not None:
            name = f"heft {', '.join(cluster.devices[device].name for device in devices)}"
            plans.append((name, native.plan(steps, name)))
    return plans


def run_search(
    problem: Problem,
    starts: Sequence[Sequence[Step]],
    options: SolveOptions,
    time_limit_s: float,
    bound_ns: int,
) -> SearchEnd:
    """Anneal from `starts`; the result is never longer than the shortest of them."""
    begin = time.perf_counter()
    ranked = sorted(starts, key=lambda steps: problem.native.simulate(steps).makespan_ns)

    def progress(_evaluations: int, best_ns: int, found_bound_ns: int) -> None:
        report(options, "search", begin, best_ns, found_bound_ns)

    found = problem.native.search(
        ranked,
        max_evaluations=options.iterations,
        time_limit_s=time_limit_s,
        seed=options.seed,
        bound_ns=bound_ns,
        patience=PATIENCE_PER_TASK * max(1, len(problem.graph.tasks)),
        threads=options.threads,
        progress=None if options.progress is None else progress,
    )
    steps = found.draft.steps
    # The search schedules without gaps on units, so it may start behind HEFT's insertion.
    if problem.native.simulate(ranked[0]).makespan_ns < (
        problem.native.simulate(steps).makespan_ns
    ):
        steps = tuple(ranked[0])
    return SearchEnd(steps, found.num_evaluations, found.was_interrupted, found.bound_ns)
