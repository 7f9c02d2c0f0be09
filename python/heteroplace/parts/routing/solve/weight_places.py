"""Weights that are loaded one after the other -> when each of them may come, and where it lies.

Two weights may have the same bytes if the one is loaded after the last run that reads the other. Of
free places the one is taken whose bytes were free the longest, so that loads wait for no run that
has just begun; or, for what never runs beside its neighbours, for the shortest time.
"""

from __future__ import annotations

from dataclasses import dataclass

_MAX_FORMER = 64
"""Former owners of bytes that are looked at to find out which were free the longest."""


@dataclass(frozen=True, slots=True)
class _Held:
    """Bytes that are held from before one step to the end of another."""

    loaded: int
    last: int
    begin: int
    end: int


class WeightPlaces:
    """The room in one memory. Steps are positions in a plan."""

    def __init__(self, room_bytes: int) -> None:
        """Begin with an empty room."""
        self._room_bytes = room_bytes
        self._held: list[_Held] = []

    def place(
        self, size: int, ready: int, first: int, last: int, *, takes_turns: bool = False
    ) -> tuple[int, int] | None:
        """Find room for weights, and take it: (the step before which they come, first byte).

        Parameters
        ----------
        size
            Bytes.
        ready
            They are loaded before no earlier step.
        first, last
            The steps that read them first and last.
        takes_turns
            They come right before `first`, where what was needed before has been.

        Returns
        -------
        As early as possible; None: there is no room before `first`.
        """
        ready = first if takes_turns else min(ready, first)
        later = {held.last + 1 for held in self._held if ready <= held.last < first}
        for position in sorted({ready, *later}):
            begin = self._gap(size, position, last, takes_turns)
            if begin is not None:
                self._held.append(_Held(position, last, begin, begin + size))
                return position, begin
        return None

    def forget(self, position: int) -> None:
        """Nothing is loaded before a step any more: most of what is free by then is of no use."""
        former = sorted((held for held in self._held if held.last < position), key=_last)
        self._held = [held for held in self._held if held.last >= position]
        self._held += former[-_MAX_FORMER:]

    def _gap(self, size: int, position: int, last: int, takes_turns: bool) -> int | None:
        """The first byte of a gap from before one step to the end of another, or None."""
        meets = [held for held in self._held if held.loaded <= last and held.last >= position]
        others = [held for held in self._held if held.last < position]
        begins = {0, *(edge for held in self._held for edge in (held.begin, held.end))}
        best: tuple[int, int] | None = None
        for begin in begins:
            end = begin + size
            if end > self._room_bytes:
                continue
            if any(held.begin < end and begin < held.end for held in meets):
                continue
            freed = max(
                (held.last for held in others if held.begin < end and begin < held.end), default=-1
            )
            rank = -freed if takes_turns else freed
            if best is None or (rank, begin) < best:
                best = rank, begin
        return None if best is None else best[1]


def _last(held: _Held) -> int:
    return held.last
