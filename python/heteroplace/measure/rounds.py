"""A program -> times of its kernels, from rounds of runs with a clock around every one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection

import numpy as np

from heteroplace.machine.usage import QUIET_CORES, Usage
from heteroplace.measure.plan_program import PlanProgram
from heteroplace.stage_log import Count

ROUND_NS = 100_000_000
"""The usual length of a round; one run is a round if it takes as long."""
LEAST_ROUNDS, MOST_ROUNDS = 4, 24
"""Of each program. More than the least only as long as others do not rest, or times differ."""
PATIENCE_S, QUIET_PATIENCE_S = 4.0, 2.0
"""After which no other round begins: what takes so long averages over others by itself. The second
is for when others rest, and only the device's own speed varies."""
SETTLED_RATIO = 1.03
"""Rounds that differ by less saw the device in one state."""

_MIN_COUNTED = 3
"""Fewest runs that count, so that the median leaves a disturbed one out."""
_MAX_RUNS = 100
"""Of a round."""
_QUARTILES = (25, 50, 75)


class Rounds:
    """Rounds of runs of one program. Not thread-safe.

    Parameters
    ----------
    round_ns
        Aim for the length of a round, of at least one run and at most 100.
    """

    def __init__(self, program: PlanProgram, round_ns: int) -> None:
        self.program = program
        self.num_runs = program.count_runs(round_ns, 1, _MAX_RUNS)
        """Of each round."""
        self.is_disturbed = False
        """Whether other programs used cores in all rounds."""
        self._found: list[np.ndarray] = []
        self._runs: list[np.ndarray] = []

    @property
    def num_samples(self) -> int:
        """How many runs `quartiles` are of, where other programs rested."""
        return self.num_runs * -(-_MIN_COUNTED // self.num_runs)

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
        shortest, counted = self._found[self._ranked()[0]], self._counted()
        return self._length(counted) <= SETTLED_RATIO * self._length(shortest)

    def quartiles(self) -> np.ndarray:
        """Return the quartiles of the second shortest round in ns, [3, num_instructions].

        Other programs only ever lengthen a run, so long rounds say more about them than about the
        device; one round is kept whole, as times of different rounds do not add up. A round of one
        or two runs says too little, so the runs of the shortest rounds count together. Where others
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
        order = self._ranked()
        if self.num_runs >= _MIN_COUNTED:
            return self._found[order[min(1, len(order) - 1)]]
        together = order[: self.num_samples // self.num_runs]
        runs = np.concatenate([self._runs[index] for index in together])
        quartiles: np.ndarray = np.percentile(runs, _QUARTILES, axis=0)
        return quartiles

    def _ranked(self) -> list[int]:
        """Rounds, the shortest first."""
        return sorted(range(len(self._found)), key=lambda index: self._length(self._found[index]))

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


def sample_in_turns(several: Collection[Rounds], num_rounds: int) -> None:
    """Measure rounds of several programs in turns, so that all see the machine in one state."""
    for _ in range(num_rounds):
        for rounds in several:
            rounds.sample()


def sample_until_settled(
    several: Collection[Rounds],
    least: int = LEAST_ROUNDS,
    most: int = MOST_ROUNDS,
    on_round: Count | None = None,
) -> float:
    """Measure rounds of several programs in turns, until others rested and the times agree.

    Other programs that work for a second or two lengthen every round of a short network, which then
    agree with each other; so others must have rested once, and of each program two rounds must be
    of nearly the same, shortest length.

    Parameters
    ----------
    least, most
        Rounds of each program: so many at least, and at most. No round more than `least` begins
        after PATIENCE_S, or QUIET_PATIENCE_S if others rested.
    on_round
        Counts the rounds that are done; the total is `least`, and grows with those that follow.

    Returns
    -------
    float
        How many cores others used in those `least` successive rounds in which they used least.
    """
    least_cores, begin = float("inf"), time.perf_counter()
    moments = deque([Usage.now()], maxlen=least)
    if on_round is not None:
        on_round(0, least)
    for done in range(max(least, most)):
        patience_s = QUIET_PATIENCE_S if least_cores <= QUIET_CORES else PATIENCE_S
        if done >= least and time.perf_counter() - begin > patience_s:
            break
        sample_in_turns(several, 1)
        if on_round is not None:
            on_round(done + 1, max(least, done + 1))
        now = Usage.now()
        if done + 1 >= least:
            least_cores = min(least_cores, now.others_since(moments[0]))
            if least_cores <= QUIET_CORES and all(rounds.is_settled for rounds in several):
                break
        moments.append(now)
    for rounds in several:
        rounds.is_disturbed = least_cores > QUIET_CORES
    return least_cores
