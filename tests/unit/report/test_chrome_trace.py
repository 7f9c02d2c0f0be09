"""The Chrome trace: every span once, rows by resource, arrows along the copies."""

import json

import pytest
from hypothesis import given

from heteroplace.model.plan import Plan
from heteroplace.report.chrome_trace import TraceRun, trace_events, write_trace
from heteroplace.simulate.simulator import simulate
from tests.chrome_trace_model import checked, of
from tests.strategies import Instance, exact_cases, instances_with_plan


@pytest.fixture
def events(tmp_path, graph, cluster, plan, predicted, measured):
    runs = [
        TraceRun("predicted", plan, predicted),
        TraceRun("measured", plan, measured, (((0, 16), (1210, 2016)), ((1210, 2000),))),
    ]
    write_trace(tmp_path / "trace.json", graph, cluster, runs)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    return checked((tmp_path / "trace.json").read_text())


@given(instances_with_plan(max_tasks=7, max_items=3))
@exact_cases(100)
def test_the_trace_of_any_plan_is_one_that_viewers_draw(case: tuple[Instance, Plan]) -> None:
    found, plan = case
    timeline = simulate(found.graph, found.cluster, found.costs, plan)
    runs = [TraceRun("predicted", plan, timeline)]
    events = trace_events(found.graph, found.cluster, runs)
    spans = of(checked(json.dumps({"traceEvents": events})), "X")
    assert len(spans) == len(timeline.spans)


def test_events_have_the_required_fields_and_are_sorted(events):
    for event in events:
        assert {"ph", "name", "pid", "tid", "ts"} <= set(event)
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert timed == sorted(timed)
    assert {event["ph"] for event in events[:9]} == {"M"}


def test_each_run_is_a_process_with_a_row_per_resource(events):
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in of(events, "M")}
    assert names == {
        (1, 0): "predicted",
        (1, 1): "cpu",
        (1, 2): "gpu",
        (1, 3): "h2d",
        (1, 4): "d2h",
        (2, 0): "measured",
        (2, 1): "cpu",
        (2, 2): "gpu",
        (2, 3): "h2d",
    }


def test_slices_are_the_spans_in_microseconds(events):
    slices = [
        (e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in of(events, "X") if e["pid"] == 1
    ]
    assert slices == [
        (1, 1, "a", 0, 1),
        (1, 3, "a.0 ram => gram", 1, 2.1),
        (1, 1, "c", 1, 2),
        (1, 2, "b", 3.1, 0.5),
        (1, 4, "b.0 gram => ram", 3.6, 0.4),
    ]


def test_measured_slices_carry_their_prediction(events):
    (task,) = [e for e in of(events, "X") if e["pid"] == 2 and e["name"] == "a"]
    assert task["dur"] == 1.2
    assert task["args"] == {
        "task": "a",
        "op": "nn.conv2d",
        "device": "cpu",
        "members": ["conv1"],
        "predicted_us": 1.0,
    }
    (copy,) = [e for e in of(events, "X") if e["pid"] == 2 and e["cat"] == "copy"]
    assert (copy["args"]["bytes"], copy["args"]["route"]) == (2000, ["up"])


def test_arrows_follow_the_copies(events):
    starts = {e["id"]: e for e in of(events, "s")}
    ends = {e["id"]: e for e in of(events, "f")}
    assert starts.keys() == ends.keys()
    arrows = [
        (starts[key]["tid"], ends[key]["tid"], starts[key]["ts"], ends[key]["ts"])
        for key in starts
        if starts[key]["pid"] == 1
    ]
    # a -> copy up, copy up -> b, b -> copy down; each leaves within its slice.
    assert arrows == [(1, 3, 0.999, 1), (3, 2, 3.099, 3.1), (2, 4, 3.599, 3.6)]
    assert len(starts) == 5


def test_memory_is_a_counter(events):
    counters = [(e["pid"], e["name"], e["ts"], e["args"]["bytes"]) for e in of(events, "C")]
    assert counters == [
        (1, "memory ram (peak)", 0, 4024),
        (1, "memory gram (peak)", 0, 2008),
        (2, "memory ram", 0, 16),
        (2, "memory ram", 1.21, 2016),
        (2, "memory gram", 1.21, 2000),
    ]
