"""Exchanges of cells: what a dense and a sparse one move."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.dynamic.all_to_all import (
    dense_cells,
    exchange_counts,
    sparse_bytes,
    sparse_cells,
)
from tests.corpus import corpus
from tests.strategies import exact_cases

WORKED = ((5, 1, 0, 2), (1, 6, 1, 0), (7, 0, 1, 0), (0, 0, 2, 6))


@corpus
def ways(random: Random) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Memories of cells before and after; some take no part."""
    num_memories, num_cells = random.randint(1, 4), random.randint(0, 20)

    def side() -> tuple[int, ...]:
        return tuple(random.randint(-1, num_memories - 1) for _ in range(num_cells))

    return side(), side(), num_memories


def test_the_worked_exchange_moves_14_cells_of_84() -> None:
    assert dense_cells(WORKED) == 84
    assert sparse_cells(WORKED) == 14
    assert dense_cells(WORKED) / sparse_cells(WORKED) == 6
    assert sparse_bytes(WORKED, 100) == 1400 + 4 * 3 * 4 * 4
    assert sparse_bytes(WORKED, 100, with_counts=False) == 1400


@given(ways())
@exact_cases(40)
def test_messages_are_the_cells_that_move(
    case: tuple[tuple[int, ...], tuple[int, ...], int],
) -> None:
    here, there, num_memories = case
    counts = exchange_counts(here, there, num_memories)
    moved = Counter(
        pair for pair in zip(here, there, strict=True) if min(pair) >= 0 and pair[0] != pair[1]
    )
    apart = {
        (src, dst): int(counts[src, dst])
        for src in range(num_memories)
        for dst in range(num_memories)
        if src != dst and counts[src, dst]
    }
    assert apart == moved
    assert sum(moved.values()) == sparse_cells(counts) <= dense_cells(counts)


def test_wrong_counts_are_refused() -> None:
    with pytest.raises(RoutingError, match=r"shape \(1, 2\)"):
        dense_cells(((1, 2),))
    with pytest.raises(RoutingError, match=r"shape \(2, 2\)"):
        sparse_cells(((0, -1), (0, 0)))
    with pytest.raises(RoutingError, match="each below 2, got 1 and 1 entries, the largest 2"):
        exchange_counts(np.array([0]), np.array([2]), 2)
