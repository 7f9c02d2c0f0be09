"""Progress: a bar with percent and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import re
import threading
import time

import pytest

from heteroplace.progress import ProgressDisplay, SolverProgress, StageProgress, describe
from heteroplace.solve.problem import ProgressReport
from heteroplace.stage_log import StageLog


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown_after(stream: io.StringIO, text: str) -> str:
    """Return what a stream holds once it holds `text`."""
    while text not in stream.getvalue():
        time.sleep(0.01)
    return stream.getvalue()


def test_percent_and_time_left_come_from_the_counts() -> None:
    stage = StageProgress("Compiling kernels", 0.0)
    assert (stage.ratio(5.0), stage.times(5.0)) == (None, "5 s so far")
    stage.count(10, 82, 5.0)
    assert stage.left_s(5.0) is None, "one count has no rate"
    stage.count(34, 82, 17.0)
    assert stage.line(17.0) == "Compiling kernels 34 of 82 (41 %), 24 s left"


def test_the_time_of_a_search_is_a_part_of_its_budget() -> None:
    stage = StageProgress("Placing", 0.0, budget_s=60.0, remark="best 2.00 ms")
    assert stage.line(15.0) == "Placing: best 2.00 ms, 15 s of at most 1 min 00 s"
    assert stage.ratio(15.0) == 0.25
    assert stage.ratio(90.0) == 1.0


def test_a_terminal_shows_a_bar_with_percent() -> None:
    stream = Terminal()
    with ProgressDisplay(stream, period_s=0.0) as display:
        display.stage("Measuring")
        display.count(0, 4)
        time.sleep(0.11)
        display.count(1, 4)
    drawn = stream.getvalue()
    assert re.search(r"Measuring 1 of 4 +\S+ 25 %, 0 s left", drawn)
    assert drawn.endswith("\r\x1b[2K"), "the line is wiped"
    assert "\x1b[?25l" not in drawn, "the cursor stays visible"


def test_what_counts_nothing_moves_by_itself() -> None:
    before = threading.enumerate()  # other tests may have left threads
    stream = Terminal()
    display = ProgressDisplay(stream)
    display.stage("Linking")
    shown_after(stream, "1 s so far")
    display.close()
    assert "%" not in stream.getvalue()
    assert set(threading.enumerate()) <= set(before)


def test_no_thread_draws_while_counts_do() -> None:
    stream = Terminal()
    with ProgressDisplay(stream) as display:
        display.stage("Measuring")
        display.count(0, 2)
        drawn = len(stream.getvalue())
        time.sleep(1.2)
        assert len(stream.getvalue()) == drawn


def test_elsewhere_there_is_a_plain_line_now_and_then() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream, period_s=0.05) as display:
        display.stage("Reading model.onnx")
        shown_after(stream, "Reading model.onnx, 0 s so far\n")
        display.count(1, 2)
        lines = shown_after(stream, "1 of 2").splitlines()
    assert "Reading model.onnx 1 of 2 (50 %), 0 s so far" in lines
    assert "\x1b" not in stream.getvalue()


def test_a_short_command_prints_no_line_elsewhere() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream) as display:
        display.stage("Reading")
        display.count(1, 2)
        display.detail("tasks 82")
    assert stream.getvalue() == ""


def test_a_terminal_that_cannot_move_its_cursor_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with ProgressDisplay(stream, period_s=0.0) as display:
        display.stage("Reading")
        display.count(1, 2)
    assert "\x1b" not in stream.getvalue()
    assert "Reading 1 of 2" in stream.getvalue()


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_details_are_lines_of_their_own(stream: io.StringIO) -> None:
    with ProgressDisplay(stream, is_verbose=True) as display:
        log = StageLog(display=display)
        with log.stage("prepare", "Optimising the network") as figures:
            figures["tasks"] = 82
    lines = stream.getvalue().replace("\x1b[2K", "\n").splitlines()
    assert "Optimising the network" in lines
    assert any(re.fullmatch(r"prepare: tasks 82; [0-9.]+ s", line) for line in lines)


def test_no_stream_shows_nothing_and_starts_no_thread() -> None:
    before = threading.enumerate()
    with ProgressDisplay(None, is_verbose=True) as display:
        display.stage("Reading")
        display.count(1, 2)
        display.detail("a detail")
        assert set(threading.enumerate()) <= set(before)


def test_the_latest_plan_is_kept_and_the_first_is_a_detail_at_once() -> None:
    stream, seen = io.StringIO(), list[ProgressReport]()
    with ProgressDisplay(stream, is_verbose=True) as display:
        display.stage("Placing", 10.0)
        progress = SolverProgress(display, " per item", then=seen.append)
        progress(ProgressReport("heft", 0.0, None, 0))
        progress(ProgressReport("heft", 0.0, 2_000_000, 0))
        progress(ProgressReport("search", 0.0, 1_000_000, 0))
    assert "heft: best 2.00 ms per item" in stream.getvalue()
    assert "search" not in stream.getvalue(), "it comes within the period"
    assert [report.phase for report in seen] == ["heft", "heft", "search"]


def test_a_gap_that_is_not_zero_is_not_called_so() -> None:
    near, reached = (ProgressReport("lns", 0.0, 10**6, bound_ns) for bound_ns in (999_999, 10**6))
    assert describe(near).endswith(", gap < 0.1 %")
    assert describe(reached).endswith(", gap 0.0 %")


def test_a_long_line_stays_one_line_and_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    with ProgressDisplay(stream) as display:
        display.stage("x" * 500, budget_s=60.0)
    assert "\n" not in stream.getvalue()
    assert "0 s of at most 1 min 00 s" in stream.getvalue()
