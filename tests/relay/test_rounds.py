"""rounds, plan_program: which round counts, how instructions add up to tasks, how many runs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from heteroplace.measure.plan_program import PlanProgram
from heteroplace.measure.rounds import Rounds, sample_in_turns

pytestmark = pytest.mark.relay

TASK_OF = (0, None, 1, 0)
"""Instructions of two tasks; the second one does not count."""


def program(rounds: list[list[list[int]]], warm_ns: int = 10**9) -> PlanProgram:
    """A program whose rounds have these times, [num_runs][num_instructions] each."""
    waiting = [np.array(runs) for runs in rounds]
    loaded = PlanProgram.__new__(PlanProgram)
    loaded.task_of = TASK_OF
    loaded._num_tasks = 3
    loaded.executor = SimpleNamespace(
        benchmark=lambda num_runs: np.full(num_runs, warm_ns),
        profile_runs=lambda num_runs: waiting.pop(0),
    )
    return loaded


def runs(*times: int) -> list[list[int]]:
    """Three runs around these times, one of which another program disturbed."""
    return [list(times), [ns + 2 for ns in times], [1000 * ns for ns in times]]


def test_the_second_shortest_round_is_kept_whole() -> None:
    rounds = Rounds(program([runs(9, 1, 9, 9), runs(5, 1, 1, 1), runs(1, 1, 7, 1)]), 1)
    sample_in_turns([rounds], 3)
    assert rounds.task_times() == [6, 9, 0]


def test_a_single_round_counts() -> None:
    rounds = Rounds(program([runs(5, 1, 1, 1)]), 1)
    rounds.sample()
    assert rounds.task_times() == [10, 3, 0]


def test_what_does_not_count_makes_no_round_long() -> None:
    rounds = Rounds(program([runs(1, 900, 1, 1), runs(2, 1, 2, 2), runs(3, 1, 3, 3)]), 1)
    sample_in_turns([rounds], 3)
    assert rounds.task_times() == [8, 4, 0]


def test_quartiles_are_those_of_each_instruction() -> None:
    times = [[position * 10 + column for column in range(4)] for position in range(5)]
    rounds = Rounds(program([times]), 1)
    rounds.sample()
    np.testing.assert_array_equal(rounds.quartiles(), [times[1], times[2], times[3]])


@pytest.mark.parametrize(("warm_ns", "num_runs"), [(10**9, 5), (10**7, 20), (0, 100)])
def test_runs_fill_the_round_within_limits(warm_ns: int, num_runs: int) -> None:
    assert Rounds(program([], warm_ns), 200_000_000).num_runs == num_runs


def test_rounds_of_several_programs_alternate() -> None:
    order: list[str] = []
    several = [program([]) for _ in range(2)]
    for name, loaded in zip("ab", several, strict=True):
        loaded.executor.profile_runs = lambda _, name=name: (
            order.append(name) or np.zeros((1, len(TASK_OF)))
        )
    sample_in_turns([Rounds(loaded, 1) for loaded in several], 2)
    assert "".join(order) == "abab"
