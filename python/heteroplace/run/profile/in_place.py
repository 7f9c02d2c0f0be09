"""Time of every kernel call in a run of the whole network on one device.

Kernel times add up only when each kernel runs where it will run, with the caches that its
neighbours leave behind: measured alone with warm caches they are up to 11 % too short, with cold
ones up to 72 % too long.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heteroplace.codegen.kernels import Rows
from heteroplace.model.graph import TaskGraph
from heteroplace.native.execute import Executor
from heteroplace.run.plan_program import PlanProgram
from heteroplace.run.profile.options import ProfileOptions

_MIN_RUNS = 9
_MAX_RUNS = 100
_CPU_RUNS = 5
_QUARTILES = (25, 50, 75)


@dataclass(frozen=True)
class SiteTimes:
    """Times of one kernel call of a network, in ns; see `Measurement`."""

    wall_ns: int
    spread_ns: int
    cpu_ns: int
    num_samples: int


class InPlace:
    """A network that is run again and again, with a clock around every kernel.

    Parameters
    ----------
    program
        The network on one device, one task after the other.
    site_of
        As `sites` returns it.
    round_ns
        Aim for the length of a round.
    """

    def __init__(self, program: PlanProgram, site_of: Sequence[int | None], round_ns: int) -> None:
        self._executor = program.executor
        self._site_of = site_of
        # Work elsewhere than on cores takes no processor time that could be told apart.
        self._has_cpu_times = all(kind == "cpu" for kind in program.queue_kinds)
        self._is_call = [at.kernel is not None for at in program.executor.instructions]
        self._rounds: list[np.ndarray] = []  # [num_quartiles, num_instructions] each
        warm_ns = max(1, int(min(self._executor.benchmark(3))))
        self._num_runs = min(_MAX_RUNS, max(_MIN_RUNS, round_ns // warm_ns))

    def sample(self) -> None:
        """Measure a round of runs."""
        durations = self._executor.profile_runs(self._num_runs)
        self._rounds.append(np.percentile(durations, _QUARTILES, axis=0))

    def hop_ns(self) -> int | None:
        """See `Executor.hop_ns`."""
        return self._executor.hop_ns()

    def times(self) -> dict[int, SiteTimes]:
        """Return the times of the second shortest round, by row.

        Other programs only ever lengthen a run, so long rounds say more about them than about the
        device; one round is kept whole, as times of different rounds do not add up. Processor
        times come from some more runs: reading that clock takes longer than a short kernel.
        """
        ranked = sorted(self._rounds, key=lambda found: float(found[1][self._is_call].sum()))
        low, median, high = ranked[min(1, len(ranked) - 1)]
        cpu_ns: dict[int, int] = defaultdict(int)
        if self._has_cpu_times:
            times = self._executor.profile_cpu(min(_CPU_RUNS, self._num_runs))
            for site, time_ns in zip(self._site_of, times, strict=True):
                if site is not None:
                    cpu_ns[site] += int(time_ns)
        return {
            site: SiteTimes(
                round(median[index]),
                round((high[index] - low[index]) / 2),
                cpu_ns[site],
                self._num_runs,
            )
            for index, site in enumerate(self._site_of)
            if site is not None and self._is_call[index]
        }


def sites(executor: Executor, rows: Rows, graph: TaskGraph) -> list[int | None]:
    """Return for each instruction the row that it carries out, or helps with; None: a copy.

    Steps of the plan are tasks. A task's calls of one kernel keep the order of its rows, and the
    calls that a worker joins come in the order in which they are led.
    """
    instructions = executor.instructions
    task_id = {task.name: index for index, task in enumerate(graph.tasks)}
    waiting: dict[tuple[int, str], deque[int]] = defaultdict(deque)
    for index, row in enumerate(rows.rows):
        waiting[task_id[row.task], row.kernel].append(index)
    found: list[int | None] = [None] * len(instructions)
    led: dict[int, list[int]] = defaultdict(list)
    for index, at in enumerate(instructions):
        if at.kernel is not None:
            row_id = waiting[at.step, at.kernel].popleft()
            found[index] = row_id
            led[at.step].append(row_id)
    joined: dict[tuple[int, int], int] = defaultdict(int)
    for index, at in enumerate(instructions):
        if at.kernel is None and at.step in led:
            position = joined[at.queue, at.step]
            joined[at.queue, at.step] += 1
            if position < len(led[at.step]):
                found[index] = led[at.step][position]
    return found


def measure_rounds(probes: list[InPlace], options: ProfileOptions) -> None:
    """Measure all rounds, the probes in turns, so that all see the same state of the machine."""
    for _ in range(options.num_rounds):
        for probe in probes:
            probe.sample()
