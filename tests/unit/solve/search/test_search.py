"""The search: near brute force on tiny instances, never worse than its initial plans."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given

from heteroplace.errors import InfeasibleError
from heteroplace.model.check import check_plan
from heteroplace.native.core_search import search_plans
from heteroplace.native.list import heft
from heteroplace.native.simulate import simulate_plan, simulate_steps
from heteroplace.solve import Problem, ProgressReport, SolveOptions, SolveResult, get_solver
from heteroplace.solve.list import heft as heft_module
from heteroplace.solve.search.initial_solutions import InitialSolutions
from tests.instances import problem_of
from tests.programs import environment
from tests.strategies import Instance, exact_cases, random_instance
from tests.unit.solve.bounds.chains import chains, optimum_of
from tests.unit.solve.test_determinism import layered
from zoo.graphs import catalogue
from zoo.graphs.layered import Layered
from zoo.graphs.transformer import Transformer

SMALL = SolveOptions(iterations=3000, time_limit_s=60, threads=1)


def solve(problem: Problem, options: SolveOptions = SMALL) -> SolveResult:
    """Search and judge the plan."""
    result = get_solver("search").solve(problem, options)
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    assert result.bound_ns <= result.objective_ns
    assert result.objective_ns == simulate_steps(problem.native, result.plan.steps).makespan_ns
    return result


def large(seed: int = 0) -> Problem:
    """A graph without cuts, to be searched segment by segment; its optimum is out of reach."""
    return catalogue.layered(Layered(600, seed=seed))


@pytest.mark.costly(5)
def test_long_copies_are_given_up() -> None:
    # Heads of attention read one tensor of long copies, and leave a memory only together:
    # annealing alone ends at 41.4 ms on average.
    problem = catalogue.transformer(Transformer("heads", 2, 2048, 16, 1, 2048), "inter", 0.3)
    options = replace(SMALL, iterations=150_000)
    found = [solve(problem, replace(options, seed=seed)).objective_ns for seed in range(3)]
    assert sum(found) < 3 * 41_100_000, found


@pytest.mark.costly
def test_search_finds_nearly_all_optima_and_nothing_below_one() -> None:
    # Not all: copies leave in the order of the tasks that read them, and brute force tries all.
    ratios: list[float] = []

    @given(chains(max_tasks=4, is_memory_ample=True))
    @exact_cases(150)
    def check(case: Instance) -> None:
        optimum = optimum_of(case)
        if optimum is not None:
            found = solve(problem_of(case)).objective_ns
            assert found >= optimum
            ratios.append(found / optimum if optimum else 1.0)

    check()
    assert sum(ratio == 1 for ratio in ratios) >= 0.93 * len(ratios)
    assert sum(ratios) <= 1.02 * len(ratios)


@pytest.mark.costly(4)
def test_plan_fits_and_beats_every_start_that_fits_and_nearly_all_are_found() -> None:
    are_found: list[bool] = []

    @given(chains(max_tasks=5))
    @exact_cases(150)
    def check(case: Instance) -> None:
        optimum = optimum_of(case)
        problem = problem_of(case)
        if optimum is None:
            with pytest.raises(InfeasibleError):
                solve(problem)
            return
        initial_ns = [
            simulate_plan(problem.native, native_plan).makespan_ns
            for _, native_plan in InitialSolutions(problem).native_plans(9)
            if native_plan.violation == 0
        ]
        try:
            result = solve(problem)
        except InfeasibleError:
            assert not initial_ns
            are_found.append(False)
            return
        are_found.append(True)
        assert optimum <= result.objective_ns <= min(initial_ns, default=result.objective_ns)

    check()
    assert are_found
    assert sum(are_found) >= 0.95 * len(are_found)


@pytest.mark.costly
def test_plan_is_no_longer_than_the_best_single_device() -> None:
    compared: list[bool] = []

    @given(chains(max_tasks=5))
    @exact_cases(100)
    def check(case: Instance) -> None:
        problem = problem_of(case)
        if optimum_of(case) is None:
            return
        try:
            single = get_solver("single").solve(problem, SMALL).objective_ns
        except InfeasibleError:
            compared.append(False)
            return
        compared.append(True)
        assert solve(problem).objective_ns <= single

    check()
    assert sum(compared) > 0.7 * len(compared)


@pytest.mark.costly
@given(chains(max_tasks=5))
@exact_cases(40)
def test_tiny_plans_do_not_depend_on_the_number_of_threads(case: Instance) -> None:
    if optimum_of(case) is None:
        return
    found = set()
    for threads in (1, 2, 3):
        options = SolveOptions(iterations=500, seed=5, threads=threads, time_limit_s=60)
        try:
            found.add(solve(problem_of(case), options).plan.steps)
        except InfeasibleError:
            found.add(())
    assert len(found) == 1


@pytest.mark.costly
@pytest.mark.parametrize("name", ["rwnn/er10x5", "rwnn/er10x5-sdep2", "rwnn/er32x1"])
def test_plan_of_a_network_does_not_depend_on_the_number_of_threads(name: str) -> None:
    built = catalogue.select(f"^{name}$")[0].build()
    problem = Problem(built.graph, built.cluster, built.costs)
    options = [
        SolveOptions(iterations=20_000, seed=7, threads=threads, time_limit_s=120)
        for threads in (1, 2, 3)
    ]
    results = [solve(problem, option) for option in options]
    assert len({result.plan.steps for result in results}) == 1
    assert len({result.bound_ns for result in results}) == 1


@pytest.mark.costly
def test_plan_of_a_large_module_beats_every_initial_solution_whatever_the_number_of_threads() -> (
    None
):
    """MinMin's is within 5 % of the bound."""
    problem = large()
    initial_ns = [
        simulate_plan(problem.native, native_plan).makespan_ns
        for _, native_plan in InitialSolutions(problem).native_plans(9)
        if native_plan.violation == 0
    ]
    assert initial_ns
    results = [
        solve(problem, SolveOptions(iterations=120_000, seed=3, threads=threads, time_limit_s=120))
        for threads in (1, 2, 3)
    ]
    assert len({result.plan.steps for result in results}) == 1
    assert results[0].objective_ns < min(initial_ns)


@pytest.mark.costly(5)
@pytest.mark.parametrize("iterations", [1, 599, 3001])
def test_large_module_is_searched_with_any_budget(iterations: int) -> None:
    # Fewer moves than tasks, or than segments: some segments get none.
    problem = large(seed=1)
    options = SolveOptions(iterations=iterations, time_limit_s=120)
    assert solve(problem, options).plan.steps == solve(problem, options).plan.steps


def test_other_seeds_may_find_other_plans_but_each_is_repeated() -> None:
    problem = problem_of(layered())
    for seed in (0, 1):
        options = SolveOptions(iterations=5000, seed=seed, time_limit_s=60)
        assert solve(problem, options).plan.steps == solve(problem, options).plan.steps


def test_interrupt_inside_the_progress_function_ends_the_search_with_its_best_plan() -> None:
    problem = large()
    calls: list[ProgressReport] = []

    def progress(report: ProgressReport) -> None:
        if report.phase == "search":
            calls.append(report)
            if len(calls) == 3:
                raise KeyboardInterrupt

    result = solve(problem, SolveOptions(time_limit_s=60, progress=progress))
    assert result.status == "interrupted"
    assert len(calls) == 3
    assert calls[-1].best_ns is not None
    assert result.objective_ns <= calls[-1].best_ns


def test_error_in_the_progress_function_is_not_an_interrupt() -> None:
    def progress(report: ProgressReport) -> None:
        if report.phase == "search":
            raise ValueError("no screen")

    with pytest.raises(ValueError, match="no screen"):
        solve(problem_of(layered(30)), SolveOptions(time_limit_s=60, progress=progress))


_CHILD = """
import signal
from heteroplace.model.check import check_plan
from heteroplace.solve import SolveOptions, get_solver
from tests.unit.solve.search.test_search import large

signal.signal(signal.SIGINT, signal.default_int_handler)
problem = large()
has_begun = False

def progress(report):
    global has_begun
    if report.phase == "search" and not has_begun:
        has_begun = True
        print("begun", flush=True)

options = SolveOptions(time_limit_s=100, threads=2, progress=progress)
result = get_solver("search").solve(problem, options)
check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
print(result.status, flush=True)
"""


@pytest.mark.costly
def test_ctrl_c_ends_a_search_in_another_process_with_its_best_plan() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "begun\n"
        child.send_signal(signal.SIGINT)
        rest, _ = child.communicate(timeout=60)
    assert rest == "interrupted\n"
    assert child.returncode == 0


def fits_as_heft_has_it() -> Problem:
    """Memories of what HEFT's plan needs at once; the search schedules its devices and order anew,
    and lacks memory then."""
    random = Random(501)
    case = random_instance(random, random.choice([8, 12, 20]))
    ample = problem_of(case)
    plan = heft(ample.native, range(len(case.cluster.devices)))
    memories = tuple(
        replace(memory, bytes=peak)
        for memory, peak in zip(
            case.cluster.memories, simulate_plan(ample.native, plan).peak_bytes, strict=True
        )
    )
    return Problem(case.graph, replace(case.cluster, memories=memories), case.costs)


@pytest.mark.parametrize("solver", ["search", "lns"])
def test_an_initial_solution_that_fits_is_kept_where_the_search_has_none(solver: str) -> None:
    problem = fits_as_heft_has_it()
    plans = [plan for _, plan in InitialSolutions(problem).native_plans(9)]
    initial_ns = [simulate_plan(problem.native, p).makespan_ns for p in plans if not p.violation]
    assert initial_ns
    found = search_plans(problem.native, plans, max_evaluations=0, time_limit_s=60, seed=0)
    assert found.native_plan.violation > 0
    result = get_solver(solver).solve(problem, replace(SMALL, iterations=0))
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    assert result.objective_ns <= min(initial_ns)


def test_a_mended_plan_lacks_no_more_than_what_it_was_made_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = fits_as_heft_has_it()
    plan = heft(problem.native, range(len(problem.cluster.devices)))
    report = search_plans(problem.native, [plan], max_evaluations=0, time_limit_s=60, seed=0)
    assert report.native_plan.violation > plan.violation == 0
    monkeypatch.setattr(heft_module, "search_plans", lambda *_, **__: report)
    assert heft_module.repair(problem, plan, 1.0) is plan


def test_where_heft_overflows_a_memory_its_mended_plan_is_a_start() -> None:
    num_repaired = 0
    for seed in range(60):
        problem = problem_of(random_instance(Random(seed), 7, is_memory_tight=True))
        plans = dict(InitialSolutions(problem).native_plans(5.0))
        heft = plans.get("heft " + ", ".join(d.name for d in problem.cluster.devices))
        if "heft, repaired" in plans:
            assert heft is not None and heft.violation > 0
            assert plans["heft, repaired"].violation == 0
            num_repaired += 1
    assert num_repaired > 0, "no instance is tight enough"
