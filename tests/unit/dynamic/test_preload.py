"""Weights that are loaded ahead: the worked timelines, the knapsack, residency within a budget."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given

from heteroplace.dynamic.preload import (
    Residency,
    Turn,
    WeightGroup,
    check_budget,
    choose_residents,
    run_ns,
    split_weights,
)
from heteroplace.errors import InfeasibleError, RoutingError
from tests.corpus import corpus
from tests.strategies import exact_cases, num_cases


def turns(load_ns: int = 3, is_predicted: bool = False) -> list[Turn]:
    """Four groups that compute for 4."""
    groups = [WeightGroup(f"g{i}", 1, load_ns) for i in range(4)]
    return [Turn(group, 4, group if is_predicted else None) for group in groups]


def test_the_worked_timelines() -> None:
    assert run_ns(turns()) == 28
    assert run_ns(turns(is_predicted=True)) == 19
    resident = [replace(turn, is_resident=True) for turn in turns()]
    assert run_ns(resident) == 16


@pytest.mark.parametrize("missed", [1, 2, 3])
def test_one_wrong_load_costs_a_load_on_demand(missed: int) -> None:
    found = turns(is_predicted=True)
    found[missed] = replace(found[missed], predicted=WeightGroup("other", 1, 3))
    assert run_ns(found) == 22


def test_where_loads_are_longer_they_decide() -> None:
    assert run_ns(turns(6)) == 40
    assert run_ns(turns(6, is_predicted=True)) == 28


def test_a_wrong_load_under_way_is_in_the_way() -> None:
    """It takes 9 from the head of the turn before on, which computes for 4: 5 more."""
    found = turns(is_predicted=True)
    found[1] = replace(found[1], predicted=WeightGroup("other", 1, 9))
    assert run_ns(found) == 22 + 5


@corpus
def groups(random: Random) -> tuple[tuple[WeightGroup, ...], int]:
    """Groups and a budget."""
    found = tuple(
        WeightGroup(f"g{i}", random.randint(1, 9), random.randint(0, 9), random.randint(0, 4) / 4)
        for i in range(random.randint(0, 8))
    )
    return found, random.randint(0, 30)


@given(groups())
@num_cases(150)
def test_residents_are_the_best_that_fit(case: tuple[tuple[WeightGroup, ...], int]) -> None:
    found, budget = case
    chosen = choose_residents(found, budget)
    assert sum(found[index].weight_bytes for index in chosen) <= budget
    tried = [
        sum(found[index].value_ns for index in each)
        for number in range(len(found) + 1)
        for each in combinations(range(len(found)), number)
        if sum(found[index].weight_bytes for index in each) <= budget
    ]
    assert sum(found[index].value_ns for index in chosen) == max(tried)


def test_equal_branches_stay_by_how_likely_they_are() -> None:
    found = [WeightGroup(f"e{i}", 10, 5, (i % 7) / 7) for i in range(128)]
    few = choose_residents(found[:64], 100)
    many = choose_residents(found, 100)
    assert {found[index].activation for index in few} <= {5 / 7, 6 / 7}
    assert {found[index].activation for index in many} == {6 / 7}
    assert len(few) == len(many) == 10


@given(groups())
@exact_cases(40)
def test_what_is_held_never_exceeds_the_budget(
    case: tuple[tuple[WeightGroup, ...], int],
) -> None:
    found, budget = case
    if any(group.weight_bytes > budget for group in found):
        with pytest.raises(InfeasibleError, match="a budget of"):
            Residency(found, budget)
        return
    memory, random = Residency(found, budget), Random(budget)
    in_use: list[str] = []
    for _ in range(30 * bool(found)):
        name = random.choice(found).name
        try:
            evicted = memory.load(name)
        except InfeasibleError:
            assert in_use
            memory.unpin(in_use.pop())
            continue
        assert not set(evicted) & set(in_use)
        memory.pin(name)
        in_use.append(name)
        while len(in_use) > 2:
            memory.unpin(in_use.pop(0))
        assert memory.used_bytes <= memory.peak_bytes <= budget
        assert all(map(memory.is_there, in_use))


def test_the_least_likely_group_is_evicted_first() -> None:
    found = [WeightGroup(name, 4, 1, share) for name, share in zip("abc", (0.5, 0.1, 0.9))]  # noqa: B905
    memory = Residency(found, 8)
    assert memory.load("a") == memory.load("b") == memory.load("a") == ()
    assert memory.load("c") == ("b",)
    assert memory.num_loads == 3


def test_a_group_in_use_by_two_stays_until_both_end() -> None:
    found = [WeightGroup("tied", 4, 1, 0.0), WeightGroup("b", 4, 1)]
    memory = Residency(found, 4)
    memory.load("tied")
    memory.pin("tied")
    memory.pin("tied")
    memory.unpin("tied")
    with pytest.raises(InfeasibleError, match="no room to load 'b', 4 B: tied are in use"):
        memory.load("b")
    memory.unpin("tied")
    assert memory.load("b") == ("tied",)


def test_nothing_is_read_before_it_is_loaded() -> None:
    memory = Residency([WeightGroup("a", 4, 1)], 4)
    with pytest.raises(RoutingError, match="used before they are loaded"):
        memory.pin("a")
    with pytest.raises(RoutingError, match="not in use"):
        memory.unpin("a")
    with pytest.raises(RoutingError, match="different names"):
        Residency([WeightGroup("a", 4, 1)] * 2, 4)


def test_a_budget_below_the_largest_group_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="does not hold the weights of 'b', 9 B"):
        check_budget([WeightGroup("a", 4, 1), WeightGroup("b", 9, 1)], 8)
    check_budget([], 0)


def test_room_for_two_is_left_where_loads_ahead_are_worth_more() -> None:
    groups = [WeightGroup(f"g{i}", 10, 10, activation) for i, activation in enumerate((1, 1, 1, 0))]
    assert split_weights(groups, 20, None) == ({0}, frozenset())
    assert split_weights(groups, 20, 0.5) == (frozenset(), {0, 1, 2})
    assert split_weights(groups, 39, 0.5) == ({0}, {1, 2})
    rare = [replace(group, activation=0.3) for group in groups]
    assert split_weights(rare, 20, 0.5) == ({0}, frozenset())
    assert split_weights(groups, 19, 0.5) == (frozenset(), {0, 1, 2})


@given(groups())
@num_cases(60)
def test_what_stays_leaves_room_for_any_other(
    case: tuple[tuple[WeightGroup, ...], int],
) -> None:
    found, budget = case
    if not found or max(group.weight_bytes for group in found) > budget:
        return
    stays, ahead = split_weights(found, budget, 0.5)
    used = sum(found[index].weight_bytes for index in stays)
    assert not stays & ahead
    assert used + max(group.weight_bytes for group in found) <= budget
