"""Near placements with fewer changes of device: never over the limit, never more changes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.native.core_loads import placement_loads
from heteroplace.parts.throughput.native.core_throughput import contiguous_splits
from heteroplace.parts.throughput.steady_state.few_changes import with_few_changes
from heteroplace.solve.problem import Problem
from tests.instances import cpu, instance, problem_of
from tests.strategies import exact_cases


def chain(times: list[int]) -> Problem:
    """Tasks in a row, as long on each of two cores; both together can run none."""
    names = [f"t{i}" for i in range(len(times))]
    edges = list(pairwise(names))
    costs = {name: (ns, ns, None) for name, ns in zip(names, times, strict=True)}
    return problem_of(instance(edges, costs, cpu()))


def changes(placement: np.ndarray) -> int:
    return int(np.count_nonzero(placement[1:] != placement[:-1]))


def test_a_chain_in_turns_becomes_two_stages() -> None:
    problem = chain([4] * 12)
    in_turns = np.arange(12) % 2
    splits = contiguous_splits(problem.native)
    assert placement_loads(problem.native, in_turns).item_ns == 24
    found = with_few_changes(problem, in_turns, splits, 24)
    assert found is not None and changes(found) == 1
    assert placement_loads(problem.native, found).item_ns == 24


def test_small_tasks_even_out_what_no_split_does() -> None:
    problem = chain([10, 2, 1, 1, 6])
    in_turns, split = np.array([0, 1, 0, 1, 0]), np.array([0, 0, 1, 1, 1])
    assert with_few_changes(problem, in_turns, [split], 9) is None
    found = with_few_changes(problem, in_turns, [split], 10)
    assert found is not None and found.tolist() == [0, 1, 1, 1, 1]


@given(st.lists(st.integers(1, 50), min_size=2, max_size=12), st.data())
@exact_cases(100)
def test_the_limit_is_kept_and_changes_are_fewer(times: list[int], data: st.DataObject) -> None:
    problem = chain(times)
    cores = st.lists(st.integers(0, 1), min_size=len(times), max_size=len(times))
    placement = np.array(data.draw(cores))
    limit = placement_loads(problem.native, placement).item_ns + data.draw(st.integers(0, 10))
    found = with_few_changes(problem, placement, contiguous_splits(problem.native), limit)
    if found is not None:
        assert placement_loads(problem.native, found).item_ns <= limit
        assert changes(found) < changes(placement)
