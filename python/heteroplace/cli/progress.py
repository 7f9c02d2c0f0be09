"""What the command line shows while something long works, and what Ctrl-C does to a solver."""

from __future__ import annotations

import math
import signal
import threading
import time
from typing import Any, TextIO

from heteroplace.model.units import format_ns
from heteroplace.solve.problem import ProgressReport

_TERMINAL_PERIOD_S = 0.1
_LOG_PERIOD_S = 1.0
_WIPE = "\r\x1b[K"


class StatusLine:
    """One line on a terminal that is written over; elsewhere a line now and then.

    Parameters
    ----------
    stream
        Where to write; None: nowhere.
    period_s
        Elsewhere than on a terminal, the time between lines that come often.
    """

    def __init__(self, stream: TextIO | None, period_s: float) -> None:
        self._stream = stream
        self._is_terminal = stream is not None and stream.isatty()
        self._period_s = _TERMINAL_PERIOD_S if self._is_terminal else period_s
        self._shown_at = -math.inf
        self._is_wiped = True

    @property
    def is_due(self) -> bool:
        """Whether anyone looks, and the last line of `show` was long enough ago."""
        return self._stream is not None and time.perf_counter() - self._shown_at >= self._period_s

    def show(self, text: str) -> None:
        """Show a line of those that come often."""
        self._shown_at = time.perf_counter()
        self.say(text)

    def say(self, text: str) -> None:
        """Show a line about something long that begins; it does not put off the others."""
        self._is_wiped = False
        if self._stream is not None:
            begin, end = (_WIPE, "") if self._is_terminal else ("", "\n")
            print(f"{begin}{text}", end=end, file=self._stream, flush=True)

    def close(self) -> None:
        """Wipe the line, so that other output can follow."""
        if self._stream is not None and self._is_terminal and not self._is_wiped:
            print(_WIPE, end="", file=self._stream, flush=True)
        self._is_wiped = True


class ProgressLine:
    """Shows the reports of a solver. The first valid plan is always shown, at once.

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
        self._line = StatusLine(stream, _LOG_PERIOD_S)
        self._begin = begin
        self._has_shown_plan = False

    def __call__(self, report: ProgressReport) -> None:
        """Take a report of the solver."""
        if report.plan is not None:
            self.latest = report
        is_first_plan = report.best_ns is not None and not self._has_shown_plan
        if is_first_plan or self._line.is_due:
            self._has_shown_plan = self._has_shown_plan or is_first_plan
            self._line.show(describe(report, time.perf_counter() - self._begin))

    def close(self) -> None:
        """Wipe the line, so that other output can follow."""
        self._line.close()


def describe(report: ProgressReport, elapsed_s: float) -> str:
    """Return a report as text: time, phase, best, bound, gap.

    >>> describe(ProgressReport("search", 0.5, 2_000_000, 1_500_000), 1.25)
    '1.2 s  search: best 2.00 ms, bound 1.50 ms, gap 25.0 %'
    """
    parts = ["no plan yet" if report.best_ns is None else f"best {format_ns(report.best_ns)}"]
    if report.bound_ns > 0:
        parts.append(f"bound {format_ns(report.bound_ns)}")
        if report.gap is not None:
            parts.append(f"gap {100 * report.gap:.1f} %")
    return f"{elapsed_s:.1f} s  {report.phase}: {', '.join(parts)}"


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
