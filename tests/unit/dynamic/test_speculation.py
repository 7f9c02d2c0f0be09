"""Predictions of routers: the worked times, sets, and the gate that ends them."""

from __future__ import annotations

from itertools import product

from heteroplace.model.routed.route_profile import RouterProfile
from heteroplace.parts.routing.dynamic.sizes import MIN_RUNS
from heteroplace.parts.routing.dynamic.speculated_routes import (
    HIT,
    MISS,
    PARTIAL,
    WASTED,
    Prediction,
    SpeculationTimes,
    all_right,
    choose_predictions,
    classify,
    predict,
)

ONE_TO_TWO = SpeculationTimes(10, 20)


def router_of(*sets: tuple[tuple[int, ...], int]) -> RouterProfile:
    runs = sum(count for _, count in sets)
    return RouterProfile("r", 1, 3, runs, ((), (), ()), tuple(sorted(sets)))


def test_the_worked_times() -> None:
    assert ONE_TO_TWO.default_ns == 30
    assert ONE_TO_TWO.expected_ns(0.9) == 21.0
    assert round(30 / 21.0, 4) == 1.4286
    assert ONE_TO_TWO.expected_ns(0.95) == 20.5
    assert round(30 / 20.5, 4) == 1.4634
    assert SpeculationTimes(20, 10).expected_ns(0.9) == 21.0


def test_a_chain_is_seldom_right_as_a_whole() -> None:
    chain = (0.97, 0.9, 0.6, 0.99)
    assert round(sum(chain) / 4, 3) == 0.865
    assert round(all_right(chain), 4) == 0.5186


def test_what_is_worth_it_is_what_is_expected_to_be_shorter() -> None:
    for router, branch, miss in product(range(4), repeat=3):
        times = SpeculationTimes(router, branch, miss)
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            assert times.gain.is_worth_it(share) == (times.expected_ns(share) < times.default_ns)
            if share != times.gain.least_share:
                assert times.gain.is_worth_it(share) == (share > times.gain.least_share)


def test_the_most_frequent_set_is_predicted() -> None:
    found = predict(router_of(((0,), 10), ((0, 1), 25), ((1,), 12), ((2,), 3)))
    assert found == Prediction("r", (0, 1), (10 + 25 + 12) / 50)


def test_equally_frequent_sets_are_taken_by_size_and_branches() -> None:
    found = predict(router_of(((0, 1), 20), ((2,), 20), ((1,), 20)))
    assert found is not None
    assert found.branches == (1,)


def test_few_runs_and_idle_ones_predict_nothing() -> None:
    assert predict(router_of(((0,), MIN_RUNS - 1))) is None
    assert predict(router_of(((), MIN_RUNS))) is None


def test_predictions_are_classified() -> None:
    assert classify((0, 1), (1, 0)) == HIT
    assert classify((0, 1), (1,)) == classify((0,), ()) == WASTED
    assert classify((0,), (0, 1)) == PARTIAL
    assert classify((0,), (1, 2)) == MISS


def test_each_router_is_judged_by_itself() -> None:
    sure = RouterProfile("sure", 1, 2, 100, ((), ()), (((0,), 95), ((1,), 5)))
    coin = RouterProfile("coin", 1, 2, 100, ((), ()), (((0,), 50), ((1,), 50)))
    times = dict.fromkeys(("sure", "coin"), SpeculationTimes(10, 20, 15))
    found = choose_predictions([sure, coin], times)
    assert [each.router for each in found] == ["sure"]
    assert choose_predictions([sure], {}) == ()
    assert choose_predictions([sure], times, {"sure": 3}) != ()
    assert choose_predictions([sure], times, {"sure": 4}) == ()
