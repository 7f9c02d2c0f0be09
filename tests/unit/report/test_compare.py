"""Predicted against measured."""

import pytest

from heteroplace.errors import PlanError
from heteroplace.model.timeline import Span, Timeline
from heteroplace.report.compare import compare, comparison_table


def test_steps_are_matched_and_missing_ones_named(graph, cluster, plan, predicted, measured):
    result = compare(graph, cluster, plan, predicted, measured)
    rows = [(row.name, row.resource, row.predicted_ns, row.measured_ns) for row in result.steps]
    assert rows == [
        ("a", "cpu", 1000, 1200),
        ("a.0 ram => gram", "", 2100, 2000),
        ("b", "gpu", 500, 790),
        ("c", "cpu", 2000, 3790),
    ]
    assert result.missing == (4,)
    assert result.error_ratio == -0.2
    assert result.rank_correlation == 1.0


def test_table_has_the_largest_error_first(graph, cluster, plan, predicted, measured):
    text = comparison_table(compare(graph, cluster, plan, predicted, measured), max_rows=2)
    assert text.splitlines() == [
        "makespan: predicted 4.00 us, measured 5.00 us (error -20 %)",
        "rank correlation of task times: 1.00",
        "step  on   predicted  measured     error",
        "c     cpu    2.00 us   3.79 us  -1.79 us",
        "b     gpu     500 ns    790 ns   -290 ns",
        "1 steps are missing in one of the timelines",
    ]


def test_nothing_measured_has_no_ratio(graph, cluster, plan, predicted):
    result = compare(graph, cluster, plan, predicted, Timeline((), "measured"))
    assert (result.error_ratio, result.rank_correlation) == (None, None)
    assert len(result.missing) == 5


def test_timeline_of_another_plan_is_refused(graph, cluster, plan, predicted):
    with pytest.raises(PlanError, match="a timeline has step 9, but the plan has 5 steps"):
        compare(graph, cluster, plan, predicted, Timeline((Span(9, "cpu", 0, 1),), "measured"))
