"""Predictions that are taken back where they no longer pay, or the network is used otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from heteroplace.errors import RoutingError
from heteroplace.files.routes_file import records_of_lines
from heteroplace.model.routed.route_profile import (
    RouteProfile,
    RouteRecord,
    RouterProfile,
    RouterShape,
)
from heteroplace.parts.routing.dynamic.control import RouteControl
from heteroplace.parts.routing.dynamic.sizes import MIN_RUNS

ROUTER = RouterProfile("r", 1, 2, 100, (((0, 50), (1, 50)),) * 2, (((0,), 50), ((1,), 50)))
PROFILE = RouteProfile("m", (ROUTER,))
SIZES = {"r": ((1,), (1,))}


class Predictions:
    """What is predicted, call by call."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Collection[int]]] = []

    def __call__(self, routes: Mapping[str, Collection[int]]) -> None:
        self.calls.append(dict(routes))


def record(run: int, branch: int) -> RouteRecord:
    return RouteRecord(run, "r", (1 - branch, branch))


def test_a_router_that_drifts_is_no_longer_predicted() -> None:
    told = Predictions()
    control = RouteControl(PROFILE, SIZES, told, window_runs=40)
    for run in range(200):
        control.observe(record(run, 0))
    assert told.calls == [{"r": ()}]
    assert [drift.router for drift in control.drifted] == ["r"]


def test_a_router_that_does_not_drift_stays_as_it_is() -> None:
    told = Predictions()
    control = RouteControl(PROFILE, SIZES, told)
    for run in range(3 * MIN_RUNS):
        control.observe(record(run, run % 2))
    assert told.calls == [] and control.drifted == ()


def test_lines_are_read_as_they_come() -> None:
    lines = b'{"run":0,"router":"r","loads":[1,0],"active":[0]}\n'
    assert list(records_of_lines(lines, [RouterShape("r", 1, 2)], 1)) == [record(0, 0)]
    with pytest.raises(RoutingError, match="a record of routes is wrong: loads"):
        list(records_of_lines(lines, [RouterShape("r", 1, 3)], 1))
