"""What passes of routers take back, and what `Specialise` makes of them."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import pytest
from relay_models import cpu_cluster, mixed_cluster
from routed_passes import (
    check_pass,
    early_exit,
    options_of,
    pairs,
    profile_of,
    skewed,
    two_layers,
)
from tvm import relay

from heteroplace.errors import RoutingError
from heteroplace.model.cluster import Memory

pytestmark = pytest.mark.costly


def test_a_budget_for_all_weights_takes_an_older_one_back() -> None:
    mod = two_layers()
    made = relay.transform.PreloadWeights
    profile = profile_of(mod, skewed)
    found = check_pass(made(profile, 10**9), made(profile, 400)(mod))
    assert [each.preload for each in options_of(found)] == ["", ""]


def test_a_prediction_that_pays_no_more_is_taken_back() -> None:
    mod = early_exit()
    made = relay.transform.SpeculateRoutes
    predicted = made(profile_of(mod, lambda run, _: (0,) if run % 10 else (1,)))(mod)
    rare = profile_of(mod, lambda run, _: (run % 2,))
    assert options_of(check_pass(made(rare), predicted))[0].predict == ""
    few = profile_of(mod, lambda run, _: (run % 2,), runs=2)
    assert options_of(made(few)(predicted))[0].predict == "0@0.9"


def test_where_there_is_one_memory_older_ones_are_taken_back() -> None:
    mod = two_layers()
    made = relay.transform.PlaceBranches
    placed = made(profile_of(mod, pairs), mixed_cluster(), by="balance")(mod)
    assert all(each.memories for each in options_of(placed))
    found = check_pass(made(profile_of(mod, pairs), cpu_cluster()), placed)
    assert [each.memories for each in options_of(found)] == ["", ""]
    few = made(profile_of(mod, pairs, runs=2), cpu_cluster())(placed)
    assert options_of(few) == options_of(placed)


def test_specialise_takes_back_what_does_not_pay_and_is_not_forced() -> None:
    mod = two_layers()
    profile = profile_of(mod, pairs)
    placed = relay.transform.PlaceBranches(profile, mixed_cluster(), by="balance")(mod)
    older = relay.transform.PreloadWeights(profile, 400)(placed)
    made = partial(relay.transform.Specialise, profile)
    one = options_of(check_pass(made(cpu_cluster()), older))
    assert [(each.memories, each.preload) for each in one] == [("", "")] * 2
    unknown = options_of(made()(older))
    kept = options_of(made(cpu_cluster(), forced={"placement": False, "preloading": False})(older))
    for found in (unknown, kept):
        both = [(each.memories, each.preload) for each in found]
        assert both == [(each.memories, each.preload) for each in options_of(older)]


def test_specialise_does_what_pays_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    mod, cluster = two_layers(), mixed_cluster()
    profile = profile_of(mod, pairs)
    told: list[str] = []
    made = relay.transform.Specialise(profile, cluster, num_sizes=2, report=told.append)
    found = made(mod)
    capacities = relay.transform.ChooseCapacities(profile, 2)(mod)
    placed = relay.transform.PlaceBranches(profile, cluster)(capacities)
    assert options_of(found) == options_of(placed)
    assert len(told) == 8
    assert not any("grouping" in line for line in told)
    assert any("placement: 2 memories may hold branches (at least 2): yes" in line for line in told)
    told.clear()
    check_pass(
        relay.transform.Specialise(
            profile, cluster, forced={"placement": False, "capacities": False}
        ),
        mod,
    )
    with caplog.at_level(logging.INFO, "heteroplace"):
        relay.transform.Specialise(profile)(mod)
    assert "preloading: weights or room unknown: no" in caplog.text


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("grouping", "plans put branches side by side by their times"),
        ("placement", "there are fewer than two memories"),
        ("preloading", "no cluster says how much room there is"),
        ("speculation", "no router decides about a whole tensor"),
        ("fusion", "there is no rule 'fusion'"),
    ],
)
def test_a_forced_rule_that_cannot_be_carried_out_is_refused(rule: str, why: str) -> None:
    mod = two_layers()
    profile = profile_of(mod, pairs)
    with pytest.raises(RoutingError, match=why):
        relay.transform.Specialise(profile, forced={rule: True})(mod)
    if rule != "fusion":
        relay.transform.Specialise(profile, forced={rule: False})(mod)


def test_specialise_preloads_where_memory_is_limited() -> None:
    mod = two_layers()
    cluster = replace(cpu_cluster(), memories=(Memory("ram", 800),))
    told: list[str] = []
    asked = {"capacities": False}
    profile = profile_of(mod, skewed)
    made = relay.transform.Specialise(profile, cluster, forced=asked, report=told.append)
    found = check_pass(made, mod)
    alone = relay.transform.PreloadWeights(profile, 720)(mod)
    assert options_of(found) == options_of(alone)
    assert all(each.preload.startswith("budget 720; ") for each in options_of(found))
    assert any("preloading: weights 896 B of 800 B (above 90 %): yes" in line for line in told)
