"""Weights that are loaded ahead: the knapsack, and what stays within a budget."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given

from heteroplace.errors import InfeasibleError
from heteroplace.parts.routing.dynamic import preload
from heteroplace.parts.routing.dynamic.preload import (
    WeightGroup,
    check_budget,
    choose_residents,
    split_weights,
)
from tests.corpus import corpus
from tests.strategies import num_cases


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


def test_beyond_what_is_exact_the_best_sum_so_far_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """By value per byte the first group stays, which leaves no room for the two others."""
    found = [WeightGroup("a", 6, 10), WeightGroup("b", 5, 8), WeightGroup("c", 5, 8)]
    monkeypatch.setattr(preload, "_MAX_STATES", 3)
    assert choose_residents(found, 10) == (1, 2)
    late = [WeightGroup("z", 5, 1), *found]
    monkeypatch.setattr(preload, "_MAX_STATES", 1)
    assert choose_residents(late, 10) == (1,)


def test_the_largest_may_stay_beside_a_room_for_the_next_ones() -> None:
    found = [
        WeightGroup("always", 50, 50),
        *(WeightGroup(f"g{i}", size, size, 0.5) for i, size in enumerate((30, 20, 20))),
    ]
    assert split_weights(found, 100, None) == ({0, 1}, frozenset())
    assert split_weights(found, 120, None) == (frozenset(range(4)), frozenset())


@pytest.mark.parametrize("least", [None, 0.5])
@given(groups())
@num_cases(100)
def test_no_other_choice_beside_a_room_for_the_rest_is_worth_more(
    least: float | None, case: tuple[tuple[WeightGroup, ...], int]
) -> None:
    """Of one room; two rooms are only chosen where they are worth more."""
    found, budget = case
    if any(group.weight_bytes > budget for group in found):
        return
    stays, ahead = split_weights(found, budget, least)
    assert (least is None) <= (not ahead)
    everything = set(range(len(found)))

    def needs(kept: frozenset[int], num_rooms: int) -> int:
        room = max((found[index].weight_bytes for index in everything - kept), default=0)
        return num_rooms * room + sum(found[index].weight_bytes for index in kept)

    def worth(kept: frozenset[int]) -> float:
        return sum(found[index].value_ns for index in kept)

    one_room = max(
        worth(frozenset(each))
        for number in range(len(found) + 1)
        for each in combinations(range(len(found)), number)
        if needs(frozenset(each), 1) <= budget
    )
    is_for_two = needs(stays, 2) <= budget
    assert needs(stays, 1) <= budget
    assert one_room <= worth(stays | ahead if is_for_two else stays) + 1e-9
    assert is_for_two or worth(stays) == pytest.approx(one_room)


def test_many_sizes_take_no_longer_than_a_few() -> None:
    random = Random(0)
    found = [WeightGroup(f"g{i}", 100 + random.randint(0, 900), 10, random.random())
             for i in range(60)]  # fmt: skip
    stays, _ = split_weights(found, 9000, 0.5)
    assert stays


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


def test_what_is_loaded_ahead_takes_no_room_from_what_is_waited_for() -> None:
    often = [WeightGroup(f"often{i}", 10, 10) for i in range(4)]
    rare = WeightGroup("rare", 10, 10, 0.3)
    assert split_weights([*often, rare], 30, 0.5) == ({4}, {0, 1, 2, 3})
    assert split_weights([*often, rare], 40, 0.5) == ({0, 4}, {1, 2, 3})


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
    others = (group.weight_bytes for index, group in enumerate(found) if index not in stays)
    assert used + max(others, default=0) <= budget
