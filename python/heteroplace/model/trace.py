"""What the queues of an executor did while many requests were in flight."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One recorded request."""

    number: int
    """Its position among all that were recorded, in the order of submission."""
    slot: int
    """Which of the executor's memories it was in."""
    has_failed: bool
    """Whether it failed or was cancelled; its queues then gave up the rest of it."""
    start_ns: int
    """When it was submitted, from the start of the recording."""
    finish_ns: int
    """When its last queue was done with it."""
    is_serial: bool = False
    """Whether one thread did all of it, on whatever core; see `adapt` of `heteroplace.load`."""


@dataclass(frozen=True, slots=True)
class QueueUse:
    """How one queue spent the time from the first recorded request to the end of the last."""

    queue: str
    """Name of its device, core or channel."""
    busy_ns: int
    """In kernels and copies."""
    wait_ns: int
    """In requests, waiting for other queues. With helping, parts of their kernels are done then."""
    wall_ns: int
    """All of that time. What is left of it, the queue had nothing to do."""

    @property
    def busy_share(self) -> float:
        """Part of the time in kernels and copies, 0 to 1."""
        return self.busy_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def wait_share(self) -> float:
        """Part of the time waiting within a request, 0 to 1."""
        return self.wait_ns / self.wall_ns if self.wall_ns else 0.0
