"""What the shards have of a tensor: all of it each, a part each, or a summand each.

The three are the S, B and P of OneFlow's SBP ("OneFlow: Redesign the Distributed Deep Learning
Framework from Scratch", section 3.1). Unlike there, parts may have unlike sizes, and an axis may be
cut within blocks, as the columns of a product that makes queries, keys and values at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import gcd


class Kept(Enum):
    """What shards have that is not cut."""

    WHOLE = "whole"
    """Each shard has all of it."""
    SUM = "sum"
    """Each shard has a tensor of its shape; they add up to it."""


@dataclass(frozen=True)
class Cut:
    """Each shard has a part along one axis, which is blocks x units x the rest.

    Of every block a shard has `shares[shard]` units, in the order of the shards.
    """

    axis: int
    shares: tuple[int, ...]
    """Units of each shard, without a common divisor."""
    blocks: int = 1

    @property
    def units(self) -> int:
        """Of all shards together."""
        return sum(self.shares)

    def fits(self, extent: int) -> bool:
        """Say whether an axis of that extent can be cut so."""
        return extent > 0 and extent % (self.blocks * self.units) == 0

    def extent(self, whole: int, shard: int) -> int:
        """Return the extent of a shard's part."""
        return whole // self.units * self.shares[shard]

    def ranges(self, whole: int, shard: int) -> list[tuple[int, int]]:
        """Return the ranges (begin, end) of the whole axis that a shard has, one for each block."""
        unit = whole // (self.blocks * self.units)
        first = sum(self.shares[:shard])
        starts = [(block * self.units + first) * unit for block in range(self.blocks)]
        return [(start, start + self.shares[shard] * unit) for start in starts]

    def along(self, axis: int, blocks: int | None = None) -> Cut:
        """Return the same shares of another axis."""
        return Cut(axis, self.shares, self.blocks if blocks is None else blocks)


State = Cut | Kept
"""What the shards have of a tensor."""


def share_out(units: int, num_shards: int) -> tuple[int, ...]:
    """Return how many units each shard has; the first ones have one more if they do not divide.

    >>> share_out(8, 2), share_out(3, 2)
    ((1, 1), (2, 1))
    """
    each, more = divmod(units, num_shards)
    return without_divisor([each + (shard < more) for shard in range(num_shards)])


def without_divisor(shares: Sequence[int]) -> tuple[int, ...]:
    """Return shares in the same proportion that have no common divisor."""
    divisor = gcd(*shares)
    return tuple(share // divisor for share in shares)


def part_shape(shape: Sequence[int], state: State, shard: int) -> tuple[int, ...]:
    """Return the shape of what a shard has of a tensor of that shape."""
    if isinstance(state, Kept):
        return tuple(shape)
    part = list(shape)
    part[state.axis] = state.extent(part[state.axis], shard)
    return tuple(part)


def describe(state: State, shape: Sequence[int]) -> str:
    """Return a state in words, for messages."""
    if isinstance(state, Kept):
        return state.value
    parts = [state.extent(shape[state.axis], shard) for shard in range(len(state.shares))]
    blocks = f" in {state.blocks} blocks" if state.blocks > 1 else ""
    return f"axis {state.axis} of {tuple(shape)} as {'+'.join(map(str, parts))}{blocks}"
