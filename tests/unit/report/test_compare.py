"""Predicted against measured."""

import pytest

from heteroplace.errors import PlanError
from heteroplace.model.timeline import Span, Timeline
from heteroplace.report.compare import compare


def test_steps_are_matched_and_missing_ones_left_out(graph, cluster, plan, predicted, measured):
    result = compare(graph, cluster, plan, predicted, measured)
    rows = [(row.name, row.resource, row.predicted_ns, row.measured_ns) for row in result.steps]
    assert rows == [
        ("a", "cpu", 1000, 1200),
        ("a.0 ram => gram", "", 2100, 2000),
        ("b", "gpu", 500, 790),
        ("c", "cpu", 2000, 3790),
    ]
    assert result.rank_correlation == 1.0


def test_nothing_measured_has_no_rank_correlation(graph, cluster, plan, predicted):
    result = compare(graph, cluster, plan, predicted, Timeline((), "measured"))
    assert (result.steps, result.rank_correlation) == ((), None)


def test_timeline_of_another_plan_is_refused(graph, cluster, plan, predicted):
    with pytest.raises(PlanError, match="a timeline has step 9, but the plan has 5 steps"):
        compare(graph, cluster, plan, predicted, Timeline((Span(9, "cpu", 0, 1),), "measured"))
