"""MILP-SPLIT for several items: the optimum of small instances, joined modules, symmetry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from random import Random
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, table_from_rows
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.batched.device_symmetry import DeviceSymmetry, device_symmetry
from heteroplace.parts.throughput.batched.list_solver import batch_bound
from heteroplace.parts.throughput.decompose.narrow_cuts import single_channel_modules
from heteroplace.parts.throughput.decompose.serial_modules import ChainModule, module_chain
from heteroplace.parts.throughput.split import batched_chain
from heteroplace.parts.throughput.split.batched_chain import BatchedChain, ChainBudget, _ranks
from heteroplace.parts.throughput.split.batched_module import (
    BatchedModule,
    SearchEffort,
    State,
    blocks_of,
    matched,
)
from heteroplace.parts.throughput.split.batched_solver import BatchedSplit
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import Problem, SolveOptions, SolveResult, get_solver
from heteroplace.solve.deadline import Deadline
from tests.instances import instance
from tests.strategies import Instance, exact_cases, instances, random_instance
from tests.unit.solve.batched.test_divi import brute_force, free, nodes
from zoo.graphs.batches import with_batches
from zoo.graphs.catalogue import rwnn
from zoo.graphs.rwnn import RwnnStack

OPTIONS = SolveOptions(iterations=3_000, threads=1, time_limit_s=30)


def solve(problem: Problem, items: int, options: SolveOptions = OPTIONS) -> SolveResult:
    """Solve and judge the plan."""
    result = get_solver("split").solve(problem, replace(options, items=items))
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    timeline = simulate(problem.graph, problem.cluster, problem.costs, result.plan)
    assert timeline.makespan_ns == result.objective_ns >= result.bound_ns
    return result


def equals_exhaustive_search(case: Instance, items: int) -> None:
    problem = free(case)
    optimum = brute_force(problem, items)
    try:
        result = solve(problem, items)
    except (InfeasibleError, SolverLimitError):
        assert optimum is None
        return
    assert result.objective_ns == optimum


@pytest.mark.costly
@exact_cases(8)
@given(instances(max_tasks=3, max_batch=3), st.integers(2, 3))
def test_a_small_whole_is_solved_as_by_exhaustive_search(case: Instance, items: int) -> None:
    equals_exhaustive_search(case, items)


def test_a_batch_of_no_length_does_not_wait_for_what_starts_with_it() -> None:
    """Of two that start at once on one core the empty one comes first: 15 and not 22."""
    equals_exhaustive_search(random_instance(Random(4987), 3, max_batch=3), 2)


def test_a_tight_memory_is_kept() -> None:
    """Two devices of room for one item of both tasks each: none can take both items."""
    memories = tuple(Memory(f"m{i}", 5) for i in range(2))
    devices = tuple(Device(f"gpu{i}", "cuda", "", i, i, batch_sizes=(1, 2)) for i in range(2))
    links = tuple(Link(f"{a}-{b}", a, b, 10**9, 1, f"{a}-{b}") for a, b in ((0, 1), (1, 0)))
    cluster = Cluster("box", memories, devices, links)
    plain = instance([("a", "b")], {"a": (1, 9), "b": (1, 9)}, cluster, 2, weight_bytes=0)
    costs = table_from_rows(plain.graph, cluster, plain.costs.rows, {2: plain.costs.rows})
    problem = free(Instance(plain.graph, cluster, costs))
    assert solve(problem, 2).objective_ns == brute_force(problem, 2)


def module(count: int = 3) -> BatchedModule:
    """A chain of tasks on two nodes of two equal devices, of which the first is the entry."""
    problem = line(count)
    extent = ChainModule(tuple(range(1, count)), 0, count - 1)
    return BatchedModule(problem, extent, 2, 1, device_symmetry(problem))


def line(count: int, hosts: tuple[str, ...] = ("n0", "n0", "n1", "n1"), items: int = 2) -> Problem:
    """A chain of tasks that all differ, on as many equal devices as there are hosts."""
    whole = range(len(hosts))
    memories = tuple(Memory(f"m{i}", 10**6) for i in whole)
    sizes = tuple(size for size in (1, 2, 4) if size <= items)
    devices = tuple(
        Device(f"gpu{i}", "cuda", "", i, i, host=host, batch_sizes=sizes)
        for i, host in enumerate(hosts)
    )
    links = tuple(
        Link(f"{a}-{b}", a, b, 10**9 * (5 if hosts[a] == hosts[b] else 1), 1, f"{a}-{b}")
        for a in whole
        for b in whole
        if a != b
    )
    names = [f"t{i}" for i in range(count)]
    run_ns = {name: (3 + 2 * index,) * len(hosts) for index, name in enumerate(names)}
    cluster = Cluster("line", memories, devices, links)
    plain = instance(list(pairwise(names)), run_ns, cluster, num_bytes=3)
    rows = plain.costs.rows
    larger = {
        size: tuple(tuple(replace(cost, ns=size * (cost.ns or 0)) for cost in row) for row in rows)
        for size in sizes[1:]
    }
    costs = table_from_rows(plain.graph, cluster, rows, larger)
    return free(Instance(plain.graph, cluster, costs))


def states() -> Iterator[State]:
    """Two items on four devices."""
    return (state for state in product(range(3), repeat=4) if sum(state) == 2)


def test_pairs_that_are_equal_by_exchanges_are_one() -> None:
    """Burnside: exchanges leave 10, 4, 4, 2, 2, 2, 0 and 0 of the 10 states of two items as they
    are, so that 100 pairs are (100 + 16 + 16 + 4 + 4 + 4) / 8 ones."""
    one = module()
    pairs = list(product(states(), repeat=2))
    common = {one.common(*pair)[0] for pair in pairs}
    assert len(pairs) == 100
    assert len(common) == 18
    for pair in pairs:
        shown, devices = one.common(*pair)
        assert tuple(tuple(state[d] for d in devices) for state in pair) == shown


def test_every_image_of_a_pair_takes_the_same_time() -> None:
    one, found = module(), {}
    for pair in product(states(), repeat=2):
        plan = one.search(pair, SearchEffort(400, 10, 0, Event()))
        assert plan is not None
        found.setdefault(one.common(*pair)[0], set()).add(plan.makespan_ns)
    assert {len(times) for times in found.values()} == {1}


def test_the_ends_of_a_module_are_as_asked() -> None:
    one = module()
    for entry, exit_ in (((2, 0, 0, 0), (0, 1, 1, 0)), ((1, 1, 0, 0), (0, 0, 0, 2))):
        plan = one.search((entry, exit_), SearchEffort(200, 10, 0, Event()))
        assert plan is not None
        assert plan.layout.device[one.entry].tolist() == blocks_of(entry)
        assert sorted(plan.layout.device[one.exit].tolist()) == blocks_of(exit_)


def test_items_stay_where_they_can() -> None:
    assert matched([0, 0, 1, 2], (1, 2, 1, 0)) == [0, 1, 1, 2]
    assert matched([3, 3], (0, 0, 0, 2)) == [3, 3]


def joined(
    problem: Problem, symmetry: DeviceSymmetry, items: int = 4, evaluations: int = 5
) -> BatchedChain:
    path = single_channel_modules(problem.graph, 2)
    chain = BatchedChain(problem, module_chain(problem.graph, path=path), items, 1, symmetry)
    chain.find_states([])
    chain.improve(ChainBudget(Deadline.after(60), evaluations, 0, 2, Event()))
    return chain


def alone(problem: Problem) -> DeviceSymmetry:
    """Each device as if there were no other like it."""
    return DeviceSymmetry((), tuple((device,) for device in range(len(problem.cluster.devices))))


@pytest.mark.parametrize(
    ("hosts", "items"),
    [
        (("node",) * 4, 4),
        (("n0", "n0", "n1", "n1", "n2", "n2"), 2),
        (("n0", "n0", "n0", "n1", "n1", "n1"), 2),
    ],
)
def test_symmetry_solves_a_tenth_of_the_pairs_at_the_same_optimum(
    hosts: tuple[str, ...], items: int
) -> None:
    """Equal devices, also of equal nodes: one item on each of some takes the sum of the times."""
    problem = line(6, hosts, items)
    with_symmetry = joined(problem, device_symmetry(problem), items)
    without = joined(problem, alone(problem), items)
    optimum = sum(3 + 2 * index for index in range(6))
    assert batch_bound(problem, items) <= optimum
    assert with_symmetry.best_ns() == without.best_ns() == optimum
    assert without.num_pairs >= 10 * with_symmetry.num_pairs
    assert without.num_searches >= 10 * with_symmetry.num_searches
    for chain in (with_symmetry, without):
        layout = chain.layout()
        assert len({tuple(row) for row in layout.device.tolist()}) == 1


def test_keys_of_a_module_are_ranked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = line(6, ("node",) * 2)
    chain = joined(problem, alone(problem), 2)
    ranked = []

    def ranks(keys: np.ndarray) -> np.ndarray:
        ranked.append(keys)
        return _ranks(keys)

    monkeypatch.setattr(batched_chain, "_ranks", ranks)
    chain.layout()
    assert len(ranked) == len(chain.modules) > 1


def random_line(seed: int) -> Problem:
    """A chain with any times on equal nodes of one or two equal devices."""
    random = Random(seed)
    shapes = ["aabb", "abc", "aabbcc", "abab"]
    hosts = tuple(random.choice(shapes))
    plain = line(random.randint(3, 5), hosts)
    single = [random.randint(1, 20) for _ in plain.graph.tasks]
    double = [random.randint(ns, 2 * ns) for ns in single]
    one, two = (tuple((Cost.given(ns),) * len(hosts) for ns in row) for row in (single, double))
    costs = table_from_rows(plain.graph, plain.cluster, one, {2: two})
    return Problem(plain.graph, plain.cluster, costs)


@pytest.mark.costly(4)
def test_symmetry_of_nodes_keeps_the_optimum() -> None:
    searches = [0, 0]
    for seed in range(200):
        problem = random_line(seed)
        symmetries = (device_symmetry(problem), alone(problem))
        chains = [joined(problem, symmetry, 2, 50) for symmetry in symmetries]
        assert chains[0].best_ns() == chains[1].best_ns(), seed
        for index, chain in enumerate(chains):
            searches[index] += chain.num_searches
    assert searches[1] > 3 * searches[0]


def test_joined_modules_are_a_plan_no_later_than_with_barriers() -> None:
    problem = with_batches(rwnn(RwnnStack("er", 10, 3)), 4)
    options = replace(OPTIONS, items=4, iterations=20_000, threads=2)
    result = BatchedSplit(problem, options).run()
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    times = {name: ns for name, ns, _ in result.candidates}
    barrier_ns, joined_ns = times["modules with barriers"], times["modules without barriers"]
    assert barrier_ns is not None
    assert joined_ns is not None
    assert result.bound_ns <= result.objective_ns <= joined_ns <= barrier_ns
    assert result.objective_ns < min(
        ns for name, ns in times.items() if name.startswith("list") and ns is not None
    )


def test_equal_budgets_give_equal_plans() -> None:
    problem = with_batches(rwnn(RwnnStack("er", 10, 2)), 4)
    options = replace(OPTIONS, iterations=5_000, threads=2)
    assert solve(problem, 4, options).plan == solve(problem, 4, options).plan


def test_one_node_of_a_budget_in_iterations_has_all_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = []
    improve = BatchedSplit._improve

    def noted(one: BatchedSplit) -> None:
        limits.append(one.options.time_limit_s)
        improve(one)

    monkeypatch.setattr(BatchedSplit, "_improve", noted)
    solve(nodes((3, 5, 4, 2)), 4)
    assert len(limits) > 1
    assert limits[1] > 0.9 * limits[0]


def test_equal_nodes_share_the_items() -> None:
    result = solve(nodes((3, 5, 4, 2)), 4)
    times = {name: ns for name, ns, _ in result.candidates}
    replicated = times["one node, replicated"]
    assert replicated is not None
    assert result.objective_ns <= replicated
    steps = result.plan.steps
    problem = nodes((3, 5, 4, 2))
    assert simulate_steps(problem.native, steps, 4).makespan_ns == result.objective_ns
