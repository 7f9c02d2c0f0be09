"""A program -> times of its kernels, from rounds of runs with a clock around every one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from itertools import count

import numpy as np

from heteroplace.machine.usage import QUIET_CORES, Usage
from heteroplace.measure.plan_program import PlanProgram
from heteroplace.stage_log import Count

ROUND_NS = 200_000_000
"""The usual length of a round."""
MAX_TURNS = 3
"""Of all rounds, where other programs do not rest."""
PATIENCE_S = 10.0
"""After which no other turn begins: what takes so long averages over others by itself."""
SETTLED_RATIO = 1.03
"""Rounds that differ by less saw the device in one state."""

_MAX_RUNS = 100
_QUARTILES = (25, 50, 75)


class Rounds:
    """Rounds of runs of one program. Not thread-safe.

    Parameters
    ----------
    round_ns, min_runs
        Aim for the length of a round, and the least number of its runs; at most 100.
    """

    def __init__(self, program: PlanProgram, round_ns: int, min_runs: int = 5) -> None:
        self.program = program
        self.num_runs = program.count_runs(round_ns, min_runs, _MAX_RUNS)
        """Of each round."""
        self.is_disturbed = False
        """Whether other programs used cores in all rounds."""
        self._found: list[np.ndarray] = []
        self._runs: list[np.ndarray] = []

    def sample(self) -> None:
        """Measure a round of runs."""
        durations = self.program.executor.profile_runs(self.num_runs)
        self._runs.append(durations)
        self._found.append(np.percentile(durations, _QUARTILES, axis=0))

    def last_quartiles(self) -> np.ndarray:
        """Return the quartiles of the last round in ns, [3, num_instructions]."""
        return self._found[-1]

    @property
    def is_settled(self) -> bool:
        """Whether the round that counts is hardly longer than the shortest."""
        shortest, counted = self._ranked()[0], self._counted()
        return self._length(counted) <= SETTLED_RATIO * self._length(shortest)

    def quartiles(self) -> np.ndarray:
        """Return the quartiles of the second shortest round in ns, [3, num_instructions].

        Other programs only ever lengthen a run, so long rounds say more about them than about the
        device; one round is kept whole, as times of different rounds do not add up. Where others
        never rested, they are those of each instruction's fastest runs in all rounds.
        """
        if not self.is_disturbed:
            return self._counted()
        runs = fastest_runs(np.concatenate(self._runs))
        quartiles: np.ndarray = np.percentile(runs, _QUARTILES, axis=0)
        return quartiles

    def task_times(self) -> list[int]:
        """Return the time of each task in that round, in ns: the medians of its kernels."""
        medians = self.quartiles()[1].astype(np.int64)
        times: list[int] = self.program.by_task(medians).tolist()
        return times

    def _counted(self) -> np.ndarray:
        ranked = self._ranked()
        return ranked[min(1, len(ranked) - 1)]

    def _ranked(self) -> list[np.ndarray]:
        return sorted(self._found, key=self._length)

    def _length(self, stamps: np.ndarray) -> float:
        is_of_task = [task is not None for task in self.program.task_of]
        return float(stamps[1][is_of_task].sum())


def fastest_runs(runs: np.ndarray) -> np.ndarray:
    """Return the fastest quarter of the times of each kernel or task, [num_kept, num_of_them].

    What its time is while other programs use the cores: they take a core for milliseconds, and most
    kernels lie between. A kernel of several cores needs all of them at once, so that not even its
    median is undisturbed; beside it, one core would look faster than it is.

    Parameters
    ----------
    runs
        Times, [num_runs, num_of_them].
    """
    num_kept = max(1, -(-len(runs) // 4))
    return np.sort(runs, axis=0)[:num_kept]


def sample_in_turns(
    several: Collection[Rounds], num_rounds: int, on_round: Callable[[], None] | None = None
) -> None:
    """Measure rounds of several programs in turns, so that all see the machine in one state."""
    for _ in range(num_rounds):
        for rounds in several:
            rounds.sample()
            if on_round is not None:
                on_round()


def sample_until_settled(
    several: Collection[Rounds],
    num_rounds: int,
    most_turns: int = MAX_TURNS,
    on_round: Count | None = None,
) -> float:
    """Measure rounds of several programs in turns, and all of them again until others rested.

    Other programs that work for a second or two lengthen every round of a short network, which then
    agree with each other; so others must have rested once, and of each program two rounds must be
    of nearly the same, shortest length.

    Parameters
    ----------
    num_rounds, most_turns
        Rounds of each program in a turn; the turns there are at most, none of which begins after
        PATIENCE_S.
    on_round
        Counts the rounds; the total grows with each turn.

    Returns
    -------
    float
        How many cores others used in the turn in which they used least.
    """
    least_cores, begin = float("inf"), time.perf_counter()
    rounds_of_turn = num_rounds * len(several)
    for turn in range(most_turns):
        if turn and time.perf_counter() - begin > PATIENCE_S:
            break
        before = Usage.now()
        done = count(turn * rounds_of_turn)

        def note_round(turn: int = turn, done: Iterator[int] = done) -> None:
            if on_round is not None:
                on_round(next(done), (turn + 1) * rounds_of_turn)

        note_round()
        sample_in_turns(several, num_rounds, note_round)
        least_cores = min(least_cores, Usage.now().others_since(before))
        if least_cores <= QUIET_CORES and all(rounds.is_settled for rounds in several):
            break
    for rounds in several:
        rounds.is_disturbed = least_cores > QUIET_CORES
    return least_cores
