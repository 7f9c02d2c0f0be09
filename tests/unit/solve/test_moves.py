"""What moving one task costs, against the same placement planned and judged as a whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given

from heteroplace.errors import InfeasibleError, SolverError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Copy, Load, Plan, Run
from heteroplace.native.list import evaluate_order
from heteroplace.simulate.simulator import simulate
from heteroplace.simulate.throughput import throughput_ns
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.judge import replay
from heteroplace.solve.moves import most_movable, moved_steps, moves, unmovable
from heteroplace.solve.network_solution import solution_of
from heteroplace.solve.plan_reasons import explain
from heteroplace.solve.solve_report import write_report
from tests.explicit_plans import explicit_plans
from tests.instances import given_costs, problem_of
from tests.routed_plans import RoutedCase, routed_plans
from tests.strategies import AMPLE, Instance, exact_cases, instances, instances_with_plan


def heft_plan(problem: Problem) -> Plan:
    return get_solver("heft").solve(problem, SolveOptions()).plan


def moved_plan(problem: Problem, plan: Plan, task: int, device: int) -> Plan | None:
    """The plan scheduled anew with one task and its group elsewhere; None: it does not fit."""
    native, label = problem.native, problem.graph.tasks[task].together
    placement = list(native.placement(plan.steps))
    for index, one in enumerate(problem.graph.tasks):
        if index == task or (label is not None and one.together == label):
            placement[index] = device
    order = [step.task for step in plan.steps if isinstance(step, Run)]
    found = evaluate_order(native, placement, order)
    return native.plan(found.steps, "moved") if found.violation == 0 else None


@given(instances(max_tasks=6))
@exact_cases(40)
def test_a_move_costs_what_the_moved_plan_takes(case: Instance) -> None:
    problem = problem_of(case)
    plan = heft_plan(problem)
    found = moves(problem, plan, range(len(case.graph.tasks)))
    for task, row in zip(found.tasks, found.objective_ns, strict=True):
        for device, ns in enumerate(row):
            if ns is None:
                continue
            moved = moved_plan(problem, plan, task, device)
            assert moved is not None
            # The simulated makespan is never later than the scheduler had it.
            assert simulate(case.graph, case.cluster, case.costs, moved).makespan_ns <= ns


@given(instances(max_tasks=6))
@exact_cases(40)
def test_a_task_that_stays_costs_nothing(case: Instance) -> None:
    problem = problem_of(case)
    plan = heft_plan(problem)
    placement = plan.placement(len(case.graph.tasks))
    for objective in ("latency", "throughput"):
        found = moves(problem, plan, range(len(placement)), objective)
        stays = [row[placement[task]] for task, row in enumerate(found.objective_ns)]
        assert set(stays) == {found.baseline_ns}


def late_copies() -> tuple[Instance, Plan]:
    """A plan on a GPU of 100 bytes, which fits since y comes when x and o are gone.

    Its copies take turns on one channel. Made anew, y comes right behind x, and there would be 120
    bytes.
    """
    builder = TaskGraphBuilder("late")
    for name in ("x", "y"):
        builder.add_input(name, num_bytes=60)
    builder.add_task(Task("a", "op"), ["x"])
    builder.add_tensor("a", num_bytes=30, name="o")
    builder.add_tensor("a", num_bytes=10, name="p")
    builder.add_task(Task("b", "op"), ["p", "y"])
    builder.add_tensor("b", num_bytes=1, name="q")
    graph = builder.finalize(["o", "q"])
    cluster = Cluster(
        "small card",
        (Memory("ram", AMPLE), Memory("card", 100)),
        (Device("cpu", "cpu", "llvm", 0, 0, (0,)), Device("gpu", "cuda", "cuda", 0, 1)),
        (Link("up", 0, 1, 10**9, 0, "bus"), Link("down", 1, 0, 10**9, 0, "bus")),
        0,
    )
    costs = given_costs(graph, cluster, {"a": (1000, 10), "b": (1000, 10)})
    x, y, o, _, q = (next(i for i, t in enumerate(graph.tensors) if t.name == n) for n in "xyopq")
    steps = (
        *(Copy(x, 0, 1, (0,)), Run(0, 1), Copy(o, 1, 0, (1,))),
        *(Copy(y, 0, 1, (0,)), Run(1, 1), Copy(q, 1, 0, (1,))),
    )
    return Instance(graph, cluster, costs), Plan(graph.digest(), cluster.digest(), steps, "by hand")


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_plan_that_fits_only_as_it_is_stays_what_others_are_compared_with(
    objective: str, tmp_path: Path
) -> None:
    case, plan = late_copies()
    problem = problem_of(case)
    options = SolveOptions(objective=objective)
    result = replay(problem, plan, options)  # as `place --plan-in`; it checks the plan
    found = moves(problem, plan, (0, 1), objective)
    expected = {"latency": 171, "throughput": 151}[objective]
    assert found.baseline_ns == result.objective_ns == expected
    assert [row[1] for row in found.objective_ns] == [found.baseline_ns] * 2
    assert all(row[0] is None or row[0] > found.baseline_ns for row in found.objective_ns)
    explained = explain(problem, plan, objective)
    assert all(explained.reasons)
    timeline = simulate(case.graph, case.cluster, case.costs, plan)
    solution = solution_of(problem, replace(result, plan=explained), objective, timeline)
    for answer in solution.explain("*"):
        assert [choice.change_ns for choice in answer.choices if choice.is_chosen] == [0]
    write_report(solution, tmp_path / "page.html")
    assert (tmp_path / "page.html").exists()


@given(instances(max_tasks=6))
@exact_cases(40)
def test_with_throughput_it_is_the_time_per_item_of_the_moved_plan(case: Instance) -> None:
    problem = problem_of(case)
    plan = heft_plan(problem)
    found = moves(problem, plan, range(len(case.graph.tasks)), "throughput")
    for task, row in zip(found.tasks, found.objective_ns, strict=True):
        for device, ns in enumerate(row):
            moved = None if ns is None else moved_plan(problem, plan, task, device)
            if moved is not None:
                assert throughput_ns(case.graph, case.cluster, case.costs, moved) == ns


@given(instances(max_tasks=5, max_batch=2))
@exact_cases(40)
def test_a_plan_of_two_items_with_a_task_moved_is_a_plan(case: Instance) -> None:
    problem = problem_of(case)
    try:
        plan = get_solver("bheft").solve(problem, SolveOptions(items=2)).plan
    except InfeasibleError:
        assume(False)
    found = moves(problem, plan, range(len(case.graph.tasks)))
    for task, row in zip(found.tasks, found.objective_ns, strict=True):
        for device, ns in enumerate(row):
            if ns is None:
                continue
            steps = tuple(moved_steps(problem, plan, task, device))
            moved = replace(plan, steps=steps, reasons=())
            check_plan(case.graph, case.cluster, case.costs, moved)
            assert simulate(case.graph, case.cluster, case.costs, moved).makespan_ns == ns


def test_plans_with_loads_say_why_nothing_is_moved(diamond: Instance) -> None:
    plan = heft_plan(problem_of(diamond))
    assert unmovable(diamond.graph, plan) == ""
    loading = replace(plan, steps=(Load((0,), 0, 1, (0,)),))
    assert "loads weights" in unmovable(diamond.graph, loading)


@pytest.mark.costly(5)
@given(routed_plans())
@exact_cases(4)
def test_plans_of_routed_networks_say_why_nothing_is_moved(case: RoutedCase) -> None:
    assert "router" in unmovable(case.instance.graph, case.plan)


@given(explicit_plans())
@exact_cases(10)
def test_explicit_schedules_are_unmovable_and_solvers_refuse_them(
    case: tuple[Instance, Plan],
) -> None:
    instance, plan = case
    assert unmovable(instance.graph, plan)
    with pytest.raises(SolverError, match="explicit schedule"):
        problem_of(instance)


@given(instances_with_plan())
@exact_cases(10)
def test_plans_of_solvers_are_movable(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    problem_of(instance)
    assert unmovable(instance.graph, plan) == ""


def test_all_tasks_of_a_small_graph_are_asked_about(diamond: Instance) -> None:
    problem = problem_of(diamond)
    assert most_movable(problem, heft_plan(problem)) == 4
