"""Cells between memories, counted: what a dense exchange moves, and a sparse one.

Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023): in place of a dense
all-to-all, in which each pair moves as much as the largest one, counts are exchanged first, and
then just the cells, as messages from point to point; a pair without cells has no message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from heteroplace.errors import RoutingError

Counts = npt.NDArray[np.int64]
COUNT_BYTES = 4
"""Of one count, an int32."""


def exchange_counts(
    here: Sequence[int] | Counts, there: Sequence[int] | Counts, num_memories: int
) -> Counts:
    """Return how many cells go from each memory to each.

    Parameters
    ----------
    here, there
        The memory of each cell before and after; negative: it takes no part. [num_cells]

    Returns
    -------
    counts
        Those that stay are on the diagonal. [num_memories][num_memories]

    Raises
    ------
    RoutingError
        A memory that there is not.
    """
    src, dst = np.asarray(here, dtype=np.int64), np.asarray(there, dtype=np.int64)
    if src.shape != dst.shape or max(src.max(initial=-1), dst.max(initial=-1)) >= num_memories:
        raise RoutingError(
            f"expected two lists of as many memories, each below {num_memories}, got {src.size} "
            f"and {dst.size} entries, the largest {max(src.max(initial=-1), dst.max(initial=-1))}"
        )
    takes_part = (src >= 0) & (dst >= 0)
    counts = np.zeros((num_memories, num_memories), dtype=np.int64)
    np.add.at(counts, (src[takes_part], dst[takes_part]), 1)
    return counts


def sparse_cells(counts: npt.ArrayLike) -> int:
    """Return the cells that a sparse exchange moves.

    >>> sparse_cells([[5, 1, 0, 2], [1, 6, 1, 0], [7, 0, 1, 0], [0, 0, 2, 6]])
    14
    """
    square = _square(counts)
    return int(square.sum() - np.trace(square))


def dense_cells(counts: npt.ArrayLike) -> int:
    """Return the cells that a dense exchange moves: all pairs as many as the largest one.

    >>> dense_cells([[5, 1, 0, 2], [1, 6, 1, 0], [7, 0, 1, 0], [0, 0, 2, 6]])
    84
    """
    square = _square(counts)
    moved = square - np.diag(np.diag(square))
    return len(square) * (len(square) - 1) * int(moved.max(initial=0))


def sparse_bytes(counts: npt.ArrayLike, cell_bytes: int, *, with_counts: bool = True) -> int:
    """Return the bytes of both phases: each memory tells all others its counts, then the cells.

    Parameters
    ----------
    with_counts
        False: the cells alone.
    """
    num_memories = len(_square(counts))
    count_bytes = (
        num_memories * (num_memories - 1) * num_memories * COUNT_BYTES if with_counts else 0
    )
    return count_bytes + sparse_cells(counts) * cell_bytes


def _square(counts: npt.ArrayLike) -> Counts:
    square = np.asarray(counts, dtype=np.int64)
    if square.ndim != 2 or square.shape[0] != square.shape[1] or square.min(initial=0) < 0:
        raise RoutingError(
            f"expected as many rows as columns of counts >= 0, got an array of shape {square.shape}"
        )
    return square
