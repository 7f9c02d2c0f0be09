"""What the command line shows while a solver works, and what Ctrl-C then does."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any, TextIO

from heteroplace.model.units import format_ns
from heteroplace.solve.base import ProgressReport

_TERMINAL_PERIOD_S = 0.1
_LOG_PERIOD_S = 1.0


class ProgressLine:
    """One line on a terminal that is written over; elsewhere a line now and then.

    The first valid plan is always shown, at once.

    Parameters
    ----------
    stream
        Where to write; None: nowhere, only `latest` is kept.
    begin
        `time.perf_counter()` from which the time is counted.
    """

    def __init__(self, stream: TextIO | None, begin: float) -> None:
        self.latest: ProgressReport | None = None
        """The latest report with a plan that can be had; None: none so far."""
        self._stream = stream
        self._begin = begin
        self._is_terminal = stream is not None and stream.isatty()
        self._shown_at = 0.0
        self._has_shown_plan = False

    def __call__(self, report: ProgressReport) -> None:
        """Take a report of the solver."""
        if report.plan is not None:
            self.latest = report
        now = time.perf_counter()
        is_first_plan = report.best_ns is not None and not self._has_shown_plan
        period = _TERMINAL_PERIOD_S if self._is_terminal else _LOG_PERIOD_S
        if self._stream is None or (now - self._shown_at < period and not is_first_plan):
            return
        self._has_shown_plan = self._has_shown_plan or is_first_plan
        self._shown_at = now
        text = describe(report, now - self._begin)
        print(f"\r\x1b[K{text}" if self._is_terminal else text,
              end="" if self._is_terminal else "\n", file=self._stream, flush=True)  # fmt: skip

    def close(self) -> None:
        """Wipe the line, so that other output can follow."""
        if self._stream is not None and self._is_terminal and self._shown_at:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


def describe(report: ProgressReport, elapsed_s: float) -> str:
    """Return a report as text: time, stage, best, bound, gap.

    >>> describe(ProgressReport("search", 0.5, 2_000_000, 1_500_000), 1.25)
    '1.2 s  search: best 2.00 ms, bound 1.50 ms, gap 25.0 %'
    """
    parts = ["no plan yet" if report.best_ns is None else f"best {format_ns(report.best_ns)}"]
    if report.bound_ns > 0:
        parts.append(f"bound {format_ns(report.bound_ns)}")
        if report.gap is not None:
            parts.append(f"gap {100 * report.gap:.1f} %")
    return f"{elapsed_s:.1f} s  {report.stage}: {', '.join(parts)}"


class Interrupts:
    """Counts Ctrl-C while it is entered. In other threads than the main one it sees none."""

    def __init__(self) -> None:
        self.count = 0
        self.ends_work = True
        """The first one raises KeyboardInterrupt. A solver may catch it and return its best plan,
        so it is counted apart. False: only a second one does."""
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _take(self, _number: int, _frame: object) -> None:
        self.count += 1
        if self.ends_work or self.count > 1:
            raise KeyboardInterrupt
