"""Stays: what memories that each hold a part of a path add to its time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from hypothesis import given

from heteroplace.model.cluster import Cluster
from heteroplace.native.core_bounds import lagrangian_bound
from heteroplace.solve import lower_bound
from heteroplace.solve.bounds.stays import stays_bound
from tests.instances import gpus, instance, problem_of
from tests.strategies import AMPLE, Instance, exact_cases
from tests.unit.solve.bounds.chains import chains, optimum_of
from tests.unit.solve.bounds.test_lagrangian import memory_forced_cut, with_cluster


def joined(count: int, capacity: int) -> Cluster:
    """Equal devices, a link from each to each."""
    return gpus(dict.fromkeys(permutations(range(count), 2), 10), count, capacity)


def chain(capacity: int, times: tuple[int, ...] = (10, 10, 10), num_tasks: int = 4) -> Instance:
    """Tasks of 10 kB, one after the other; a copy between two devices takes 10 ns."""
    names = [f"t{index}" for index in range(num_tasks)]
    run_ns: dict[str, tuple[int | None, ...]] = dict.fromkeys(names, times)
    cluster = joined(len(times), capacity)
    return instance(list(pairwise(names)), run_ns, cluster, num_bytes=100, weight_bytes=10_000)


def bound_of(case: Instance) -> int:
    return stays_bound(problem_of(case).native)


@pytest.mark.parametrize(("capacity", "expected"), [(AMPLE, 40), (31_000, 50), (21_000, 50)])
def test_full_memory_costs_a_copy_where_devices_are_equal(capacity: int, expected: int) -> None:
    case = chain(capacity)
    assert optimum_of(case) == expected
    assert bound_of(case) == expected
    # Three memories hold all in fractions, so that no price per byte proves the copy.
    assert lagrangian_bound(problem_of(case).native, rounds=40, target_ns=expected).bound_ns == 40
    assert lower_bound(problem_of(case)).ns == expected


def test_slow_device_with_room_is_cheaper_than_a_copy() -> None:
    # 13 each on gpu1, or two of 10 on gpu0, a copy, and 13 each.
    case = chain(21_000, (10, 13))
    memories = tuple(replace(memory, bytes=AMPLE) for memory in case.cluster.memories[1:])
    cluster = replace(case.cluster, memories=case.cluster.memories[:1] + memories)
    case = with_cluster(case, cluster)
    assert bound_of(case) == optimum_of(case) == 52


def test_memory_may_be_entered_again_with_all_of_its_room() -> None:
    # So two tasks on gpu0, one on gpu1, one on gpu0 are allowed here, and by no plan.
    case = memory_forced_cut(21_000)
    assert (bound_of(case), optimum_of(case)) == (90, 110)


def test_nothing_goes_where_no_link_leads() -> None:
    # From gpu1 only, where two of the four tasks have room.
    case = with_cluster(chain(AMPLE, (10, 10)), gpus({(1, 0): 10}, 2, 21_000))
    assert bound_of(case) == optimum_of(case) == 50
    assert bound_of(with_cluster(case, gpus({}, 2, 21_000))) == 0


def test_weights_that_no_memory_holds_prove_nothing() -> None:
    assert bound_of(chain(9_000)) == 0


def test_path_is_chosen_by_its_bytes_too() -> None:
    # The longer of two branches needs no memory, the other one does not fit in one.
    names = ("a", "b", "c", "d")
    run_ns: dict[str, tuple[int | None, ...]] = dict.fromkeys(names, (1, 1))
    run_ns["long"] = (5, 5)
    case = instance(list(pairwise(names)), run_ns, joined(2, 21_000), 100, 10_000)
    assert bound_of(case) == 14


@pytest.mark.costly
@given(chains(max_tasks=6))
@exact_cases(100)
def test_stays_are_at_most_the_optimum(case: Instance) -> None:
    optimum = optimum_of(case)
    if optimum is not None:
        assert bound_of(case) <= optimum
