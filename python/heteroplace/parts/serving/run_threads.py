"""Calls out of an event loop -> threads that make them, first come, first served.

`ThreadPoolExecutor` does the same with two futures, their locks and a chain of callbacks for each
call, which took a fifth of the event loop's Python time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

T = TypeVar("T")
Call = tuple["asyncio.Future[T]", Callable[[], T]]


class RunThreads(Generic[T]):
    """Threads that wait for calls until they are closed.

    Parameters
    ----------
    count
        How many calls are made at once.
    name
        Of the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._calls: SimpleQueue[Call[T] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{index}") for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Have a call made; return the future of its result.

        In the event loop only. A call whose future is done before it begins is left out.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Wait for the calls that were submitted, and end the threads. Not in the event loop."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (submitted := self._calls.get()) is not None:
            _make(*submitted)


def _make(future: asyncio.Future[T], call: Callable[[], T]) -> None:
    """Make one call and hand over its result. No local name keeps it while the thread waits."""
    if future.done():
        return
    result: T | None = None
    fault: BaseException | None = None
    try:
        result = call()
    except BaseException as err:  # of whatever kind: it is the caller's, who waits for it
        fault = err

    def finish() -> None:
        if future.done():  # its time is up, or its client is gone
            return
        if fault is None:
            future.set_result(cast(T, result))
        else:
            future.set_exception(fault)

    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        future.get_loop().call_soon_threadsafe(finish)
