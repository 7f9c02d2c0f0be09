"""What each queue knows to have finished: vector clocks over the instructions of a program.

A queue knows of its own instructions, of those it has waited for, and of all that the queues it
waited for knew when they finished those (Lamport, "Time, Clocks, and the Ordering of Events").
"""

from __future__ import annotations

from collections.abc import Iterable


class Clocks:
    """The clocks of all queues while instructions are added in global order."""

    def __init__(self, num_queues: int) -> None:
        self._known: list[dict[int, int]] = [{} for _ in range(num_queues)]
        self._length = [0] * num_queues
        self._done: dict[int, tuple[int, int, dict[int, int]]] = {}

    def knows(self, queue: int, item: int) -> bool:
        """Whether `item` has surely finished when the next instruction of `queue` starts."""
        other, position, _ = self._done[item]
        return other == queue or self._known[queue].get(other, 0) > position

    def wait(self, queue: int, items: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """Return the waits that make `queue` know of `items`, none of them implied by the others.

        Each is (other queue, number of its instructions that must have finished).
        """
        waits: dict[int, int] = {}
        # The latest first: it may imply the others.
        for item in sorted(dict.fromkeys(items), reverse=True):
            if self.knows(queue, item):
                continue
            other, position, known = self._done[item]
            waits[other] = max(waits.get(other, 0), position + 1)
            self._learn(queue, known)
        return tuple(sorted(waits.items()))

    def add(self, item: int, queue: int, helpers: Iterable[int]) -> int:
        """Append the instruction of `item` to its queue, and a join to those of its helpers.

        Returns
        -------
        Its position in the queue.
        """
        position = self._length[queue]
        self._length[queue] += 1
        self._known[queue][queue] = position + 1
        self._done[item] = (queue, position, dict(self._known[queue]))
        for helper in helpers:
            self._length[helper] += 1
            self._learn(helper, self._known[queue])
            self._known[helper][helper] = self._length[helper]
        return position

    def _learn(self, queue: int, known: dict[int, int]) -> None:
        own = self._known[queue]
        for other, count in known.items():
            if other != queue:
                own[other] = max(own.get(other, 0), count)
