"""diff: moves, totals and notes; nothing between equal plans."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from heteroplace.errors import PlanError
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Plan, Run
from heteroplace.model.solution import Solution
from tests.instances import cpu, instance
from tests.strategies import Instance, exact_cases, instances_with_plan
from tests.unit.questions.worked import diamond_solution, solution_of


def alone(solution: Solution) -> Solution:
    """Everything on gpu0."""
    steps = tuple(Run(task, 0) for task in range(4))
    plan = replace(solution.plan, steps=steps, reasons=())
    return replace(solution, plan=plan, predicted_ns=12)


def test_moves_are_told_with_their_times() -> None:
    before = diamond_solution()
    found = alone(before).diff(before)
    assert [(m.task, m.was, m.now, m.was_ns, m.now_ns) for m in found.moved] == [
        ("c", ("gpu0",), ("gpu1",), 4, 3)
    ]
    assert (found.was.objective_ns, found.now.objective_ns) == (12, 10)
    assert (found.was.num_copies, found.now.num_copies) == (0, 2)
    assert found.now.copied_bytes == 20
    assert dict(found.now.tasks_of) == {"gpu0": 3, "gpu1": 1}
    assert found.notes == ()
    text = str(found)
    assert "tasks moved: 1" in text
    assert "-2 ns (-16.7%)" in text


@pytest.mark.parametrize(
    ("order", "count"), [("dabc", 1), ("bcda", 1), ("abdc", 1), ("badc", 2), ("dcba", 3)]
)
def test_one_task_that_comes_earlier_does_not_count_those_behind_it(order: str, count: int) -> None:
    case = instance([], dict.fromkeys("abcd", (1, 1, 1)), cpu())
    digests = case.graph.digest(), case.cluster.digest()
    before, now = (
        solution_of(case, Plan(*digests, tuple(Run("abcd".index(name), 0) for name in names), ""))
        for names in ("abcd", order)
    )
    assert before.diff(now).num_reordered == count


@pytest.mark.costly
@given(instances_with_plan(max_tasks=6, max_items=2))
@exact_cases(15)
def test_a_plan_does_not_differ_from_itself(case: tuple[Instance, Plan]) -> None:
    solution = solution_of(*case)
    found = solution.diff(solution)
    assert found.moved == found.added == found.dropped == found.notes == ()
    assert found.num_reordered == 0
    assert found.was == found.now


def test_what_cannot_be_compared_is_noted() -> None:
    first, second = diamond_solution(), diamond_solution("throughput")
    assert "one plan is for latency and the other for throughput" in str(first.diff(second))
    larger = replace(first.cluster.memories[0], bytes=2**50)
    cluster = replace(first.cluster, memories=(larger, *first.cluster.memories[1:]))
    other = first.diff(replace(first, cluster=cluster))
    assert other.notes == ("the clusters differ: memory m0 has another bytes",)


def test_other_costs_are_noted() -> None:
    solution = diamond_solution()
    times = solution.costs.ns[0]
    slower = replace(solution.costs, ns=(type(times)("q", [2 * ns for ns in times]),))
    (note,) = solution.diff(replace(solution, costs=slower)).notes
    assert note.startswith("the costs differ in 8 of 8 times (28 ns before, 56 ns now, in sum)")


def test_plans_of_different_models_are_refused() -> None:
    builder = TaskGraphBuilder("other")
    builder.add_task(Task("z", "op"), [])
    builder.add_tensor("z", num_bytes=1)
    graph = builder.finalize(["z.0"])
    solution = diamond_solution()
    plan = Plan(graph.digest(), solution.cluster.digest(), (Run(0, 0),), "by hand")
    with pytest.raises(PlanError, match="no task in common; give two plans of one model"):
        solution.diff(replace(solution, graph=graph, plan=plan))
