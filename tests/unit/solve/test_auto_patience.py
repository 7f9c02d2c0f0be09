"""auto: with measured costs it ends when it has gained nothing for as long as it took to gain."""

from __future__ import annotations

import time

import pytest

from heteroplace.solve import SolveOptions, portfolio
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
