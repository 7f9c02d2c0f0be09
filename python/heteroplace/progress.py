"""What is shown while something long works: one live line on a terminal, plain lines elsewhere.

Drawn by rich, and only when there is news: never by a thread in between, which would take a core
from what is compiled or measured meanwhile. rich is imported at the first line that is shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TextIO

from heteroplace.model.units import format_gap, format_ns
from heteroplace.solve.problem import ProgressReport
from heteroplace.terminal import drawable, printable

_TERMINAL_PERIOD_S = 0.1
_LOG_PERIOD_S = 1.0
_BAR_WIDTH = 40


def prefixed(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    """Return what says lines of text with a name before each."""
    return lambda line: say(f"{name}: {line}")


class StatusLine:
    """One line on a terminal that is written over; elsewhere a line now and then.

    Parameters
    ----------
    stream
        Where to write; None: nowhere.
    period_s
        Elsewhere than on a terminal, the time between lines that come often.
    """

    def __init__(self, stream: TextIO | None, period_s: float = _LOG_PERIOD_S) -> None:
        self._stream = None if stream is None else drawable(stream)
        self._is_terminal = stream is not None and stream.isatty()
        self._period_s = _TERMINAL_PERIOD_S if self._is_terminal else period_s
        self._shown_at = -math.inf
        self._live: Any = None

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
        text = printable(text, allowed="")
        if self._is_terminal:
            from rich.text import Text

            self._draw(Text(text, no_wrap=True, overflow="ellipsis"))
        elif self._stream is not None:
            print(text, file=self._stream, flush=True)

    def bar(self, text: str, count: int, total: int) -> None:
        """Show how many of `total` units are done; on a terminal only."""
        if self._is_terminal:
            from rich.progress_bar import ProgressBar
            from rich.table import Table
            from rich.text import Text

            row = Table.grid(padding=(0, 1))
            row.add_row(
                Text(printable(text, allowed="")),
                ProgressBar(total, count, width=_BAR_WIDTH),
                f"{count}/{total}",
            )
            self._draw(row)

    def _draw(self, shown: Any) -> None:
        from rich.console import Console
        from rich.live import Live

        if self._live is None:
            self._live = Live(
                console=Console(file=self._stream),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,  # a result may go into a pipe meanwhile
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(shown, refresh=True)

    def close(self) -> None:
        """Wipe the line, so that other output can follow."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class ProgressLine:
    """Shows the reports of a solver. The first valid plan is always shown, at once.

    Parameters
    ----------
    stream
        Where to write; None: nowhere, only `latest` is kept.
    begin
        `time.perf_counter()` from which the time is counted.
    unit
        What the times are of, e.g. " per item".
    """

    def __init__(self, stream: TextIO | None, begin: float, unit: str = "") -> None:
        self._unit = unit
        self.latest: ProgressReport | None = None
        """The latest report with a plan that can be had; None: none so far."""
        self._line = StatusLine(stream)
        self._begin = begin
        self._has_shown_plan = False

    def __call__(self, report: ProgressReport) -> None:
        """Take a report of the solver."""
        if report.plan is not None:
            self.latest = report
        is_first_plan = report.best_ns is not None and not self._has_shown_plan
        if is_first_plan or self._line.is_due:
            self._has_shown_plan = self._has_shown_plan or is_first_plan
            self._line.show(describe(report, time.perf_counter() - self._begin, self._unit))

    def close(self) -> None:
        """Wipe the line, so that other output can follow."""
        self._line.close()


def describe(report: ProgressReport, elapsed_s: float, unit: str = "") -> str:
    """Return a report as text: time, phase, best, bound, gap.

    >>> describe(ProgressReport("search", 0.5, 2_000_000, 1_500_000), 1.25)
    '1.2 s  search: best 2.00 ms, bound 1.50 ms, gap 25.0 %'
    """
    best_ns = report.best_ns
    parts = ["no plan yet" if best_ns is None else f"best {format_ns(best_ns)}{unit}"]
    if report.bound_ns > 0:
        parts.append(f"bound {format_ns(report.bound_ns)}{unit}")
        if report.gap is not None:
            parts.append(f"gap {format_gap(report.gap, 1)}")
    return f"{elapsed_s:.1f} s  {report.phase}: {', '.join(parts)}"
