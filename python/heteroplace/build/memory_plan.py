"""Offsets for the values of a run, with the waits that reuse of memory makes necessary.

Reuse is a must: with fresh memory for every value a network misses the caches and runs up to 1.7
times slower. Across concurrent queues it needs anti-dependencies: whoever writes into reused bytes
must wait for everybody who still reads what was there. Bytes are given to a queue only if their
last readers are surely done by then, or predicted to be; so the waits cost next to nothing, and
since they all point backward in one global order of the program, they can never form a cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heteroplace.build.program import ALIGNMENT_BYTES


@dataclass(frozen=True)
class _Range:
    """A stretch of the arena, and the instructions that touched what was last stored there."""

    begin: int
    end: int
    users: tuple[int, ...]


class Arena:
    """The arena of one memory while a program is laid out, in global order of its instructions."""

    def __init__(self) -> None:
        self._live: dict[int, _Range] = {}
        self._retired: list[_Range] = []
        self.size_bytes = 0

    def allocate(
        self, key: int, num_bytes: int, is_done: Callable[[int], bool]
    ) -> tuple[int, tuple[int, ...]]:
        """Find a place for a value.

        Parameters
        ----------
        key
            Names the value in `retire`.
        is_done
            Whether an instruction may be waited for at this point without a loss.

        Returns
        -------
        offset, users
            `users` are the instructions that must have finished before the place is written.

        The place is the smallest gap that is large enough; complexity is linear in the number of
        values that the arena has held and not yet overwritten.
        """
        size = -(-max(num_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        blocked = [(live.begin, live.end) for live in self._live.values()]
        for retired in self._retired:
            if not all(is_done(user) for user in retired.users):
                blocked.append((retired.begin, retired.end))
        offset = _best_gap(sorted(blocked), size, self.size_bytes)
        self.size_bytes = max(self.size_bytes, offset + size)
        users = self._overwrite(offset, offset + size)
        self._live[key] = _Range(offset, offset + size, ())
        return offset, users

    def retire(self, key: int, users: tuple[int, ...]) -> None:
        """Free the value `key`, which `users` (its writer and its readers) have touched."""
        live = self._live.pop(key)
        self._retired.append(_Range(live.begin, live.end, users))

    def _overwrite(self, begin: int, end: int) -> tuple[int, ...]:
        """Drop what was in the range; return who used it. Later writers need not know of them."""
        kept: list[_Range] = []
        users: list[int] = []
        for retired in self._retired:
            if retired.end <= begin or end <= retired.begin:
                kept.append(retired)
                continue
            users += retired.users
            if retired.begin < begin:
                kept.append(_Range(retired.begin, begin, retired.users))
            if end < retired.end:
                kept.append(_Range(end, retired.end, retired.users))
        self._retired = kept
        return tuple(dict.fromkeys(users))


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
