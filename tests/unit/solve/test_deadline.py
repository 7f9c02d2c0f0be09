"""Every phase of a solve looks at the one deadline: what each returns when it has passed."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random

import pytest

from heteroplace.errors import SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.native.core_search import search_plans
from heteroplace.native.list import heft
from heteroplace.native.simulate import simulate_plan
from heteroplace.parts.throughput.split.split_solver import run_split
from heteroplace.parts.throughput.steady_state import prices
from heteroplace.parts.throughput.steady_state.prices import PriceBound, price_bound
from heteroplace.solve import Problem, SolveOptions, SolveResult, get_solver
from heteroplace.solve.coarsened import solve_coarsened
from heteroplace.solve.deadline import NEVER, Deadline, TimeUpError
from heteroplace.solve.exact.cpsat import run_cpsat
from heteroplace.solve.exact.formulate import formulate
from heteroplace.solve.lns.engine import run_lns
from heteroplace.solve.refinement import choose_route
from heteroplace.solve.search.initial_solutions import InitialSolutions
from tests.dags import random_task_graph
from zoo.graphs.catalogue import layered
from zoo.graphs.layered import Layered

PAST = Deadline.after(-1.0)


def test_a_deadline_that_has_passed_leaves_nothing() -> None:
    assert PAST.is_over()
    assert PAST.left_s() == 0.0
    assert PAST.within(5.0) == PAST
    with pytest.raises(TimeUpError):
        PAST.check()


def test_an_earlier_deadline_is_kept_within_a_later_one() -> None:
    assert NEVER.within(5.0).left_s() <= 5.0
    assert Deadline(7.0).earlier(2.0) == Deadline(5.0)
    assert Deadline.after(2.0, begin_s=5.0) == Deadline(7.0)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return layered(Layered(40, width=5), fill=0.2)


def test_no_exact_model_is_built_after_it(problem: Problem) -> None:
    with pytest.raises(TimeUpError):
        formulate(problem, deadline=PAST)


@pytest.mark.parametrize("name", ["cpsat", "split", "lns"])
def test_refinement_solvers_return_what_they_began_with(problem: Problem, name: str) -> None:
    plan, options = heft(problem.native, range(4)), SolveOptions()
    makespan = simulate_plan(problem.native, plan).makespan_ns
    if name == "cpsat":
        assert run_cpsat(problem, plan.steps, options, PAST, 0).steps == plan.steps
    elif name == "split":
        assert run_split(problem, plan.steps, options, PAST, 0).steps == plan.steps
    else:
        assert run_lns(problem, plan, options, PAST).makespan_ns == makespan


def test_search_tries_nothing_after_it(problem: Problem) -> None:
    plan = heft(problem.native, range(4))
    found = search_plans(problem.native, [plan], max_evaluations=None, time_limit_s=0.0, seed=0)
    assert found.num_evaluations == 0
    assert found.native_plan.violation == 0
    assert found.native_plan.makespan_ns <= plan.makespan_ns


def test_some_initial_solutions_are_made_whatever_the_time(problem: Problem) -> None:
    names = [name for name, _ in InitialSolutions(problem).native_plans(0.0)]
    assert [name.split()[0] for name in names] == ["single", "heft", "order-place"]


def test_the_bound_of_the_tasks_has_no_more_than_groups_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = layered(Layered(60), fill=0.2)
    limits: list[float] = []

    class Slow:
        max_tasks = None

        def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
            found = get_solver("throughput").solve(problem, replace(options, iterations=1))
            time.sleep(options.time_limit_s)
            return found

    def price_bound_in(*given: object) -> PriceBound:
        limits.append(given[3])
        return price_bound(*given)

    monkeypatch.setattr(prices, "price_bound", price_bound_in)
    options = SolveOptions("throughput", coarsening="breakpoints", time_limit_s=0.2, threads=1)
    solve_coarsened(problem, options, Slow())
    assert len(limits) == 1
    assert limits[0] <= 0.1 * options.time_limit_s


@pytest.mark.parametrize("name", ["auto", "search", "lns", "split", "cpsat", "moirai", "heft"])
def test_a_budget_that_is_over_at_once_gives_a_valid_plan(name: str, problem: Problem) -> None:
    result = get_solver(name).solve(problem, SolveOptions(time_limit_s=1e-9))
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    assert result.bound_ns <= result.objective_ns


def many_devices(count: int, num_tasks: int, is_mesh: bool = False) -> Problem:
    """A hub that all other devices are linked to, or all to all; every width another one."""
    random = Random(count)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    ends = pairs if is_mesh else [pair for pair in pairs if 0 in pair]
    links = tuple(
        Link(f"{a}-{b}", a, b, 10**9 + random.randrange(10**9), 1000, f"{a}-{b}") for a, b in ends
    )
    cluster = Cluster(
        "wide",
        tuple(Memory(f"m{i}", 10**9) for i in range(count)),
        tuple(Device(f"gpu{i}", "cuda", "", i, i) for i in range(count)),
        links,
        0,
    )
    graph = random_task_graph(random, num_tasks)
    times = [[random.randint(1000, 9000) for _ in range(count)] for _ in graph.tasks]
    costs = build_table(graph, cluster, lambda task, device: Cost.given(times[task][device]))
    return Problem(graph, cluster, costs)


@pytest.mark.parametrize("is_mesh", [False, True])
def test_forty_devices_are_placed_without_exact_models_of_all_pairs(is_mesh: bool) -> None:
    problem = many_devices(40, 60, is_mesh)
    assert choose_route(problem).refinements == ()
    options = SolveOptions(iterations=2000, threads=1)
    result = get_solver("auto").solve(problem, options)
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    assert result.objective_ns <= heft(problem.native, range(40)).makespan_ns


_LIST_SOLVERS = ("heft", "cpop", "peft", "met", "greedy", "adjusting-placement")
_EARLIEST_PAIR_SOLVERS = ("etf", "m-etf", "m-sct", "getf")
"""Where many pairs wait for one link, they try a hundred times as many as the others."""


@pytest.mark.parametrize("name", [*_LIST_SOLVERS, *_EARLIEST_PAIR_SOLVERS])
def test_a_list_scheduler_that_is_late_says_so(name: str) -> None:
    problem = many_devices(40, 60)
    with pytest.raises(SolverLimitError, match=f"{name} had not placed all 60 tasks on 40 devices"):
        get_solver(name).solve(problem, SolveOptions(time_limit_s=1e-9))


def test_celeritas_keeps_order_place_where_it_is_late_for_the_other() -> None:
    problem = many_devices(40, 60)
    result = get_solver("celeritas").solve(problem, SolveOptions(time_limit_s=1e-9))
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)


def test_initial_solutions_that_are_late_are_left_out() -> None:
    found = InitialSolutions(many_devices(40, 60)).native_plans(0.02)
    assert [name for name, _ in found if name.split()[0] in ("heft", "order-place")]
    assert all(plan.violation == 0 for _, plan in found)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", ["auto", "search", "lns", "split", "heft", "etf", "metis", "celeritas"]
)
@pytest.mark.parametrize(("count", "num_tasks"), [(300, 200), (300, 20_000), (8, 100_000)])
def test_sizes_up_to_the_largest_give_a_valid_plan(name: str, count: int, num_tasks: int) -> None:
    problem = many_devices(count, num_tasks)
    try:
        result = get_solver(name).solve(problem, SolveOptions(time_limit_s=20))
    except SolverLimitError:
        assert name in _EARLIEST_PAIR_SOLVERS
        return
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
