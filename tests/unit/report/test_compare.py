"""Predicted against measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import PlanError
from heteroplace.model.timeline import Span, Timeline
from heteroplace.report.compare import compare, comparison_table, spearman


def test_steps_are_matched_and_missing_ones_named(graph, cluster, plan, predicted, measured):
    result = compare(graph, cluster, plan, predicted, measured)
    rows = [(row.name, row.resource, row.predicted_ns, row.measured_ns) for row in result.steps]
    assert rows == [
        ("a", "cpu", 1000, 1200),
        ("a.0: ram -> gram", "", 2100, 2000),
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


def test_ties_share_their_rank():
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_constant_side_has_no_correlation():
    assert spearman([1, 1], [1, 2]) is None
    assert spearman([], []) is None


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=20, unique=True), st.randoms())
def test_correlation_only_depends_on_order(values, random):
    cubes = [value**3 for value in values]
    assert spearman(values, cubes) == pytest.approx(1)
    assert spearman(values, [-cube for cube in cubes]) == pytest.approx(-1)
    other = list(values)
    random.shuffle(other)
    # Without ties the textbook formula holds.
    ranks = [{v: r for r, v in enumerate(sorted(values))}[v] for v in values]
    others = [{v: r for r, v in enumerate(sorted(values))}[v] for v in other]
    n = len(values)
    squares = sum((a - b) ** 2 for a, b in zip(ranks, others, strict=True))
    assert spearman(values, other) == pytest.approx(1 - 6 * squares / (n * (n * n - 1)))
