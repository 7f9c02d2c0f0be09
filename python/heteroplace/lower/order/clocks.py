"""What each queue knows to have finished: vector clocks over the instructions of a program.

A queue knows of its own instructions, of those it has waited for, and of all that the queues it
waited for knew when they finished those (Lamport, "Time, Clocks, and the Ordering of Events").

A queue of messages has several on the way at once: when one starts, those before it have started,
and need not have finished; they finish in order. What is received tells what the sender knew when
it sent it; not that it may have its bytes back, which it learns for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class Clocks:
    """The clocks of all queues while instructions are added in global order.

    Parameters
    ----------
    num_queues
        Of all hosts.
    message_queues
        Those that send or receive.
    """

    def __init__(self, num_queues: int, message_queues: Collection[int] = ()) -> None:
        self._known: list[dict[int, int]] = [{} for _ in range(num_queues)]
        """What each queue knows when its next instruction starts."""
        self._length = [0] * num_queues
        self._done: dict[int, tuple[int, int, dict[int, int]]] = {}
        """Queue and position of each instruction, and what its queue knows when it has finished."""
        self._finished: dict[int, dict[int, int]] = {queue: {} for queue in message_queues}
        """What a queue of messages knows when all that it has so far has finished."""
        self._sent: dict[int, dict[int, int]] = {}
        """What is known when a message is sent."""

    def knows(self, queue: int, instruction: int) -> bool:
        """Whether `instruction` has surely finished when the next instruction of `queue` starts."""
        other, position, _ = self._done[instruction]
        is_before = other == queue and queue not in self._finished
        return is_before or self._known[queue].get(other, 0) > position

    def done(self, instruction: int) -> tuple[int, int]:
        """Return (queue, number of its instructions) that have finished when it has."""
        queue, position, _ = self._done[instruction]
        return queue, position + 1

    def wait(self, queue: int, instructions: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """Return the waits by which `queue` knows of `instructions`, none implied by the others.

        Each is (other queue, number of its instructions that must have finished).
        """
        waits: dict[int, int] = {}
        # The latest first: it may imply the others.
        for instruction in sorted(dict.fromkeys(instructions), reverse=True):
            if self.knows(queue, instruction):
                continue
            other, position, reached = self._done[instruction]
            waits[other] = max(waits.get(other, 0), position + 1)
            _join(self._known[queue], reached)
        return tuple(sorted(waits.items()))

    def add(
        self,
        instruction: int,
        queue: int,
        helpers: Iterable[int] = (),
        sent: int | None = None,
        num_members: int = 0,
    ) -> int:
        """Append `instruction` to its queue, and a join to those of its helpers.

        Parameters
        ----------
        sent
            The other side of a message that is received.
        num_members
            Of a group, whose members come next in its queue; they are done when it is.

        Returns
        -------
        Its position in the queue.
        """
        position = self._length[queue]
        self._length[queue] += 1 + num_members
        if queue in self._finished:
            self._add_message(instruction, queue, position, sent)
            return position
        self._known[queue][queue] = position + 1 + num_members
        self._done[instruction] = (queue, position, dict(self._known[queue]))
        for helper in helpers:
            self._length[helper] += 1
            _join(self._known[helper], self._known[queue])
            self._known[helper][helper] = self._length[helper]
        return position

    def _add_message(self, instruction: int, queue: int, position: int, sent: int | None) -> None:
        finished = self._finished[queue]
        _join(finished, self._known[queue])
        if sent is None:
            self._sent[instruction] = dict(self._known[queue])
        else:
            _join(finished, self._sent[sent])
        finished[queue] = position + 1
        self._done[instruction] = (queue, position, dict(finished))


def _join(own: dict[int, int], reached: dict[int, int]) -> None:
    for queue, count in reached.items():
        own[queue] = max(own.get(queue, 0), count)
