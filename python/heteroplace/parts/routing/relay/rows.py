"""Capacities of a router -> rows of its routed buffers: the most that any mask can need."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heteroplace.model.routed.capacities import branch_rows


def buffer_rows(
    num_cells: int,
    top_k: int,
    capacities: Sequence[Sequence[int]],
    overflow: str = "rounds",
    quantum: int = 1,
) -> int:
    """Return the largest sum of padded loads over all masks; exactly that, no bound above it.

    A mask gives each of `num_cells` cells at most `top_k` of the branches, so a branch has at most
    all cells and all branches together `num_cells * top_k`; any such loads are those of a mask.
    What is left is a knapsack: of each branch one load, and only the least load of each padded
    size matters. It takes O(branches * sizes * num_cells * top_k).

    >>> buffer_rows(6, 1, [(1, 2, 4, 6)] * 3)
    8
    >>> buffer_rows(6, 2, [(1, 2, 4, 8)] * 3)
    18
    """
    budget = num_cells * min(top_k, len(capacities))
    best = np.zeros(budget + 1, dtype=np.int64)  # by how many cells are given at most
    for sizes in capacities:
        grown = best.copy()
        for load, rows in _sizes_of(num_cells, sizes, overflow, quantum):
            np.maximum(grown[load:], best[: budget + 1 - load] + rows, out=grown[load:])
        best = grown
    return int(best[budget])


def _sizes_of(
    num_cells: int, capacities: Sequence[int], overflow: str, quantum: int
) -> list[tuple[int, int]]:
    """Pairs of (least load, rows that it takes), ascending, without those of no rows."""
    sizes: list[tuple[int, int]] = []
    for load in range(1, num_cells + 1):
        rows = branch_rows(load, capacities, overflow, quantum)
        if not sizes or rows > sizes[-1][1]:
            sizes.append((load, rows))
    return sizes
