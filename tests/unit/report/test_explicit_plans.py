"""Tables and traces of explicit schedules: a collective is on all of its devices and channels."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given

from heteroplace.model.plan import Plan
from heteroplace.model.timeline import Span, Timeline
from heteroplace.report.chrome_trace import TraceRun, trace_events
from heteroplace.report.compare import compare
from heteroplace.report.divergence import divergences
from heteroplace.report.headline import headline
from heteroplace.report.tables import channel_table, device_table, placement_table
from heteroplace.simulate.simulator import simulate
from tests.chrome_trace_model import checked, of
from tests.explicit_plans import explicit_plans
from tests.strategies import Instance, exact_cases
from tests.unit.model.test_check_explicit import SUM, good_steps, on_two_devices, step_graph


def training_step() -> tuple[Instance, Plan, Timeline]:
    """Runs take 1 ns; the sum of 4 bytes takes 2 * 100 ns and 1 ns over the links."""
    case = on_two_devices(step_graph())
    links = tuple(replace(link, latency_ns=100) for link in case.cluster.links)
    cluster = replace(case.cluster, links=links)
    plan = Plan(case.graph.digest(), cluster.digest(), tuple(good_steps()), "test", items=2)
    found = Instance(case.graph, cluster, case.costs)
    return found, plan, simulate(found.graph, cluster, found.costs, plan)


def test_tables_count_a_collective_on_all_its_devices_and_channels() -> None:
    case, plan, timeline = training_step()
    table = device_table(case.graph, case.cluster, plan, timeline).splitlines()
    # Two runs, the collective and the update on each device; one collective on each channel.
    assert [line.split()[:4] for line in table[1:]] == [
        ["gpu0", "4", "204", "ns"],
        ["gpu1", "4", "204", "ns"],
    ]
    channels = channel_table(case.graph, case.cluster, plan, timeline).splitlines()
    assert [line.split()[:6] for line in channels[1:]] == [
        ["0-1", "1", "4", "B", "201", "ns"],
        ["1-0", "1", "4", "B", "201", "ns"],
    ]
    rows = placement_table(case.graph, case.cluster, plan, timeline).splitlines()
    assert "gpu0+gpu1" in rows[1 + SUM]
    assert "on gpu0+gpu1" in headline(case.cluster, plan, timeline.makespan_ns)


def test_a_collective_is_compared_as_work_of_all_its_devices() -> None:
    case, plan, timeline = training_step()
    late = tuple(
        Span(span.step, span.resource, span.start_ns, span.finish_ns + 10 * (span.step == 4))
        for span in timeline.spans
    )
    measured = replace(timeline, spans=late, source="measured")
    rows = compare(case.graph, case.cluster, plan, timeline, measured).steps
    assert (rows[4].name, rows[4].resource) == ("sum", "gpu0+gpu1")
    assert rows[4].measured_ns - rows[4].predicted_ns == 10
    found = divergences(case.graph, case.cluster, plan, timeline, measured)
    assert [one.device for one in found if one.step == 4] == [0, 1]


@given(explicit_plans())
@exact_cases(50)
def test_the_trace_of_an_explicit_plan_is_one_that_viewers_draw(
    case: tuple[Instance, Plan],
) -> None:
    found, plan = case
    # Rows of channels do not overlap, and those of devices are all theirs.
    devices = tuple(replace(device, copy_engines=None) for device in found.cluster.devices)
    cluster = replace(found.cluster, congestion="channel", devices=devices)
    found = replace(found, cluster=cluster)
    timeline = simulate(found.graph, found.cluster, found.costs, plan)
    events = trace_events(found.graph, found.cluster, [TraceRun("predicted", plan, timeline)])
    drawn = checked(json.dumps({"traceEvents": events}))
    assert len(of(drawn, "X")) == len(timeline.spans)
    assert {event["cat"] for event in of(drawn, "X")} <= {"run", "copy", "collective"}


def test_arrows_lead_to_a_collective_and_from_it() -> None:
    case, plan, timeline = training_step()
    events = trace_events(case.graph, case.cluster, [TraceRun("predicted", plan, timeline)])
    collective = next(event for event in of(events, "X") if event["cat"] == "collective")
    assert collective["args"] == {
        "task": "sum",
        "op": "heteroplace.all_reduce",
        "devices": ["gpu0", "gpu1"],
        "bytes": 4,
        "predicted_us": 0.201,
    }
    # From both gradients, and to both updates.
    assert len(of(events, "s")) == len(of(events, "f")) == 4
