"""The favourite-child programme: worked instances, and the whole programme against its modules."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from heteroplace.native.list import MeanGraph
from heteroplace.solve.baselines import m_sct_lp
from heteroplace.solve.baselines.m_sct_lp import favourite_children, solve_favourites
from tests.corpus import corpus
from tests.strategies import exact_cases

SCALE = 1000
"""Times of worked instances are small; the programme takes integers."""


def graph_of(runs: list[int], edges: dict[tuple[int, int], int]) -> MeanGraph:
    pairs = sorted(edges)
    return MeanGraph(
        np.array(runs, dtype=np.int64) * SCALE,
        np.array([src for src, _ in pairs], dtype=np.int64),
        np.array([dst for _, dst in pairs], dtype=np.int64),
        np.array([edges[pair] for pair in pairs], dtype=np.int64) * SCALE,
    )


def length(graph: MeanGraph, is_paid: np.ndarray) -> float:
    """Longest path when that part of each transfer is paid."""
    finish = graph.run_ns.astype(float)
    for edge in np.argsort(graph.dst, kind="stable").tolist():
        src, dst = graph.src[edge], graph.dst[edge]
        start = finish[src] + graph.transfer_ns[edge] * is_paid[edge]
        finish[dst] = max(finish[dst], start + graph.run_ns[dst])
    return float(finish.max()) / SCALE


def least_length(graph: MeanGraph) -> float:
    """T of the whole programme, row by row."""
    tasks, edges = len(graph.run_ns), len(graph.src)
    rows, limits = [], []

    def add(entries: dict[int, float], limit: float) -> None:
        row = np.zeros(tasks + edges + 1)
        for column, value in entries.items():
            row[column] += value
        rows.append(row)
        limits.append(limit)

    run, transfer = graph.run_ns / SCALE, graph.transfer_ns / SCALE
    for edge in range(edges):
        src, dst = int(graph.src[edge]), int(graph.dst[edge])
        add({src: 1, dst: -1, tasks + edge: transfer[edge]}, -run[src])
    for task in range(tasks):
        add({task: 1, tasks + edges: -1}, -run[task])
        for ends in (graph.src, graph.dst):
            here = np.flatnonzero(ends == task)
            if len(here):
                add({tasks + int(edge): -1 for edge in here}, 1.0 - len(here))
    cost = np.zeros(tasks + edges + 1)
    cost[-1] = 1
    bounds = [(0, None)] * tasks + [(0, 1)] * edges + [(0, None)]
    found = linprog(cost, A_ub=np.array(rows), b_ub=np.array(limits), bounds=bounds)
    assert found.status == 0
    return float(found.fun)


@pytest.mark.parametrize(
    ("runs", "expected", "is_paid"),
    [([3, 3, 3], 20 / 3, [1 / 3, 2 / 3]), ([3, 8, 3], 11, [0, 1])],
)
def test_fork_of_two(runs: list[int], expected: float, is_paid: list[float]) -> None:
    graph = graph_of(runs, {(0, 1): 2, (0, 2): 1})
    solution = solve_favourites(graph)
    assert solution.is_least
    assert solution.is_paid == pytest.approx(is_paid)
    assert length(graph, solution.is_paid) == pytest.approx(expected)


def test_threshold_decides_what_is_a_favourite() -> None:
    graph = graph_of([3, 3, 3], {(0, 1): 2, (0, 2): 1})
    assert favourite_children(graph, 0.1).tolist() == [-1, -1, -1]
    assert favourite_children(graph, 0.5).tolist() == [1, -1, -1]


def test_diamond_has_a_favourite_path() -> None:
    graph = graph_of([2, 6, 3, 2], {(0, 1): 2, (0, 2): 1, (1, 3): 2, (2, 3): 1})
    assert length(graph, solve_favourites(graph).is_paid) == pytest.approx(10)
    favourite = favourite_children(graph, 0.1).tolist()
    assert (favourite[0], favourite[1]) == (1, 3)


@corpus
def mean_graphs(random: Random) -> MeanGraph:
    """Random graphs, made longer than they are wide so that there are places to cut."""
    count = random.randint(1, 14)
    edges = {}
    for dst in range(1, count):
        near = range(max(0, dst - 3), dst)
        for src in random.sample(near, random.randint(0, len(near))):
            edges[src, dst] = random.randint(0, 9)
    return graph_of([random.randint(0, 9) for _ in range(count)], edges)


@pytest.mark.costly
@given(mean_graphs())
@exact_cases(50)
def test_favourites_are_one_child_and_one_parent_each(graph: MeanGraph) -> None:
    solution = solve_favourites(graph)
    for ends in (graph.src, graph.dst):
        for task in range(len(graph.run_ns)):
            here = ends == task
            assert solution.is_paid[here].sum() >= here.sum() - 1 - 1e-6
    children = [child for child in favourite_children(graph, 0.5).tolist() if child >= 0]
    assert len(children) == len(set(children))


@given(mean_graphs(), st.integers(1, 4))
@exact_cases(50)
def test_modules_lose_nothing_where_paths_meet(graph: MeanGraph, min_module: int) -> None:
    last = len(graph.run_ns) - 1
    inner = np.arange(1, last)
    is_joined = np.isin(inner, graph.src).all() and np.isin(inner, graph.dst).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(m_sct_lp, "_MIN_MODULE", min_module)
        solution = solve_favourites(graph)
    found, least = length(graph, solution.is_paid), least_length(graph)
    assert found >= least - 1e-6
    if is_joined:
        assert found == pytest.approx(least, abs=1e-6)


@given(mean_graphs(), st.integers(2, 6))
@exact_cases(50)
def test_slices_of_a_large_module_are_feasible(graph: MeanGraph, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(m_sct_lp, "_MAX_MODULE", size)
        patch.setattr(m_sct_lp, "_SLICE", size)
        solution = solve_favourites(graph)
    assert solution.is_least or len(graph.run_ns) > size
    assert length(graph, solution.is_paid) >= least_length(graph) - 1e-6
    for ends in (graph.src, graph.dst):
        paid = np.bincount(ends, weights=solution.is_paid, minlength=len(graph.run_ns))
        assert (paid >= np.bincount(ends, minlength=len(graph.run_ns)) - 1 - 1e-6).all()
