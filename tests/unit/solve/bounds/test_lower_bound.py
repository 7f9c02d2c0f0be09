"""All bounds together: never above the optimum, and what they do not depend on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import SolverError
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import TaskGraphBuilder
from heteroplace.native.core_problem import NativeProblem
from heteroplace.solve import Bound, Problem, SolveOptions, get_solver, lower_bound
from heteroplace.solve.bounds.assignment import assignment_bound, proven_by
from heteroplace.solve.bounds.bound import rounded_bound
from heteroplace.solve.bounds.head_tail import head_tail_bound
from heteroplace.solve.bounds.load import Loads
from heteroplace.solve.bounds.paths import find_paths
from heteroplace.solve.bounds.stays import stays_bound
from tests.instances import cpu, diamond, gpus, instance, problem_of
from tests.strategies import AMPLE, Instance, exact_cases, instances
from tests.unit.solve.bounds.chains import chains, optimum_of
from tests.unit.solve.bounds.test_lagrangian import memory_forced_cut
from zoo.graphs.catalogue import select


def simple_bounds(native: NativeProblem) -> dict[str, int]:
    """Each of the bounds that need no search."""
    paths, loads = find_paths(native), Loads(native)
    return {
        "critical path": paths.critical_path_ns,
        "load": loads.bound_ns(slice(None)),
        "head-tail": head_tail_bound(paths, loads),
        "stays": stays_bound(native),
        "LP assignment": assignment_bound(native, 10.0),
    }


@pytest.mark.costly
@given(chains())
@exact_cases(50)
def test_simple_bounds_are_at_most_the_optimum_of_chains(case: Instance) -> None:
    optimum = optimum_of(case)
    if optimum is not None:
        for name, bound in simple_bounds(problem_of(case).native).items():
            assert bound <= optimum, name


@pytest.mark.costly
@given(instances(max_tasks=5, is_memory_tight=True, has_modes=True))
@exact_cases(50)
def test_simple_bounds_are_at_most_the_optimum_with_tight_memory(case: Instance) -> None:
    optimum = optimum_of(case)
    if optimum is not None:
        for name, bound in simple_bounds(problem_of(case).native).items():
            assert bound <= optimum, name


@pytest.mark.costly
@given(chains(max_tasks=5, scale=10**6))
@exact_cases(50)
def test_quick_bound_is_at_most_the_optimum(case: Instance) -> None:
    optimum = optimum_of(case)
    if optimum is not None:
        found = lower_bound(problem_of(case))
        assert found.ns <= optimum
        assert (found.ns == 0) == (found.source == "none")


@pytest.mark.costly
@given(instances(max_tasks=5, has_modes=True))
@exact_cases(25)
def test_thorough_bound_is_at_most_the_optimum_and_no_less_than_the_quick_one(
    case: Instance,
) -> None:
    optimum = optimum_of(case)
    if optimum is not None:
        problem = problem_of(case)
        thorough = lower_bound(problem, "thorough", time_limit_s=2.0)
        assert lower_bound(problem).ns <= thorough.ns <= optimum


@pytest.mark.parametrize("kind", ["ws", "er", "ba"])
def test_bounds_of_a_module_are_at_most_its_proven_optimum(kind: str) -> None:
    built = select(f"^rwnn/{kind}10x1$")[0].build()
    problem = Problem(built.graph, built.cluster, built.costs)
    result = get_solver("cpsat").solve(problem, SolveOptions(time_limit_s=20))
    assert result.status == "optimal"
    for name, bound in simple_bounds(problem.native).items():
        assert 0 < bound <= result.objective_ns, name
    quick = lower_bound(problem)
    assert quick.ns <= result.objective_ns
    assert lower_bound(problem, "thorough", time_limit_s=20).ns <= result.objective_ns


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", ["ws32x1", "er32x1", "ba32x1", "er10x5", "er10x5-wdep3"])
def test_bounds_of_larger_graphs_are_at_most_the_best_plan(name: str) -> None:
    built = select(f"^rwnn/{name}$")[0].build()
    problem = Problem(built.graph, built.cluster, built.costs)
    options = SolveOptions(iterations=20_000, time_limit_s=60)
    best = get_solver("search").solve(problem, options).objective_ns
    for bound in simple_bounds(problem.native).values():
        assert 0 < bound <= best
    assert lower_bound(problem).ns <= best
    thorough = lower_bound(problem, "thorough", time_limit_s=1.0, target_ns=best)
    assert thorough.ns <= best


def test_memory_that_forces_a_cut_raises_every_bound_that_knows_memory() -> None:
    ample, tight = memory_forced_cut(AMPLE), memory_forced_cut(21_000)
    for effort in ("quick", "thorough"):
        without = lower_bound(problem_of(ample), effort, target_ns=110)  # type: ignore[arg-type]
        with_limit = lower_bound(problem_of(tight), effort, target_ns=110)  # type: ignore[arg-type]
        assert without.ns == 40
        assert 40 < with_limit.ns <= 110
    # gpu0 holds the weights of 21,000 / 10,000 tasks; the others, in fractions, take 40 each on
    # gpu1.
    assert assignment_bound(problem_of(tight).native, 10.0) == 76


def test_load_of_two_cores_and_both_together() -> None:
    # Four tasks of 10 on one core, or 6 on both: two cores take 20, both together 24.
    run_ns: dict[str, tuple[int | None, ...]] = {f"t{index}": (10, 10, 6) for index in range(4)}
    case = instance([], run_ns, cpu())
    assert Loads(problem_of(case).native).bound_ns(slice(None)) == 20
    assert assignment_bound(problem_of(case).native, 10.0) == 20


@pytest.mark.parametrize("factor", [1, 2**20, 2**40])
def test_load_is_exact_for_times_of_any_size(factor: int) -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {
        f"t{index}": ((2 * index + 1) * factor,) for index in range(100)
    }
    native = problem_of(instance([], run_ns, gpus({}, 1))).native
    assert Loads(native).bound_ns(slice(None)) == 10_000 * factor


def test_head_tail_bound_adds_head_and_tail_to_the_load_between() -> None:
    names = [f"m{index}" for index in range(4)]
    run_ns: dict[str, tuple[int | None, ...]] = dict.fromkeys(["first", *names, "last"], (10, 10))
    edges = [("first", name) for name in names] + [(name, "last") for name in names]
    native = problem_of(instance(edges, run_ns, gpus({}, 2))).native
    assert head_tail_bound(find_paths(native), Loads(native)) == 40


@given(chains(max_tasks=4), st.lists(st.floats(0, 10), min_size=6, max_size=6))
@exact_cases(50)
def test_any_weights_and_prices_prove_a_bound(case: Instance, draws: list[float]) -> None:
    optimum = optimum_of(case)
    if optimum is None:
        return
    native = problem_of(case).native
    weights = np.array(draws[: len(case.cluster.units)])
    prices = np.array(draws[3 : 3 + len(case.cluster.memories)])
    assert proven_by(native, weights, prices) <= optimum


def relabelled(case: Instance) -> Instance:
    """The same with devices in the opposite order, and other names."""
    cluster = replace(case.cluster, devices=tuple(reversed(case.cluster.devices)))
    last = len(cluster.devices) - 1
    builder = TaskGraphBuilder("relabelled")
    for tensor in case.graph.inputs:
        builder.add_input(f"i{tensor}", num_bytes=case.graph.tensors[tensor].bytes)
    name_of = {tensor: f"i{tensor}" for tensor in case.graph.inputs}
    for task_id, task in enumerate(case.graph.tasks):
        reads = [name_of[tensor] for tensor in reversed(case.graph.task_inputs[task_id])]
        builder.add_task(replace(task, name=f"z{task_id}"), reads)
        for tensor in case.graph.task_outputs[task_id]:
            size = case.graph.tensors[tensor].bytes
            name_of[tensor] = builder.add_tensor(f"z{task_id}", num_bytes=size)
    graph = builder.finalize([name_of[tensor] for tensor in case.graph.outputs])

    def cost(task: int, device: int) -> Cost:
        time_ns = case.costs.run_ns(task, last - device)
        return Cost.unsupported("no kernel") if time_ns is None else Cost.given(time_ns)

    return Instance(graph, cluster, build_table(graph, cluster, cost))


@given(chains(max_tasks=4))
@exact_cases(50)
def test_relabelling_changes_neither_the_optimum_nor_the_validity(case: Instance) -> None:
    other = relabelled(case)
    optimum = optimum_of(case)
    assert optimum_of(other) == optimum
    if optimum is not None:
        paths, others = find_paths(problem_of(case).native), find_paths(problem_of(other).native)
        assert paths.critical_path_ns == others.critical_path_ns
        assert lower_bound(problem_of(other)).ns <= optimum


@pytest.mark.costly
@given(instances(max_tasks=5, is_everywhere_allowed=True), st.sampled_from([2, 64, 2**20]))
@exact_cases(50)
def test_run_times_of_a_power_of_two_scale_path_and_load(case: Instance, factor: int) -> None:
    def cost(task: int, device: int) -> Cost:
        return Cost.given((case.costs.run_ns(task, device) or 0) * factor)

    scaled = Instance(case.graph, case.cluster, build_table(case.graph, case.cluster, cost))
    native, larger = problem_of(case).native, problem_of(scaled).native
    assert find_paths(larger).critical_path_ns == find_paths(native).critical_path_ns * factor
    # Each is rounded up once.
    load, scaled_load = Loads(native).bound_ns(slice(None)), Loads(larger).bound_ns(slice(None))
    assert (load - 1) * factor < scaled_load <= load * factor


def test_bound_of_nothing_is_nothing() -> None:
    builder = TaskGraphBuilder("empty")
    graph = builder.finalize([builder.add_input("x", num_bytes=4)])
    costs = build_table(graph, cpu(), lambda *_: Cost.given(1))
    for case in (
        Instance(graph, cpu(), costs),
        instance([], {"a": (5, 5), "b": (None, None)}, gpus({}, 2)),
    ):
        for effort in ("quick", "thorough"):
            assert lower_bound(problem_of(case), effort) == Bound(0, "none")  # type: ignore[arg-type]


def test_quick_bound_is_the_same_every_time() -> None:
    built = select("^rwnn/er10x5$")[0].build()
    found = {lower_bound(Problem(built.graph, built.cluster, built.costs)) for _ in range(3)}
    assert len(found) == 1


def test_unknown_effort_is_named() -> None:
    with pytest.raises(SolverError, match="effort is 'heroic'; there are: quick, thorough"):
        lower_bound(problem_of(diamond()), "heroic")  # type: ignore[arg-type]


def test_a_bound_is_rounded_so_that_it_stays_one() -> None:
    assert rounded_bound(10.0, 10.0) == 10
    assert rounded_bound(10.0 + 1e-12, 10.0) == 10
    assert rounded_bound(9.5, 9.5) == 10
    assert rounded_bound(1e12 + 0.5, 1e12) <= 1e12
    assert rounded_bound(-5.0, 100.0) == 0
