"""Contiguous splits: memory that only copies overflow is made room for."""

from __future__ import annotations

from itertools import pairwise

import pytest

from heteroplace.native.core_loads import placement_loads
from heteroplace.parts.throughput.native.core_throughput import contiguous_splits
from heteroplace.parts.throughput.steady_state.throughput_solver import find_throughput
from heteroplace.solve import SolveOptions
from heteroplace.solve.problem import Problem
from tests.instances import gpus, instance, problem_of


def chain(capacity: int) -> Problem:
    """Ten tasks of 10 ns on two devices; the first five make 5 bytes each, the others 10."""
    names = [f"t{i}" for i in range(10)]
    made = {name: 5 if i < 5 else 10 for i, name in enumerate(names)}
    cluster = gpus({(0, 1): 100, (1, 0): 100}, 2, capacity)
    times = dict.fromkeys(names, (10, 10))
    return problem_of(instance(list(pairwise(names)), times, cluster, tensor_bytes=made))


@pytest.mark.parametrize(("capacity", "item_ns"), [(1000, 50), (55, 50), (52, 60), (50, 60)])
def test_a_stage_has_room_for_what_is_copied_to_it(capacity: int, item_ns: int) -> None:
    # Five tasks each are even; the second five hold 50 bytes and are sent 5.
    problem = chain(capacity)
    loads = placement_loads(problem.native, contiguous_splits(problem.native)[0])
    assert loads.fits(problem.cluster)
    assert loads.item_ns == item_ns


def test_without_room_splits_stay_as_they_are() -> None:
    problem = chain(40)
    splits = contiguous_splits(problem.native)
    assert splits
    assert not placement_loads(problem.native, splits[0]).fits(problem.cluster)


def test_the_search_begins_with_them() -> None:
    # One move, and no programme that would find it: what is found is what was there.
    options = SolveOptions(objective="throughput", iterations=1, time_limit_s=60)
    assert find_throughput(chain(52), options).objective_ns == 60
