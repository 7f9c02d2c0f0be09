"""Progress: one live line on a terminal, plain lines elsewhere, no thread that draws."""

from __future__ import annotations

import io
import threading

import pytest

from heteroplace.progress import ProgressLine, StatusLine, describe
from heteroplace.solve.problem import ProgressReport


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_steps_and_a_bar_without_a_thread() -> None:
    stream = Terminal()
    line = StatusLine(stream)
    line.say("one [two]")
    for count in range(3):
        line.bar("measuring", count, 2)
    assert threading.active_count() == 1
    line.close()
    shown = stream.getvalue()
    assert 0 <= shown.index("one [two]") < shown.index("measuring") < shown.index("2/2")


def test_elsewhere_steps_are_lines_and_there_is_no_bar() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    line.say("measuring")
    line.bar("measuring", 1, 2)
    line.close()
    assert stream.getvalue() == "measuring\n"


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO(), None])
def test_the_first_valid_plan_is_shown_at_once(stream: io.StringIO | None) -> None:
    line = ProgressLine(stream, begin=0.0)
    line(ProgressReport("heft", 0.0, None, 0))
    line(ProgressReport("heft", 0.0, 2_000_000, 0))
    line(ProgressReport("search", 0.0, 1_000_000, 0))
    line.close()
    if stream is not None:
        assert "heft: best 2.00 ms" in stream.getvalue()
        assert "search" not in stream.getvalue(), "it comes within the period"


def test_a_gap_that_is_not_zero_is_not_called_so() -> None:
    near, reached = (ProgressReport("lns", 0.0, 10**6, bound_ns) for bound_ns in (999_999, 10**6))
    assert describe(near, 1.0).endswith(", gap < 0.1 %")
    assert describe(reached, 1.0).endswith(", gap 0.0 %")


def test_a_long_line_stays_one_line() -> None:
    stream = Terminal()
    line = StatusLine(stream)
    line.say("x" * 500)
    line.close()
    assert stream.getvalue().count("\n") <= 1
