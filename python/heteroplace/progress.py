"""What is shown while something long works: a bar on a terminal, plain lines elsewhere.

Percent and time left come from what the stage counts. A stage that counts nothing has a bar that
moves, and the time so far. Only then does a thread draw: while kernels are measured, the counts do
it, so that nothing takes a core from them. rich draws; it is imported for the first bar. The cursor
stays visible, so that a killed process leaves the terminal as it was.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from heteroplace.model.units import format_gap, format_ns
from heteroplace.terminal import drawable, printable

if TYPE_CHECKING:
    from rich.console import Console

    from heteroplace.solve.problem import ProgressReport

_DRAW_PERIOD_S = 0.1
_TICK_S = 0.5
_LOG_PERIOD_S = 10.0
_DETAIL_PERIOD_S = 1.0
_BAR_WIDTH = 24
_ERASE = "\r\x1b[2K"
_NO_TERMINALS = ("dumb", "unknown")


def prefixed(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    """Return what says lines of text with a name before each."""
    return lambda line: say(f"{name}: {line}")


@dataclass
class StageProgress:
    """How far one stage is."""

    text: str
    begin_s: float
    budget_s: float | None = None
    """The longest time it may take; None: no limit is known."""
    done: int = 0
    total: int = 0
    """0: nothing is counted."""
    remark: str = ""
    """The best result so far."""
    counted_from: tuple[int, float] | None = None
    """The first count, and when it came: the rate is that since then."""

    def count(self, done: int, total: int, now_s: float) -> None:
        """Take a count of the units of work."""
        if self.counted_from is None:
            self.counted_from = done, now_s
        self.done, self.total = done, total

    def label(self) -> str:
        """Return the text with its count and remark."""
        count = f" {self.done} of {self.total}" if self.total else ""
        return f"{self.text}{count}{self.remark and f': {self.remark}'}"

    def ratio(self, now_s: float) -> float | None:
        """Return the part of the work, or of the budget, that is done; None: it is not known."""
        if self.total:
            return self.done / self.total
        return None if self.budget_s is None else min(1.0, (now_s - self.begin_s) / self.budget_s)

    def left_s(self, now_s: float) -> float | None:
        """Return the time that the rest takes at the rate so far; None: there is no rate yet."""
        if self.counted_from is None or self.done <= self.counted_from[0]:
            return None
        first, begin_s = self.counted_from
        return (now_s - begin_s) / (self.done - first) * (self.total - self.done)

    def times(self, now_s: float) -> str:
        """Return the time left, the part of the budget, or the time so far."""
        spent = format_seconds(now_s - self.begin_s)
        left_s = self.left_s(now_s)
        if left_s is not None:
            return f"{format_seconds(left_s)} left"
        if self.budget_s is None or self.total:
            return f"{spent} so far"
        return f"{spent} of at most {format_seconds(self.budget_s)}"

    def line(self, now_s: float) -> str:
        """Return all of it as one plain line.

        >>> stage = StageProgress("Compiling kernels", 0.0)
        >>> stage.count(0, 80, 1.0), stage.count(20, 80, 6.0)
        (None, None)
        >>> stage.line(6.0)
        'Compiling kernels 20 of 80 (25 %), 15 s left'
        """
        percent = f" ({math.floor(100 * self.done / self.total)} %)" if self.total else ""
        return f"{self.label()}{percent}, {self.times(now_s)}"


class ProgressDisplay:
    """Shows the stage at work. Any thread may call it; use it as `with`, or close it.

    Parameters
    ----------
    stream
        Where to write; None: nowhere.
    is_verbose
        Whether details are shown, a line each.
    period_s
        Elsewhere than on a terminal, the time between two lines.
    """

    def __init__(
        self, stream: TextIO | None, *, is_verbose: bool = False, period_s: float = _LOG_PERIOD_S
    ) -> None:
        self._stream = None if stream is None else drawable(stream)
        has_cursor = os.environ.get("TERM") not in _NO_TERMINALS
        self._is_terminal = stream is not None and stream.isatty() and has_cursor
        self._period_s = _DRAW_PERIOD_S if self._is_terminal else period_s
        self.is_verbose = is_verbose and stream is not None
        self._shown_at = -math.inf if self._is_terminal else time.perf_counter()
        self._stage: StageProgress | None = None
        self._console: Console | None = None
        self._is_drawn = False
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stage(self, text: str, budget_s: float | None = None) -> None:
        """Show that a stage begins, which takes at most `budget_s`."""
        if self._stream is None:
            return
        with self._lock:
            now_s = time.perf_counter()
            self._stage = StageProgress(printable(text, allowed=""), now_s, budget_s)
            if self.is_verbose:
                self._write_line(self._stage.text)
            self._show(is_due=self._is_terminal)
            if self._ticker is None:
                self._ended.clear()
                self._ticker = threading.Thread(target=self._tick, daemon=True)
                self._ticker.start()

    def count(self, done: int, total: int) -> None:
        """Show how much of the stage is done."""
        with self._lock:
            if self._stage is not None:
                self._stage.count(done, total, time.perf_counter())
                self._show(is_due=False)

    def remark(self, text: str) -> None:
        """Show the best result so far of the stage."""
        with self._lock:
            if self._stage is not None:
                self._stage.remark = printable(text, allowed="")
                self._show(is_due=False)

    def detail(self, text: str) -> None:
        """Show a line for users who want details."""
        with self._lock:
            if self.is_verbose:
                self._write_line(text)
                self._show(is_due=self._is_terminal)

    def close(self) -> None:
        """Wipe the bar, so that other output can follow; a later stage shows it again."""
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()
        with self._lock:
            self._ticker, self._stage = None, None
            self._erase()

    def _tick(self) -> None:
        """Draw now and then what counts nothing."""
        while not self._ended.wait(_TICK_S if self._is_terminal else self._period_s):
            with self._lock:
                if self._stage is not None and not (self._stage.total and self._is_terminal):
                    self._show(is_due=True)

    def _show(self, *, is_due: bool) -> None:
        now_s = time.perf_counter()
        if self._stage is None or not (is_due or now_s - self._shown_at >= self._period_s):
            return
        self._shown_at = now_s
        if self._is_terminal:
            self._draw(self._stage, now_s)
        else:
            self._write_line(self._stage.line(now_s))

    def _draw(self, stage: StageProgress, now_s: float) -> None:
        from rich.console import Console
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self._console is None:
            self._console = Console(file=self._stream, highlight=False)
        ratio, times = stage.ratio(now_s), stage.times(now_s)
        end = f"{math.floor(100 * stage.done / stage.total)} %, {times}" if stage.total else times
        bar_width = min(_BAR_WIDTH, self._console.width // 5)
        label = Text(stage.label())  # gets the space that is left
        label.truncate(max(1, self._console.width - bar_width - len(end) - 3), overflow="ellipsis")
        row = Table.grid(padding=(0, 1))
        row.add_row(
            label, ProgressBar(1.0, ratio or 0.0, width=bar_width, pulse=ratio is None), end
        )
        with self._console.capture() as drawn:
            self._console.print(row, end="")
        self._erase()
        assert self._stream is not None  # a terminal
        self._is_drawn = True  # before it is: Ctrl-C may come in between
        self._stream.write(drawn.get().rstrip("\n"))
        self._stream.flush()

    def _write_line(self, text: str) -> None:
        if self._stream is not None:
            self._erase()
            print(printable(text, allowed=""), file=self._stream, flush=True)

    def _erase(self) -> None:
        if self._is_drawn and self._stream is not None:
            self._stream.write(_ERASE)
            self._stream.flush()
        self._is_drawn = False


class SolverProgress:
    """Shows the reports of a solver in the stage at work.

    Parameters
    ----------
    unit
        What the times are of, e.g. " per item".
    then
        Takes each report too, e.g. a `SolverRecord`.
    """

    def __init__(
        self,
        display: ProgressDisplay,
        unit: str = "",
        then: Callable[[ProgressReport], None] | None = None,
    ) -> None:
        self._display, self._unit, self._then = display, unit, then
        self._begin_s: float | None = None
        self._detailed_at, self._has_plan = -math.inf, False

    def __call__(self, report: ProgressReport) -> None:
        """Take a report of the solver."""
        now_s = time.perf_counter()
        self._begin_s = now_s if self._begin_s is None else self._begin_s
        self._display.remark(describe(report, self._unit, has_bound=False))
        is_first_plan = report.best_ns is not None and not self._has_plan
        self._has_plan = self._has_plan or is_first_plan
        if is_first_plan or now_s - self._detailed_at >= _DETAIL_PERIOD_S:
            self._detailed_at = now_s
            spent_s = now_s - self._begin_s
            self._display.detail(f"{spent_s:.1f} s  {report.phase}: {describe(report, self._unit)}")
        if self._then is not None:
            self._then(report)


def describe(report: ProgressReport, unit: str = "", *, has_bound: bool = True) -> str:
    """Return a report as text: best, bound, gap.

    >>> from heteroplace.solve.problem import ProgressReport
    >>> describe(ProgressReport("search", 0.5, 2_000_000, 1_500_000))
    'best 2.00 ms, bound 1.50 ms, gap 25.0 %'
    """
    best_ns = report.best_ns
    parts = ["no plan yet" if best_ns is None else f"best {format_ns(best_ns)}{unit}"]
    if report.bound_ns > 0 and has_bound:
        parts.append(f"bound {format_ns(report.bound_ns)}{unit}")
    if report.bound_ns > 0 and report.gap is not None:
        parts.append(f"gap {format_gap(report.gap, 1)}")
    return ", ".join(parts)


def format_seconds(seconds: float) -> str:
    """Return a time in whole seconds, or minutes and seconds.

    >>> format_seconds(4.6), format_seconds(125)
    ('5 s', '2 min 05 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
