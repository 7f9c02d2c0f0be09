"""Large neighbourhood search: exact on neighbourhoods, never worse than its start, reproducible."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from heteroplace.errors import HeteroPlaceError, InfeasibleError
from heteroplace.model.check import check_plan
from heteroplace.model.plan import Plan, Run
from heteroplace.native.core_arrays import COPY, RUN
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import evaluate_order
from heteroplace.native.simulate import simulate_plan, simulate_steps
from heteroplace.solve import Problem, ProgressReport, SolveOptions, get_solver
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.lns.apply import EqualNeighbourhoods, growth_bytes, merged, task_classes
from heteroplace.solve.lns.engine import LnsEnd, NeighbourhoodSearch, run_lns
from heteroplace.solve.lns.fixed_schedule import ProblemLists, SimulatedPlan, repaired
from heteroplace.solve.lns.neighbourhood import Neighbourhood, Subproblem, cut_out
from heteroplace.solve.lns.neighbourhood_model import FS_PER_NS, SubModel, SubSolution
from tests.corpus import corpus
from tests.instances import gpus, instance, problem_of
from tests.interrupts import ctrl_c_after
from tests.reference.brute_force import optimal_makespan
from tests.strategies import AMPLE, Instance, exact_cases, instances_with_plan, num_cases
from tests.unit.solve.bounds.chains import chains, optimum_of
from tests.unit.solve.test_determinism import layered

SHORT = SolveOptions(iterations=4000, time_limit_s=60, threads=1)


def start_of(problem: Problem, plan: Plan) -> NativePlan | None:
    """The runs of a plan in their order, with copies from home; None if that does not fit."""
    lists = ProblemLists(problem)
    rows = [(RUN, step.task, step.device, -1) for step in plan.steps if isinstance(step, Run)]
    native_plan = repaired(lists, rows)
    if native_plan.violation:
        return None
    used = simulate_plan(problem.native, native_plan).used_bytes
    fits = all(num <= limit for num, limit in zip(used, lists.limits, strict=True))
    return native_plan if fits else None


def solve_cut(lists: ProblemLists, cut: Subproblem, least_gain_ns: int = 0) -> SubSolution | None:
    """The best schedule of a neighbourhood."""
    model = SubModel(lists, cut.problem, least_gain_ns)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model.model)
    if status == cp_model.INFEASIBLE:
        return None
    assert status == cp_model.OPTIMAL
    return model.read(solver)


def improved(problem: Problem, native_plan: NativePlan, options: SolveOptions = SHORT) -> LnsEnd:
    """Improve a plan and judge the result."""
    end = run_lns(problem, native_plan, options, Deadline.after(options.time_limit_s))
    plan = problem.native.plan(end.native_plan.steps, "test")
    check_plan(problem.graph, problem.cluster, problem.costs, plan)
    assert end.makespan_ns == simulate_steps(problem.native, plan.steps).makespan_ns
    assert end.makespan_ns <= end.start_ns == simulate_plan(problem.native, native_plan).makespan_ns
    return end


def forks(count: int, capacity: int = AMPLE) -> Instance:
    """Equal forks and joins one behind the other; the left branch is faster on gpu1."""
    run_ns: dict[str, tuple[int | None, ...]] = {"in": (1, 1)}
    edges = []
    last = "in"
    for fork in range(count):
        join = f"join{fork}"
        for side, times in (("l", (40, 10)), ("r", (10, 40))):
            before = last
            for step in range(3):
                name = f"{side}{fork}_{step}"
                run_ns[name] = times
                edges.append((before, name))
                before = name
            edges.append((before, join))
        run_ns[join] = (5, 5)
        last = join
    return instance(edges, run_ns, gpus({(0, 1): 10, (1, 0): 10}, 2, capacity))


def on_first(problem: Problem) -> NativePlan:
    """Everything on device 0, as it comes."""
    count = len(problem.graph.tasks)
    return evaluate_order(problem.native, [0] * count, range(count))


@st.composite
def neighbourhoods(draw: st.DrawFn) -> tuple[Problem, SimulatedPlan, Neighbourhood]:
    """A plan that fits and any neighbourhood of it."""
    case, plan = draw(instances_with_plan(has_modes=True))
    problem = problem_of(case)
    native_plan = start_of(problem, plan)
    assume(native_plan is not None and len(native_plan.rows) > 0)
    assert native_plan is not None
    schedule = SimulatedPlan(ProblemLists(problem), native_plan)
    first = draw(st.integers(0, len(schedule) - 1))
    last = draw(st.integers(first + 1, len(schedule)))
    devices = draw(st.sets(st.sampled_from(range(schedule.lists.num_devices)), min_size=1))
    is_greedy = draw(st.booleans())
    return problem, schedule, Neighbourhood(first, last, tuple(sorted(devices)), is_greedy)


@pytest.mark.costly
@given(neighbourhoods())
@exact_cases(150)
def test_solution_of_any_neighbourhood_keeps_what_the_model_promises(
    drawn: tuple[Problem, SimulatedPlan, Neighbourhood],
) -> None:
    problem, schedule, neighbourhood = drawn
    lists = schedule.lists
    cut = cut_out(schedule, neighbourhood)
    solution = solve_cut(lists, cut)
    assert solution is not None  # The schedule as it is gains nothing and is a solution.
    found = merged(schedule, [(cut, solution)], 2**62)
    assert found is not None  # It fits the memories.
    assert found.makespan_ns <= schedule.makespan_ns
    plan = problem.native.plan(found.native_plan.steps, "test")
    check_plan(problem.graph, problem.cluster, problem.costs, plan)
    if all(not task.workspace_bytes for task in problem.graph.tasks):
        growth = growth_bytes(lists, cut, solution)
        grown = tuple(used + more for used, more in zip(schedule.used_bytes, growth, strict=True))
        assert found.used_bytes == grown


@pytest.mark.costly
@given(neighbourhoods(), st.data())
@exact_cases(100)
def test_time_is_lost_only_for_memory_that_is_worth_it(
    drawn: tuple[Problem, SimulatedPlan, Neighbourhood], data: st.DataObject
) -> None:
    _, schedule, neighbourhood = drawn
    lists = schedule.lists
    price = st.sampled_from([0, FS_PER_NS // 10, FS_PER_NS])
    prices = tuple(data.draw(price) for _ in lists.limits)
    cut = cut_out(schedule, replace(neighbourhood, prices_fs=prices))
    solution = solve_cut(lists, cut)
    assert solution is not None
    found = merged(schedule, [(cut, solution)], 2**62)
    if found is None:  # It need not fit.
        return
    assert found.makespan_ns <= max(schedule.makespan_ns, schedule.makespan_ns - solution.gain_ns)
    saved = sum(
        price * (before - after)
        for price, before, after in zip(prices, schedule.used_bytes, found.used_bytes, strict=True)
    )
    assert FS_PER_NS * solution.gain_ns + saved >= 0


@pytest.mark.costly
@given(neighbourhoods())
@num_cases(80)
def test_tails_lead_from_each_step_to_the_end(
    drawn: tuple[Problem, SimulatedPlan, Neighbourhood],
) -> None:
    _, schedule, _ = drawn
    ends = [start + tail for start, tail in zip(schedule.start_ns, schedule.tail_ns, strict=True)]
    assert max(ends) == schedule.makespan_ns
    assert schedule.critical


@pytest.mark.costly
@given(instances_with_plan(max_tasks=5, has_modes=True))
@exact_cases(60)
def test_small_plans_become_optimal_from_any_start(case: tuple[Instance, Plan]) -> None:
    built, plan = case
    problem = problem_of(built)
    native_plan = start_of(problem, plan)
    assume(native_plan is not None)
    assert native_plan is not None
    end = improved(problem, native_plan)
    optimum = optimal_makespan(built.graph, built.cluster, built.costs)
    assert optimum is not None
    assert end.makespan_ns == optimum
    # Nothing is to be proven of a plan that takes no time.
    assert end.is_optimal or optimum == 0
    assert end.note.endswith("proven optimal") == end.is_optimal


def test_pinned_tasks_leave_the_order_of_their_copies_free() -> None:
    """What is read longest is copied first: 1 + 10 + 100 and a reader of 1."""
    times: dict[str, tuple[int | None, ...]] = {
        "p1": (1, None),
        "p2": (1, None),
        "r1": (None, 1),
        "r2": (None, 100),
    }
    case = instance([("p1", "r1"), ("p2", "r2")], times, gpus({(0, 1): 1}, 2))
    problem = problem_of(case)
    rows = [(RUN, 0, 0, -1), (RUN, 1, 0, -1), (COPY, 0, 1, 0), (COPY, 1, 1, 0)]
    start = repaired(ProblemLists(problem), [*rows, (RUN, 2, 1, -1), (RUN, 3, 1, -1)])
    end = improved(problem, start)
    assert (end.start_ns, end.makespan_ns, end.is_optimal) == (121, 112, True)


@corpus
def pinned(random: Random) -> tuple[Instance, list[int]]:
    """Pairs of tasks, nearly all pinned, whose tensors share links; and an order of the tasks."""
    count = random.randint(2, 3)
    run_ns: dict[str, tuple[int | None, ...]] = {}
    for side, home in (("p", 0), ("r", 1)):
        for index in range(count):
            row: list[int | None] = [random.choice([1, 2, 5, 30]) for _ in range(2)]
            if random.random() < 0.85:
                row[1 - home] = None
            run_ns[f"{side}{index}"] = tuple(row)
    edges = [(f"p{index}", f"r{index}") for index in range(count)]
    edges += [("p0", f"r{count - 1}")] * (random.random() < 0.3)
    sizes = {f"p{index}": random.choice([0, 3, 10]) for index in range(count)}
    host = random.choice([None, 0, 1])
    cluster = gpus({(0, 1): 1, (1, 0): 1}, 2, host=host)
    order = [*random.sample(range(count), count), *random.sample(range(count, 2 * count), count)]
    return instance(edges, run_ns, cluster, 2, tensor_bytes=sizes), order


@pytest.mark.costly
@given(pinned())
@exact_cases(40)
def test_bounds_hold_where_tasks_are_pinned(drawn: tuple[Instance, list[int]]) -> None:
    case, order = drawn
    problem = problem_of(case)
    optimum = optimal_makespan(case.graph, case.cluster, case.costs)
    lists = ProblemLists(problem)
    rows = [(RUN, task, lists.allowed(task)[0], -1) for task in order]
    end = improved(problem, repaired(lists, rows))
    assert (end.makespan_ns, end.is_optimal) == (optimum, True)
    for name in ("lns", "auto"):
        result = get_solver(name).solve(problem, SHORT)
        assert optimum is not None and result.bound_ns <= optimum <= result.objective_ns


@pytest.mark.costly
def test_solver_is_never_worse_than_the_search_inside_it() -> None:
    are_found: list[bool] = []

    @given(chains(max_tasks=5))
    @exact_cases(40)
    def check(case: Instance) -> None:
        optimum = optimum_of(case)
        if optimum is None:
            return
        try:
            result = get_solver("lns").solve(problem_of(case), SHORT)
        except InfeasibleError:
            are_found.append(False)
            return
        are_found.append(True)
        check_plan(case.graph, case.cluster, case.costs, result.plan)
        searched = dict((name, makespan) for name, makespan, _ in result.candidates)["search"]
        assert searched is not None
        assert result.bound_ns <= optimum <= result.objective_ns <= searched

    check()
    assert are_found
    assert sum(are_found) >= 0.9 * len(are_found)


@pytest.mark.costly
def test_neighbourhoods_of_a_long_chain_end_near_its_optimum() -> None:
    problem = problem_of(forks(12))
    end = improved(problem, on_first(problem), SolveOptions(iterations=8000, time_limit_s=60))
    # One fork alone: both branches in 30, a copy each way of 1, the join 5.
    assert end.makespan_ns <= 1.05 * 12 * (30 + 2 + 5)
    assert end.note.startswith("lns: ")
    assert "shorter than its start" in end.note


def test_improvement_of_one_fork_is_found_in_all_equal_ones() -> None:
    problem = problem_of(forks(30))
    schedule = SimulatedPlan(ProblemLists(problem), on_first(problem))
    equals = EqualNeighbourhoods(schedule, task_classes(schedule.lists))
    # A fork has 7 tasks; the first one begins behind the input.
    cut = cut_out(schedule, Neighbourhood(8, 15, (0, 1), is_greedy=False))
    others = equals.others(cut, [cut.neighbourhood])
    assert len(others) >= 27
    solution = solve_cut(schedule.lists, cut, 1)
    assert solution is not None
    alone = merged(schedule, [(cut, solution)], schedule.makespan_ns)
    everywhere = merged(
        schedule, [(cut, solution), *((other, solution) for other in others)], schedule.makespan_ns
    )
    assert alone is not None
    assert everywhere is not None
    gain = schedule.makespan_ns - alone.makespan_ns
    assert schedule.makespan_ns - everywhere.makespan_ns >= 0.9 * gain * (1 + len(others))


@pytest.mark.costly
def test_full_memories_are_kept() -> None:
    # 141 tensors of 10 bytes lie on gpu0; hardly anything else fits beside them.
    problem = problem_of(forks(20, capacity=1450))
    end = improved(problem, on_first(problem))
    assert end.makespan_ns < end.start_ns


@pytest.mark.costly(6)
def test_budget_in_iterations_gives_one_plan_for_any_number_of_threads() -> None:
    problem = problem_of(layered(30))
    found = set()
    for threads in (1, 2, 3):
        options = SolveOptions(iterations=3000, seed=4, threads=threads, time_limit_s=120)
        end = improved(problem, on_first(problem), options)
        found.add((end.native_plan.steps, end.num_neighbourhoods))
    assert len(found) == 1


@pytest.mark.costly
def test_solver_says_what_lns_achieved() -> None:
    problem = problem_of(layered(12))
    reports: list[ProgressReport] = []
    options = SolveOptions(iterations=6000, time_limit_s=60, progress=reports.append)
    result = get_solver("lns").solve(problem, options)
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    names = [name for name, _, _ in result.candidates]
    assert names == ["search", "lns"]
    assert result.candidates[1][1] == result.objective_ns
    assert result.candidates[1][2].startswith("lns: ")
    made = [report for report in reports if report.phase == "lns"]
    assert made
    assert all(report.best_ns is not None for report in made)
    assert made[-1].plan is not None
    check_plan(problem.graph, problem.cluster, problem.costs, made[-1].plan())


def test_solver_says_that_it_could_not_improve() -> None:
    problem = problem_of(forks(2))
    first = improved(problem, on_first(problem))
    end = improved(problem, first.native_plan)
    assert end.note == "lns: no shorter plan in 1 neighbourhood: proven optimal"


def test_a_later_turn_knows_what_was_tried_in_vain() -> None:
    problem = problem_of(forks(2))
    search, deadline = NeighbourhoodSearch(problem, SHORT), Deadline.after(60)
    first = search.run(on_first(problem), deadline)
    assert first.is_optimal and first.num_neighbourhoods > 0
    second = search.run(first.native_plan, deadline)
    assert (second.makespan_ns, second.num_neighbourhoods) == (first.makespan_ns, 0)


def test_no_time_leaves_the_start_as_it_is() -> None:
    problem = problem_of(layered(12))
    start = on_first(problem)
    end = run_lns(problem, start, SolveOptions(), Deadline.after(0))
    assert end.makespan_ns == end.start_ns
    assert end.num_neighbourhoods == 0
    assert end.note == "lns: no shorter plan in 0 neighbourhoods"


def test_ctrl_c_during_a_round_ends_with_a_plan() -> None:
    problem = problem_of(layered(60))
    with ctrl_c_after(0.5):
        end = improved(problem, on_first(problem), SolveOptions(time_limit_s=100, threads=2))
    assert end.was_interrupted


@pytest.mark.costly
def test_ctrl_c_after_a_round_keeps_what_it_gained() -> None:
    problem = problem_of(layered(60))
    start = on_first(problem)

    def progress(report: ProgressReport) -> None:
        assert report.best_ns is not None
        if report.best_ns < start.makespan_ns:
            raise KeyboardInterrupt

    end = improved(problem, start, SolveOptions(time_limit_s=100, progress=progress))
    assert end.was_interrupted
    assert end.makespan_ns < end.start_ns


def test_error_in_the_progress_function_reaches_the_caller() -> None:
    problem = problem_of(layered(12))

    def fail(_report: ProgressReport) -> None:
        raise ValueError("no screen")

    with pytest.raises(ValueError, match="no screen"):
        run_lns(problem, on_first(problem), SolveOptions(progress=fail), Deadline.after(20))


def test_graph_that_fits_nowhere_is_infeasible() -> None:
    problem = problem_of(instance([], {"a": (1, 1)}, gpus({}, 2, capacity=5), num_bytes=10))
    with pytest.raises(HeteroPlaceError, match="a"):
        get_solver("lns").solve(problem, SHORT)
