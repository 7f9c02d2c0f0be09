"""A plan whose tasks disturb each other is solved again with the times that they have there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Plan
from heteroplace.model.solution import RunTime
from heteroplace.simulate.disturbed_costs import costs_beside
from heteroplace.simulate.expect import expect
from heteroplace.simulate.interference import Interference, no_interference
from heteroplace.solve import disturbed_rounds
from heteroplace.solve.disturbed_rounds import solve_beside
from heteroplace.solve.network_solution import solve_network
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult
from heteroplace.solve.solvers import get_solver

CORES = Cluster(
    "two-cores",
    (Memory("ram", 10**9),),
    (
        *(Device(f"cpu.{core}", "cpu", "llvm", 0, 0, (core,)) for core in range(2)),
        Device("cpu.all", "cpu", "llvm", 0, 0, (0, 1)),
    ),
    host=0,
)
OPTIONS = SolveOptions(time_limit_s=5.0, iterations=2_000, threads=1)


@pytest.fixture
def problem() -> Problem:
    """Two tasks side by side, which a third one joins, and then two more: 1000 ns on one core and
    600 on both; the third takes 10."""
    builder = TaskGraphBuilder("pairs")
    before = builder.add_input("x", num_bytes=4)
    outputs = []
    for pair in ("first", "second"):
        outputs = []
        for side in ("a", "b"):
            builder.add_task(Task(f"{pair}_{side}", pair), [before])
            outputs.append(builder.add_tensor(f"{pair}_{side}", num_bytes=4))
        builder.add_task(Task(f"{pair}_joined", "join"), outputs)
        before = builder.add_tensor(f"{pair}_joined", num_bytes=4)
    graph = builder.finalize([before])

    def cost(task: int, device: int) -> Cost:
        if graph.tasks[task].op == "join":
            return Cost.measured(10)
        return Cost.measured(600 if CORES.devices[device].name == "cpu.all" else 1000)

    return Problem(graph, CORES, build_table(graph, CORES, cost))


@pytest.fixture
def interference(problem: Problem) -> Interference:
    """The first pair takes 1.5 times as long side by side."""
    quiet = no_interference(problem.graph, problem.cluster)
    slowdown = np.array(quiet.slowdown)
    slowdown[:2, :2] = 1.5
    return replace(quiet, slowdown=slowdown)


def expected_beside(problem: Problem, interference: Interference, plan: Plan) -> RunTime:
    return expect(problem.graph, problem.cluster, problem.costs, plan, interference).run_time


def test_times_beside_a_plan(problem: Problem, interference: Interference) -> None:
    """Each core works 2010 ns and more. Beside 2000 of them, or nearly all, the other one works."""
    plan = get_solver("auto").solve(problem, OPTIONS).plan
    given = problem.graph, problem.cluster, problem.costs
    assert {plan.placement(6)[task] for task in (0, 1)} == {0, 1}
    times, lost_ratio = costs_beside(*given, plan, interference)
    assert times.run_ns(0, 0) == pytest.approx(1500, rel=0.01)
    assert times.run_ns(3, 0) == 1000, "of the second pair: it loses nothing"
    assert lost_ratio == pytest.approx(2 * 500 / (2 * 1500 + 2 * 1000 + 20), rel=0.02)
    assert times.run_ns(0, 2) == 600, "all cores work, so none works beside it"


def test_only_tasks_that_lose_by_it_leave_each_other(
    problem: Problem, interference: Interference
) -> None:
    """Side by side, the first pair takes 1500 ns, and 1200 one after the other on both cores."""
    plain = solve_network(problem, OPTIONS)
    assert plain.objective_ns == 2020
    solution = solve_network(problem, OPTIONS, interference)
    assert solution.expected_ns == pytest.approx(1200 + 1000 + 20, rel=0.01)
    placement = solution.plan.placement(6)
    assert placement[0] == placement[1] == CORES.device_id("cpu.all")
    assert {placement[3], placement[4]} == {0, 1}
    assert solution.bound_ns <= plain.objective_ns


def test_an_interrupted_solve_is_not_repeated(problem: Problem, interference: Interference) -> None:
    result = replace(get_solver("auto").solve(problem, OPTIONS), status="interrupted")
    expected = expected_beside(problem, interference, result.plan)
    judge = partial(expected_beside, problem, interference)
    after = solve_beside(problem, OPTIONS, interference, "auto", result, expected, judge)
    assert after == (result, expected)


def test_an_interrupted_round_has_the_time_of_its_own_plan(
    problem: Problem, interference: Interference, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = get_solver("auto").solve(problem, OPTIONS)
    solve, judge = get_solver("auto").solve, partial(expected_beside, problem, interference)

    def interrupted(*arguments: Any) -> SolveResult:
        return replace(solve(*arguments), status="interrupted")

    monkeypatch.setattr(
        disturbed_rounds, "get_solver", lambda _: SimpleNamespace(solve=interrupted)
    )
    given = problem, OPTIONS, interference, "auto", result, judge(result.plan), judge
    best, run_time = solve_beside(*given)
    assert best.status == "interrupted"
    assert run_time == judge(best.plan)
    assert run_time.expected_ns < judge(result.plan).expected_ns


def test_a_plan_without_losses_stays(problem: Problem) -> None:
    quiet = no_interference(problem.graph, problem.cluster)
    solution = solve_network(problem, OPTIONS, quiet)
    assert solution.expected_ns == solution.objective_ns == 2020
