"""Recordings of a placed network: times of its plan, how busy its queues were, a trace file."""

from __future__ import annotations

import logging
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from relay_models import (
    cpu_cluster,
    fire_modules,
    random_inputs,
    written_randomly,
)

import heteroplace as hp
from heteroplace.errors import ExecutionError
from heteroplace.model.trace import QueueUse
from heteroplace.report.tables import busy_table
from heteroplace.run.call_trace import Trace
from tests.chrome_trace_model import checked, of

_CALLS = 12


@pytest.fixture(scope="module")
def executor() -> hp.Executor:
    return hp.Executor(written_randomly(fire_modules(), cpu_cluster(), 1), max_in_flight=3)


@pytest.fixture(scope="module")
def trace(executor: hp.Executor) -> Trace:
    inputs = random_inputs(fire_modules())
    expected = executor.run(inputs)[0]
    with executor.trace() as trace:
        for (output,) in executor.run_many(inputs for _ in range(_CALLS)):
            np.testing.assert_array_equal(output, expected)
    return trace


@pytest.mark.costly
def test_calls_in_flight_are_in_it(executor: hp.Executor, trace: Trace) -> None:
    assert [one.number for one in trace.requests] == list(range(_CALLS))
    assert (trace.num_dropped, trace.num_unfinished) == (0, 0)
    assert len({one.slot for one in trace.requests}) > 1
    assert len(trace.events) == _CALLS * len(executor._native.instructions)
    starts = [one.start_ns for one in trace.requests]
    assert starts == sorted(starts) and not any(one.has_failed for one in trace.requests)


def test_a_call_of_it_has_a_timeline(executor: hp.Executor, trace: Trace) -> None:
    for number in (None, 0, _CALLS - 1):
        timeline = trace.timeline(number)
        assert timeline.source == "measured"
        known = executor.timeline(1)
        assert [span.step for span in timeline.spans] == [span.step for span in known.spans]
        assert [s.resource for s in timeline.spans] == [s.resource for s in known.spans]
    with pytest.raises(ExecutionError, match=f"no successful call 99; it has 0 to {_CALLS - 1}"):
        trace.timeline(99)


def test_queues_are_busy_or_wait_within_the_calls(trace: Trace) -> None:
    busy = trace.busy
    assert len({use.queue for use in busy}) == len(busy)
    for use in busy:
        assert 0 <= use.busy_ns + use.wait_ns <= use.wall_ns
        assert 0 <= use.busy_share + use.wait_share <= 1
    assert any(use.busy_share > 0 for use in busy)


def test_busy_shares_are_printed() -> None:
    uses = [QueueUse("cpu.0", 750_000, 200_000, 1_000_000), QueueUse("pcie", 0, 0, 0)]
    assert busy_table(uses).splitlines() == [
        "queue    busy  share   waits  share",
        "cpu.0  750 us   75 %  200 us   20 %",
        "pcie     0 ns      -    0 ns      -",
    ]


def test_it_is_saved_for_viewers(executor: hp.Executor, trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "trace.json")
    events = checked((tmp_path / "trace.json").read_text())
    names = {e["name"] for e in of(events, "X", "run")}
    assert names <= {task.name for task in executor.solution.graph.tasks}
    assert len(of(events, "b")) == len(of(events, "e")) == _CALLS


def test_what_was_not_recorded_is_told(executor: hp.Executor, caplog) -> None:
    trace = executor.trace(4)
    with pytest.raises(ExecutionError, match="holds nothing yet"):
        _ = trace.busy
    with pytest.raises(ExecutionError, match="nothing is recorded"):
        trace.stop()
    with caplog.at_level(logging.INFO, "heteroplace"), trace:
        executor.benchmark(7)
    assert [one.number for one in trace.requests] == list(range(3, 7))
    assert caplog.messages == ["the trace keeps the last 4 calls; 3 before them were dropped"]


def test_loading_is_logged(caplog) -> None:
    with caplog.at_level(logging.INFO, "heteroplace"):
        hp.Executor(written_randomly(fire_modules(), cpu_cluster(), 2))
    assert any(message.startswith("loaded from memory: queues ") for message in caplog.messages)


def test_a_trace_shows_its_calls(executor: hp.Executor, trace: Trace) -> None:
    text = repr(trace)
    assert text.startswith(f"<Trace: {_CALLS} calls on {len(trace.busy)} queues in ")
    assert repr(executor.trace()) == "<Trace: nothing recorded yet>"
    assert text[1:-1] in trace._repr_html_()
    page = ElementTree.fromstring(f"<div>{trace._repr_html_()}</div>")
    assert [each.tag.endswith("}svg") for each in page.iter()].count(True) == 1
    assert "svg" not in executor.trace()._repr_html_()


def test_a_trace_is_drawn_with_the_bars_of_its_events(trace: Trace) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = trace.plot().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [u.queue for u in trace.busy]
    events = trace.events
    own = events[(events["core"] < 0) & (events["is_done"] == 1)]
    begin = own["start_ns"].min()
    for queue, rows in enumerate(axes.collections):
        lane = own[own["queue"] == queue]
        starts = sorted(path.vertices[:, 0].min() for path in rows.get_paths())
        np.testing.assert_allclose(starts, sorted((lane["start_ns"] - begin) / 1e6), atol=1e-9)


def test_a_trace_that_holds_nothing_is_not_drawn(executor: hp.Executor) -> None:
    with pytest.raises(ExecutionError, match="the trace holds nothing yet"):
        executor.trace().plot()
