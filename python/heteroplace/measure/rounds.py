"""A program -> times of its kernels, from rounds of runs with a clock around every one."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from heteroplace.measure.plan_program import PlanProgram

ROUND_NS = 200_000_000
"""The usual length of a round."""

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
        self._found: list[np.ndarray] = []

    def sample(self) -> None:
        """Measure a round of runs."""
        durations = self.program.executor.profile_runs(self.num_runs)
        self._found.append(np.percentile(durations, _QUARTILES, axis=0))

    def last_quartiles(self) -> np.ndarray:
        """Return the quartiles of the last round in ns, [3, num_instructions]."""
        return self._found[-1]

    def quartiles(self) -> np.ndarray:
        """Return the quartiles of the second shortest round in ns, [3, num_instructions].

        Other programs only ever lengthen a run, so long rounds say more about them than about the
        device; one round is kept whole, as times of different rounds do not add up.
        """
        is_counted = [task is not None for task in self.program.task_of]
        ranked = sorted(self._found, key=lambda found: float(found[1][is_counted].sum()))
        return ranked[min(1, len(ranked) - 1)]

    def task_times(self) -> list[int]:
        """Return the time of each task in that round, in ns: the medians of its kernels."""
        medians = self.quartiles()[1].astype(np.int64)
        times: list[int] = self.program.by_task(medians).tolist()
        return times


def sample_in_turns(several: Collection[Rounds], num_rounds: int) -> None:
    """Measure rounds of several programs in turns, so that all see the machine in one state."""
    for _ in range(num_rounds):
        for rounds in several:
            rounds.sample()
