"""Steady-state throughput: bound <= optimum <= solver, memory, determinism."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heteroplace.errors import HeteroPlaceError, InfeasibleError, SolverError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import CONGESTION_MODES, COPY_ENGINES, Cluster
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.core_loads import placement_loads
from heteroplace.native.core_problem import NativeProblem
from heteroplace.native.list import m_topo
from heteroplace.parts.throughput.native.core_throughput import (
    Relaxation,
    contiguous_splits,
    improve_placements,
)
from heteroplace.parts.throughput.steady_state.convex_combination import combined_placements
from heteroplace.parts.throughput.steady_state.priced_assignment import solve_assignment
from heteroplace.parts.throughput.steady_state.prices import PRICES, price_bound
from heteroplace.simulate.throughput import throughput_ns
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.search.initial_solutions import InitialSolutions
from tests.corpus import corpus
from tests.instances import cpu, given_costs, gpus, instance, problem_of
from tests.reference.placements import fits, is_allowed, used_bytes
from tests.reference.throughput import busy_times, least_item_ns
from tests.strategies import Instance, exact_cases, random_instance
from zoo.graphs.catalogue import layered
from zoo.graphs.clusters import hub
from zoo.graphs.layered import Layered

SMALL = SolveOptions(objective="throughput", iterations=400, time_limit_s=60)


@corpus
def cases(random: Random, max_tasks: int = 5, is_memory_tight: bool = False) -> Instance:
    """Instances with any congestion mode and number of copy engines."""
    case = random_instance(random, max_tasks, is_memory_tight)
    engines = random.choice(COPY_ENGINES)
    cluster = replace(
        case.cluster,
        congestion=random.choice(CONGESTION_MODES),
        devices=tuple(replace(device, copy_engines=engines) for device in case.cluster.devices),
    )
    return rebuilt(case, cluster)


def rebuilt(case: Instance, cluster: Cluster) -> Instance:
    """The same graph and costs for a cluster with the same devices."""
    return Instance(case.graph, cluster, replace(case.costs, devices=cluster.identities))


def draw_placement(data: st.DataObject, case: Instance, native: NativeProblem) -> list[int]:
    """A random placement on devices that the core allows."""
    device_of_group: dict[int, int] = {}
    placement = []
    for task in range(len(case.graph.tasks)):
        allowed = np.flatnonzero(native.run_ns[task] != IMPOSSIBLE).tolist()
        assume(allowed)
        device = data.draw(st.sampled_from(allowed))
        group = native.task_group[task]
        placement.append(device_of_group.setdefault(group, device) if group >= 0 else device)
    return placement


@exact_cases(200)
@given(case=cases(max_tasks=7, is_memory_tight=True), data=st.data())
def test_loads_equal_the_reference(case: Instance, data: st.DataObject) -> None:
    native = problem_of(case).native
    placement = draw_placement(data, case, native)
    loads = placement_loads(native, placement)
    assert loads.used_bytes == used_bytes(case.graph, case.cluster, placement)
    busy = busy_times(case.graph, case.cluster, case.costs, placement)
    if busy is None:
        assert loads.num_unreachable > 0
    else:
        assert loads.num_unreachable == 0
        assert loads.busy_ns == tuple(busy.get(r, 0) for r in range(len(loads.busy_ns)))


@exact_cases(50)
@given(case=cases(max_tasks=5), data=st.data())
def test_relaxation_is_the_least_priced_cost(case: Instance, data: st.DataObject) -> None:
    """On graphs so small nothing is split: the value is exact for whatever prices."""
    native = problem_of(case).native
    count = len(native.cluster.resources)
    size = count + len(case.cluster.memories)
    prices = np.array(data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size)), float)
    placement = draw_placement(data, case, native)
    relaxation = Relaxation(native)
    assert relaxation.is_exact
    value, totals = relaxation.evaluate(prices)
    loads = placement_loads(native, placement)
    weights = sum(case.graph.tasks[t].workspace_bytes for t in range(len(placement)))
    if loads.num_unreachable == 0:
        # Workspaces are in no table; they are less than their sum.
        cost = float(prices @ np.array([*loads.busy_ns, *loads.used_bytes], float))
        assert value <= cost + 1e-6
    if np.isfinite(value):
        assert totals @ prices == pytest.approx(value)
        best = placement_loads(native, relaxation.placement())
        assert best.num_unreachable == 0
        assert prices[:count] @ np.array(best.busy_ns) == pytest.approx(
            float(prices[:count] @ totals[:count])
        )
        base = native_base_bytes(case)
        held = np.array(best.used_bytes) - base
        assert np.all(held >= totals[count:] - 1e-6)
        assert np.all(held <= totals[count:] + weights + 1e-6)


def native_base_bytes(case: Instance) -> np.ndarray:
    """Bytes of the host that are in use whatever the placement."""
    base = np.zeros(len(case.cluster.memories))
    if case.cluster.host is not None:
        kept = {*case.graph.inputs, *case.graph.outputs}
        base[case.cluster.host] = sum(case.graph.tensors[tensor].bytes for tensor in kept)
    return base


@exact_cases(50)
@given(case=cases(max_tasks=4, is_memory_tight=True), data=st.data())
def test_priced_bound_is_at_most_the_optimum_and_the_search_at_least(
    case: Instance, data: st.DataObject
) -> None:
    """For whatever prices: value - price of the memories <= optimum x sum of prices."""
    native = problem_of(case).native
    assume(not (native.run_ns == IMPOSSIBLE).all(axis=1).any())
    best = least_item_ns(case.graph, case.cluster, case.costs)
    count = len(native.cluster.resources)
    sizes = [memory.bytes for memory in case.cluster.memories]
    prices = data.draw(
        st.lists(st.integers(0, 9), min_size=count + len(sizes), max_size=count + len(sizes))
    )
    value, _ = Relaxation(native).evaluate(np.array(prices, float))
    base = native_base_bytes(case)
    room = sum(p * (size - b) for p, size, b in zip(prices[count:], sizes, base, strict=True))
    if best is not None:
        assert value - room <= best * sum(prices[:count]) + 1e-6
    initial = contiguous_splits(native)
    assume(initial)
    end = improve_placements(native, initial, max_moves=400, time_limit_s=60, seed=1, threads=1)
    if end.violation == 0:
        assert best is not None
        assert end.item_ns >= best
        placement = end.placement.tolist()
        assert is_allowed(case.graph, case.cluster, case.costs, placement)
        busy = busy_times(case.graph, case.cluster, case.costs, placement)
        assert busy is not None
        assert max(busy.values(), default=0) == end.item_ns


@pytest.mark.costly(2)
@pytest.mark.parametrize("fill", [0.1, 0.95])
def test_moves_among_many_memories_are_counted_as_placements_are(fill: float) -> None:
    """There, what a move changes is looked for at the readers, and added to sums that are kept."""
    problem = layered(Layered(300), fill, hub(40))
    native = problem.native
    start = m_topo(native, is_uniform=True).devices(300)
    ends = [
        improve_placements(native, [start], max_moves=moves, time_limit_s=60, seed=3, threads=1)
        for moves in (0, 2_000, 40_000)
    ]
    for end in ends:
        loads = placement_loads(native, end.placement)
        assert end.item_ns == loads.item_ns
        assert end.violation == loads.num_unreachable + loads.excess_bytes(problem.cluster)
    ranks = [(end.violation, end.item_ns) for end in ends]
    assert ranks[0] > ranks[1] > ranks[2]


@pytest.mark.costly(2)
def test_many_devices_and_little_time_leave_list_schedules_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = layered(Layered(800), 0.1, hub(40))
    starting = InitialSolutions(problem)
    alone = starting.partition.devices(800)
    # METIS takes three quarters of the tenth that initial solutions have.
    options = SolveOptions(objective="throughput", time_limit_s=starting.partition_s / 0.075)
    monkeypatch.setattr(InitialSolutions, "native_plans", None)
    found = get_solver("throughput").solve(problem, options)
    assert found.objective_ns <= placement_loads(problem.native, alone).item_ns
    with pytest.raises(TypeError, match="not callable"):
        get_solver("throughput").solve(problem, replace(options, time_limit_s=60, iterations=100))


@pytest.mark.costly
@exact_cases(50)
@given(case=cases(max_tasks=4, is_memory_tight=True))
def test_price_bound_is_at_most_the_optimum(case: Instance) -> None:
    problem = problem_of(case)
    assume(not (problem.native.run_ns == IMPOSSIBLE).all(axis=1).any())
    best = least_item_ns(case.graph, case.cluster, case.costs)
    found = price_bound(problem, 20, 40, 60.0)
    for placement in combined_placements(problem, found.combination):
        assert is_allowed(case.graph, case.cluster, case.costs, placement.tolist())
    if best is not None:
        assert found.bound_ns <= best


@exact_cases(50)
@given(case=cases(max_tasks=4, is_memory_tight=True))
def test_assignment_programme_finds_the_optimum(case: Instance) -> None:
    problem = problem_of(case)
    assume(not (problem.native.run_ns == IMPOSSIBLE).all(axis=1).any())
    best = least_item_ns(case.graph, case.cluster, case.costs)
    found = solve_assignment(problem, 20, 60.0)
    assert found.is_impossible == (best is None)
    if best is not None:
        assert found.placement is not None
        assert placement_loads(problem.native, found.placement).item_ns == best
        assert found.bound_ns <= best


@pytest.mark.costly
@exact_cases(50)
@given(case=cases(max_tasks=4, is_memory_tight=True))
def test_solver_finds_a_valid_plan_with_the_optimum(case: Instance) -> None:
    best = least_item_ns(case.graph, case.cluster, case.costs)
    problem = problem_of(case)
    if best is None:
        with pytest.raises(InfeasibleError):
            get_solver("throughput").solve(problem, SMALL)
        return
    result = get_solver("throughput").solve(problem, SMALL)
    check_plan(case.graph, case.cluster, case.costs, result.plan)
    placement = result.plan.placement(len(case.graph.tasks))
    assert fits(case.graph, case.cluster, placement)
    assert result.bound_ns <= best == result.objective_ns
    busy = busy_times(case.graph, case.cluster, case.costs, placement)
    assert busy is not None
    assert result.objective_ns == max(busy.values(), default=0)
    assert result.objective_ns == throughput_ns(case.graph, case.cluster, case.costs, result.plan)


def chain_of_blocks(num_blocks: int, num_gpus: int = 3, capacity: int = 10**9) -> Instance:
    """Blocks of a fork, four branches and a join, one after the other, on unlike devices."""
    run_ns: dict[str, tuple[int | None, ...]] = {}
    edges = []
    for block in range(num_blocks):
        parts = [f"fork{block}", *(f"branch{block}.{i}" for i in range(4)), f"join{block}"]
        for index, part in enumerate(parts):
            speeds = ((3, 5, 7), (9, 4, 8), (2, 6, 3))[index % 3]
            run_ns[part] = tuple(40 * speed for speed in speeds[:num_gpus])
        edges += [(parts[0], part) for part in parts[1:5]] + [(p, parts[5]) for p in parts[1:5]]
        if block:
            edges.append((f"join{block - 1}", parts[0]))
    pairs = [(a, b) for a in range(num_gpus) for b in range(num_gpus) if a != b]
    widths = dict.fromkeys(pairs, 1)
    return instance(edges, run_ns, gpus(widths, num_gpus, capacity), num_bytes=10, weight_bytes=10)


@pytest.mark.costly
def test_gap_of_a_long_chain_of_equal_blocks_is_small() -> None:
    case = chain_of_blocks(200)
    options = replace(SMALL, iterations=100_000)
    result = get_solver("throughput").solve(problem_of(case), options)
    check_plan(case.graph, case.cluster, case.costs, result.plan)
    assert result.gap < 0.01


def test_equal_blocks_are_eliminated_once() -> None:
    few = Relaxation(problem_of(chain_of_blocks(20)).native)
    many = Relaxation(problem_of(chain_of_blocks(40)).native)
    assert few.is_exact
    assert many.num_eliminations <= 2 * few.num_eliminations


def test_splitting_variables_only_lowers_the_value() -> None:
    """A graph of large tree width: a layered one where every task reads all of the layer before."""
    edges = [
        (f"t{layer}.{i}", f"t{layer + 1}.{j}")
        for layer in range(4)
        for i in range(9)
        for j in range(9)
    ]
    names = [f"t{layer}.{i}" for layer in range(5) for i in range(9)]
    run_ns: dict[str, tuple[int | None, ...]] = {
        name: (30 + 7 * (k % 4), 45 - 5 * (k % 3), 40) for k, name in enumerate(names)
    }
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    case = instance(edges, run_ns, gpus(dict.fromkeys(pairs, 1), 3))
    problem = problem_of(case)
    exact = solve_assignment(problem, 1000, 20.0)
    found = price_bound(problem, 1000, 200, 20.0)
    assert not found.is_exact
    assert exact.placement is not None
    assert 0 < found.bound_ns <= placement_loads(problem.native, exact.placement).item_ns


@pytest.mark.costly
@pytest.mark.parametrize("num_blocks", [6, 150])
def test_result_does_not_depend_on_the_number_of_threads(num_blocks: int) -> None:
    problem = problem_of(chain_of_blocks(num_blocks))
    options = replace(SMALL, iterations=20_000, seed=5)
    one = get_solver("throughput").solve(problem, replace(options, threads=1))
    two = get_solver("throughput").solve(problem, replace(options, threads=2))
    assert one.plan == two.plan
    assert (one.objective_ns, one.bound_ns) == (two.objective_ns, two.bound_ns)


def test_memory_spreads_the_tasks() -> None:
    """All tasks are fastest on gpu0, which holds half of them."""
    run_ns: dict[str, tuple[int | None, ...]] = {f"t{i}": (10, 1000) for i in range(8)}
    edges = [(f"t{i}", f"t{i + 1}") for i in range(7)]
    # gpu0 has room for four tasks of 10 + 10 bytes and one copy of 10.
    case = instance(edges, run_ns, gpus({(0, 1): 1, (1, 0): 1}, 2, 90), weight_bytes=10)
    result = get_solver("throughput").solve(problem_of(case), SMALL)
    assert result.objective_ns == 4000
    assert result.status == "optimal"


def test_copies_that_occupy_units_count_there() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {"a": (10, None), "b": (None, 10)}
    cluster = gpus({(0, 1): 1}, 2)
    cluster = replace(
        cluster, devices=tuple(replace(device, copy_engines=0) for device in cluster.devices)
    )
    case = instance([("a", "b")], run_ns, cluster, num_bytes=7)
    result = get_solver("throughput").solve(problem_of(case), SMALL)
    assert (result.objective_ns, result.bound_ns) == (17, 17)


def test_cores_that_share_units_are_loaded_together() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {f"t{i}": (10, 10, 6) for i in range(4)}
    case = instance([], run_ns, cpu())
    result = get_solver("throughput").solve(problem_of(case), SMALL)
    assert result.objective_ns == 20


def test_latency_is_refused() -> None:
    problem = problem_of(chain_of_blocks(1))
    with pytest.raises(SolverError, match="throughput"):
        get_solver("throughput").solve(problem, SolveOptions())


def test_task_that_fits_nowhere_is_named() -> None:
    case = instance([], {"big": (1, 1)}, gpus({(0, 1): 1}, 2, 50), weight_bytes=60)
    with pytest.raises(InfeasibleError, match="big"):
        get_solver("throughput").solve(problem_of(case), SMALL)


def test_progress_is_reported_and_its_errors_end_the_solve() -> None:
    problem = problem_of(chain_of_blocks(150))

    class Enough(HeteroPlaceError):
        """Raised by the caller."""

    def refuse(report: object) -> None:
        if getattr(report, "phase", "") == "search":
            raise Enough("stop")

    options = SolveOptions(objective="throughput", time_limit_s=5, progress=refuse)
    with pytest.raises(Enough):
        get_solver("throughput").solve(problem, options)


def test_many_tensors_that_the_same_tasks_read_are_told_apart_within_memory() -> None:
    """Five tensors in sets of seven memories: one table of them all had 7 * 127^5 entries."""
    builder = TaskGraphBuilder("shared")
    builder.add_task(Task("source", "op"), [])
    made = [builder.add_tensor("source", num_bytes=1000) for _ in range(5)]
    names = [f"t{index}" for index in range(6)]
    for name in names:
        builder.add_task(Task(name, "op"), made)
    graph = builder.finalize([builder.add_tensor(name, num_bytes=1) for name in names])
    pairs = [(a, b) for a in range(7) for b in range(7) if a != b]
    cluster = gpus(dict.fromkeys(pairs, 100), 7)
    costs = given_costs(graph, cluster, {name: [70] * 7 for name in ("source", *names)})
    problem = Problem(graph, cluster, costs)
    found = price_bound(problem, 100, 5, 60.0)
    assert not found.is_exact
    # Seven tasks of 70 ns on seven devices.
    assert 70 <= found.bound_ns <= 80


@pytest.mark.parametrize("solver", ["throughput", "pipeline"])
def test_prices_are_left_out_where_their_tables_would_take_gigabytes(solver: str) -> None:
    names = [f"t{index}" for index in range(60)]
    sizes = {name: 1 + index for index, name in enumerate(names)}
    case = instance(
        list(pairwise(names)), dict.fromkeys(names, (1,) * 300), gpus({}, 300), tensor_bytes=sizes
    )
    result = get_solver(solver).solve(problem_of(case), replace(SMALL, iterations=1))
    (told,) = (note for name, _, note in result.candidates if name == PRICES)
    what = "left out: prices of 60 tasks on 300 devices need tables of more than 5000000 runs"
    assert told.startswith(what)
    assert result.bound_ns == 1  # of the work alone
