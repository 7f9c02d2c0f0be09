"""Requests that belong together: the sessions of a served model, by the ids that clients give."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heteroplace.parts.serving.http_messages import RefusedRequestError

if TYPE_CHECKING:  # it loads TVM
    from heteroplace.run.sessions import Session


@dataclass(frozen=True)
class SequenceStep:
    """The place of a request in a sequence."""

    id: int | str
    is_start: bool
    is_end: bool


@dataclass
class _Sequence:
    session: Session | None = None
    """None before its first request."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the request that runs; others of the sequence follow in the order they came."""
    used_s: float = 0.0
    """When its last request ended, by the clock."""


class Sequences:
    """The sequences of one model. All methods are called in the event loop.

    Parameters
    ----------
    open_session
        Returns a new session of the model.
    max_open
        Most sequences at a time.
    idle_s
        A sequence without a request for so long makes room for a new one when there is none.
    clock
        Seconds.
    """

    def __init__(
        self,
        open_session: Callable[[], Session],
        max_open: int,
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_session = open_session
        self._max_open = max_open
        self._idle_s = idle_s
        self._clock = clock
        self._by_id: dict[int | str, _Sequence] = {}

    @asynccontextmanager
    async def session_of(self, step: SequenceStep, end_s: float) -> AsyncIterator[Session]:
        """Hold the session of a request. After the last request of a sequence the session is
        dropped, unless the run failed.

        Parameters
        ----------
        end_s
            How long to wait for earlier requests of the sequence, by the clock.

        Raises
        ------
        RefusedRequestError
            400: the sequence is not known; 429: there are too many.
        TimeoutError
            The time is up.
        """
        sequence = self._sequence_of(step)
        await asyncio.wait_for(sequence.lock.acquire(), end_s - self._clock())
        while self._by_id.get(step.id) is not sequence:  # it has ended meanwhile
            sequence.lock.release()
            sequence = self._sequence_of(step)
            await asyncio.wait_for(sequence.lock.acquire(), end_s - self._clock())
        try:
            if step.is_start or sequence.session is None:
                # Not the old one: a thread may still be in it, whose client is gone.
                sequence.session = self._open_session()
            yield sequence.session
            if step.is_end:
                del self._by_id[step.id]
        finally:
            sequence.used_s = self._clock()
            sequence.lock.release()

    def _sequence_of(self, step: SequenceStep) -> _Sequence:
        """The sequence of a request, a new one if it begins."""
        if step.id in self._by_id:
            return self._by_id[step.id]
        if not step.is_start:
            raise RefusedRequestError(
                400,
                f"sequence {step.id!r} is not known: it has not begun, has ended, or was idle for "
                f"more than {self._idle_s:g} s; begin it with the parameter sequence_start",
            )
        if len(self._by_id) >= self._max_open:
            self._drop_idle()
        if len(self._by_id) >= self._max_open:
            raise RefusedRequestError(
                429,
                f"{self._max_open} sequences are open; end one with the parameter sequence_end, or "
                f"see --max-sequences",
                {"Retry-After": "1"},
            )
        self._by_id[step.id] = _Sequence(used_s=self._clock())
        return self._by_id[step.id]

    def _drop_idle(self) -> None:
        earliest_s = self._clock() - self._idle_s
        for id_, sequence in list(self._by_id.items()):
            if sequence.used_s < earliest_s and not sequence.lock.locked():
                del self._by_id[id_]
