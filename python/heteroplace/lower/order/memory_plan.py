"""Values of a memory and their conflicts -> offsets, with the waits that reuse makes necessary.

Reuse is a must: with fresh memory for every value a network misses the caches and runs up to 1.7
times slower. Offsets are chosen for all values at once, large ones first (Pisarchyk and Lee,
"Efficient Memory Management for Deep Neural Net Inference", section 5: greedy by size for offset
calculation): a place found in the order of time, value by value, leaves gaps that nothing later
fits in. Unlike there, two values conflict not only where their lifetimes meet, but also where one
would have to wait for the other's users (`lifetimes`); and several orders are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.program import aligned

_MAX_PLACEMENTS = 20_000
"""Places of single values that are looked for in improving a layout."""


@dataclass(frozen=True)
class Layout:
    """Where the values of one memory lie."""

    offsets: tuple[int, ...]
    size_bytes: int
    """End of the last value."""


def lay_out(
    sizes: Sequence[int], neighbours: Sequence[Sequence[int]], bound_bytes: int = 0
) -> Layout:
    """Choose an offset for each value such that neighbours do not overlap.

    Parameters
    ----------
    sizes
        Bytes, aligned.
    neighbours
        For each value those that conflict with it, in both directions.
    bound_bytes
        No layout is smaller: one of this size is not improved.

    The best of some orders, improved by moving what reaches the end of the arena to the front of
    its order. Values are placed one after the other, each in the smallest gap that is large enough.
    """
    numbers = range(len(sizes))
    degree = [sum(sizes[other] for other in near) for near in neighbours]
    orders = (
        sorted(numbers, key=lambda n: (-sizes[n], n)),
        sorted(numbers, key=lambda n: (-sizes[n] * len(neighbours[n]), n)),
        sorted(numbers, key=lambda n: (-sizes[n] - degree[n], n)),
        list(numbers),
    )
    # What is early and as good wins.
    order, best = min(
        ((list(order), _place(order, sizes, neighbours)) for order in orders),
        key=lambda space: space[1].size_bytes,
    )
    rounds = _MAX_PLACEMENTS // max(1, len(sizes))
    tried: set[int] = set()
    for _ in range(rounds):
        top = [n for n in order if best.offsets[n] + sizes[n] == best.size_bytes]
        moved = next((n for n in top if n not in tried), None)
        if best.size_bytes <= bound_bytes or moved is None:
            break
        tried.add(moved)
        changed = [moved, *(n for n in order if n != moved)]
        layout = _place(changed, sizes, neighbours)
        if layout.size_bytes <= best.size_bytes:
            if layout.size_bytes < best.size_bytes:
                tried.clear()
            order, best = changed, layout
    return best


def _place(
    order: Sequence[int], sizes: Sequence[int], neighbours: Sequence[Sequence[int]]
) -> Layout:
    offsets = [-1] * len(sizes)
    end = 0
    for number in order:
        blocked = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in neighbours[number]
            if offsets[other] >= 0
        )
        offsets[number] = _best_gap(blocked, sizes[number], end)
        end = max(end, offsets[number] + sizes[number])
    return Layout(tuple(offsets), end)


def _best_gap(blocked: list[tuple[int, int]], size: int, arena_bytes: int) -> int:
    """The start of the smallest gap of at least `size` bytes, else the end of what is blocked."""
    best: tuple[int, int] | None = None
    position = 0
    for begin, end in blocked:
        gap = begin - position
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, position)
        position = max(position, end)
    if best is None or size <= arena_bytes - position < best[0]:
        return position  # what is free at the end of the arena, which grows if need be
    return best[1]


@dataclass(frozen=True)
class _Range:
    """A range of the arena, and the instructions that touched what was last stored there."""

    begin: int
    end: int
    users: tuple[int, ...]


class Arena:
    """Who touched the bytes of one memory last, while a program is written in global order."""

    def __init__(self) -> None:
        self._live: dict[int, _Range] = {}
        self._retired: list[_Range] = []

    def write(self, key: int, offset: int, size: int) -> tuple[int, ...]:
        """Store the value `key` at its place; return who must have finished before that.

        Raises
        ------
        AssertionError
            A value lies there that is still needed: the layout is wrong.
        """
        placed = _Range(offset, offset + size, ())
        for live in self._live.values():
            assert live.end <= placed.begin or placed.end <= live.begin, "values overlap"
        self._live[key] = placed
        return self._overwrite(placed.begin, placed.end)

    def retire(self, key: int, users: tuple[int, ...]) -> None:
        """Free the value `key`, which `users` (its writer and its readers) have touched."""
        live = self._live.pop(key)
        self._retired.append(_Range(live.begin, live.end, users))

    def _overwrite(self, begin: int, end: int) -> tuple[int, ...]:
        """Drop what was in the range; return who used it. Later writers need not know of them."""
        ranges: list[_Range] = []
        users: list[int] = []
        for retired in self._retired:
            if retired.end <= begin or end <= retired.begin:
                ranges.append(retired)
                continue
            users += retired.users
            if retired.begin < begin:
                ranges.append(_Range(retired.begin, begin, retired.users))
            if end < retired.end:
                ranges.append(_Range(end, retired.end, retired.users))
        self._retired = ranges
        return tuple(dict.fromkeys(users))


class SessionLayout:
    """Where state lies in the blocks that a session keeps, in the order of the inputs."""

    def __init__(
        self, calls: KernelCalls, inputs: Sequence[tuple[int, int]], num_memories: int
    ) -> None:
        """
        Parameters
        ----------
        inputs
            (value, memory) of each input of the program.
        """
        self.offsets: dict[tuple[int, int], int] = {}
        """Bytes from the start of the memory's block."""
        self.num_bytes = [0] * num_memories
        """Of the block in each memory."""
        positions = {value: position for position, (value, _) in enumerate(inputs)}
        self.states = tuple((positions[value], output) for value, output in calls.kept_states)
        """(input, output), as positions."""
        for value, memory in inputs:
            if calls.values[value].is_kept:
                self.offsets[value, memory] = self.num_bytes[memory]
                self.num_bytes[memory] += aligned(calls.values[value].bytes)
