"""explain: what moving a task would cost is what the simulator says of the moved placement."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from heteroplace.errors import GraphError
from heteroplace.model.answers import TaskAnswer
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Plan
from heteroplace.model.solution import Solution
from heteroplace.model.step_values import collective_step_ns
from heteroplace.questions.names import find_tasks
from heteroplace.solve.moves import moves
from heteroplace.solve.problem import Problem
from tests.explicit_plans import explicit_plans
from tests.routed_plans import RoutedCase, routed_plans
from tests.strategies import Instance, exact_cases, instances_with_plan
from tests.unit.questions.worked import diamond_solution, lanes_solution, solution_of


def test_of_the_diamond_each_device_is_told() -> None:
    (answer,) = diamond_solution().explain("c")
    here = answer.devices[0]
    there = {"gpu0": "gpu1", "gpu1": "gpu0"}[here]
    choices = {choice.device: choice for choice in answer.choices}
    assert choices.keys() == {"gpu0", "gpu1"}
    assert [choices[name].run_ns for name in ("gpu0", "gpu1")] == [4, 3]
    assert choices[here].is_chosen
    assert choices[here].change_ns == 0
    # Without gpu1 everything is on gpu0: 12 ns instead of 10.
    assert (answer.objective_ns, here) == (10, "gpu1")
    assert choices[there].objective_ns == 12
    assert choices[there].change_ns == 2


def test_of_the_diamond_it_is_told_who_waits() -> None:
    solution = diamond_solution()
    (first,), (last,) = solution.explain("a"), solution.explain("d")
    assert first.waits_for == ()
    assert {reader.task for reader in first.readers} == {"b", "c"}
    assert last.readers == ()
    assert last.waits_for[0].ready_ns == last.start_ns
    # Nothing else runs beside a and d: each ns of them is one of the run.
    assert (first.saved_ns, last.saved_ns) == (2, 2)


def test_without_a_collective_of_all_devices_the_run_is_shorter_by_it() -> None:
    solution = lanes_solution()
    graph, cluster, costs = solution.graph, solution.cluster, solution.costs
    step = next(step for step in solution.plan.steps if isinstance(step, Collective))
    (answer,) = solution.explain(graph.tasks[step.task].name)
    taken_ns = collective_step_ns(graph, cluster, costs.collectives, step)
    assert answer.saved_ns == taken_ns > 0


@given(instances_with_plan(max_tasks=6, max_items=2))
@exact_cases(40)
def test_moves_are_those_of_the_report(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    problem = Problem(instance.graph, instance.cluster, instance.costs)
    found = moves(problem, plan, range(len(instance.graph.tasks)))
    solution = solution_of(instance, plan)
    for task, value in enumerate(instance.graph.tasks):
        (answer,) = solution.explain(value.name)
        told = tuple(choice.objective_ns for choice in answer.choices)
        assert told == found.objective_ns[task]
        for choice in answer.choices:
            if choice.objective_ns is None:
                assert choice.note
            else:
                assert choice.change_ns == choice.objective_ns - found.baseline_ns


@given(instances_with_plan(max_tasks=6, max_items=3, has_modes=True))
@exact_cases(20)
def test_what_is_told_of_times_is_in_the_run(case: tuple[Instance, Plan]) -> None:
    solution = solution_of(*case)
    for task in solution.graph.tasks:
        (answer,) = solution.explain(task.name)
        _check_times(answer, solution)
        assert str(answer).startswith(f"{task.name} (")


def _check_times(answer: TaskAnswer, solution: Solution) -> None:
    assert 0 <= answer.start_ns <= answer.finish_ns <= solution.predicted_ns
    ready = [moment.ready_ns for moment in answer.waits_for]
    assert ready == sorted(ready, reverse=True)
    assert all(moment <= answer.start_ns for moment in ready)
    assert all(reader.waited_ns >= 0 for reader in answer.readers)
    assert answer.saved_ns is None or 0 <= answer.saved_ns <= solution.predicted_ns


@given(explicit_plans())
@exact_cases(6)
def test_plans_with_collectives_are_explained_without_moves(case: tuple[Instance, Plan]) -> None:
    solution = solution_of(*case)
    for task in solution.graph.tasks:
        (answer,) = solution.explain(task.name)
        assert all(choice.objective_ns is None for choice in answer.choices)
        assert all("not known" in choice.note for choice in answer.choices)


@pytest.mark.costly(4)
@given(routed_plans())
@exact_cases(6)
def test_routed_plans_are_explained_without_moves(case: RoutedCase) -> None:
    solution = solution_of(case.instance, case.plan)
    for task in solution.graph.tasks:
        (answer,) = solution.explain(task.name)
        assert answer.saved_ns is None
        assert all(choice.objective_ns is None for choice in answer.choices)


def test_of_throughput_moves_are_times_per_item() -> None:
    solution = diamond_solution("throughput")
    (answer,) = solution.explain("b")
    chosen = next(choice for choice in answer.choices if choice.is_chosen)
    assert answer.is_per_item
    assert chosen.objective_ns == solution.item_ns == answer.objective_ns
    assert "time per item" in str(answer)


def _with_layers(graph: TaskGraph) -> TaskGraph:
    members = (("stem:conv", "stem:relu"), ("head.0:dense",), ("head.1:dense",), ())
    tasks = tuple(replace(t, members=m) for t, m in zip(graph.tasks, members, strict=True))
    return replace(graph, tasks=tasks)


def test_a_name_may_be_a_layer_an_op_or_a_pattern() -> None:
    solution = diamond_solution()
    solution = replace(solution, graph=_with_layers(solution.graph))
    assert [answer.task for answer in solution.explain("stem")] == ["a"]
    assert [answer.task for answer in solution.explain("head.*")] == ["b", "c"]
    assert [answer.task for answer in solution.explain("op")] == list("abcd")
    assert solution.explain("a")[0].layers == ("stem",)


def test_a_name_stands_for_all_layers_below_it() -> None:
    solution = diamond_solution()
    layers = ("branch0.conv1", "branch0.conv2", "branch01.conv1", "head/fc")
    tasks = tuple(
        replace(task, members=(f"{layer}:op",))
        for task, layer in zip(solution.graph.tasks, layers, strict=True)
    )
    graph = replace(solution.graph, tasks=tasks)
    assert find_tasks(graph, "branch0") == [0, 1]
    assert find_tasks(graph, "head") == [3]
    assert find_tasks(graph, "bran") == [0, 1, 2], "else all whose names begin so"


def test_an_unknown_name_is_answered_by_the_nearest() -> None:
    solution = diamond_solution()
    solution = replace(solution, graph=_with_layers(solution.graph))
    with pytest.raises(
        GraphError, match=r"no task, layer or op 'haed\.0'; did you mean \"head\.0\""
    ):
        solution.explain("haed.0")
    with pytest.raises(GraphError, match="'zz'; tasks are called like: a, b, c, d"):
        solution.explain("zz")
