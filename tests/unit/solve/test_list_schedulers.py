"""Properties of all list schedulers on random instances; the engine against plain loops."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heteroplace.errors import InfeasibleError
from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.native import baselines
from heteroplace.native.schedule import Draft
from heteroplace.solve import Problem, SolveOptions, get_solver
from tests.instances import gpus
from tests.reference import list_schedulers as reference
from tests.reference.list_schedulers import Scheduler
from tests.strategies import Instance, instances
from tests.unit.solve.test_baselines import LIST_SOLVERS

any_instance = st.booleans().flatmap(lambda tight: instances(8, is_memory_tight=tight))


def is_possible(problem: Problem) -> bool:
    return bool((problem.native.run_ns >= 0).any(axis=1).all())


def assert_equal(problem: Problem, draft: Draft, expected: Scheduler) -> None:
    placement = tuple(expected.device[task] for task in range(len(problem.graph.tasks)))
    assert problem.native.placement(draft.steps) == placement
    assert draft.makespan_ns == expected.makespan
    assert draft.violation == expected.violation


@pytest.mark.parametrize("name", LIST_SOLVERS)
@settings(max_examples=1000, deadline=None)
@given(case=any_instance)
def test_plans_are_valid_fit_and_are_not_below_the_bound(name: str, case: Instance) -> None:
    problem = Problem(case.graph, case.cluster, case.costs)
    try:
        result = get_solver(name).solve(problem, SolveOptions(iterations=200))
    except InfeasibleError:
        return
    check_plan(case.graph, case.cluster, case.costs, result.plan)  # Memory included.
    assert result.objective_ns >= result.bound_ns
    again = get_solver(name).solve(
        Problem(case.graph, case.cluster, case.costs), SolveOptions(iterations=200)
    )
    assert again.plan == result.plan


@settings(max_examples=1000, deadline=None)
@given(case=instances(8))
def test_ample_memory_always_gives_a_plan_that_is_simulated_no_later(case: Instance) -> None:
    problem = Problem(case.graph, case.cluster, case.costs)
    if not is_possible(problem):
        return
    native = problem.native
    order = baselines.critical_path_order(native)
    for draft in (
        baselines.met(native),
        baselines.greedy(native),
        baselines.etf(native),
        baselines.m_etf(native),
        baselines.m_topo(native, is_uniform=False),
        baselines.order_place(native, order),
        baselines.adjusting_placement(native, order),
    ):
        assert draft.violation == 0
        assert native.simulate(draft.steps).makespan_ns <= draft.makespan_ns


@settings(max_examples=1000, deadline=None)
@given(case=any_instance)
def test_heft_is_that_of_plain_loops(case: Instance) -> None:
    problem = Problem(case.graph, case.cluster, case.costs)
    if is_possible(problem):
        everything = range(len(case.cluster.devices))
        assert_equal(problem, problem.native.heft(everything), reference.heft(problem))


@settings(max_examples=1000, deadline=None)
@given(case=any_instance)
def test_earliest_pair_is_found_without_looking_at_all(case: Instance) -> None:
    problem = Problem(case.graph, case.cluster, case.costs)
    if not is_possible(problem):
        return
    by_finish = reference.earliest(problem, lambda trial: trial.finish)
    assert_equal(problem, baselines.etf(problem.native), by_finish)
    by_start = reference.earliest(problem, lambda trial: trial.start)
    assert_equal(problem, baselines.m_etf(problem.native), by_start)


@settings(max_examples=1000, deadline=None)
@given(case=any_instance, seed=st.integers(0, 1000))
def test_awake_devices_and_urgent_tasks_are_those_of_plain_loops(case: Instance, seed: int) -> None:
    problem = Problem(case.graph, case.cluster, case.costs)
    if not is_possible(problem):
        return
    draw = random.Random(seed)
    favourite = [-1] * len(case.graph.tasks)
    for task, after in enumerate(case.graph.successors):
        children = [child for child in after if child not in favourite]
        if children and draw.random() < 0.7:
            favourite[task] = draw.choice(children)
    draft = baselines.m_sct(problem.native, np.array(favourite, dtype=np.int64))
    expected = reference.earliest(problem, lambda trial: trial.start, favourite)
    assert_equal(problem, draft, expected)


def many_gaps(num_tasks: int, seed: int) -> Problem:
    """A wide random graph on devices of equal speed: thousands of gaps of every width."""
    draw = random.Random(seed)
    builder = TaskGraphBuilder("gaps")
    made: list[str] = []
    for index in range(num_tasks):
        recent = made[-40:]
        reads = sorted(set(draw.choices(recent, k=2))) if index % 40 else []
        builder.add_task(Task(f"t{index}", "op"), reads)
        builder.add_tensor(f"t{index}", num_bytes=draw.randrange(200))
        made.append(f"t{index}.0")
    graph = builder.finalize([made[-1]])
    cluster = gpus({(0, 1): 1, (1, 0): 2}, 2)
    return Problem(
        graph, cluster, build_table(graph, cluster, lambda *_: Cost.given(draw.randrange(1, 90)))
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_gaps_of_long_schedules_are_found(seed: int) -> None:
    # More intervals than lie in one chunk of `Slots`.
    problem = many_gaps(600, seed)
    assert_equal(problem, problem.native.heft([0, 1]), reference.heft(problem))


def test_equal_pairs_go_by_task_then_device() -> None:
    builder = TaskGraphBuilder("ties")
    for index in range(6):
        builder.add_task(Task(f"t{index}", "op"), [])
        builder.add_tensor(f"t{index}", num_bytes=0)
    graph = builder.finalize([f"t{index}.0" for index in range(6)])
    cluster = gpus({}, 3)
    problem = Problem(graph, cluster, build_table(graph, cluster, lambda *_: Cost.given(1)))
    for draft in (baselines.etf(problem.native), baselines.m_etf(problem.native)):
        assert problem.native.placement(draft.steps) == (0, 1, 2, 0, 1, 2)
