"""Bytes that the copies of routed plans move, rows that are executed, and the text of both."""

from __future__ import annotations

import pytest

from heteroplace.model.routed.decision import decision_of
from heteroplace.model.routed.route_profile import RouteProfile, RouterProfile
from heteroplace.parts.routing.report.router_figures import (
    copied_bytes,
    mean_copied_bytes,
    router_figures,
)
from heteroplace.parts.routing.report.routing_text import counted_text, routing_text
from tests.unit.model.test_check_guards import (
    ROWS,
    ROWS_PLAN,
    WHOLE,
    WHOLE_PLAN,
    cluster,
    plan_of,
)

LOADS = ((6, 0), (2, 4), (1, 3), (0, 6))
"""Of four runs; rows of cells have 8 bytes, loads themselves too."""


def profile() -> RouteProfile:
    histograms = tuple(
        tuple((load, column.count(load)) for load in sorted(set(column)))
        for column in zip(*LOADS, strict=True)
    )
    sets = (((0,), 1), ((0, 1), 2), ((1,), 1))
    return RouteProfile("", (RouterProfile("r", 6, 2, 4, histograms, sets),), ())


@pytest.mark.parametrize("loads", LOADS)
def test_rows_are_copied_both_ways(loads: tuple[int, int]) -> None:
    plan = plan_of(ROWS, ROWS_PLAN)
    found = copied_bytes(ROWS, cluster(), plan, decision_of(ROWS, {"r": loads}))
    assert found == {("ram", "gpu"): 8 * loads[1] + 8, ("gpu", "ram"): 8 * loads[1]}


def test_means_are_those_of_the_runs() -> None:
    of = ROWS, cluster(), plan_of(ROWS, ROWS_PLAN)
    runs = [copied_bytes(*of, decision_of(ROWS, {"r": loads})) for loads in LOADS]
    mean = mean_copied_bytes(*of, profile())
    assert mean == {way: sum(run[way] for run in runs) / 4 for way in runs[0]}


def test_whole_tensors_are_copied_where_their_branch_is_active() -> None:
    of = WHOLE, cluster(), plan_of(WHOLE, WHOLE_PLAN)
    for loads, down in (((1, 0), 0), ((0, 1), WHOLE.tensors[0].bytes)):
        found = copied_bytes(*of, decision_of(WHOLE, {"r": loads}, {"r": [1]}))
        assert found["gpu", "ram"] == down


def test_the_text_tells_loads_padding_memories_and_bytes() -> None:
    of = ROWS, cluster(), plan_of(ROWS, ROWS_PLAN), profile()
    text = routing_text(router_figures(*of), mean_copied_bytes(*of), "of the profile")
    assert text.splitlines() == [
        "router  cells  branches  capacities  padding  memories          mean loads",
        "r           6         2  2 kinds        19 %  gpu (1), ram (1)  2.25 3.25",
        "loads of the profile; bytes between memories in a run: gpu -> ram 26 B, ram -> gpu 34 B",
    ]
    short = routing_text(router_figures(*of), {}, "of the profile", max_rows=0)
    assert short.splitlines()[1:] == [
        "... and 1 more routers",
        "loads of the profile; bytes between memories in a run: none",
    ]


def test_what_was_counted_is_told() -> None:
    assert counted_text({("a", "b"): 2048}, {"r": (3, 4), "s": (0, 0)}).splitlines() == [
        "copied between memories so far: a -> b 2.0 KiB",
        "router r: 3 of 4 predictions right (75.0 %)",
    ]
    assert counted_text({}, {}) == "copied between memories so far: nothing"
