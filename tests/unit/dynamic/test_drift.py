"""Drift: the paper's worked rates, and when a monitor falls back."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

import pytest

from heteroplace.errors import RoutingError
from heteroplace.files.route_profile_file import save_route_profile
from heteroplace.model.routed.route_profile import RouteProfile, RouteRecord, RouterProfile
from heteroplace.parts.routing.dynamic.drift import Drift, DriftMonitor, RouteMonitor, drift_rate
from heteroplace.parts.routing.dynamic.sizes import MIN_RUNS, executed_rows, useful_rows

TUNED = (4, 27)
STEADY = RouterProfile("r", 64, 2, 100, (((4, 100),), ((27, 100),)), (((0, 1), 100),))


@pytest.mark.parametrize(
    ("rate", "rows", "useful", "efficiency"),
    [(0, 4, 4, 1.0), (0.25, 9.75, 5, 0.513), (0.5, 15.5, 6, 0.387), (1, 27, 8, 0.296)],
)
def test_drifted_branches_pay_for_the_next_size(
    rate: float, rows: float, useful: float, efficiency: float
) -> None:
    """Sizes 4 and 27, drifted branches with 8 cells: rows of a branch, of 100 branches."""
    drifted = round(100 * rate)
    loads = ((4, 100 - drifted), (8, drifted))
    assert drift_rate([4] * (100 - drifted) + [8] * drifted, TUNED) == rate
    assert executed_rows(loads, TUNED) / 100 == rows
    assert useful_rows(loads) / 100 == useful
    assert round(useful / rows, 3) == efficiency


def monitor(**options: int) -> DriftMonitor:
    return DriftMonitor(STEADY, ((4, 8, 27), (4, 8, 27)), **options)


def test_runs_as_profiled_do_not_drift() -> None:
    found = monitor()
    for _ in range(MIN_RUNS):
        found.observe((4, 27))
    assert found.drift() == Drift("r", MIN_RUNS, 0.0, 0.0, 0.0)
    assert not found.drift().is_drifting


def test_few_runs_are_no_drift() -> None:
    found = monitor()
    for _ in range(MIN_RUNS - 1):
        found.observe((27, 4))
    assert found.drift().distance == 1.0
    assert not found.drift().is_drifting


def test_other_hot_branches_are_drift_though_sizes_fit() -> None:
    found = monitor()
    for _ in range(MIN_RUNS):
        found.observe((27, 4))
    assert found.drift().drift_rate == 0
    assert found.drift().is_drifting


def test_loads_between_sizes_are_drift_though_they_are_padded_alike() -> None:
    found = monitor()
    for _ in range(MIN_RUNS):
        found.observe((3, 26))
    assert found.drift().distance == 0
    assert found.drift().drift_rate == 1
    assert found.drift().is_drifting


def test_a_rate_that_was_profiled_is_no_drift() -> None:
    found = DriftMonitor(STEADY, ((64,), (64,)))
    for _ in range(MIN_RUNS):
        found.observe((4, 27))
    assert found.drift().drift_rate == found.drift().profiled_drift_rate == 1
    assert not found.drift().is_drifting


def test_only_the_window_counts() -> None:
    found = monitor(window_runs=MIN_RUNS)
    for loads in [(27, 4)] * 50 + [(4, 27)] * MIN_RUNS:
        found.observe(loads)
    assert found.drift().distance == 0


def test_a_window_of_the_same_skewed_decisions_is_not_taken_for_drift() -> None:
    random = Random(0)
    sizes = ((2, 8, 32),) * 8

    def loads() -> tuple[int, ...]:
        found = [0] * 8
        for _ in range(32):
            found[min(int(random.expovariate(0.6)), 7)] += 1
        return tuple(found)

    runs = [loads() for _ in range(1000)]
    histograms = tuple(
        tuple((load, [run[b] for run in runs].count(load)) for load in sorted({r[b] for r in runs}))
        for b in range(8)
    )
    found = DriftMonitor(RouterProfile("r", 32, 8, 1000, histograms, ()), sizes, window_runs=50)
    for _ in range(20):
        for _ in range(50):
            found.observe(loads())
        assert not found.drift().is_drifting


def test_a_router_that_drifts_falls_back_once_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fallen: list[str] = []
    profile = RouteProfile("m", (STEADY,))
    found = RouteMonitor(
        profile, {"r": ((4, 27),) * 2}, lambda drift: fallen.append(drift.router), window_runs=40
    )
    with caplog.at_level(logging.WARNING, "heteroplace"):
        for run in range(200):
            found.observe(RouteRecord(run, "r", (8, 8)))
            found.observe(RouteRecord(run, "another", (8, 8)))
    assert fallen == ["r"]
    assert [drift.router for drift in found.drifted] == ["r"]
    assert "specialise again" in caplog.text


def test_a_monitor_takes_the_file_of_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_route_profile(RouteProfile("m", (STEADY,)), path)
    found = RouteMonitor(path, {"r": ((4, 27),) * 2}, lambda drift: None)
    assert not found.drifted


def test_a_monitor_needs_capacities_of_all_branches() -> None:
    with pytest.raises(RoutingError, match="capacities of 2 branches"):
        DriftMonitor(STEADY, ((4,),))
    with pytest.raises(RoutingError, match="has no router 'x'; it has: 'r'"):
        RouteMonitor(RouteProfile("m", (STEADY,)), {"x": ((4,),)}, lambda drift: None)
