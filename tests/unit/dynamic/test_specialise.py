"""The rules that say which optimisations pay."""

from __future__ import annotations

import pytest

from heteroplace.errors import RoutingError
from heteroplace.model.routed.route_profile import RouterProfile
from heteroplace.parts.routing.dynamic.specialise import RULES, RouterUse, mean_active, specialise
from heteroplace.parts.routing.dynamic.speculated_routes import SpeculationTimes

PAIRS = RouterProfile("r", 8, 4, 100, ((),) * 4, (((0, 1), 90), ((2, 3), 10)))
TIMES = SpeculationTimes(10_000, 20_000, 50_000)


def chosen(**known: object) -> set[str]:
    use = RouterUse(PAIRS, **known)  # type: ignore[arg-type]
    return {choice.rule for choice in specialise([use]) if choice.is_chosen}


def test_what_is_not_known_fires_no_rule() -> None:
    assert chosen() == {"capacities"}


@pytest.mark.parametrize(
    ("known", "rule", "fires"),
    [
        ({"busy_share": 0.4}, "grouping", True),
        ({"busy_share": 0.5}, "grouping", False),
        ({"num_memories": 2}, "placement", True),
        ({"weight_bytes": 91, "room_bytes": 100}, "preloading", True),
        ({"weight_bytes": 90, "room_bytes": 100}, "preloading", False),
    ],
)
def test_each_rule_fires_by_its_numbers(known: dict[str, object], rule: str, fires: bool) -> None:
    assert (rule in chosen(**known)) == fires


@pytest.mark.parametrize(
    ("hits", "times", "rule"),
    [
        (90, TIMES, "0.900 x 10.0 us > 0.100 x 50.0 us: yes"),
        (90, SpeculationTimes(10_000, 20_000, 100_000), "0.900 x 10.0 us <= 0.100 x 100 us: no"),
        (51, None, "right in 0.510 of the runs (above 0.5), asked again by what they take: yes"),
        (50, None, "right in 0.500 of the runs (above 0.5), asked again by what they take: no"),
    ],
)
def test_speculation_is_for_whole_tensors(
    hits: int, times: SpeculationTimes | None, rule: str
) -> None:
    sets = (((0,), hits), ((1,), 100 - hits))
    whole = RouterUse(RouterProfile("r", 1, 2, 100, ((),) * 2, sets), times=times)
    assert specialise([whole])[3].text() == f"r: speculation: branches 0, {rule}"


def test_one_active_branch_is_not_grouped() -> None:
    single = RouterProfile("r", 8, 2, 100, ((),) * 2, (((0,), 100),))
    assert mean_active(single) == 1
    assert not specialise([RouterUse(single, busy_share=0.1)])[1].is_chosen


def test_few_runs_fire_only_what_needs_none() -> None:
    few = RouterProfile("r", 8, 2, 29, ((),) * 2, (((0,), 29),))
    use = RouterUse(few, 2, 0.1, TIMES, weight_bytes=100, room_bytes=10)
    assert [choice.rule for choice in specialise([use]) if choice.is_chosen] == ["preloading"]


def test_a_rule_that_is_forced_is_not_asked() -> None:
    choices = {c.rule: c for c in specialise([RouterUse(PAIRS)], {"placement": True})}
    assert choices["placement"].is_chosen
    assert choices["placement"].text().endswith("yes (as asked)")
    with pytest.raises(RoutingError, match="there is no rule 'fusion'; there are: capacities, "):
        specialise([], {"fusion": True})


def test_rules_say_what_they_looked_at() -> None:
    use = RouterUse(PAIRS, 2, 0.25, TIMES, weight_bytes=4096, room_bytes=2048)
    assert [choice.text() for choice in specialise([use])] == [
        "r: capacities: 100 runs, at least 30: yes",
        "r: grouping: 2.0 branches active (at least 2), one keeps 25 % of the device busy (below "
        "50 %): yes",
        "r: placement: 2 memories may hold branches (at least 2): yes",
        "r: speculation: 8 cells, whose rows are known when it has decided: no",
        "r: preloading: weights 4.0 KiB of 2.0 KiB (above 90 %): yes",
    ]
    assert len(specialise([use, use])) == 2 * len(RULES)
