"""auto: with measured costs it ends when it has gained nothing for as long as it took to gain.

It ends soon where its plan is proven to be nearly the shortest."""

from __future__ import annotations

import time

import pytest

from heteroplace.solve import SolveOptions, portfolio
from heteroplace.solve.search.search_solver import begin_solve
from tests.instances import problem_of
from tests.unit.solve.test_determinism import layered


@pytest.mark.parametrize(
    ("gained_s", "ends_stalled", "is_over"),
    [(20, True, True), (30, True, False), (0, True, True), (20, False, False)],
)
def test_it_waits_as_long_as_the_last_gain_took(
    gained_s: float, ends_stalled: bool, is_over: bool
) -> None:
    options = SolveOptions(time_limit_s=100, ends_stalled=ends_stalled)
    auto = portfolio._Auto(problem_of(layered(3)), options)
    auto._begin = time.perf_counter() - 50  # of 100 s, of which it waits 15 at least
    auto._gained_s = gained_s
    assert auto._is_over() is is_over


@pytest.mark.parametrize(
    ("bound", "gained_s", "is_over"), [(0.99, 47.9, True), (0.99, 48.1, False), (0.97, 47.9, False)]
)
def test_it_hardly_waits_close_to_the_bound(bound: float, gained_s: float, is_over: bool) -> None:
    options = SolveOptions(time_limit_s=100, ends_stalled=True, stop_gain_ratio=0.02)
    problem = problem_of(layered(3))
    auto = portfolio._Auto(problem, options)
    initial, _ = begin_solve(problem, options, time.perf_counter())
    for name, plan in initial.native_plans(1.0):
        auto._add(name, plan)
    auto._candidates = [one for one in auto._candidates if one.num_devices > 1]
    assert auto._best_ns is not None
    auto._bound_ns = int(bound * auto._best_ns)
    auto._begin = time.perf_counter() - 50
    auto._gained_s = gained_s
    assert auto._is_over() is is_over
