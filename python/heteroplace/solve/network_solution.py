"""Problem -> Solution by any solver: solved, chosen, checked, explained. What the pipeline calls.

Several devices are used only if they gain enough (`gains_enough`): by what is simulated, which is
what bounds hold for. Where tasks are known to slow each other, several devices gain less than that,
so they must gain enough by expected run times too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from heteroplace.entries import load_entry
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Plan
from heteroplace.model.solution import RunTime, Solution
from heteroplace.model.timeline import Timeline
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.list.single import devices_to_compare, single_plan
from heteroplace.solve.objective import (
    THROUGHPUT,
    gains_enough,
    least_gain_ratio,
    num_devices,
    objective_ns,
    single_objectives,
)
from heteroplace.solve.plan_reasons import explain, explain_s
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result
from heteroplace.solve.solvers import get_solver

if TYPE_CHECKING:
    from heteroplace.simulate.interference import Interference

_EXPECT = "heteroplace.simulate.expect:expect"
_EXPECT_ALONE = "heteroplace.simulate.expect:expect_alone"
"""Loaded where it is known how tasks slow each other."""
_SOLVE_BESIDE = "heteroplace.solve.disturbed_rounds:solve_beside"
"""Loaded for a plan over several devices where it is known."""
_REPLAY = "heteroplace.solve.judge:replay"
"""Loaded for a saved plan."""
_ROUNDS_SHARE = 0.25
"""Of the time: for what is solved again where interference may be measured."""
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
        How tasks slow each other. A plan on several devices is solved again with the times that its
        tasks have beside each other (`disturbed_rounds`). The better one is kept only if it is
        expected to be quicker than the best single device by more than `options.min_gain_ratio`.
        Or a function that measures it, called only for such a plan. None: the solver's plan is
        kept, and one over several hosts is expected to run as its messages go. It is that of single
        runs: for throughput, or several items, it is not asked for.
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
    rounds: SolveOptions | None = None
    if plan is not None:
        result: SolveResult = load_entry(_REPLAY)(problem, plan, options)
    else:
        options = replace(options, min_gain_ratio=least_gain_ratio(problem, options))
        after_s = _CHECK_S_PER_TASK * len(problem.graph.tasks) + explain_s(problem)
        # Interference only takes from what several devices gain: where that is not enough without,
        # nothing is measured.
        options_used = replace(
            options.leaving(after_s),
            stop_gain_ratio=options.min_gain_ratio,
            ends_stalled=options.min_gain_ratio > 0 and options.iterations is None,
        )
        if interference is not None and run_time_of is None:
            rounds_s = _ROUNDS_SHARE * options_used.time_limit_s
            rounds = replace(options_used, time_limit_s=rounds_s)
            options_used = options_used.leaving(rounds_s)
        result = get_solver(solver).solve(problem, options_used)
    if callable(interference):
        interference = interference() if num_devices(problem, result.plan) > 1 else None
    expected, singles = None, dict[str, tuple[Plan, RunTime]]()
    if interference is not None:
        run_time_of = run_time_of or partial(_expected_beside, problem, interference)
    elif is_of_one and _has_messages(problem.cluster, result.plan):
        run_time_of = partial(_expected_alone, problem)
    else:
        run_time_of = None
    if run_time_of is not None:
        expected = run_time_of(result.plan)
        if rounds is not None and interference is not None:
            solved = solver, result, expected, run_time_of
            result, expected = load_entry(_SOLVE_BESIDE)(problem, rounds, interference, *solved)
        singles = expected_singles(problem, run_time_of)
        if plan is None:
            least = options.min_gain_ratio
            result, expected = choose_expected(problem, result, expected, singles, least)
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    timeline = simulate(problem.graph, problem.cluster, problem.costs, result.plan, problem.native)
    plan = explain(problem, result.plan, options.objective, timeline)
    single_times = tuple((name, alone) for name, (_, alone) in singles.items())
    explained = replace(result, plan=plan)
    return solution_of(problem, explained, options.objective, timeline, expected, single_times)


def solution_of(
    problem: Problem,
    result: SolveResult,
    objective: str,
    timeline: Timeline,
    expected: RunTime | None = None,
    single_times: tuple[tuple[str, RunTime], ...] = (),
) -> Solution:
    """Return what a solver found for an objective, with all that it refers to.

    Parameters
    ----------
    result
        Its plan has its reasons, if they shall be told.
    timeline
        The simulated timeline of its plan, which the solution keeps.
    expected
        With interference; None: it was not measured.
    single_times
        The same of each device alone.
    """
    solution = Solution(
        problem.graph,
        problem.cluster,
        problem.costs,
        result.plan,
        timeline.makespan_ns,
        result.bound_ns,
        tuple((name, found_ns) for name, found_ns, _ in result.candidates),
        tuple(single_objectives(problem, objective, result.plan.items).items()),
        expected,
        result.objective_ns if objective == THROUGHPUT else None,
        single_times=single_times,
    )
    return solution.with_timeline(timeline)


def _expected_beside(problem: Problem, interference: Interference, plan: Plan) -> RunTime:
    given = problem.graph, problem.cluster, problem.costs
    run_time: RunTime = load_entry(_EXPECT)(*given, plan, interference).run_time
    return run_time


def _expected_alone(problem: Problem, plan: Plan) -> RunTime:
    given = problem.graph, problem.cluster, problem.costs
    run_time: RunTime = load_entry(_EXPECT_ALONE)(*given, plan).run_time
    return run_time


def _has_messages(cluster: Cluster, plan: Plan) -> bool:
    hosts = cluster.memory_hosts
    return any(hosts[copy.src] != hosts[copy.dst] for copy in plan.copies)


def expected_singles(
    problem: Problem, run_time_of: Callable[[Plan], RunTime]
) -> dict[str, tuple[Plan, RunTime]]:
    """Return the plan of each device alone and its expected run time, by device name.

    Devices are those of `devices_to_compare` that can run all tasks, in cluster order.
    """
    singles = {}
    for device in sorted(devices_to_compare(problem)):
        plan = single_plan(problem, device)
        if isinstance(plan, Plan):
            singles[problem.cluster.devices[device].name] = plan, run_time_of(plan)
    return singles


def choose_expected(
    problem: Problem,
    result: SolveResult,
    expected: RunTime,
    singles: Mapping[str, tuple[Plan, RunTime]],
    min_gain_ratio: float,
) -> tuple[SolveResult, RunTime]:
    """Return the solver's result or the best single device's, and its expected run time.

    Parameters
    ----------
    result
        A plan for one item.
    expected
        Its expected run time.
    singles
        What `expected_singles` returns. The best one has the shortest expected time, which need
        not be the one with the shortest simulated time; ties: the first.
    min_gain_ratio
        See `SolveOptions`. A plan on one device is replaced by any quicker one.
    """
    if not singles:
        return result, expected
    name = min(singles, key=lambda device: singles[device][1].expected_ns)
    plan, alone = singles[name]
    if num_devices(problem, result.plan) == 1:
        is_better = expected.expected_ns <= alone.expected_ns
    else:
        is_better = gains_enough(expected.expected_ns, alone.expected_ns, min_gain_ratio)
    if is_better:
        return result, expected
    note = f"expected {alone.expected_ns} ns, the plan above {expected.expected_ns} ns"
    simulated_ns = objective_ns(problem, plan, "latency")
    chosen = make_result(
        problem,
        plan,
        result.bound_ns,
        result.solver,
        result.wall_s,
        was_interrupted=result.status == "interrupted",
        candidates=(*result.candidates, (f"single {name}, as expected", simulated_ns, note)),
    )
    return chosen, alone
