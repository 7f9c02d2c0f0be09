"""rounds, plan_program: which round counts, how instructions add up to tasks, how many runs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from heteroplace.machine.usage import Usage
from heteroplace.measure import rounds as rounds_module
from heteroplace.measure.plan_program import PlanProgram
from heteroplace.measure.rounds import Rounds, sample_in_turns, sample_until_settled

pytestmark = pytest.mark.relay

TASK_OF = (0, None, 1, 0)
"""Instructions of two tasks; the second one does not count."""

ROUND_NS = 3 * 10**9
"""Of three runs, unless they take longer or shorter to warm up."""


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
    rounds = Rounds(program([runs(9, 1, 9, 9), runs(5, 1, 1, 1), runs(1, 1, 7, 1)]), ROUND_NS)
    sample_in_turns([rounds], 3)
    assert rounds.task_times() == [6, 9, 0]


def test_a_single_round_counts() -> None:
    rounds = Rounds(program([runs(5, 1, 1, 1)]), ROUND_NS)
    rounds.sample()
    assert rounds.task_times() == [10, 3, 0]


def test_of_rounds_of_one_run_the_shortest_count_together() -> None:
    rounds = Rounds(program([[[ns, 1, 10 - ns, ns]] for ns in (9, 3, 2, 4)]), ROUND_NS // 3)
    sample_in_turns([rounds], 4)
    assert (rounds.num_runs, rounds.num_samples) == (1, 3)
    assert rounds.task_times() == [6, 7, 0]
    assert not rounds.is_settled


def test_what_does_not_count_makes_no_round_long() -> None:
    rounds = Rounds(program([runs(1, 900, 1, 1), runs(2, 1, 2, 2), runs(3, 1, 3, 3)]), ROUND_NS)
    sample_in_turns([rounds], 3)
    assert rounds.task_times() == [8, 4, 0]


def test_quartiles_are_those_of_each_instruction() -> None:
    times = [[position * 10 + column for column in range(4)] for position in range(5)]
    rounds = Rounds(program([times]), ROUND_NS)
    rounds.sample()
    np.testing.assert_array_equal(rounds.quartiles(), [times[1], times[2], times[3]])


@pytest.mark.parametrize(("warm_ns", "num_runs"), [(10**9, 1), (10**7, 20), (0, 100)])
def test_runs_fill_the_round_within_limits(warm_ns: int, num_runs: int) -> None:
    assert Rounds(program([], warm_ns), 200_000_000).num_runs == num_runs


def test_rounds_of_several_programs_alternate() -> None:
    order: list[str] = []
    several = [program([]) for _ in range(2)]
    for name, loaded in zip("ab", several, strict=True):
        loaded.executor.profile_runs = lambda _, name=name: (
            order.append(name) or np.zeros((1, len(TASK_OF)))
        )
    sample_in_turns([Rounds(loaded, ROUND_NS) for loaded in several], 2)
    assert "".join(order) == "abab"


def clocks(monkeypatch: pytest.MonkeyPatch, others_cores: list[float]) -> None:
    """Let other programs use so many cores, round by round, of one second each."""
    others_s = np.concatenate([[0.0], np.cumsum(others_cores)])
    moments = iter(Usage(float(now), 0.0, float(used)) for now, used in enumerate(others_s))
    monkeypatch.setattr(rounds_module, "Usage", SimpleNamespace(now=lambda: next(moments)))


@pytest.mark.parametrize(
    ("lengths", "others_cores", "least_cores"),
    [
        ([10, 10], [0.0, 0.0], 0.0),  # quiet, and two that agree
        ([10, 15, 10], [0.0] * 3, 0.0),  # none agree with the shortest at first
        ([20, 20, 10, 10], [0.9, 0.9, 0.1, 0.0], 0.05),  # all were as long, beside another program
        ([10] * 4, [0.9, 0.3, 0.7, 0.3], 0.5),  # others never rest
        ([10, 20, 30, 40], [0.0] * 4, 0.0),  # nor does the device
    ],
)
def test_rounds_go_on_until_others_rest_and_two_agree(
    lengths: list[int],
    others_cores: list[float],
    least_cores: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks(monkeypatch, others_cores)
    counts: list[tuple[int, int]] = []
    rounds = Rounds(program([runs(ns, 1, ns, ns) for ns in lengths]), ROUND_NS)
    cores = sample_until_settled([rounds], 2, 4, lambda *count: counts.append(count))
    assert cores == pytest.approx(least_cores)
    assert len(rounds._found) == len(lengths)
    assert counts == [(done, max(2, done)) for done in range(len(lengths) + 1)]


def test_fastest_runs_count_beside_programs_that_never_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of one kernel more than half of the runs wait for a core, and in other runs than of the next.
    lost = [[10, 1, 90, 90], [90, 1, 20, 20], [12, 1, 90, 22], [90, 1, 24, 90]]
    clocks(monkeypatch, [0.9] * 6)
    rounds = Rounds(program([lost] * 6), ROUND_NS)
    sample_until_settled([rounds], 2, 6)
    assert rounds.task_times() == [30, 20, 0]
    clocks(monkeypatch, [0.9, 0.9, 0.0, 0.0])
    rested = Rounds(program([lost] * 4), ROUND_NS)
    sample_until_settled([rested], 2)
    assert rested.task_times() == [107, 57, 0]


def test_all_programs_must_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks(monkeypatch, [0.0] * 4)
    steady = Rounds(program([runs(10, 1, 10, 10)] * 4), ROUND_NS)
    drifting = Rounds(program([runs(ns, 1, ns, ns) for ns in (30, 20, 10, 10)]), ROUND_NS)
    sample_until_settled([steady, drifting], 2)
    assert len(steady._found) == len(drifting._found) == 4
    assert drifting.task_times() == [24, 12, 0]


@pytest.mark.parametrize("most", [1, 2])
def test_a_budget_allows_the_least_rounds(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks(monkeypatch, [2.0] * 2)
    rounds = Rounds(program([runs(10, 1, 10, 10)] * 2), ROUND_NS)
    assert sample_until_settled([rounds], 2, most) == 2.0


@pytest.mark.parametrize(
    ("others_cores", "patience"), [(2.0, "PATIENCE_S"), (0.0, "QUIET_PATIENCE_S")]
)
def test_what_takes_long_has_the_least_rounds(
    others_cores: float, patience: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks(monkeypatch, [others_cores] * 2)
    monkeypatch.setattr(rounds_module, patience, 0.0)
    rounds = Rounds(program([runs(ns, 1, ns, ns) for ns in (10, 20)]), ROUND_NS)
    assert sample_until_settled([rounds], 2) == others_cores
