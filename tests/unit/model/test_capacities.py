"""Loads, the rows that are computed for them, and where branches lie."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.model.routed.capacities import (
    OVERFLOWS,
    branch_rows,
    capacity_faults,
    default_capacities,
    dropped_cells,
    offsets_of,
    padded_load,
)
from tests.strategies import num_cases

SIZES = st.lists(st.integers(1, 20), min_size=1, max_size=4, unique=True).map(sorted)


def test_the_worked_instance() -> None:
    capacities = [(1, 2, 4, 8)] * 3
    padded = [padded_load(load, sizes) for load, sizes in zip((3, 4, 0), capacities, strict=True)]
    assert padded == [4, 4, 0] and sum(padded) == 8
    assert offsets_of((3, 4, 0), capacities) == (0, 4, 8)


def test_the_worked_instance_that_drops() -> None:
    assert [padded_load(load, (1, 2), "drop") for load in (3, 4, 0)] == [2, 2, 0]
    assert [dropped_cells(load, (1, 2), "drop") for load in (3, 4, 0)] == [1, 2, 0]
    assert offsets_of((3, 4, 0), [(1, 2)] * 3, "drop") == (0, 2, 4)


@pytest.mark.parametrize("loads", [(28, 62, 22), (30, 60, 22)])
def test_112_cells_in_kernels_of_32_and_64(loads: tuple[int, ...]) -> None:
    # Brainstorm, 4.1: of four branches three are active, and two of them pad by 4 and 2.
    assert sum(loads) == 112
    assert [padded_load(load, (32, 64)) for load in loads] == [32, 64, 32]
    assert sorted(padded_load(load, (32, 64)) - load for load in loads[:2]) in ([2, 4], [4, 2])
    assert offsets_of((*loads, 0), [(32, 64)] * 4) == (0, 32, 96, 128)


@given(st.integers(0, 70), SIZES, st.sampled_from(OVERFLOWS), st.integers(1, 8))
@num_cases(100)
def test_padding_is_the_least_that_holds_the_load(
    load: int, sizes: list[int], overflow: str, quantum: int
) -> None:
    padded = padded_load(load, sizes, overflow)
    kept = load - dropped_cells(load, sizes, overflow)
    assert padded >= kept and (padded == 0) == (load == 0)
    rest = padded - kept // sizes[-1] * sizes[-1]
    assert rest == 0 or rest in sizes
    assert not any(kept % sizes[-1] <= size < rest for size in sizes)
    rows = branch_rows(load, sizes, overflow, quantum)
    assert padded <= rows < padded + quantum and rows % quantum == 0


@pytest.mark.costly
@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), SIZES, st.integers(1, 4))
@num_cases(50)
def test_branches_follow_one_another(loads: list[int], sizes: list[int], quantum: int) -> None:
    offsets = offsets_of(loads, [sizes] * len(loads), "rounds", quantum)
    assert offsets[0] == 0 and all(offset % quantum == 0 for offset in offsets)
    rows = [branch_rows(load, sizes, "rounds", quantum) for load in loads]
    assert all(b - a == of for (a, b), of in zip(pairwise(offsets), rows, strict=False))


@given(st.integers(1, 1000))
@num_cases(50)
def test_default_capacities_double_up_to_all_cells(num_cells: int) -> None:
    sizes = default_capacities(num_cells)
    assert sizes[0] == 1 and sizes[-1] == num_cells
    assert all(a < b <= 2 * a for a, b in pairwise(sizes))
    assert not capacity_faults([sizes], 1, "rounds")


@pytest.mark.parametrize(
    ("capacities", "overflow", "words"),
    [
        ([(1, 2)], "rounds", "capacities of 1 branches, expected 2"),
        ([(1, 2), ()], "rounds", "branch 1 has capacities (), expected at least one"),
        ([(0, 2), (1,)], "rounds", "branch 0 has capacities (0, 2)"),
        ([(1,), (2, 2)], "rounds", "branch 1 has capacities (2, 2)"),
        ([(1,), (2,)], "spill", "overflow is 'spill', expected one of rounds, drop, error"),
    ],
)
def test_capacities_in_disorder_are_told(
    capacities: list[tuple[int, ...]], overflow: str, words: str
) -> None:
    assert words in "; ".join(capacity_faults(capacities, 2, overflow))
