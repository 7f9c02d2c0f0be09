"""Splits by dynamic programming over ideals: how many there are, the best split, its limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import given

from heteroplace.model.cluster import Cluster
from heteroplace.native.core_loads import placement_loads
from heteroplace.parts.throughput.native.core_throughput import ideal_split
from heteroplace.parts.throughput.steady_state.pipeline import stage_order
from heteroplace.parts.throughput.steady_state.throughput_solver import IDEALS
from heteroplace.solve import SolveOptions, get_solver
from heteroplace.solve.problem import Problem
from tests.corpus import corpus
from tests.instances import gpus, instance, problem_of
from tests.reference.placements import fits, is_allowed
from tests.strategies import AMPLE, Instance, exact_cases, random_instance

MANY = 1_000_000


def equal_gpus(num_devices: int, copy_engines: int, capacity: int = AMPLE) -> Cluster:
    pairs = [(a, b) for a in range(num_devices) for b in range(num_devices) if a != b]
    cluster = gpus(dict.fromkeys(pairs, 1), num_devices, capacity)
    devices = tuple(replace(device, copy_engines=copy_engines) for device in cluster.devices)
    return replace(cluster, devices=devices)


@corpus
def chains(random: Random) -> Instance:
    """Chains and trees that lead to one task, on three equal devices that copy by themselves."""
    count = random.randint(2, 6)
    names = [f"t{i}" for i in range(count)]
    edges = [
        (names[i], names[i + 1 if random.random() < 0.7 else random.randint(i + 1, count - 1)])
        for i in range(count - 1)
    ]
    run_ns: dict[str, tuple[int | None, ...]] = {
        name: (time, time, time) for name, time in ((n, random.randint(1, 9)) for n in names)
    }
    sizes = {name: random.randint(0, 5) for name in names}
    return instance(edges, run_ns, equal_gpus(3, 0), tensor_bytes=sizes)


@corpus
def cases(random: Random) -> Instance:
    return random_instance(random, 6, random.random() < 0.3)


def staged(problem: Problem) -> Iterator[tuple[int, ...]]:
    """All placements in stages."""
    count, devices = len(problem.graph.tasks), len(problem.cluster.devices)
    for placement in product(range(devices), repeat=count):
        if stage_order(problem, placement) is not None:
            yield placement


@given(chains())
@exact_cases(60)
def test_split_of_tensors_with_one_reader_is_the_best_one(case: Instance) -> None:
    problem = problem_of(case)
    split = ideal_split(problem.native, 1000, MANY)
    best = min(placement_loads(problem.native, one).item_ns for one in staged(problem))
    assert split.placement is not None
    assert split.load_ns == placement_loads(problem.native, split.placement).item_ns == best


@pytest.mark.costly
@given(cases())
@exact_cases(80)
def test_split_is_a_placement_and_the_solver_is_never_behind_it(case: Instance) -> None:
    problem = problem_of(case)
    split = ideal_split(problem.native, 1000, MANY)
    if split.placement is None:
        return
    placement = split.placement.tolist()
    assert is_allowed(case.graph, case.cluster, case.costs, placement)
    loads = placement_loads(problem.native, split.placement)
    if loads.num_unreachable or not fits(case.graph, case.cluster, placement):
        return
    options = SolveOptions(objective="throughput", iterations=1, time_limit_s=60)
    result = get_solver("throughput").solve(problem, options)
    assert result.objective_ns <= loads.item_ns


@pytest.mark.parametrize("length", [1, 4, 7])
def test_ideals_of_two_branches_are_pairs_of_their_beginnings(length: int) -> None:
    names = [f"{branch}{i}" for branch in "ab" for i in range(length)]
    edges = [(f"{branch}{i}", f"{branch}{i + 1}") for branch in "ab" for i in range(length - 1)]
    case = instance(edges, dict.fromkeys(names, (1, 1)), equal_gpus(2, 1))
    split = ideal_split(problem_of(case).native, 1000, MANY)
    assert split.num_ideals == (length + 1) ** 2
    assert split.load_ns == length


def test_tasks_of_one_group_at_both_ends_do_not_make_one_stage_of_all() -> None:
    """As forward and backward tasks of a layer: edges back are left out instead."""
    names = ["f0", "f1", "f2", "b2", "b1", "b0"]
    case = instance(
        list(pairwise(names)),
        dict.fromkeys(names, (10, 10, 10)),
        equal_gpus(3, 1),
        num_bytes=1,
    )
    tasks = tuple(replace(task, together=task.name[1]) for task in case.graph.tasks)
    problem = problem_of(replace(case, graph=replace(case.graph, tasks=tasks)))
    split = ideal_split(problem.native, 1000, MANY)
    assert split.placement is not None
    placement = split.placement.tolist()
    assert placement[:3] == placement[:2:-1]
    assert placement_loads(problem.native, placement).item_ns == 20


def test_memory_bounds_a_stage() -> None:
    names = [f"t{i}" for i in range(6)]
    edges = list(pairwise(names))
    # Room for two tasks of 10 + 1 bytes and a copy of 1.
    case = instance(
        edges, dict.fromkeys(names, (1, 1, 1)), equal_gpus(3, 1, 24), num_bytes=1, weight_bytes=10
    )
    split = ideal_split(problem_of(case).native, 1000, MANY)
    assert split.placement is not None
    assert sorted(split.placement.tolist()) == [0, 0, 1, 1, 2, 2]
    tight = replace(case, cluster=equal_gpus(2, 1, 24))
    two = instance(edges, dict.fromkeys(names, (1, 1)), tight.cluster, num_bytes=1, weight_bytes=10)
    assert ideal_split(problem_of(two).native, 1000, MANY).placement is None


def test_too_many_ideals_or_stages_are_said() -> None:
    names = [f"t{i}" for i in range(12)]
    case = instance([], dict.fromkeys(names, (1, 1)), equal_gpus(2, 1))
    problem = problem_of(case)
    assert ideal_split(problem.native, 4095, MANY).num_ideals == 0
    few = ideal_split(problem.native, 4096, 10)
    assert (few.placement, few.num_ideals) == (None, 4096)
    options = SolveOptions(objective="throughput", iterations=10, time_limit_s=60)
    result = get_solver("throughput").solve(problem, options)
    assert any(name == IDEALS for name, _, _ in result.candidates)


@pytest.mark.parametrize("num_devices", [9, 64, 65])
def test_many_unlike_devices_have_too_many_uses(num_devices: int) -> None:
    # Of 64 the number of uses is 2**64, of which 64 bits keep 0.
    times = {"a": tuple(range(1, num_devices + 1)), "b": tuple(range(2, num_devices + 2))}
    case = instance([("a", "b")], times, equal_gpus(num_devices, 0))
    split = ideal_split(problem_of(case).native, MANY, MANY)
    assert (split.placement, split.num_ideals) == (None, 0)


def test_a_chain_of_as_many_tasks_as_ideals_may_be_has_one_too_many() -> None:
    names = [f"t{i}" for i in range(30)]
    problem = problem_of(
        instance(list(pairwise(names)), dict.fromkeys(names, (1, 1)), equal_gpus(2, 1))
    )
    assert ideal_split(problem.native, 30, MANY).num_ideals == 0
    assert ideal_split(problem.native, 31, MANY).num_ideals == 31
