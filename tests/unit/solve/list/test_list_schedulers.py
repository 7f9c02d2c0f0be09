"""Properties of all list schedulers on random instances; the engine against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import PlanError, SolverError
from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import (
    LIST_PARTS,
    NAMED_PARTS,
    ListParts,
    etf,
    heft,
    m_etf,
    m_sct,
    mean_graph,
    plan_by,
    upward_ranks,
)
from heteroplace.native.simulate import simulate_plan, simulate_steps
from heteroplace.solve import Problem, SolveOptions, get_solver, lower_bound
from heteroplace.solve.baselines.getf import GetfSolver
from heteroplace.solve.baselines.m_sct import THRESHOLD, MSctSolver
from heteroplace.solve.baselines.m_sct_lp import favourite_children
from heteroplace.solve.list.adjusting_placement import AdjustingPlacementSolver
from heteroplace.solve.list.celeritas import CeleritasSolver
from heteroplace.solve.list.earliest import EtfSolver, MEtfSolver
from heteroplace.solve.list.m_topo import MTopoSolver, UniformMTopoSolver
from heteroplace.solve.list.order_place import OrderPlaceSolver
from tests.corpus import corpus
from tests.instances import given_costs, gpus, instance, problem_of
from tests.reference import list_schedulers as reference
from tests.reference.list_engine import Scheduler
from tests.strategies import Instance, exact_cases, num_cases, random_instance
from tests.unit.solve.list.test_list_solvers import LIST_SOLVERS


def by_parts(parts: ListParts, problem: Problem) -> NativePlan:
    """A plan by the parts of a list scheduler."""
    return plan_by(problem.native, parts)


PLANS: dict[str, Callable[[Problem], NativePlan]] = {
    **{name: partial(by_parts, parts) for name, parts in NAMED_PARTS.items()},
    "etf": EtfSolver().native_plan,
    "m-topo": MTopoSolver().native_plan,
    "m-topo-uniform": UniformMTopoSolver().native_plan,
    "m-etf": MEtfSolver().native_plan,
    "m-sct": MSctSolver().native_plan,
    "getf": GetfSolver().native_plan,
    "order-place": OrderPlaceSolver().native_plan,
    "adjusting-placement": AdjustingPlacementSolver().native_plan,
    "celeritas": CeleritasSolver().native_plan,
}


def assert_equal(problem: Problem, found: NativePlan, expected: Scheduler) -> None:
    placement = tuple(expected.device[task] for task in range(len(problem.graph.tasks)))
    assert problem.native.placement(found.steps) == placement
    assert found.makespan_ns == expected.makespan
    assert found.violation == expected.violation


@corpus
def placeable_instances(
    random: Random, is_memory_tight: bool | None = None, has_many_devices: bool = False
) -> Instance:
    """Instances in which every task has a device; None: of ample or tight memory."""
    is_tight = random.random() < 0.5 if is_memory_tight is None else is_memory_tight
    size = 20 if has_many_devices else 8
    while True:
        case = random_instance(
            random, size, is_memory_tight=is_tight, has_many_devices=has_many_devices
        )
        if (problem_of(case).native.run_ns >= 0).any(axis=1).all():
            return case


def problems(is_memory_tight: bool | None = None) -> st.SearchStrategy[Problem]:
    """The same as solvers take them."""
    return placeable_instances(is_memory_tight).map(problem_of)


@pytest.mark.costly
@given(problems())
@exact_cases(50)
def test_plans_are_valid_fit_and_are_not_below_the_bound(problem: Problem) -> None:
    bound = lower_bound(problem).ns
    for name, plan_of in PLANS.items():
        found = plan_of(problem)
        assert found.steps == plan_of(problem).steps, name
        if found.violation:
            continue
        plan = problem.native.plan(found.steps, name)
        # Memory included.
        check_plan(problem.graph, problem.cluster, problem.costs, plan)
        makespan = simulate_steps(problem.native, found.steps).makespan_ns
        assert bound <= makespan <= found.makespan_ns, name


@pytest.mark.costly
@given(problems(is_memory_tight=False))
@exact_cases(50)
def test_ample_memory_always_gives_a_plan(problem: Problem) -> None:
    for name, plan_of in PLANS.items():
        assert plan_of(problem).violation == 0, name


def expected_by(parts: ListParts, problem: Problem) -> Scheduler:
    return reference.within_memory(
        lambda given, frees: reference.by_parts(given, parts, frees), problem
    )


@pytest.mark.costly(5)
@pytest.mark.parametrize("name", NAMED_PARTS)
@given(problem=problems())
@exact_cases(60)
def test_schedulers_of_the_literature_are_those_of_plain_loops(name: str, problem: Problem) -> None:
    assert_equal(problem, PLANS[name](problem), expected_by(NAMED_PARTS[name], problem))


@pytest.mark.costly(5)
@given(
    placeable_instances(None, True).map(problem_of),
    st.tuples(*map(st.sampled_from, LIST_PARTS.values())),
)
@exact_cases(200)
def test_plans_on_many_devices_are_those_of_plain_loops(problem: Problem, parts: ListParts) -> None:
    """Devices on which a task would end too late are passed over there."""
    assert_equal(problem, plan_by(problem.native, parts), expected_by(parts, problem))


@pytest.mark.costly(5)
@given(problems(), st.tuples(*map(st.sampled_from, LIST_PARTS.values())))
@exact_cases(300)
def test_any_parts_are_those_of_plain_loops(problem: Problem, parts: ListParts) -> None:
    assert_equal(problem, plan_by(problem.native, parts), expected_by(parts, problem))


def test_where_routes_lack_means_are_over_those_that_there_are() -> None:
    case = instance([("a", "b")], {"a": (1, 1, 1), "b": (1, 1, 1)}, gpus({(0, 1): 1, (0, 2): 2}, 3))
    native = problem_of(case).native
    assert mean_graph(native).transfer_ns.tolist() == [8]  # of 10 and 5
    assert upward_ranks(native).tolist() == [1 + 7.5 + 1, 1]
    for seed in range(150):
        random = Random(seed)
        case = random_instance(random, 8)
        links = tuple(link for link in case.cluster.links if random.random() < 0.6)
        problem = Problem(case.graph, replace(case.cluster, links=links, host=None), case.costs)
        if not (problem.native.run_ns >= 0).any(axis=1).all():
            continue
        assert upward_ranks(problem.native) == pytest.approx(reference.upward_ranks(problem)), seed
        for name in ("heft", "cpop", "peft"):
            assert_equal(problem, PLANS[name](problem), expected_by(NAMED_PARTS[name], problem))


def test_a_task_with_one_device_that_holds_it_suffers_most() -> None:
    """`large` loses no time on the other device, but has no room there."""
    builder = TaskGraphBuilder("sizes")
    for name, size in (("small", 50), ("large", 80)):
        builder.add_task(Task(name, "op", weight_bytes=size), [])
        builder.add_tensor(name, num_bytes=0)
    graph = builder.finalize(["small.0", "large.0"])
    cluster = gpus({}, 2, 100)
    memories = (cluster.memories[0], replace(cluster.memories[1], bytes=60))
    cluster = replace(cluster, memories=memories)
    costs = given_costs(graph, cluster, {"small": (1, 2), "large": (5, 5)})
    found = PLANS["sufferage"](Problem(graph, cluster, costs))
    assert (found.violation, found.devices(2).tolist()) == (0, [1, 0])


def test_a_task_with_one_device_alone_suffers_most() -> None:
    case = instance([], {"any": (1, 9), "one": (5, None)}, gpus({}, 2))
    found = PLANS["sufferage"](problem_of(case))
    assert found.makespan_ns == 6
    assert [step.task for step in found.steps] == [1, 0]


def test_parts_given_as_an_option_are_those_of_the_named_solver() -> None:
    problem = many_gaps(60, 2)
    for name, parts in NAMED_PARTS.items():
        options = SolveOptions(list_parts=",".join(parts))
        assert get_solver("list").solve(problem, options).plan.steps == PLANS[name](problem).steps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank,finish", "expected 3 names with commas between them, got 2"),
        ("rank,soon,gaps", "choice 'soon' is none of finish, start, run"),
        ("rank,finish,", "insertion '' is none of gaps, end"),
    ],
)
def test_parts_that_are_not_there_are_named(text: str, message: str) -> None:
    with pytest.raises(SolverError, match=message):
        SolveOptions(list_parts=text)


def test_the_core_names_unknown_parts() -> None:
    with pytest.raises(PlanError, match="no priority 'height'; there are topological, rank"):
        plan_by(many_gaps(4, 0).native, ("height", "finish", "gaps"))


def test_parts_are_refused_by_other_solvers() -> None:
    options = SolveOptions(list_parts="path,path,gaps")
    with pytest.raises(SolverError, match=r"'heft' is not made of parts.*are for: list"):
        get_solver("heft").solve(many_gaps(4, 0), options)


@pytest.mark.costly
@given(problems())
@num_cases(200)
def test_earliest_pair_is_found_without_looking_at_all(problem: Problem) -> None:
    by_finish = reference.earliest(problem, lambda trial: trial.finish)
    by_start = reference.earliest(problem, lambda trial: trial.start)
    # Gaps stay only before what takes no time, or when what lacks room was passed over: plain loops
    # fill them, the core does not.
    has_instant = bool((problem.native.run_ns == 0).any())
    if not (by_finish.filled_gap and (has_instant or by_finish.violation)):
        assert_equal(problem, etf(problem.native), by_finish)
    if not (by_start.filled_gap and (has_instant or by_start.violation)):
        assert_equal(problem, m_etf(problem.native), by_start)


def test_a_copy_of_no_length_between_others_frees_no_time() -> None:
    # The last task reads what takes the bus from 1 to 3, and something of no bytes at 1.
    links = {(0, 1): 1, (0, 2): 1, (1, 0): 1, (1, 2): 1, (2, 0): 1, (2, 1): 1}
    cluster = gpus(links, 3, capacity=2, host=0)
    bus = [
        replace(link, channel="bus", latency_ns=int((link.src, link.dst) == (1, 0)))
        for link in cluster.links
    ]
    cluster = replace(cluster, links=tuple(bus))
    builder = TaskGraphBuilder("instants")
    builder.add_input("x", (2,), "int8")
    for name, reads in (
        ("first", []),
        ("second", ["x", "first.0"]),
        ("third", ["x", "first.0", "second.0"]),
        ("output", []),
    ):
        builder.add_task(Task(name, "op"), reads)
        builder.add_tensor(name, num_bytes=0)
    graph = builder.finalize(["output.0"])
    times = {"first": (None, 0, None), "second": (0, None, None), "third": (None, None, 0)}
    costs = given_costs(graph, cluster, times | {"output": (None, 0, None)})
    problem = Problem(graph, cluster, costs)
    plan = etf(problem.native)
    assert plan.makespan_ns == simulate_plan(problem.native, plan).makespan_ns


@pytest.mark.costly
@given(problems(), st.integers(0, 1000))
@num_cases(200)
def test_awake_devices_and_urgent_tasks_are_those_of_plain_loops(
    problem: Problem, seed: int
) -> None:
    draw = Random(seed)
    favourite = [-1] * len(problem.graph.tasks)
    for task, after in enumerate(problem.graph.successors):
        children = [child for child in after if child not in favourite]
        if children and draw.random() < 0.7:
            favourite[task] = draw.choice(children)
    found = m_sct(problem.native, np.array(favourite, dtype=np.int64))
    expected = reference.earliest(problem, lambda trial: trial.start, favourite)
    # Plain loops may go back to a gap that was left while a device was awake.
    if not expected.went_back:
        assert_equal(problem, found, expected)


@pytest.mark.parametrize("name", LIST_SOLVERS)
def test_a_solver_is_its_native_plan_with_a_bound(name: str) -> None:
    problem = many_gaps(60, 2)
    result = get_solver(name).solve(problem, SolveOptions())
    assert result.plan.steps == PLANS[name](problem).steps
    assert result.bound_ns == lower_bound(problem).ns


def many_gaps(num_tasks: int, seed: int) -> Problem:
    """A wide random graph on devices of equal speed: thousands of gaps of every width."""
    draw = Random(seed)
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


@pytest.mark.parametrize(("seed", "is_worth_waiting"), [(0, True), (2, False)])
def test_the_solver_m_sct_waits_whether_or_not_it_pays(seed: int, is_worth_waiting: bool) -> None:
    problem = many_gaps(20, seed)
    favourite = favourite_children(mean_graph(problem.native), THRESHOLD)
    awake, eager = m_sct(problem.native, favourite), m_etf(problem.native)
    assert (awake.makespan_ns < eager.makespan_ns) == is_worth_waiting
    assert PLANS["m-sct"](problem).steps == awake.steps


@pytest.mark.parametrize("seed", [0, 1])
def test_gaps_of_long_schedules_are_found(seed: int) -> None:
    # More intervals than lie in one chunk of `Slots`.
    problem = many_gaps(600, seed)
    found = heft(problem.native, [0, 1])
    assert_equal(problem, found, expected_by(NAMED_PARTS["heft"], problem))


def test_equal_pairs_go_by_task_then_device() -> None:
    builder = TaskGraphBuilder("ties")
    for index in range(6):
        builder.add_task(Task(f"t{index}", "op"), [])
        builder.add_tensor(f"t{index}", num_bytes=0)
    graph = builder.finalize([f"t{index}.0" for index in range(6)])
    cluster = gpus({}, 3)
    problem = Problem(graph, cluster, build_table(graph, cluster, lambda *_: Cost.given(1)))
    for found in (etf(problem.native), m_etf(problem.native)):
        assert problem.native.placement(found.steps) == (0, 1, 2, 0, 1, 2)
