"""Ctrl-C that is never lost and never becomes another error.

Python raises KeyboardInterrupt wherever it is. Where TVM calls Python by ctypes, its callbacks pass
on only what is an `Exception`. And ctypes, `__del__` and weak references drop an exception
altogether, and the caller goes on with None. `Interrupts` raises what gets through, raises again
what was dropped, and turns an error that follows an interrupt into KeyboardInterrupt.
"""

from __future__ import annotations

import _thread
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from types import CodeType, FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from heteroplace.entry import INTERRUPTED, end_at_once
from heteroplace.terminal import ends_quietly, printable_streams

P = ParamSpec("P")
T = TypeVar("T")

_CALLBACK = "cfun", "packed_func.py"
"""Function and file of TVM's Python that C++ calls."""
_AGAIN_S = 0.01
"""After which an interrupt is raised again that was dropped."""


class CallbackInterrupt(KeyboardInterrupt, Exception):
    """Ctrl-C below a callback of TVM, which hands it to the caller as it does any `Exception`."""


class Interrupts:
    """Counts Ctrl-C while it is entered, as `with`.

    It does nothing in other threads than the main one, where Ctrl-C is ignored (as in a job in the
    background), and where the program handles it by itself.
    """

    def __init__(self) -> None:
        self.count = 0
        self.ends_work = True
        """The first one raises KeyboardInterrupt. A solver may catch it and return its best plan,
        so it is counted apart. False: only a second one does."""
        self._before: Any = None
        self._hook: Any = None
        self._repeat: threading.Timer | None = None

    def __enter__(self) -> Interrupts:
        is_main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGINT)
        is_ours = handler in (signal.default_int_handler, end_at_once) or _owner(handler)
        if is_main and is_ours:
            self._hook, sys.unraisablehook = sys.unraisablehook, self._notice_dropped
            self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        fault: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """End counting; raise KeyboardInterrupt in place of an error that came after Ctrl-C."""
        if self._before is None:
            return
        signal.signal(signal.SIGINT, self._before)
        sys.unraisablehook = self._hook
        is_pending = self._repeat is not None
        if self._repeat is not None:
            self._repeat.cancel()
        if not self.count or not (self.ends_work or self.count > 1):
            return
        if (outer := _owner(self._before)) is not None:
            outer.count += self.count
        is_error = isinstance(fault, Exception) or (fault is None and is_pending)
        if is_error and not isinstance(fault, KeyboardInterrupt):
            raise _interrupt(sys._getframe()) from fault

    def _take(self, _number: int, frame: FrameType | None) -> None:
        if self._repeat is None:
            self.count += 1
        self._repeat = None
        if not (self.ends_work or self.count > 1):
            return
        if _is_dropped(frame):
            self._raise_again()
        else:
            raise _interrupt(frame)

    def _notice_dropped(self, unraisable: Any) -> None:
        """Take an interrupt that could not be raised where it came."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._raise_again()
        else:
            self._hook(unraisable)

    def _raise_again(self) -> None:
        # From another thread: at once it would be raised here, and dropped again.
        self._repeat = threading.Timer(_AGAIN_S, _thread.interrupt_main)
        self._repeat.daemon = True
        self._repeat.start()


def run_program(module: str) -> int:
    """Load a module and return the exit code of its `main`: `INTERRUPTED` after Ctrl-C.

    Its standard streams are those of `printable_streams`.
    """
    with printable_streams():
        try:
            program = importlib.import_module(module)
            with Interrupts():
                code: int = program.main()
            sys.stdout.flush()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:
            if not ends_quietly():
                raise
            return 0
        return code


def _owner(handler: Any) -> Interrupts | None:
    """The counter behind a handler of Ctrl-C; None: it is another handler."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, Interrupts) else None


def _interrupt(frame: FrameType | None) -> KeyboardInterrupt:
    """What Ctrl-C raises in a frame."""
    name, file = _CALLBACK
    codes = [code for code in _codes(frame) if code.co_name == name]
    is_in_callback = any(code.co_filename.endswith(file) for code in codes)
    return CallbackInterrupt() if is_in_callback else KeyboardInterrupt()


def _is_dropped(frame: FrameType | None) -> bool:
    """Whether Python drops whatever is raised in a frame."""
    hook = Interrupts._notice_dropped.__code__
    return any(code.co_name == "__del__" or code is hook for code in _codes(frame))


def _codes(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def interruptible(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that Ctrl-C ends with KeyboardInterrupt, also below a callback of TVM."""

    @wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> T:
        with Interrupts():
            return function(*args, **options)

    return run
