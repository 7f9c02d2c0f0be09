"""Calls in flight: from requests of the core to outputs and futures.

Requests of one program end in the order in which they were submitted, so one thread waits for all
that have a future, for the oldest first. Requests of several entries may end in another order. The
thread is there only while there are any, and a moment longer: it does not keep a program from
ending, nor is it cut off when one ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Request

Outputs = list[np.ndarray]

_LOOK_S = 0.05
"""How often the limits of the calls behind the oldest are looked at."""
_WATCH_S = 0.01
"""How often calls are looked at whose outputs nobody may come for."""
_LINGER_S = 0.1
"""How long the thread stays after the last call."""


class CallDeadline:
    """The end of a limit in seconds that begins now; None: there is none."""

    def __init__(self, timeout_s: float | None) -> None:
        if timeout_s is not None and not timeout_s >= 0:
            raise ExecutionError(f"timeout_s is {timeout_s}; expected seconds, or None")
        self.timeout_s = timeout_s
        self._end_s = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float | None:
        """Return the seconds that are left, at least 0; None: no limit."""
        return None if self._end_s is None else max(self._end_s - time.monotonic(), 0.0)

    @property
    def is_past(self) -> bool:
        """Whether nothing is left."""
        return self._end_s is not None and time.monotonic() >= self._end_s


class Call:
    """A submitted request, and where its outputs go. Ends by `finish` or `close`."""

    def __init__(
        self,
        request: Request,
        names: Sequence[str],
        outs: Sequence[np.ndarray | None],
        deadline: CallDeadline,
    ) -> None:
        self.request = request
        self.deadline = deadline
        self._names = names
        self._outs = outs

    def finish(self) -> Outputs:
        """Wait for the end and return the outputs; the request is closed, however it ends.

        Raises
        ------
        ExecutionError
            As `Request.finish`.
        """
        with self.request as request:
            request.finish(self.deadline.left_s())
            return [
                request.get_output(name, out)
                for name, out in zip(self._names, self._outs, strict=True)
            ]


class PromisedCall:
    """A call whose outputs a future brings."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.future: Future[Outputs] = Future()
        # By a weak reference: a future outlives its call, and must not keep the executor.
        itself = weakref.ref(self)

        def cancel(future: Future[Outputs]) -> None:
            promised = itself()
            if promised is not None and future.cancelled():
                promised.call.request.cancel("its future was cancelled")

        self.future.add_done_callback(cancel)

    def complete(self) -> None:
        """Bring the outputs, or why there are none; the request is over, or out of time."""
        if not self.future.set_running_or_notify_cancel():
            self.call.request.close()
            return
        try:
            outputs = self.call.finish()
        except BaseException as fault:  # of whatever kind: it is the caller's, who waits for it
            # Frames of a traceback would keep the request as long as the future is kept.
            self.future.set_exception(fault.with_traceback(None))
        else:
            self.future.set_result(outputs)

    def give_up(self) -> None:
        """End it while it is behind others, its limit being past."""
        self.call.request.close()
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(
                ExecutionError(
                    f"the request did not end within its limit of {self.call.deadline.timeout_s} "
                    "s: requests before it took all of that"
                )
            )


class Watched(Protocol):
    """A call that somebody means to finish, but may be slow to."""

    def collect(self) -> bool:
        """Take the outputs if it is over and nobody is at it; does not wait. True: it is done."""


class Completer:
    """Completes futures in the order of submission, by one thread that comes and goes.

    It also looks after watched calls, every now and then.

    Any thread may call it. In the child of a fork it begins anew.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._pending: deque[PromisedCall] = deque()  # guarded by _changed
        self._watched: dict[int, Watched] = {}  # by id; guarded by _changed
        self._thread: threading.Thread | None = None  # guarded by _changed

    def add(self, promised: PromisedCall) -> None:
        """Take a submitted call.

        Raises
        ------
        ExecutionError
            No thread can be started; the call is cancelled.
        """
        with self._of_this_process():
            try:
                self._need_thread()
            except ExecutionError:
                promised.call.request.close()
                raise
            self._pending.append(promised)
            self._changed.notify()

    def watch(self, call: Watched) -> None:
        """Collect a call within a moment from its end, unless it is unwatched before.

        Raises
        ------
        ExecutionError
            No thread can be started.
        """
        with self._of_this_process():
            self._need_thread()
            self._watched[id(call)] = call
            if len(self._watched) == 1:  # else the thread comes by soon enough
                self._changed.notify()

    def unwatch(self, call: Watched) -> None:
        """Forget a call, watched or not."""
        with self._of_this_process():
            self._watched.pop(id(call), None)

    def _of_this_process(self) -> threading.Condition:
        """The lock; what it guards is the parent's no more in the child of a fork."""
        if self._process != os.getpid():
            self._begin()
        return self._changed

    def _need_thread(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._work, name="heteroplace-calls")
        try:
            thread.start()
        except RuntimeError as err:
            raise ExecutionError(f"cannot start the thread of calls in flight: {err}") from err
        self._thread = thread

    def is_own_thread(self) -> bool:
        """Tell whether the caller is a callback of a future, for which all others wait."""
        return threading.current_thread() is self._thread

    def _work(self) -> None:
        # A function of its own for each step: no local name keeps a call, and so an executor.
        while self._wait_for_calls():
            self._collect()
            if self._pending:  # only this thread takes any out
                self._advance()

    def _wait_for_calls(self) -> bool:
        with self._changed:
            if not self._pending:
                self._changed.wait(_WATCH_S if self._watched else _LINGER_S)
            if not self._pending and not self._watched:
                self._thread = None
            return self._thread is not None

    def _collect(self) -> None:
        with self._changed:
            watched = list(self._watched.values())
        for call in watched:
            if call.collect():  # once all are, the thread can go
                self.unwatch(call)

    def _advance(self) -> None:
        """Wait a moment for the oldest; then complete it, if it is over, and all out of time."""
        with self._changed:
            oldest = self._pending[0]
        left_s, look_s = oldest.call.deadline.left_s(), _WATCH_S if self._watched else _LOOK_S
        is_over = oldest.call.request.wait(look_s if left_s is None else min(left_s, look_s))
        if is_over or oldest.call.deadline.is_past:
            with self._changed:
                self._pending.popleft()
            _end(oldest.complete)
        with self._changed:
            late = [one for one in list(self._pending)[1:] if one.call.deadline.is_past]
            for one in late:
                self._pending.remove(one)
        for one in late:
            _end(one.give_up)


def _end(end: Callable[[], None]) -> None:
    """End a call; what its callbacks raise is told, and is no matter of other calls."""
    try:
        end()
    except BaseException:  # which no future catches: SystemExit and its like
        # Without a local name for it, which would be a cycle that keeps the call.
        threading.excepthook(
            threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
        )
