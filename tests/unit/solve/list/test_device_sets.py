"""The sets of devices that HEFT is tried on: all, and those without a common core."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from random import Random

from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.solve import Problem
from heteroplace.solve.list.heft import device_sets
from tests.instances import instance, problem_of

MAX_SETS = 64


def on_cores(*cores: Sequence[int]) -> Problem:
    """CPU devices of these cores, in one memory."""
    devices = tuple(
        Device(f"cpu.{index}", "cpu", "", 0, 0, tuple(own)) for index, own in enumerate(cores)
    )
    cluster = Cluster("cores", (Memory("ram", 10**9),), devices)
    return problem_of(instance([], {"a": (1,) * len(cores)}, cluster))


def test_forty_cores_and_one_device_of_all_are_two_sets() -> None:
    """There are 2^40 ways to leave cores out, and no set comes of them."""
    problem = on_cores(*([core] for core in range(40)), range(40))
    assert device_sets(problem) == [tuple(range(41)), tuple(range(40))]


def test_cores_in_two_parts_are_the_sets_of_both() -> None:
    parts = range(16), range(16, 32)
    problem = on_cores(*(cores for part in parts for cores in (*([c] for c in part), part)))
    first, second = tuple(range(16)), tuple(range(17, 33))
    assert device_sets(problem) == [
        tuple(range(34)),
        (*first, *second),
        (*first, 33),
        (16, *second),
        (16, 33),
    ]


def test_of_very_many_sets_the_first_are_taken() -> None:
    problem = on_cores(*([core] for core in range(10) for _ in range(2)))
    ways = product(*((2 * core, 2 * core + 1) for core in range(10)))
    expected = [next(ways) for _ in range(MAX_SETS - 1)]
    assert device_sets(problem) == [tuple(range(20)), *expected]


def test_sets_are_all_maximal_ones_in_their_order() -> None:
    for seed in range(200):
        random = Random(seed)
        cores = [
            tuple(sorted(random.sample(range(6), random.randint(1, 4))))
            for _ in range(random.randint(1, 7))
        ]
        devices = tuple(range(len(cores)))
        free = [
            set(chosen)
            for count in range(1, len(cores) + 1)
            for chosen in combinations(devices, count)
            if len({core for d in chosen for core in cores[d]})
            == sum(len(cores[d]) for d in chosen)
        ]
        maximal = [chosen for chosen in free if not any(chosen < other for other in free)]
        antichains = sorted(tuple(sorted(chosen)) for chosen in maximal if len(chosen) > 1)
        expected = list(dict.fromkeys([devices, *antichains]))
        assert device_sets(on_cores(*cores)) == expected, seed
