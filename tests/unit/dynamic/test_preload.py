"""Weights that are loaded ahead: the knapsack, and what stays within a budget."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given

from heteroplace.dynamic.preload import (
    WeightGroup,
    check_budget,
    choose_residents,
    split_weights,
)
from heteroplace.errors import InfeasibleError
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
