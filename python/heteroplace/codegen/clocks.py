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

    def knows(self, queue: int, instruction: int) -> bool:
        """Whether `instruction` has surely finished when the next instruction of `queue` starts."""
        other, position, _ = self._done[instruction]
        return other == queue or self._known[queue].get(other, 0) > position

    def wait(self, queue: int, instructions: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """Return the waits by which `queue` knows of `instructions`, none implied by the others.

        Each is (other queue, number of its instructions that must have finished).
        """
        waits: dict[int, int] = {}
        # The latest first: it may imply the others.
        for instruction in sorted(dict.fromkeys(instructions), reverse=True):
            if self.knows(queue, instruction):
                continue
            other, position, known = self._done[instruction]
            waits[other] = max(waits.get(other, 0), position + 1)
            self._learn(queue, known)
        return tuple(sorted(waits.items()))

    def add(self, instruction: int, queue: int, helpers: Iterable[int]) -> int:
        """Append `instruction` to its queue, and a join to those of its helpers.

        Returns
        -------
        Its position in the queue.
        """
        position = self._length[queue]
        self._length[queue] += 1
        self._known[queue][queue] = position + 1
        self._done[instruction] = (queue, position, dict(self._known[queue]))
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
