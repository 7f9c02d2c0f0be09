"""A series of inputs -> a series of outputs, with several runs in flight.

Whoever takes the outputs waits for them himself, so that no other thread has to wake up first.
Where he is slow, those that are over are collected for him: an iterator that nobody advances holds
outputs, but no request, and stops no other caller.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TypeVar

from heteroplace.errors import ExecutionError
from heteroplace.run.calls import Call, Completer, Outputs

Item = TypeVar("Item")


class StreamedCall:
    """A call of a stream; its request is closed when it is over and collected, or closed."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._outputs: Outputs | None = None  # guarded by _lock, as all below
        self._fault: BaseException | None = None
        self._is_closed = False

    def result(self) -> Outputs:
        """Wait for the outputs; raise what the call failed of."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                return self._call.finish()
            if self._fault is not None:
                raise self._fault
            assert self._outputs is not None  # collected
            return self._outputs

    def collect(self) -> bool:
        """Take the outputs, or why there are none, if it is over and nobody waits for it."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if not self._is_closed and self._call.request.wait(0.0):
                self._is_closed = True
                self._outputs = self._call.finish()
        except BaseException as fault:  # of whatever kind: it belongs to whoever asks for it
            self._fault = fault.with_traceback(None)
            self._is_closed = True
        finally:
            is_done = self._is_closed
            self._lock.release()
        return is_done

    def close(self) -> None:
        """Cancel it if it is not over."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._call.request.close()


def stream(
    items: Iterator[Mapping[str, Item]],
    submit: Callable[[Mapping[str, Item]], Call],
    in_flight: int,
    completer: Completer,
) -> Generator[Outputs, None, None]:
    """Submit items as results are taken, so many at a time; yield the results in their order.

    What an item is refused for, or fails of, is raised in its place; what `items` raises, at once.
    However it ends, what is in flight is cancelled.
    """
    calls: deque[StreamedCall] = deque()
    refusal: ExecutionError | None = None
    is_more = True
    try:
        while True:
            while is_more and len(calls) < in_flight:
                try:
                    item = next(items)
                except StopIteration:
                    is_more = False
                    break
                try:
                    calls.append(StreamedCall(submit(item)))
                    completer.watch(calls[-1])
                except ExecutionError as fault:
                    refusal, is_more = fault, False
            if calls:
                outputs = calls[0].result()
                completer.unwatch(calls.popleft())
                yield outputs
                del outputs  # the caller's from now on
            elif refusal is not None:
                raise refusal
            else:
                return
    finally:
        for call in calls:
            completer.unwatch(call)
            call.close()
