"""Sets of cells, one for each element of a tensor, as bits of numpy words.

The sets of a tensor are an array of the tensor's rank and one more axis of words. Along an axis on
which all elements have one set the array may have the extent 1, as arrays that broadcast have: of
a row that is one cell it holds one set, however long the row is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Sets = npt.NDArray[np.uint64]
"""[extents of the tensor, or 1 .., words]"""
_BITS = 64
_MAX_WORDS = 2**27
"""Of the sets of one tensor, 1 GiB; beyond it all elements are given the union of all sets."""


class CellOperand(NamedTuple):
    """A tensor that an op reads."""

    shape: tuple[int, ...]
    sets: Sets
    value: npt.NDArray[np.generic] | None = None
    """Of a constant."""

    @property
    def is_empty(self) -> bool:
        """No cell reaches it."""
        return not self.sets.any()

    def full(self) -> Sets | None:
        """Return one set for each element; None: that would be too large."""
        shape = (*self.shape, self.sets.shape[-1])
        if np.prod(shape, dtype=object) > _MAX_WORDS:
            return None
        return np.broadcast_to(self.sets, shape)


def num_words(num_cells: int) -> int:
    """Return the words that hold a bit for each of so many cells; at least one."""
    return max(1, -(-num_cells // _BITS))


def empty_sets(rank: int, words: int) -> Sets:
    """Return the sets of a tensor that no cell reaches."""
    return np.zeros([1] * rank + [words], dtype=np.uint64)


def union(sets: Sets, axes: Sequence[int]) -> Sets:
    """Return the unions along axes of the tensor, which keep the extent 1."""
    if not axes:
        return sets
    return np.asarray(np.bitwise_or.reduce(sets, axis=tuple(axes), keepdims=True))


def everywhere(operands: Sequence[CellOperand], rank: int, words: int) -> Sets:
    """Return for each element of a result of some rank all cells that reach any operand."""
    sets = empty_sets(rank, words)
    for operand in operands:
        all_cells = union(operand.sets, range(operand.sets.ndim - 1))
        sets = sets | all_cells.reshape(sets.shape)
    return sets


def compact(sets: Sets) -> Sets:
    """Return the same sets with the extent 1 along axes on which they are all equal."""
    for axis in range(sets.ndim - 1):
        if sets.shape[axis] > 1:
            first = sets.take([0], axis)
            if (sets == first).all():
                sets = first
    return sets


def with_rank(sets: Sets, rank: int) -> Sets:
    """Return the sets with axes put in front, as broadcasting does."""
    return sets.reshape(*[1] * (rank + 1 - sets.ndim), *sets.shape)


def to_integer(cells: Sets) -> int:
    """Return one set as a number whose bit j stands for cell j."""
    return sum(int(word) << (_BITS * index) for index, word in enumerate(cells))
