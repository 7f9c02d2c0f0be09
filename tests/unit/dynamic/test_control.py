"""Predictions that are taken back where they no longer pay, or the network is used otherwise."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import pytest

from heteroplace.dynamic.control import RouteControl
from heteroplace.dynamic.sizes import MIN_RUNS
from heteroplace.dynamic.speculation import Prediction, SpeculationGate, SpeculationTimes
from heteroplace.errors import RoutingError
from heteroplace.files.routes import records_of_lines
from heteroplace.model.route_profile import RouteProfile, RouteRecord, RouterProfile, RouterShape

ROUTER = RouterProfile("r", 1, 2, 100, (((0, 50), (1, 50)),) * 2, (((0,), 50), ((1,), 50)))
PROFILE = RouteProfile("m", (ROUTER,))
SIZES = {"r": ((1,), (1,))}


class Predictions:
    """What is predicted, call by call."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Collection[int]]] = []

    def __call__(self, routes: Mapping[str, Collection[int]]) -> None:
        self.calls.append(dict(routes))


def gate(miss_ns: float = 0.0) -> SpeculationGate:
    return SpeculationGate(Prediction("r", (0,), 0.9), SpeculationTimes(10, 20, miss_ns))


def record(run: int, branch: int) -> RouteRecord:
    return RouteRecord(run, "r", (1 - branch, branch))


def test_a_prediction_that_does_not_pay_is_taken_back_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Predictions()
    control = RouteControl(PROFILE, SIZES, told, [gate(miss_ns=15.0)])
    assert told.calls == [{"r": (0,)}]
    with caplog.at_level(logging.WARNING, "heteroplace"):
        for run in range(3 * MIN_RUNS):
            control.observe(record(run, run % 2))
    assert told.calls == [{"r": (0,)}, {"r": ()}]
    assert "router 'r' is no longer predicted" in caplog.text
    assert control.drifted == ()


def test_a_router_that_drifts_is_no_longer_predicted() -> None:
    told = Predictions()
    control = RouteControl(PROFILE, SIZES, told, [gate()], window_runs=40)
    for run in range(200):
        control.observe(record(run, 0))
    assert told.calls == [{"r": (0,)}, {"r": ()}]
    assert [drift.router for drift in control.drifted] == ["r"]


def test_nothing_is_predicted_without_gates() -> None:
    told = Predictions()
    control = RouteControl(PROFILE, SIZES, told)
    control.observe(record(0, 0))
    assert told.calls == []


def test_two_gates_of_one_router_are_refused() -> None:
    with pytest.raises(RoutingError, match="two gates are of one router"):
        RouteControl(PROFILE, SIZES, Predictions(), [gate(), gate()])


def test_lines_are_read_as_they_come() -> None:
    lines = b'{"run":0,"router":"r","loads":[1,0],"active":[0]}\n'
    assert list(records_of_lines(lines, [RouterShape("r", 1, 2)], 1)) == [record(0, 0)]
    with pytest.raises(RoutingError, match="a record of routes is wrong: loads"):
        list(records_of_lines(lines, [RouterShape("r", 1, 3)], 1))
