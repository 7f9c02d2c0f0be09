"""Decisions that are made up: what was stated is there, and placement gains by it."""

from __future__ import annotations

import numpy as np
import pytest

from heteroplace.errors import RoutingError
from heteroplace.model.routed.route_profile import RouteProfile, RouteRecord, RouterShape
from heteroplace.parts.routing.dynamic.placement import replay
from heteroplace.parts.routing.dynamic.placement_problem import (
    crossing_cells,
    in_order,
    problem_of_profile,
    relaxed_bound,
)
from heteroplace.parts.routing.dynamic.placement_search import search_placement
from heteroplace.parts.routing.dynamic.recorded_routes import ProfileBuilder
from heteroplace.parts.routing.dynamic.traces import TraceOptions, synthesise

TASK_MOE = tuple(RouterShape(f"layer.{i}", 64, 16) for i in range(3))
CELL_BYTES = 512 * 4


def recorded(options: TraceOptions) -> tuple[list[RouteRecord], RouteProfile]:
    records = list(synthesise(TASK_MOE, options))
    builder = ProfileBuilder("m", TASK_MOE)
    for record in records:
        builder.add(record)
    return records, builder.profile()


def test_equal_options_give_equal_decisions() -> None:
    options = TraceOptions(3, coactivation=0.5, top_k=2, seed=7)
    assert list(synthesise(TASK_MOE, options)) == list(synthesise(TASK_MOE, options))


def test_loads_are_those_of_the_cells() -> None:
    for record in synthesise(TASK_MOE, TraceOptions(2, top_k=3)):
        assert record.cells is not None
        assert sum(record.loads) == 3 * len(record.cells)
        assert all(len(set(taken)) == 3 for taken in record.cells)


def test_all_branches_are_taken_where_there_are_fewer() -> None:
    (record,) = synthesise([RouterShape("r", 2, 2)], TraceOptions(1, top_k=5))
    assert record.cells == ((0, 1), (0, 1))


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1.5])
def test_loads_follow_the_stated_skew(skew: float) -> None:
    _, profile = recorded(TraceOptions(200, skew=skew, seed=1))
    router = profile.router("layer.0")
    loads = sorted((router.mean_load(branch) for branch in range(16)), reverse=True)
    shares = 1 / np.arange(1, 17) ** skew
    assert np.allclose(np.array(loads) / 64, shares / shares.sum(), atol=0.012)


def test_cells_follow_their_partners() -> None:
    _, profile = recorded(TraceOptions(50, skew=0, coactivation=0.8))
    transition = profile.transition("layer.0", "layer.1")
    assert transition is not None
    cells = np.zeros((16, 16))
    for pair, count in transition.cells_per_run().items():
        cells[pair] = count
    top = np.sort(cells, axis=1)[:, -2:].sum() / cells.sum()
    assert abs(top - (0.8 + 0.2 * 2 / 16)) < 0.02


@pytest.mark.parametrize("num_memories", [2, 4, 8])
@pytest.mark.parametrize("skew", [0.5, 1.0])
def test_placement_saves_what_the_paper_reports(num_memories: int, skew: float) -> None:
    """42 to 87 per cent of the traffic of halves in order, or as much as can be."""
    records, profile = recorded(TraceOptions(30, skew=skew, coactivation=0.8, seed=3))
    names = [shape.name for shape in TASK_MOE]
    problem = problem_of_profile(profile, names, num_memories)
    found = search_placement(problem)
    assert found is not None
    saved = 1 - crossing_cells(problem, found) / crossing_cells(problem, in_order(problem))
    possible = 1 - relaxed_bound(problem) / crossing_cells(problem, in_order(problem))
    assert 0.42 <= saved <= possible
    moved = 0
    for run in range(30):
        cells = [r.cells for r in records[3 * run : 3 * run + 3] if r.cells is not None]
        moved += sum(int(c.sum() - np.trace(c)) for c in replay(cells, found, num_memories))
    predicted = crossing_cells(problem, found) * 30 * CELL_BYTES
    assert round(predicted, 3) == moved * CELL_BYTES


def test_routers_that_no_memory_holds_are_refused() -> None:
    with pytest.raises(RoutingError, match="about 1099511627776 cells and 2 branches"):
        next(synthesise([RouterShape("r", 2**40, 2)], TraceOptions(1)))


def test_numbers_out_of_range_are_told_at_once() -> None:
    with pytest.raises(RoutingError) as fault:
        TraceOptions(0, skew=-1, coactivation=1.5, top_k=0, seed=-1)
    for text in ("runs must be >= 1", "skew must", "coactivation must", "top_k must", "seed must"):
        assert text in str(fault.value)
