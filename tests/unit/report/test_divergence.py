"""Where timelines diverge: lags of work and of pauses."""

from dataclasses import replace

from heteroplace.model.plan import Run
from heteroplace.model.timeline import Span, Timeline
from heteroplace.report.divergence import divergence_table, divergences


def test_lag_is_of_work_or_of_the_pause_before(graph, cluster, plan, predicted, measured):
    found = divergences(graph, cluster, plan, predicted, measured)
    assert [(p.name, p.device, p.work_ns, p.pause_ns, p.lag_ns) for p in found] == [
        ("a", 0, (1000, 1200), (0, 10), 210),
        ("c", 0, (2000, 3790), (0, 0), 1790),
        ("b", 1, (500, 790), (3100, 3210), 400),
    ]


def test_lags_of_a_device_sum_up_to_the_difference_of_its_last_finish(
    graph, cluster, plan, predicted, measured
):
    found = divergences(graph, cluster, plan, predicted, measured)
    assert sum(p.lag_ns for p in found if p.device == 0) == 5000 - 3000
    assert sum(p.lag_ns for p in found if p.device == 1) == 4000 - 3600


def test_step_that_was_not_measured_leaves_a_pause(graph, cluster, predicted, plan):
    steps = (Run(0, 0), Run(2, 0))
    short = replace(plan, steps=steps, reasons=())
    simulated = Timeline((Span(0, "cpu", 0, 10), Span(1, "cpu", 10, 30)), "simulated")
    measured = Timeline((Span(1, "cpu", 12, 30),), "measured")
    (only,) = divergences(graph, cluster, short, simulated, measured)
    assert (only.name, only.work_ns, only.pause_ns) == ("c", (20, 18), (10, 12))


def test_table_has_devices_and_the_largest_lags_first(graph, cluster, plan, predicted, measured):
    text = divergence_table(
        cluster, divergences(graph, cluster, plan, predicted, measured), max_rows=2
    )
    assert [" ".join(line.split()) for line in text.splitlines() if line] == [
        "on work predicted measured pauses predicted measured lag",
        "cpu 3.00 us 4.99 us 0 ns 10 ns +2.00 us",
        "gpu 500 ns 790 ns 3.10 us 3.21 us +400 ns",
        "step on work predicted measured pauses predicted measured lag",
        "c cpu 2.00 us 3.79 us 0 ns 0 ns +1.79 us",
        "b gpu 500 ns 790 ns 3.10 us 3.21 us +400 ns",
    ]
