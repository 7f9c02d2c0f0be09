"""Subset bound: at most the optimum, equal to the best split of small graphs, above prices."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heteroplace.errors import GraphError
from heteroplace.model.cluster import CONGESTION_MODES
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.parts.throughput.native.core_throughput import SubsetKnapsack
from heteroplace.parts.throughput.steady_state.priced_assignment import solve_assignment
from heteroplace.parts.throughput.steady_state.prices import price_bound
from heteroplace.parts.throughput.steady_state.subset_bound import subset_bound
from heteroplace.solve import Problem, SolveOptions, get_solver
from tests.corpus import corpus
from tests.instances import gpus, instance, problem_of
from tests.reference.throughput import least_item_ns
from tests.strategies import Instance, exact_cases, random_instance


@corpus
def cases(random: Random, max_tasks: int = 6) -> Instance:
    """Instances where copies occupy the devices."""
    case = random_instance(random, max_tasks)
    cluster = replace(
        case.cluster,
        congestion=random.choice(CONGESTION_MODES),
        devices=tuple(replace(device, copy_engines=0) for device in case.cluster.devices),
    )
    return Instance(case.graph, cluster, replace(case.costs, devices=cluster.identities))


def chain(times: tuple[int, ...], num_bytes: int, num_gpus: int) -> Problem:
    """A chain on equal devices that copies occupy; a byte takes 1 ns."""
    links = {(a, b): 1 for a in range(num_gpus) for b in range(num_gpus) if a != b}
    names = [f"t{i}" for i in range(len(times))]
    run_ns = {name: (time,) * num_gpus for name, time in zip(names, times, strict=True)}
    edges = list(pairwise(names))
    case = instance(edges, run_ns, gpus(links, num_gpus), num_bytes=num_bytes)
    devices = tuple(replace(device, copy_engines=0) for device in case.cluster.devices)
    links_of = tuple(replace(link, latency_ns=0) for link in case.cluster.links)
    cluster = replace(case.cluster, devices=devices, links=links_of)
    return Problem(case.graph, cluster, replace(case.costs, devices=cluster.identities))


def load_ns(problem: Problem, device: int, tasks: set[int]) -> int:
    """What a device is busy with at least, by the definition: its tasks and their borders."""
    native, cluster = problem.native, problem.cluster
    memory = cluster.devices[device].memory
    total = sum(int(native.run_ns[task, device]) for task in tasks)
    if sum(other.memory == memory for other in cluster.devices) > 1:
        return total
    unit = cluster.unit_ids[device][0]
    pairs = [(memory, other) for other in range(len(cluster.memories)) if other != memory]
    pairs = [pair for one in pairs for pair in (one, one[::-1]) if cluster.is_reachable(*pair)]
    routes = [cluster.route(*pair) for pair in pairs]
    if not all(unit in cluster.route_resources(route) for route in routes):
        return total
    for tensor in problem.graph.tensors:
        ends = {tensor.producer, *tensor.consumers}
        if routes and tensor.producer is not None and ends & tasks and ends - tasks:
            total += min(cluster.transfer_ns(route, tensor.bytes) for route in routes)
    return total


@exact_cases(100)
@given(case=cases(), seed=st.integers(0, 10**6))
def test_profits_are_the_most_of_any_subset(case: Instance, seed: int) -> None:
    """In buckets of 1 ns nothing is rounded: the knapsack is exact."""
    problem = problem_of(case)
    knapsack = SubsetKnapsack(problem.native)
    assert knapsack.is_exact
    profit = np.random.default_rng(seed).random(knapsack.variable.max() + 1)
    for device, number in enumerate(knapsack.device_class.tolist()):
        found = knapsack.evaluate(number, profit, width_ns=1, count=30, price_per_ns=0.0, at=17)
        coarse = knapsack.evaluate(number, profit, width_ns=5, count=6, price_per_ns=0.01, at=6)
        narrow = SubsetKnapsack(problem.native, 1).evaluate(
            number, profit, width_ns=1, count=30, price_per_ns=0.0, at=30
        )
        most = np.zeros(31)
        for subset in product((False, True), repeat=len(profit)):
            tasks = {task for task, one in enumerate(knapsack.variable.tolist()) if subset[one]}
            if any(problem.native.run_ns[task, device] == IMPOSSIBLE for task in tasks):
                continue
            load = load_ns(problem, device, tasks)
            most[load:] = np.maximum(most[load:], profit[list(subset)].sum())
        assert found.most == pytest.approx(most)
        assert profit @ found.is_chosen == pytest.approx(most[17])
        # Coarser buckets only raise it, and so do copies that are left out.
        assert (coarse.most >= most[::5] - 1e-9).all()
        assert (narrow.most >= most - 1e-9).all()


@exact_cases(250)
@given(case=cases(max_tasks=5))
def test_bound_is_at_most_the_optimum(case: Instance) -> None:
    problem = problem_of(case)
    assume(not (problem.native.run_ns == IMPOSSIBLE).all(axis=1).any())
    best = least_item_ns(case.graph, case.cluster, case.costs)
    if best is None:
        return
    found = subset_bound(problem, best, 30, 60.0)
    assert found.bound_ns <= best
    assert subset_bound(problem, best + 1000, 30, 60.0).bound_ns <= best


def test_a_border_is_paid_by_both_of_its_devices() -> None:
    """Two tasks of 10 and a copy of 6 that both devices wait for: 16, where prices say 10."""
    problem = chain((10, 10), 6, 2)
    assert subset_bound(problem, 16, 50, 60.0).bound_ns == 16
    assert price_bound(problem, 16, 50, 60.0).bound_ns == 10


@pytest.mark.parametrize("num_bytes", [1, 4, 40])
def test_bound_of_a_chain_is_near_its_optimum(num_bytes: int) -> None:
    """Copies of 40 keep all on one device; with dear ones prices say a third of that."""
    times = tuple(10 + 7 * index % 5 for index in range(12))
    problem = chain(times, num_bytes, 3)
    optimum = solve_assignment(problem, sum(times), 60.0)
    assert optimum.placement is not None
    bound = subset_bound(problem, sum(times), 200, 60.0).bound_ns
    assert 0.9 * optimum.bound_ns <= bound <= optimum.bound_ns
    assert bound >= price_bound(problem, sum(times), 200, 60.0).bound_ns


def test_devices_that_compute_while_they_copy_have_no_such_bound() -> None:
    links = {(0, 1): 1, (1, 0): 1}
    problem = problem_of(instance([("a", "b")], {"a": (9, 9), "b": (9, 9)}, gpus(links, 2)))
    found = subset_bound(problem, 18, 10, 60.0)
    assert (found.bound_ns, found.num_evaluations) == (0, 0)


def test_the_solver_proves_more_than_prices() -> None:
    """Too many tasks for the programme: prices say 7000 / 3, copies of 1000 add half of that."""
    problem = chain((10,) * 700, 1000, 3)
    options = SolveOptions(objective="throughput", iterations=2_000, time_limit_s=60)
    result = get_solver("throughput").solve(problem, options)
    assert 1.2 * 7000 / 3 <= result.bound_ns <= result.objective_ns
    notes = {name: note for name, _, note in result.candidates}
    assert f"bound {result.bound_ns} ns" in notes["subsets"]


def test_profits_that_do_not_fit_are_named() -> None:
    knapsack = SubsetKnapsack(chain((1, 2), 1, 2).native)
    with pytest.raises(GraphError, match="do not match the knapsack"):
        knapsack.evaluate(0, np.ones(3), width_ns=1, count=2, price_per_ns=0.0, at=1)
    with pytest.raises(GraphError, match="do not match the knapsack"):
        knapsack.evaluate(0, np.ones(2), width_ns=1, count=2, price_per_ns=0.0, at=3)


@pytest.mark.parametrize("device_class", [-1, 1, 2**31 - 1])
def test_a_class_that_no_device_has_is_named(device_class: int) -> None:
    knapsack = SubsetKnapsack(chain((1, 2), 1, 2).native)
    assert knapsack.run_ns(0).tolist() == [1, 2]
    with pytest.raises(GraphError, match=f"no device has class {device_class}"):
        knapsack.run_ns(device_class)


def test_a_wide_join_has_few_states() -> None:
    """Sixteen tasks that one reads: all that matters of them is where that one is."""
    names = [f"t{i}" for i in range(16)]
    run_ns = {name: (3, 3) for name in [*names, "join"]}
    case = instance([(name, "join") for name in names], run_ns, gpus({(0, 1): 1, (1, 0): 1}, 2))
    knapsack = SubsetKnapsack(problem_of(case).native)
    assert knapsack.is_exact
    assert knapsack.num_states <= 2 * len(run_ns)
