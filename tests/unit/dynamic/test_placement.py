"""Where branches lie: worked instances, exhaustive search, bounds, memory limits, replay."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from heteroplace.errors import InfeasibleError, RoutingError
from heteroplace.model.routed.route_profile import RouteProfile, RouterProfile
from heteroplace.parts.routing.dynamic import placement_search
from heteroplace.parts.routing.dynamic.placement import (
    BranchPlacement,
    place_anyhow,
    place_branches,
    replay,
)
from heteroplace.parts.routing.dynamic.placement_changes import LayerChanges
from heteroplace.parts.routing.dynamic.placement_problem import (
    Layer,
    PlacementProblem,
    balanced_problem,
    crossing_cells,
    fits,
    in_order,
    layer_loads,
    objective,
    problem_of_profile,
    relaxed_bound,
    used_bytes,
)
from heteroplace.parts.routing.dynamic.placement_program import solve_program
from heteroplace.parts.routing.dynamic.placement_search import search_placement
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import SolveOptions
from tests.corpus import corpus
from tests.reference.branch_placements import least_objective
from tests.strategies import exact_cases, num_cases

WORKED = ((1, 0, 0, 9), (0, 1, 9, 0), (9, 0, 1, 0), (0, 9, 0, 1))
HIGHS = SolveOptions(engine="highs", time_limit_s=60)


def worked() -> PlacementProblem:
    """Two layers of four branches, 40 cells, two memories."""
    return PlacementProblem(2, (Layer("a", 4), Layer("b", 4)), (WORKED,))


@corpus
def problems(random: Random, max_members: int = 4, max_layers: int = 3) -> PlacementProblem:
    """Two or three memories; with and without times, unequal ways, limits, fixed and uneven
    layers."""
    num_memories = random.randint(2, 3)
    sizes = [random.randint(1, max_members) for _ in range(random.randint(2, max_layers))]
    has_weights, has_times = random.random() < 0.4, random.random() < 0.4
    layers = []
    for index, size in enumerate(sizes):
        weights = tuple(random.randint(0, 5) for _ in range(size)) if has_weights else ()
        times = tuple(
            tuple(float(random.randint(0, 9)) for _ in range(num_memories)) for _ in range(size)
        )
        is_fixed = random.random() < 0.1
        layers.append(
            Layer(
                f"r{index}",
                size,
                weights,
                times if has_times else (),
                is_even=random.random() < 0.7,
                fixed=tuple(random.randrange(num_memories) for _ in range(size))
                if is_fixed
                else None,
            )
        )
    cells = tuple(
        tuple(tuple(float(random.choice((0, 0, 1, 5, 9))) for _ in range(dst)) for _ in range(src))
        for src, dst in pairwise(sizes)
    )
    ways = tuple(
        tuple(0.0 if a == b else float(random.randint(1, 4)) for b in range(num_memories))
        for a in range(num_memories)
    )
    total = sum(sum(layer.weight_bytes) for layer in layers)
    room = tuple(random.randint(0, total) for _ in range(num_memories)) if has_weights else ()
    return PlacementProblem(
        num_memories, tuple(layers), cells, ways if random.random() < 0.4 else (), room
    )


def test_halves_in_order_send_36_of_40_cells_and_the_best_placement_2() -> None:
    problem = worked()
    assert in_order(problem) == ((0, 0, 1, 1), (0, 0, 1, 1))
    found = place_branches(problem, HIGHS)
    assert (found.default_cells, found.crossing_cells) == (36, 2)
    assert found.is_optimal
    assert least_objective(problem) == 2
    assert crossing_cells(problem, ((0, 1, 0, 1), (0, 1, 1, 0))) == 2


def test_the_program_alone_finds_and_proves_it() -> None:
    end = solve_program(worked(), HIGHS)
    assert end.placement is not None
    assert objective(worked(), end.placement) == 2
    assert 1.99 < end.bound <= 2


@pytest.mark.costly
@given(problems())
@exact_cases(30)
def test_program_is_as_good_as_exhaustive_search(problem: PlacementProblem) -> None:
    expected = least_objective(problem)
    end = solve_program(problem, HIGHS)
    if expected is None:
        assert end.placement is None
        with pytest.raises(InfeasibleError):
            place_branches(problem, HIGHS)
        return
    assert end.placement is not None
    assert fits(problem, end.placement)
    assert objective(problem, end.placement) == pytest.approx(expected, abs=1e-4)
    assert end.bound <= expected + 1e-9
    found = place_branches(problem, HIGHS)
    assert found.objective == pytest.approx(expected, abs=1e-4)
    assert fits(problem, found.memories)


@pytest.mark.slow
@given(problems(max_members=8))
@exact_cases(20)
def test_program_of_eight_branches_is_as_good_as_exhaustive_search(
    problem: PlacementProblem,
) -> None:
    expected = least_objective(
        PlacementProblem(problem.num_memories, problem.layers, problem.cells, problem.cell_ns)
    )
    free = PlacementProblem(problem.num_memories, problem.layers, problem.cells, problem.cell_ns)
    assert place_branches(free, HIGHS).objective == pytest.approx(expected, abs=1e-4)


@pytest.mark.costly
@given(problems(max_members=8))
@exact_cases(20)
def test_search_is_never_worse_than_members_in_order(problem: PlacementProblem) -> None:
    found = search_placement(problem)
    if found is None:
        return
    assert fits(problem, found)
    if fits(problem, in_order(problem)):
        assert objective(problem, found) <= objective(problem, in_order(problem)) + 1e-9
    assert relaxed_bound(problem) <= objective(problem, found) + 1e-9


def test_equal_seeds_give_equal_placements() -> None:
    random = Random(1)
    cells = tuple(tuple(float(random.randint(0, 9)) for _ in range(16)) for _ in range(16))
    problem = PlacementProblem(4, tuple(Layer(f"r{i}", 16) for i in range(3)), (cells, cells))
    assert search_placement(problem, 3) == search_placement(problem, 3)


def one_layer_changed(problem: PlacementProblem, layer: Layer, now: list[int]) -> set[object]:
    """The members of a layer after every move that keeps it even, and every exchange."""
    fewest, most = problem.even_sizes(layer)
    counts = [now.count(memory) for memory in range(problem.num_memories)]
    found: set[object] = set()
    for one, memory in enumerate(now):
        for dst in range(problem.num_memories):
            if dst != memory and counts[memory] > fewest and counts[dst] < most:
                found.add((*now[:one], dst, *now[one + 1 :]))
        for other in range(one):
            changed = list(now)
            changed[one], changed[other] = now[other], memory
            found.add(tuple(changed))
    return found - {tuple(now)}


@given(problems(max_members=6))
@num_cases(60)
def test_changes_of_a_layer_are_summed_as_they_are_evaluated(problem: PlacementProblem) -> None:
    random = Random(0)
    layer = problem.layers[0]
    now = [random.randrange(problem.num_memories) for _ in range(layer.num_members)]
    costs = [[random.random() for _ in range(problem.num_memories)] for _ in now]
    weights = layer.weight_bytes or (0,) * len(now)
    room = problem.memory_bytes or (3,) * problem.num_memories

    def evaluated(members: tuple[int, ...]) -> tuple[float, float, int]:
        used = [-each for each in room]
        for memory, weight in zip(members, weights, strict=True):
            used[memory] += weight
        cost = sum(row[memory] for row, memory in zip(costs, members, strict=True))
        slowest = max(layer_loads(problem, layer, members), default=0.0)
        return cost, slowest, sum(max(0, each) for each in used)

    sizes = problem.even_sizes(layer)
    changes = LayerChanges(np.array(now), problem.num_memories, sizes, with_exchanges=True)
    cost = changes.costs(np.array(costs))
    load_ns = np.array(layer.load_ns or [[0.0] * problem.num_memories for _ in now])
    slowest_now, slowest = changes.slowest(load_ns)
    used = np.bincount(now, weights=weights, minlength=problem.num_memories).astype(np.int64)
    above_now, above = changes.overflow(np.array(weights), used - np.array(room))
    before = evaluated(tuple(now))
    assert (slowest_now, above_now) == before[1:]
    after = [changes.after(index) for index in range(len(cost))]
    assert set(after) == one_layer_changed(problem, layer, now)
    for index, members in enumerate(after):
        found = (before[0] + cost[index], slowest[index], above[index])
        assert found == pytest.approx(evaluated(members))


def test_many_branches_with_weights_are_not_evaluated_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a placement uses is summed once for each look at all exchanges, of which a start takes
    few dozen; with the deadline over there is one start."""
    random, size, num_memories = Random(2), 128, 8
    layers = tuple(
        Layer(f"r{i}", size, tuple(random.randint(1, 9) for _ in range(size))) for i in range(3)
    )
    matrix = tuple(tuple(float(random.choice((0, 0, 0, 1, 5))) for _ in range(size))
                   for _ in range(size))  # fmt: skip
    room = sum(sum(layer.weight_bytes) for layer in layers) // num_memories + 2
    problem = PlacementProblem(num_memories, layers, (matrix,) * 2, (), (room,) * num_memories)
    calls = [0]

    def counted(*arguments: object) -> tuple[int, ...]:
        calls[0] += 1
        return used_bytes(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(placement_search, "used_bytes", counted)
    found = search_placement(problem, deadline=Deadline(0.0))
    assert found is not None
    assert fits(problem, found)
    assert objective(problem, found) < objective(problem, in_order(problem))
    assert calls[0] < 200


def test_bytes_decide_where_cells_do_not() -> None:
    weights = (6, 2, 2, 2)
    layers = (Layer("a", 4, weights, is_even=False), Layer("b", 4, weights, is_even=False))
    problem = PlacementProblem(2, layers, (WORKED,), memory_bytes=(12, 12))
    found = place_branches(problem, HIGHS)
    assert max(used_bytes(problem, found.memories)) <= 12
    assert found.objective == least_objective(problem)


def test_weights_that_fit_nowhere_are_told() -> None:
    layer = Layer("a", 2, (30, 30))
    problem = PlacementProblem(2, (layer,), (), memory_bytes=(40, 10))
    with pytest.raises(InfeasibleError, match="their weights are 60 B, the largest 30 B"):
        place_branches(problem, HIGHS)


def test_memories_with_room_for_all_but_not_for_equal_shares_are_filled_unequally() -> None:
    problem = PlacementProblem(2, (Layer("a", 8, (10,) * 8),), (), memory_bytes=(10, 1000))
    with pytest.raises(InfeasibleError, match="8 branches with equal shares of a router in each"):
        place_branches(problem, HIGHS)
    found = place_anyhow(problem, HIGHS)
    assert max(used_bytes(problem, found.memories)) >= 70
    assert used_bytes(problem, found.memories)[0] <= 10
    assert found.text().endswith("no equal shares fit, so they are unequal")
    assert place_anyhow(worked(), HIGHS) == place_branches(worked(), HIGHS)


def test_what_fits_in_no_way_is_told_without_a_word_on_shares() -> None:
    problem = PlacementProblem(2, (Layer("a", 3, (20,) * 3),), (), memory_bytes=(30, 30))
    with pytest.raises(InfeasibleError, match="no placement of 3 branches fits"):
        place_anyhow(problem, HIGHS)


def test_heavy_branches_are_mixed_with_light_ones() -> None:
    """By loads alone: no decision cell by cell is known."""
    loads = tuple(((load, 30),) for load in (8, 7, 2, 1))
    router = RouterProfile("r", 18, 4, 30, loads, (((0, 1, 2, 3), 30),))
    problem = balanced_problem(RouteProfile("m", (router,)), ["r"], 2)
    found = place_branches(problem, HIGHS)
    assert found.objective == found.bound == 9
    assert found.default_objective == 15


def test_routers_without_transitions_are_refused() -> None:
    loads = (((1, 30),), ((1, 30),))
    routers = tuple(RouterProfile(name, 2, 2, 30, loads, (((0, 1), 30),)) for name in "ab")
    with pytest.raises(RoutingError, match="level 2"):
        problem_of_profile(RouteProfile("m", routers), ["a", "b"], 2)


def test_replayed_cells_are_those_of_the_objective() -> None:
    random = Random(0)
    decisions = tuple(
        tuple((random.randrange(4),) if random.random() < 0.9 else () for _ in range(50))
        for _ in range(3)
    )
    matrices = []
    for src, dst in pairwise(decisions):
        matrix = np.zeros((4, 4))
        for before, after in zip(src, dst, strict=True):
            if before and after:
                matrix[before[0], after[0]] += 1
        matrices.append(tuple(tuple(row) for row in matrix.tolist()))
    layers = tuple(Layer(f"r{i}", 4) for i in range(3))
    problem = PlacementProblem(2, layers, tuple(matrices))
    found = place_branches(problem, HIGHS)
    moved = sum(int(c.sum() - np.trace(c)) for c in replay(decisions, found.memories, 2))
    assert moved == found.crossing_cells == found.objective
    with pytest.raises(RoutingError, match=r"branches \(0, 1\)"):
        replay((((0, 1),),), ((0, 0),), 2)


def test_what_does_not_fit_together_is_told_at_once() -> None:
    with pytest.raises(RoutingError) as fault:
        PlacementProblem(2, (Layer("a", 2, (1,)), Layer("b", 2, fixed=(0, 2))), ())
    for text in ("weight_bytes of 1", "fixed to (0, 2)", "matrices of [(2, 2)], got []"):
        assert text in str(fault.value)


NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cells": (((1, NAN), (0, 1)),)}, "cells between layers 0 and 1: expected 2 numbers >= 0"),
        ({"cells": (((1, -1), (0, 1)),)}, "cells between layers 0 and 1: expected 2 numbers >= 0"),
        ({"cells": (((1, 1), (0,)),)}, "cells between layers 0 and 1: expected 2 numbers >= 0"),
        ({"cell_ns": ((0, -1), (1, 0))}, r"cell_ns: expected \(2, 2\) numbers >= 0"),
        ({"cell_ns": ((0, NAN), (1, 0))}, r"cell_ns: expected \(2, 2\) numbers >= 0"),
        ({"cell_ns": ((0, 1), (1,))}, r"cell_ns: expected \(2, 2\) numbers >= 0"),
        ({"cell_ns": ((1, 1), (1, 0))}, "0 from a memory to itself"),
        ({"memory_bytes": (-1, 5)}, r"memory_bytes: expected numbers >= 0, got \(-1, 5\)"),
        ({"layers": (Layer("a", 2, (1, -1)), Layer("b", 2))}, "weight_bytes of layer 'a'"),
        ({"layers": (Layer("a", 2, (), ((1, 2), (NAN, 1))), Layer("b", 2))}, "load_ns of layer"),
        ({"layers": (Layer("a", 2, (), ((1, 2), (1,))), Layer("b", 2))}, "load_ns of layer 'a'"),
        ({"layers": (Layer("a", 0), Layer("b", 2)), "cells": ((),)}, "has 0 members"),
    ],
)
def test_numbers_that_are_none_or_below_0_are_refused(changes: dict[str, Any], text: str) -> None:
    good = PlacementProblem(2, (Layer("a", 2), Layer("b", 2)), (((1, 0), (0, 1)),))
    with pytest.raises(RoutingError, match=text):
        replace(good, **changes)


def test_a_placement_says_what_it_saves() -> None:
    found = BranchPlacement(((0,),), 2.0, 2.0, 2.0, 36.0, 36.0, True, "search")
    assert found.text() == (
        "2 cells per run change their memory, in order 36 (-94 %); objective 2, optimal, by search"
    )
