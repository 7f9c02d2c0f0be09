"""Ctrl-C in tests."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from heteroplace.solve.problem import Progress, ProgressReport


@contextmanager
def ctrl_c_after(seconds: float) -> Iterator[None]:
    """Press Ctrl-C while the block runs; a block that ends before is not interrupted.

    Ctrl-C raises KeyboardInterrupt in it, also where the tests run with the signal ignored. A block
    that it leaves fails: pytest would end all tests.
    """
    with _pressing(seconds) as timer:
        timer.start()
        yield


@contextmanager
def ctrl_c_after_a_plan(seconds: float) -> Iterator[Progress]:
    """As `ctrl_c_after`, from the first plan on that is reported to the function it gives."""
    with _pressing(seconds) as timer:

        def progress(report: ProgressReport) -> None:
            if report.plan is not None and timer.ident is None:
                timer.start()

        yield progress


@contextmanager
def _pressing(seconds: float) -> Iterator[threading.Timer]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    try:
        yield timer
    except KeyboardInterrupt as fault:
        raise AssertionError("Ctrl-C was not caught") from fault
    finally:
        with suppress(KeyboardInterrupt):  # just before the timer was cancelled
            timer.cancel()
            if timer.ident is not None:
                timer.join()
        signal.signal(signal.SIGINT, before)
