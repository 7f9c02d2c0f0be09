"""Sizes of branches: the published and worked instances, and what holds of all loads."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given

from heteroplace.errors import RoutingError
from heteroplace.model.routed.capacities import offsets_of, padded_load
from heteroplace.model.routed.route_profile import Histogram, RouterProfile
from heteroplace.parts.routing.dynamic.sizes import (
    MIN_RUNS,
    choose_capacities,
    executed_rows,
    optimal_sizes,
    percentile_sizes,
    useful_rows,
)
from tests.corpus import corpus
from tests.strategies import num_cases

SPREAD = ((1, 50), (2, 10), (17, 30), (18, 5), (40, 4), (64, 1))
FEW = ((3, 1), (4, 3), (5, 1), (6, 2), (7, 1), (9, 1), (12, 1), (30, 1))


@corpus
def histograms(random: Random) -> Histogram:
    """Loads of a branch, mostly small ones, also of an idle branch."""
    loads = sorted(random.sample(range(40), random.randint(0, 9)))
    return tuple((load, random.randint(1, 20)) for load in loads)


def router_of(*loads: Histogram, num_runs: int = 100) -> RouterProfile:
    return RouterProfile("r", 64, len(loads), num_runs, loads, ())


def test_percentiles_of_the_worked_loads_execute_1370_rows() -> None:
    assert percentile_sizes(SPREAD) == (1, 17, 64)
    assert executed_rows(SPREAD, (1, 17, 64)) == 1370
    assert useful_rows(SPREAD) == 894


def test_optimal_sizes_of_the_worked_loads_execute_1070_rows() -> None:
    assert optimal_sizes(SPREAD, 3) == (2, 18, 64)
    assert executed_rows(SPREAD, (2, 18, 64)) == 1070


def test_percentiles_are_observed_loads() -> None:
    assert percentile_sizes(FEW) == (6, 12, 30)
    assert executed_rows(FEW, (6, 12, 30)) == 108
    assert executed_rows(FEW, (30,)) == 330
    assert useful_rows(FEW) == 90


def test_cells_of_three_active_branches_of_four_are_padded_by_4_and_2() -> None:
    """The 112 cells of the paper's figure: both loads that fit, and so the third."""
    assert padded_load(28, (32, 64)) - 28 == 4
    assert padded_load(62, (32, 64)) - 62 == 2
    assert 112 - 28 - 62 == 22
    assert offsets_of((28, 62, 22, 0), [(32, 64)] * 4) == (0, 32, 96, 128)


def test_idle_runs_do_not_count() -> None:
    assert percentile_sizes(((0, 1000), *FEW)) == percentile_sizes(FEW)
    assert optimal_sizes(((0, 1000), *FEW), 3) == optimal_sizes(FEW, 3)
    assert percentile_sizes(((0, 7),)) == optimal_sizes(((0, 7),), 3) == ()


@given(histograms())
@num_cases(200)
def test_optimal_sizes_never_execute_more_rows_than_percentiles(loads: Histogram) -> None:
    by_rank = percentile_sizes(loads)
    best = optimal_sizes(loads, max(1, len(by_rank)))
    assert len(best) <= max(1, len(by_rank))
    if by_rank:
        assert executed_rows(loads, best) <= executed_rows(loads, by_rank)


@given(histograms())
@num_cases(100)
def test_optimal_sizes_are_the_best_of_all_choices(loads: Histogram) -> None:
    """By trying all of them, for a cost that is not that of rows."""
    active = [load for load, _ in loads if load]
    if not active:
        return

    def cost(rows: int) -> float:
        return 5 + rows + (7 if rows % 3 == 0 else 0)

    def total(sizes: tuple[int, ...]) -> float:
        return sum(count * cost(padded_load(load, sizes)) for load, count in loads if load)

    tried = [
        total((*lower, active[-1]))
        for number in range(3)
        for lower in combinations(active[:-1], number)
    ]
    assert total(optimal_sizes(loads, 3, cost)) == min(tried)


def test_a_size_that_must_be_there_is_there() -> None:
    assert optimal_sizes(FEW, 2, largest=64) == (12, 64)
    assert optimal_sizes(((0, 3),), 2, largest=64) == (64,)
    with pytest.raises(RoutingError, match="expected at least 30, got 20"):
        optimal_sizes(FEW, 2, largest=20)


def test_equal_branches_share_the_sizes_of_their_pooled_loads() -> None:
    router = router_of(((1, 90), (8, 10)), ((0, 50), (8, 50)), ((40, 100),))
    assert choose_capacities(router, 1) == ((40,),) * 3
    assert choose_capacities(router, 2, kinds=(0, 0, 1)) == ((1, 8), (1, 8), (40,))


def test_each_kind_of_branches_has_its_own_cost() -> None:
    loads = ((1, 10), (2, 50), (3, 1))
    router = router_of(loads, loads)
    found = choose_capacities(router, 2, kinds=(0, 1), costs={1: lambda rows: 9.0 - rows})
    assert found == ((2, 3), (3,))


def test_loads_above_a_limit_count_as_the_limit() -> None:
    router = router_of(((2, 50), (30, 50)))
    assert choose_capacities(router, 2, largest=(8,)) == ((2, 8),)
    assert choose_capacities(router, 3, mode="percentile", largest=(8,)) == ((2, 8),)


def test_a_branch_that_was_never_active_has_one_row() -> None:
    assert choose_capacities(router_of(((0, 100),), ((5, 100),)), 2, kinds=(0, 1)) == ((1,), (5,))


def test_few_runs_say_nothing() -> None:
    assert choose_capacities(router_of(((5, 3),), num_runs=MIN_RUNS - 1), 3) is None


def test_wrong_requests_are_refused() -> None:
    router = router_of(((5, 100),))
    with pytest.raises(RoutingError, match="mode is 'best', expected one of optimal, percentile"):
        choose_capacities(router, 3, mode="best")
    with pytest.raises(RoutingError, match="num_sizes must be at least 1"):
        choose_capacities(router, 0)
    with pytest.raises(RoutingError, match="has 1 branches, got 2 kinds"):
        choose_capacities(router, 3, kinds=(0, 0))
    with pytest.raises(RoutingError, match=r"in 0\.\.100, got 101"):
        percentile_sizes(FEW, (101,))
