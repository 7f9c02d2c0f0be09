"""Problem -> Solution by any solver: solved, chosen, checked, explained. What the pipeline calls.

Several devices are used only if they gain enough (`gains_enough`, applied once for each solve): by
what is simulated; or, where it is known how tasks slow each other, by expected run times, since a
plan on several devices then gains less than the simulated makespan says, which is what bounds hold
for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Plan
from heteroplace.model.solution import RunTime, Solution
from heteroplace.simulate.expect import expect, expect_alone
from heteroplace.simulate.interference import Interference
from heteroplace.solve.explain import explain, explain_s
from heteroplace.solve.judge import replay
from heteroplace.solve.list.single import single_makespans, single_plan
from heteroplace.solve.objective import (
    THROUGHPUT,
    gains_enough,
    least_gain_ratio,
    num_devices,
    objective_ns,
    single_objectives,
)
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result
from heteroplace.solve.registry import get_solver

_CHECK_S_PER_TASK = 5e-5
"""What checking a plan takes; reasons come on top."""


def solve_network(
    problem: Problem,
    options: SolveOptions,
    interference: Interference | Callable[[], Interference] | None = None,
    *,
    solver: str = "auto",
    plan: Plan | None = None,
    run_time_of: Callable[[Plan], RunTime] | None = None,
) -> Solution:
    """Place a network by a solver; check and explain the plan.

    Parameters
    ----------
    interference
        How tasks slow each other: a plan on several devices is kept only if it is expected to be
        quicker than the best single device by more than `options.min_gain_ratio`. Or a function
        that measures it, called only for such a plan. None: the solver's plan is kept, and one over
        several hosts is expected to run as its messages go. It is that of single runs: for
        throughput, or several items, it is not asked for.
    solver
        Its name in `SOLVERS`.
    plan
        Taken as it is, whatever single devices take; None: the solver finds one.
    run_time_of
        What a plan is expected to take beside interference; None: what `expect` says.

    Raises
    ------
    SolverError
        There is no such solver, or it cannot handle this problem.
    InfeasibleError, SolverLimitError
        See `Solver.solve`.
    PlanError
        The plan breaks a rule: a bug of the solver.
    """
    items = options.items if plan is None else plan.items
    is_of_one = options.objective != THROUGHPUT and items == 1
    if not is_of_one:
        interference = None
    if plan is not None:
        result = replay(problem, plan, options)
    else:
        options = replace(options, min_gain_ratio=least_gain_ratio(problem, options))
        ratio = options.min_gain_ratio if interference is None else 0.0
        after_s = _CHECK_S_PER_TASK * len(problem.graph.tasks) + explain_s(problem)
        asked = replace(
            options.leaving(after_s), min_gain_ratio=ratio, stop_gain_ratio=options.min_gain_ratio
        )
        result = get_solver(solver).solve(problem, asked)
    if callable(interference):
        interference = interference() if num_devices(problem, result.plan) > 1 else None
    given = problem.graph, problem.cluster, problem.costs
    expected = None
    if interference is not None:
        known = interference
        run_time_of = run_time_of or (lambda plan: expect(*given, plan, known).run_time)
        if plan is not None:
            expected = run_time_of(plan)
        else:
            least = options.min_gain_ratio
            result, expected = choose_expected(problem, result, run_time_of, least)
    elif is_of_one and _has_messages(problem.cluster, result.plan):
        expected = expect_alone(*given, result.plan).run_time
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    explained = replace(result, plan=explain(problem, result.plan, options.objective))
    return solution_of(problem, explained, options.objective, expected)


def solution_of(
    problem: Problem, result: SolveResult, objective: str, expected: RunTime | None = None
) -> Solution:
    """Return what a solver found for an objective, with all that it refers to.

    Parameters
    ----------
    result
        Its plan has its reasons, if they shall be told.
    expected
        With interference; None: it was not measured.
    """
    return Solution(
        problem.graph,
        problem.cluster,
        problem.costs,
        result.plan,
        objective_ns(problem, result.plan, "latency"),
        result.bound_ns,
        tuple((name, found_ns) for name, found_ns, _ in result.candidates),
        tuple(single_objectives(problem, objective, result.plan.items).items()),
        expected,
        result.objective_ns if objective == THROUGHPUT else None,
    )


def _has_messages(cluster: Cluster, plan: Plan) -> bool:
    hosts = cluster.memory_hosts
    return any(hosts[copy.src] != hosts[copy.dst] for copy in plan.copies)


def choose_expected(
    problem: Problem,
    result: SolveResult,
    run_time_of: Callable[[Plan], RunTime],
    min_gain_ratio: float,
) -> tuple[SolveResult, RunTime]:
    """Return the solver's result or the best single device's, and how long it will run.

    Parameters
    ----------
    result
        A plan for one item.
    run_time_of
        How long a plan is expected to run.
    min_gain_ratio
        See `SolveOptions`.
    """
    expected, singles = run_time_of(result.plan), single_makespans(problem)
    if not singles or num_devices(problem, result.plan) == 1:
        return result, expected
    name = min(singles, key=lambda device: singles[device])
    plan = single_plan(problem, problem.cluster.device_id(name))
    assert isinstance(plan, Plan)  # it has a makespan
    alone = run_time_of(plan)
    if gains_enough(expected.expected_ns, alone.expected_ns, min_gain_ratio):
        return result, expected
    note = f"expected {alone.expected_ns} ns, the plan above {expected.expected_ns} ns"
    chosen = make_result(
        problem,
        plan,
        result.bound_ns,
        result.solver,
        result.wall_s,
        was_interrupted=result.status == "interrupted",
        candidates=(*result.candidates, (f"single {name}, as expected", singles[name], note)),
    )
    return chosen, alone
