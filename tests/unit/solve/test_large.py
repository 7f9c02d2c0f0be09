"""What is left out on large graphs, so that budgets are kept: counted, not timed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heteroplace.model.check import check_plan
from heteroplace.native.list import evaluate_order
from heteroplace.native.simulate import simulate_plan
from heteroplace.parts.throughput.steady_state import throughput_solver as throughput
from heteroplace.parts.throughput.steady_state.prices import price_bound
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.list import single
from heteroplace.solve.objective import single_objectives
from heteroplace.solve.plan_reasons import Reasons, explain, explain_s
from heteroplace.solve.search import initial_solutions
from heteroplace.solve.search.initial_solutions import InitialSolutions
from zoo.graphs.catalogue import layered
from zoo.graphs.clusters import hub
from zoo.graphs.layered import Layered


@pytest.fixture(scope="module")
def problem() -> Problem:
    """With room for everything on any of the devices."""
    return layered(Layered(500), 0.01, hub(40))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often single plans, HEFT and loads were asked for."""
    counts: Counter[str] = Counter()

    def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **keywords)

        return call

    monkeypatch.setattr(single, "evaluate_order", counted(evaluate_order, "singles"))
    monkeypatch.setattr(throughput, "placement_loads", counted(throughput.placement_loads, "loads"))
    return counts


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_large_graph_is_compared_with_few_single_devices(
    problem: Problem, calls: Counter[str], monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    every = single_objectives(problem, objective)
    assert calls["singles"] == 40
    monkeypatch.setattr(single, "_MAX_SINGLE_RUNS", 2 * 500)
    few = single_objectives(problem, objective)
    assert calls["singles"] <= 40 + 3
    assert few.items() <= every.items()
    assert min(few.values()) == min(every.values())


def test_heft_looks_at_as_many_devices_as_the_time_lets_it(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initial_solutions, "_MIN_PAIRS", 0)
    run_ns = problem.native.run_ns
    initial = InitialSolutions(problem, time_limit_s=4 * 500 / initial_solutions._PAIRS_PER_S)
    used = set(initial.heft.devices(500).tolist())
    assert used <= set(np.argsort(run_ns.sum(axis=0), kind="stable")[:4].tolist())
    assert len(set(InitialSolutions(problem).heft.devices(500).tolist())) > 4


def test_an_initial_solution_of_throughput_is_looked_at_once(
    problem: Problem, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "_MAX_SINGLE_RUNS", 2 * 500)
    reports: list[int | None] = []
    options = SolveOptions(
        objective="throughput",
        iterations=20,
        time_limit_s=0.3,
        threads=1,
        progress=lambda one: reports.append(one.best_ns),
    )
    result = get_solver("throughput").solve(problem, options)
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    # Two splits, two single devices, HEFT, and what comes with the prices; a reference time.
    assert calls["loads"] < 5 + 20
    assert reports


def test_no_task_of_a_large_graph_is_moved_to_explain_it(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = get_solver("heft").solve(problem, SolveOptions(time_limit_s=1)).plan
    monkeypatch.delattr(sys.modules[Reasons.__module__], "moves")
    reasons = Reasons(problem, plan)
    for task in (499, 3):
        assert "fastest (" in reasons.of(task)
    assert explain_s(problem) < 0.1
    assert explain(problem, plan).reasons[3] == reasons.of(3)


def test_a_plan_on_many_memories_is_scheduled_without_a_table_of_all_pairs(
    problem: Problem,
) -> None:
    random = np.random.default_rng(0)
    for _ in range(3):
        placement = random.integers(0, 40, 500)
        plan = evaluate_order(problem.native, placement, np.arange(500))
        assert plan.violation == 0
        assert simulate_plan(problem.native, plan).makespan_ns == plan.makespan_ns


def test_no_prices_are_looked_at_after_the_deadline(problem: Problem) -> None:
    assert price_bound(problem, 10**6, 400, -1.0).num_evaluations == 1


def test_single_takes_the_fastest_device_first_and_no_other_after_the_deadline(
    problem: Problem, calls: Counter[str]
) -> None:
    fastest = problem.native.run_ns.sum(axis=0).argmin()
    result = get_solver("single").solve(problem, SolveOptions(time_limit_s=1e-9))
    assert calls["singles"] == 1
    assert set(result.plan.placement(500)) == {fastest}
    assert [name for name, _, _ in result.candidates] == [
        f"single gpu{index}" for index in range(40)
    ]
