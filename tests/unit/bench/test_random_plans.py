"""Random plans: valid, seeded, of all kinds."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.prediction.random_plans import KINDS, random_plans
from heteroplace.errors import InfeasibleError
from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.plan import Run
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.problem import Problem
from tests.dags import random_task_graph
from tests.instances import cpu, diamond, gpus, instance, problem_of
from tests.strategies import exact_cases


def wide(num_tasks: int = 40) -> Problem:
    graph = random_task_graph(random.Random(1), num_tasks)
    cluster = cpu()
    return Problem(graph, cluster, build_table(graph, cluster, lambda t, d: Cost.given(5 + t + d)))


@given(st.integers(0, 2**32), st.booleans(), st.integers(1, 12))
@exact_cases(40)
def test_every_plan_is_valid(seed: int, is_pinned: bool, num_tasks: int) -> None:
    graph = random_task_graph(random.Random(seed), num_tasks, is_pinned)
    cluster = gpus({(0, 1): 10, (1, 0): 10}, 2)
    costs = build_table(graph, cluster, lambda task, device: Cost.given(3))
    problem = Problem(graph, cluster, costs)
    try:
        plans = random_plans(problem, 2 * len(KINDS), seed)
    except InfeasibleError as error:
        assert is_pinned and "is allowed on no device" in str(error)
        return
    for plan in plans:
        check_plan(graph, cluster, costs, plan)


def test_plans_depend_on_the_seed_only() -> None:
    problem = wide()
    first, again, other = (random_plans(problem, 10, seed) for seed in (1, 1, 2))
    assert [plan.steps for plan in first] == [plan.steps for plan in again]
    assert [plan.steps for plan in first] != [plan.steps for plan in other]


def test_kinds_take_turns_and_name_their_plans() -> None:
    plans = random_plans(wide(), 7, 0)
    assert [plan.origin for plan in plans] == [
        f"{KINDS[index % len(KINDS)]} {index}" for index in range(7)
    ]
    assert len({plan.steps for plan in plans}) == 7


def test_plans_differ_in_device_and_in_order() -> None:
    problem = wide()
    plans = random_plans(problem, 20, 0)
    devices = {step.device for plan in plans for step in plan.steps if isinstance(step, Run)}
    assert devices == {0, 1, 2}
    orders = {tuple(step.task for step in plan.steps if isinstance(step, Run)) for plan in plans}
    assert len(orders) > 5


def test_runs_stay_longer_on_a_device_than_uniform_choices() -> None:
    problem = wide(200)
    switches = {"uniform": 0, "runs": 0}
    for plan in random_plans(problem, 50, 0):
        kind = plan.origin.split()[0]
        devices = [step.device for step in plan.steps if isinstance(step, Run)]
        if kind in switches:
            switches[kind] += sum(a != b for a, b in itertools.pairwise(devices))
    assert switches["runs"] < switches["uniform"] / 2


def test_moved_plans_reach_from_good_to_as_bad_as_blind_ones() -> None:
    problem = wide(200)
    makespans: dict[str, list[int]] = {"uniform": [], "moved": []}
    for plan in random_plans(problem, 60, 0):
        found = makespans.get(plan.origin.split()[0])
        if found is not None:
            timeline = simulate(problem.graph, problem.cluster, problem.costs, plan)
            found.append(timeline.makespan_ns)
    assert min(makespans["moved"]) < min(makespans["uniform"])
    assert max(makespans["moved"]) > min(makespans["uniform"])


def test_pinned_task_stays_on_its_device() -> None:
    problem = problem_of(instance([("a", "b")], {"a": (1, None, None), "b": (1, 1, 1)}, cpu()))
    for plan in random_plans(problem, 20, 0):
        assert plan.placement(2)[0] == 0


def test_too_small_memories_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="none of 20 random placements"):
        random_plans(problem_of(diamond(capacity=1)), 1, 0)
