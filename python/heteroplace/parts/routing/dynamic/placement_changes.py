"""One layer of a placement -> all moves of a member, all exchanges of two, what each changes.

A layer of 128 members has thousands of exchanges. What all of them change is a few sums of arrays;
a placement evaluated for each of them would go over all layers thousands of times.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from heteroplace.parts.routing.dynamic.placement_problem import Array

IntArray = npt.NDArray[np.int64]


class LayerChanges:
    """The changes of one layer: moves of one member, then exchanges of two.

    Parameters
    ----------
    now
        The memory of each member. [num_members]
    num_memories
        As of the problem.
    even_sizes
        The fewest and the most members that a memory has before and after a move.
    with_exchanges
        False: moves alone.
    """

    def __init__(
        self, now: IntArray, num_memories: int, even_sizes: tuple[int, int], *, with_exchanges: bool
    ) -> None:
        self._now = now
        fewest, most = even_sizes
        counts = np.bincount(now, minlength=num_memories)
        may_move = (counts[now] > fewest)[:, None] & (counts < most)[None, :]
        may_move[np.arange(len(now)), now] = False
        one, dst = np.nonzero(may_move)
        other = np.full(len(one), len(now))
        if with_exchanges:
            first, second = np.nonzero(np.tril(now[:, None] != now[None, :]))
            one, other = np.append(one, first), np.append(other, second)
            dst = np.append(dst, now[second])
        self._one, self._other, self._dst = one, other, dst
        """What moves where; and what moves the other way, or behind the last member: nothing."""
        self._src = now[one]

    def _gains(self, values: npt.NDArray[np.generic]) -> tuple[Array, Array]:
        """What is more in the memories that a change takes a member from, and brings it to.
        values: [num_members][num_memories]"""
        padded = np.vstack([values, np.zeros_like(values[:1])])
        one, other, src, dst = self._one, self._other, self._src, self._dst
        return padded[other, src] - padded[one, src], padded[one, dst] - padded[other, dst]

    def costs(self, costs: Array) -> Array:
        """Return what each change adds to the sum of costs. [num_changes]

        Parameters
        ----------
        costs
            Of each member in each memory. [num_members][num_memories]
        """
        at_src, at_dst = self._gains(costs)
        return at_src + at_dst

    def slowest(self, load_ns: Array) -> tuple[float, Array]:
        """Return the time of the slowest memory now, and after each change.

        Parameters
        ----------
        load_ns
            Of each member in each memory. [num_members][num_memories]
        """
        num_memories = load_ns.shape[1]
        own = load_ns[np.arange(len(self._now)), self._now]
        loads = np.bincount(self._now, weights=own, minlength=num_memories)
        # Of three memories at least one takes no part in a change of two.
        others = np.full((num_memories, num_memories), -np.inf)
        for memory in np.argsort(loads)[-3:]:
            is_apart = np.arange(num_memories) != memory
            others[np.ix_(is_apart, is_apart)] = loads[memory]
        at_src, at_dst = self._gains(load_ns)
        two = np.maximum(loads[self._src] + at_src, loads[self._dst] + at_dst)
        return float(loads.max()), np.maximum(others[self._src, self._dst], two)

    def overflow(self, weight_bytes: IntArray, over_bytes: IntArray) -> tuple[int, IntArray]:
        """Return the bytes above the memories' room now, and after each change.

        Parameters
        ----------
        weight_bytes
            Of each member. [num_members]
        over_bytes
            What is used of each memory, of all layers, less its room. [num_memories]
        """
        above = np.maximum(over_bytes, 0)
        values = np.broadcast_to(weight_bytes[:, None], (len(weight_bytes), len(over_bytes)))
        at_src, at_dst = self._gains(values)
        change = above.sum() - above[self._src] - above[self._dst]
        change += np.maximum(over_bytes[self._src] + at_src.astype(np.int64), 0)
        change += np.maximum(over_bytes[self._dst] + at_dst.astype(np.int64), 0)
        return int(above.sum()), change

    def after(self, change: int) -> tuple[int, ...]:
        """Return the members' memories after a change."""
        members = self._now.tolist()
        if self._other[change] < len(members):
            members[self._other[change]] = int(self._src[change])
        members[self._one[change]] = int(self._dst[change])
        return tuple(members)
