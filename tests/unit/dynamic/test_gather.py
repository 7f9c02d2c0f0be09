"""Groups of cells that must meet: the worked sentences, and homes as layers of a placement."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.dynamic.gather import gather_cost, with_homes, without_homes
from heteroplace.parts.routing.dynamic.placement import place_branches
from heteroplace.parts.routing.dynamic.placement_problem import Layer, PlacementProblem, objective
from heteroplace.parts.routing.dynamic.placement_search import search_placement
from tests.corpus import corpus
from tests.reference.branch_placements import least_objective
from tests.strategies import exact_cases

ROUTES = ((0, 0, 0, 0, 1, 1, 1, 1), (3, 3, 3, 3, 2, 2, 2, 2))
"""Two sentences of four tokens, two layers."""
GROUPS = (0, 0, 0, 0, 1, 1, 1, 1)
HALVES = ((0, 0, 1, 1), (0, 0, 1, 1))
ALIGNED = ((0, 1, 0, 1), (0, 1, 1, 0))
CELLS = (((4, 0, 0, 0), (0, 4, 0, 0)), ((0, 0, 0, 4), (0, 0, 4, 0)))
"""Of each sentence to each branch."""


def test_halves_send_16_cells_to_fixed_homes_and_8_to_movable_ones() -> None:
    assert gather_cost(ROUTES, GROUPS, HALVES, 2, is_movable=False) == 16
    assert gather_cost(ROUTES, GROUPS, HALVES, 2, is_movable=True) == 8


def test_the_aligned_placement_sends_none() -> None:
    assert gather_cost(ROUTES, GROUPS, ALIGNED, 2, is_movable=False) == 0
    assert gather_cost(ROUTES, GROUPS, ALIGNED, 2, is_movable=True) == 0


def test_the_first_scatter_counts() -> None:
    assert gather_cost(ROUTES, GROUPS, ALIGNED, 2, is_movable=True, first_homes=(1, 1)) == 4


@pytest.mark.parametrize(("is_movable", "cells"), [(False, 16), (True, 8)])
def test_homes_as_layers_cost_the_same(is_movable: bool, cells: int) -> None:
    layers = (Layer("a", 4, fixed=HALVES[0]), Layer("b", 4, fixed=HALVES[1]))
    zeros = ((0.0,) * 4,) * 4
    problem = PlacementProblem(2, layers, (zeros,))
    found = place_branches(with_homes(problem, CELLS, (0, 0), is_movable=is_movable))
    assert found.objective == cells
    assert without_homes(found.memories) == HALVES


def test_branches_are_placed_for_the_homes() -> None:
    problem = PlacementProblem(2, (Layer("a", 4), Layer("b", 4)), (((0.0,) * 4,) * 4,))
    found = place_branches(with_homes(problem, CELLS, (0, 1), is_movable=False))
    assert found.objective == 0
    memories = without_homes(found.memories)
    assert gather_cost(ROUTES, GROUPS, memories, 2, is_movable=False, first_homes=(0, 1)) == 0


@corpus
def groups_of_cells(random: Random) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Routes of one or two layers of three branches, and groups of the cells."""
    num_cells = random.randint(1, 6)
    routes = tuple(
        tuple(random.randint(-1, 2) for _ in range(num_cells)) for _ in range(random.randint(1, 2))
    )
    return routes, (0, *(random.randint(0, 1) for _ in range(num_cells - 1)))


@pytest.mark.costly
@given(groups_of_cells())
@exact_cases(20)
def test_least_cost_of_homes_is_that_of_trying_them_all(
    case: tuple[tuple[tuple[int, ...], ...], tuple[int, ...]],
) -> None:
    routes, groups = case
    memories = ((0, 1, 1), (1, 0, 1))[: len(routes)]
    num_groups = max(groups) + 1
    first = (0,) * num_groups
    counts = [
        [
            [
                sum(g == group and b == branch for g, b in zip(groups, row, strict=True))
                for branch in range(3)
            ]
            for group in range(num_groups)
        ]
        for row in routes
    ]
    layers = tuple(Layer("r", 3, fixed=placed) for placed in memories)
    cells = (((0.0,) * 3,) * 3,) * (len(layers) - 1)
    for is_movable in (False, True):
        problem = with_homes(
            PlacementProblem(2, layers, cells), counts, first, is_movable=is_movable
        )
        found = gather_cost(routes, groups, memories, 2, is_movable=is_movable, first_homes=first)
        assert found == least_objective(problem)
        placed = search_placement(problem)
        assert placed is not None
        assert objective(problem, placed) == found


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RoutingError, match="routes of 2 layers with 7 cells"):
        gather_cost(ROUTES, GROUPS[1:], HALVES, 2, is_movable=True)
    with pytest.raises(RoutingError, match="homes of 2 groups, got 1"):
        gather_cost(ROUTES, GROUPS, HALVES, 2, is_movable=True, first_homes=(0,))
    with pytest.raises(RoutingError, match="in 1 layers, got 2"):
        with_homes(PlacementProblem(2, (Layer("a", 4),), ()), CELLS, (0, 0), is_movable=True)
