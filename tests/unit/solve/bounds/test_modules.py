"""DiviML's recursive bound: worked instances, and never above the optimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.native.core_problem import NativePlan, NativeProblem
from heteroplace.native.core_search import SearchReport, search_plans
from heteroplace.native.list import heft
from heteroplace.parts.throughput.bounds.module_recursion import ModuleRecursion
from heteroplace.parts.throughput.bounds.subproblem import spine, subproblem, subproblem_key
from heteroplace.parts.throughput.bounds.subset_bounds import SubsetBounds
from heteroplace.parts.throughput.decompose.decomposition import MAX_MODULE_TASKS, modules_of
from heteroplace.parts.throughput.decompose.narrow_cuts import (
    Boundary,
    ModulePath,
    edge_connected_modules,
    prefix_modules,
    single_channel_modules,
)
from heteroplace.parts.throughput.decompose.serial_modules import module_chain
from heteroplace.parts.throughput.split import module_bound
from heteroplace.parts.throughput.split.channel_split import ChannelSplit
from heteroplace.parts.throughput.split.module_bound import ModuleBound
from heteroplace.parts.throughput.split.pool import Budget, Pool
from heteroplace.solve import Bound, Problem, SolveOptions, get_solver, lower_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.list import heft as list_heft
from tests.instances import given_costs, gpus, instance, problem_of
from tests.strategies import AMPLE, Instance, exact_cases, instances
from tests.unit.solve.bounds.chains import chains, optimum_of
from zoo.graphs.catalogue import get_instance, rwnn, select
from zoo.graphs.rwnn import RwnnStack


def solved(problem: Problem, path: ModulePath, at_most: int | None = None) -> int:
    """The bound with every subset solved, never above a value on the way."""
    split = ChannelSplit(problem, path, Pool(Budget(Deadline.after(30), None, 0, 1)))
    for is_thorough in (False, True):
        while split.improve(is_thorough=is_thorough):
            assert at_most is None or split.bound_ns() <= at_most
    return split.bound_ns()


def test_ctrl_c_while_a_first_plan_is_looked_for_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def heft_that_overflows(native: NativeProblem, devices: Sequence[int]) -> NativePlan:
        return replace(heft(native, devices), violation=1)

    def interrupted(*arguments: Any, **more: Any) -> SearchReport:
        return replace(search_plans(*arguments, **more), was_interrupted=True)

    for module in (module_bound, list_heft):
        monkeypatch.setattr(module, "search_plans", interrupted)
    monkeypatch.setattr(module_bound, "heft", heft_that_overflows)
    problem = rwnn(RwnnStack("er", 10, 2))
    modules = ModuleBound(problem)
    assert modules.chain
    with pytest.raises(KeyboardInterrupt):
        modules.prove(9, 1, 0)
    with pytest.raises(KeyboardInterrupt):
        list_heft.repair(problem, heft(problem.native, [0, 1]), 9)


def two_channels() -> Instance:
    """Instance F of the published bound: s -> o1, o2; o1 -> i1, o2 -> i2; i1, i2 -> t."""
    run_ns: dict[str, tuple[int | None, ...]] = {
        "s": (1, 1),
        "o1": (1, 1),
        "o2": (6, 6),
        "i1": (6, 6),
        "i2": (1, 1),
        "t": (1, 1),
    }
    edges = [("s", "o1"), ("s", "o2"), ("o1", "i1"), ("o2", "i2"), ("i1", "t"), ("i2", "t")]
    cluster = replace(gpus({(0, 1): 10, (1, 0): 10}, 2), congestion="none")
    return instance(edges, run_ns, cluster)


def test_two_channels_prove_9_of_10() -> None:
    case = two_channels()
    path = ModulePath(((0, 1, 2), (3, 4, 5)), (Boundary(((1, 3), (2, 4))),))
    assert optimum_of(case) == 10
    assert solved(problem_of(case), path) == 9


def two_diamonds() -> Instance:
    """Instance E: a diamond each, joined by a bridge whose transfer costs 5; optimum 17."""
    run_ns: dict[str, tuple[int | None, ...]] = {
        "a1": (1, 2),
        "b1": (3, 1),
        "c1": (1, 1),
        "d1": (2, 4),
        "a2": (4, 3),
        "b2": (4, 4),
        "c2": (3, 3),
        "d2": (2, 2),
    }
    builder = TaskGraphBuilder("diamonds")
    for index, name in enumerate(run_ns):
        reads = {"b": ["a"], "c": ["a"], "d": ["b", "c"], "a": []}[name[0]]
        read = [f"{other}{name[1]}.0" for other in reads]
        builder.add_task(Task(name, "op"), ["d1.0"] if name == "a2" else read)
        builder.add_tensor(name, num_bytes=50 if index == 3 else 10)
    graph = builder.finalize(["d2.0"])
    cluster = replace(gpus({(0, 1): 10, (1, 0): 10}, 2), congestion="none")
    return Instance(graph, cluster, given_costs(graph, cluster, run_ns))


def test_two_diamonds_prove_the_sum_of_their_optima() -> None:
    # 6 and 10 are the least of each module over the devices of its ends; the bridge counts 0.
    case = two_diamonds()
    assert optimum_of(case) == 17
    path = ModulePath(((0, 1, 2, 3), (4, 5, 6, 7)), (Boundary(((3, 4),)),))
    assert solved(problem_of(case), path) == 16


WAYS: dict[str, Callable[[TaskGraph, int], ModulePath]] = {
    "prefixes": lambda graph, num: prefix_modules(graph, num, target_tasks=2, min_tasks=1),
    "cuts": lambda graph, _num: single_channel_modules(graph, min_tasks=1),
    "edges": lambda graph, num: edge_connected_modules(graph, num, target_tasks=2),
}


@pytest.mark.costly
@given(chains(max_tasks=6), st.sampled_from(sorted(WAYS)), st.integers(1, 3))
@exact_cases(50)
def test_bound_is_at_most_the_optimum(case: Instance, way: str, num_channels: int) -> None:
    optimum = optimum_of(case)
    if optimum is None:
        return
    problem, path = problem_of(case), WAYS[way](case.graph, num_channels)
    assert ModuleRecursion(problem, path).bound()[0] <= optimum
    assert solved(problem, path, optimum) <= optimum


@given(instances(max_tasks=5, has_modes=True), st.integers(1, 4))
@exact_cases(50)
def test_bound_is_at_most_the_optimum_of_any_graph(case: Instance, num_channels: int) -> None:
    optimum = optimum_of(case)
    if optimum is None:
        return
    path = prefix_modules(case.graph, num_channels, target_tasks=2, min_tasks=1)
    assert solved(problem_of(case), path) <= optimum


@pytest.mark.costly
@given(chains(max_tasks=5), st.data())
@exact_cases(50)
def test_subproblem_takes_no_longer_than_the_whole(case: Instance, data: st.DataObject) -> None:
    optimum = optimum_of(case)
    if optimum is None:
        return
    tasks = sorted(data.draw(st.sets(st.integers(0, len(case.graph.tasks) - 1), min_size=1)))
    inner = subproblem(problem_of(case), tasks)
    alone = optimum_of(Instance(inner.graph, inner.cluster, inner.costs))
    assert alone is not None
    assert alone <= optimum


def test_equal_modules_are_solved_once() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {f"t{index}": (2, 3) for index in range(7)}
    edges = [(f"t{index}", f"t{index + 1}") for index in range(6)]
    problem = problem_of(instance(edges, run_ns, gpus({(0, 1): 10, (1, 0): 10}, 2)))
    assert subproblem_key(problem, (0, 1)) == subproblem_key(problem, (2, 3))
    # The last tensor has no reader inside in either, but t2's has one in (2, 3, 4).
    assert subproblem_key(problem, (2, 3)) != subproblem_key(problem, (2, 3, 4))
    subsets = SubsetBounds(problem)
    # The model's output stays, so the module that makes it is another.
    assert subproblem_key(problem, (3, 4)) != subproblem_key(problem, (5, 6))
    asked = ((0, 1), (2, 3), (4, 5))
    assert [subsets.bound_ns(tasks) for tasks in asked] == [4, 4, 4]
    assert subsets.open_subsets(asked, 40) == [(0, 1)]
    subsets.learn((0, 1), 4, is_final=True)
    assert subsets.open_subsets(asked, 40) == []


def test_what_nobody_inside_reads_is_gone_at_once() -> None:
    builder = TaskGraphBuilder("dead end")
    builder.add_task(Task("t0", "op"), [])
    read, _unread = (builder.add_tensor("t0", num_bytes=size) for size in (2, 30))
    builder.add_task(Task("t1", "op"), [read])
    graph = builder.finalize([builder.add_tensor("t1", num_bytes=20)])
    cluster = gpus({}, 1, capacity=35)
    case = Instance(graph, cluster, given_costs(graph, cluster, {"t0": (2,), "t1": (3,)}))
    inner = subproblem(problem_of(case), (0, 1))
    assert optimum_of(case) == 5
    assert optimum_of(Instance(inner.graph, inner.cluster, inner.costs)) == 5


@pytest.mark.parametrize("name", ["rwnn/er10x5", "rwnn/er10x5-sdep3", "rwnn/er10x5-wdep4"])
def test_rwnn_stacks_have_modules_that_can_be_solved(name: str) -> None:
    built = select(f"^{name}$")[0].build()
    path = modules_of(spine(Problem(built.graph, built.cluster, built.costs))).path
    assert path is not None
    assert len(path.modules) > 1
    assert max(map(len, path.modules)) <= MAX_MODULE_TASKS


@pytest.mark.costly
@pytest.mark.parametrize("name", ["rwnn/er10x5", "rwnn/er10x5-sdep2"])
def test_bound_of_rwnn_stacks_is_at_most_the_best_plan(name: str) -> None:
    built = select(f"^{name}$")[0].build()
    problem = Problem(built.graph, built.cluster, built.costs)
    options = SolveOptions(iterations=20_000, time_limit_s=60)
    best = get_solver("search").solve(problem, options).objective_ns
    assert 0 < ModuleBound(problem).prove(3.0, 1, 0).ns <= best


def test_spine_leaves_out_dead_ends() -> None:
    # b ends early, x comes in late; the long path is a, c, d.
    run_ns: dict[str, tuple[int | None, ...]] = {
        "a": (5, 5),
        "b": (1, 1),
        "x": (1, 1),
        "c": (5, 5),
        "d": (5, 5),
    }
    edges = [("a", "b"), ("a", "c"), ("c", "d"), ("x", "d")]
    case = instance(edges, run_ns, gpus({(0, 1): 10, (1, 0): 10}, 2))
    assert [task.name for task in spine(problem_of(case)).graph.tasks] == ["t0", "t3", "t4"]
    chain = instance([("a", "b")], {"a": (5, 5), "b": (1, 1)}, case.cluster)
    problem = problem_of(chain)
    assert spine(problem) is problem


def test_graph_without_narrow_cuts_has_no_modules() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {f"t{index}": (2, 3) for index in range(60)}
    wide = instance([], run_ns, gpus({}, 2, AMPLE))
    assert modules_of(problem_of(wide)).path is None
    assert not ModuleBound(problem_of(wide)).exists


def test_two_diamonds_are_proven_optimal_as_a_chain() -> None:
    """Instance E of DiviML: 6, then 0 to stay on the device, then 11."""
    problem = relaxed(two_diamonds(), min_tasks=4)
    first = problem.prove(0.0, 1, 0)
    assert first.source == "chain of modules"
    assert 0 <= first.ns <= 17
    assert problem.prove(30.0, 1, 0) == Bound(17, "chain of modules")


def test_a_known_makespan_ends_the_work() -> None:
    bound = relaxed(two_diamonds(), min_tasks=4)
    first = bound.prove(30.0, 1, 1).ns
    assert 1 <= first <= 17


@pytest.mark.costly
@given(chains(max_tasks=6))
@exact_cases(50)
def test_bound_over_a_chain_is_at_most_the_optimum(case: Instance) -> None:
    optimum = optimum_of(case)
    if optimum is not None:
        assert relaxed(case, min_tasks=1).prove(30.0, 1, 0).ns <= optimum


def relaxed(case: Instance, min_tasks: int) -> ModuleBound:
    """The bound over modules that may be as small as that."""
    bound = ModuleBound(problem_of(case))
    graph = bound.relaxed.graph
    chain = module_chain(
        graph, keeps_groups=False, path=single_channel_modules(graph, min_tasks=min_tasks)
    )
    bound.chain = chain if len(chain) > 1 else ()
    return bound


@pytest.mark.costly
def test_a_stack_of_modules_is_proven_by_its_chain() -> None:
    problem = get_instance("rwnn/er10x5").build()
    assert lower_bound(problem, "thorough", time_limit_s=20.0).source == "chain of modules"
