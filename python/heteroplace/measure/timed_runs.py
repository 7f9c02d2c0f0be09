"""Programs to compare, run in turns on a shared machine -> their times and ratios.

A machine that others use changes its speed from second to second, and so does the distance between
two of its cores (the time that a cache line takes from one to the other): where they are far apart,
whatever runs on both is up to twice as slow. So all that is compared runs in one process, in rounds
and distance and what other programs use are measured around every single turn. A result is the
median over the undisturbed turns, as long as there are enough of them; turns are chosen by the
state of the machine, never by what they gave.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heteroplace.costs.measurement import NEAR_CORES_NS
from heteroplace.machine.usage import QUIET_CORES, Usage
from heteroplace.measure.bound_thread import BoundThread
from heteroplace.model.cluster import Cluster
from heteroplace.stats import median

Timer = Callable[[int], Sequence[int]]
"""Runs something so many times and returns the wall time of each run in ns."""

MIN_RUNS = 4
MAX_RUNS = 200
LONG_RUN_NS = 100_000_000
"""A run that takes longer warms itself up: what it finds cold at first is 1 % of it."""
_MIN_SHARE = 1 / 3
"""At least this part of the turns counts."""
_QUIET_NS = 1_000_000
_QUIET_SLICE_S = 0.01


@dataclass(frozen=True)
class Turn:
    """What one turn of one timer gave, and how the machine was meanwhile."""

    median_ns: int
    core_to_core_ns: int | None = None
    """The longer core-to-core latency before and after it; None: unknown."""
    others_cores: float = 0.0
    """How many cores other programs used."""

    @property
    def is_undisturbed(self) -> bool:
        """Whether the cores were near and left alone."""
        is_near = self.core_to_core_ns is None or self.core_to_core_ns < NEAR_CORES_NS
        return is_near and self.others_cores <= QUIET_CORES

    @property
    def disturbance(self) -> tuple[bool, float, int]:
        """Orders turns: the least disturbed first."""
        return not self.is_undisturbed, self.others_cores, self.core_to_core_ns or 0


@dataclass(frozen=True)
class TimedRuns:
    """What the rounds gave: for each name one turn per round."""

    turns: Mapping[str, tuple[Turn, ...]]

    def counted(self, name: str) -> tuple[int, ...]:
        """The rounds that count, ascending: the undisturbed ones, but at least a third of all."""
        turns = self.turns[name]
        ranked = sorted(range(len(turns)), key=lambda index: (turns[index].disturbance, index))
        num_good = sum(turn.is_undisturbed for turn in turns)
        return tuple(sorted(ranked[: max(num_good, math.ceil(len(turns) * _MIN_SHARE))]))

    def counted_turns(self, name: str) -> list[Turn]:
        """Return the turns that count."""
        return [self.turns[name][index] for index in self.counted(name)]

    def median_ns(self, name: str) -> int:
        """Return the median over the turns that count."""
        return int(median([turn.median_ns for turn in self.counted_turns(name)]))

    def rounds_ns(self, name: str) -> tuple[int, ...]:
        """Return the time of every round, counted or not."""
        return tuple(turn.median_ns for turn in self.turns[name])

    def ratio(self, name: str, other: str) -> float:
        """Return the median of time of `name` / time of `other` in the same round.

        Over the rounds that count for both; if there are none, over all.
        """
        left, right = self.rounds_ns(name), self.rounds_ns(other)
        both = sorted(set(self.counted(name)) & set(self.counted(other))) or range(len(left))
        return median([left[index] / right[index] for index in both])

    @property
    def median_others_cores(self) -> float:
        """How many cores others used in the turns that count."""
        return median([turn.others_cores for turn in self._all_counted()])

    @property
    def median_core_to_core_ns(self) -> int | None:
        """The median core-to-core latency in the turns that count; None: unknown."""
        latencies = [
            turn.core_to_core_ns for turn in self._all_counted() if turn.core_to_core_ns is not None
        ]
        return int(median(latencies)) if latencies else None

    def _all_counted(self) -> list[Turn]:
        return [turn for name in self.turns for turn in self.counted_turns(name)]


def time_in_turns(
    timers: Mapping[str, Timer],
    *,
    num_rounds: int = 15,
    turn_ns: int = 40_000_000,
    min_runs: int = MIN_RUNS,
    core_to_core_ns: Callable[[], int | None] | None = None,
    on_round: Callable[[int], None] | None = None,
    before_turn: Callable[[], object] | None = None,
) -> TimedRuns:
    """Time several things in turns.

    Parameters
    ----------
    timers
        What to time, by name. Each round begins with another one.
    num_rounds
        Number of rounds, at least 1.
    turn_ns
        Each turn takes about this long, but at least `min_runs` runs. The first run of each turn
        warms up and is not counted, unless it takes as long as `LONG_RUN_NS`.
    min_runs
        At least 1.
    core_to_core_ns
        Measures the core-to-core latency; None from it: there is only one.
    on_round
        Called with the number of rounds done, after each.
    before_turn
        Called before each turn, e.g. to wait until cores are near.
    """
    if num_rounds < 1:
        raise ValueError(f"num_rounds must be at least 1, got {num_rounds}")
    num_runs, num_warm = {}, {}
    for name, timer in timers.items():
        run_ns = max(1, *timer(3)[1:])
        num_runs[name] = min(MAX_RUNS, max(min_runs, turn_ns // run_ns))
        num_warm[name] = 0 if run_ns >= LONG_RUN_NS else 1
    names = list(timers)
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    for done in range(num_rounds):
        first = done % len(names)
        for name in names[first:] + names[:first]:
            if before_turn is not None:
                before_turn()
            turns[name].append(
                _take_turn(timers[name], num_runs[name], num_warm[name], core_to_core_ns)
            )
        if on_round is not None:
            on_round(done + 1)
    return TimedRuns({name: tuple(values) for name, values in turns.items()})


def time_runs(run: Callable[[], object], num_runs: int, pause_s: float = 0.0) -> list[int]:
    """Run `num_runs` times, with a pause before each; return the wall time of each in ns."""
    times = []
    for _ in range(num_runs):
        if pause_s > 0:
            time.sleep(pause_s)
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return times


def on_cores(timer: Timer, cores: Sequence[int]) -> Timer:
    """Return the timer whose runs are made by a thread bound to these cores, as peers' are.

    A caller does the part of an only worker himself, wherever he is: one that is bound nowhere
    would run a plan of one core on any. Threads that `timer` starts are bound to the cores too.
    No cores: those of this process. The thread ends with the timer.
    """
    thread = BoundThread("caller", cores or sorted(os.sched_getaffinity(0)))
    return lambda num_runs: thread.call(timer, num_runs)


def cluster_cores(cluster: Cluster) -> tuple[int, ...]:
    """Return the cores of all CPU devices, ascending: those of whoever calls a plan on them."""
    return tuple(sorted({core for device in cluster.devices for core in device.cores}))


def _take_turn(
    timer: Timer, num_runs: int, num_warm: int, core_to_core_ns: Callable[[], int | None] | None
) -> Turn:
    wait_until_quiet()
    latencies = [None if core_to_core_ns is None else core_to_core_ns()]
    before = Usage.now()
    times = timer(num_warm + num_runs)[num_warm:]
    others = Usage.now().others_since(before)
    wait_until_quiet()
    latencies.append(None if core_to_core_ns is None else core_to_core_ns())
    measured = [latency for latency in latencies if latency is not None]
    return Turn(int(median(times)), max(measured, default=None), others)


def wait_until_quiet(limit_s: float = 1.0) -> bool:
    """Wait until no thread of this process works any more; return False if that takes too long.

    Workers of thread pools spin for a while after their last task, and would disturb what runs
    next.
    """
    end = time.perf_counter() + limit_s
    while time.perf_counter() < end:
        before = time.process_time_ns()
        time.sleep(_QUIET_SLICE_S)
        is_idle = time.process_time_ns() - before < _QUIET_NS
        if is_idle and not _is_any_runnable():
            return True
    return False


def _is_any_runnable() -> bool:
    """Whether a thread beside this one works, or would if it had a core."""
    own = str(threading.get_native_id())
    for folder in Path("/proc/self/task").iterdir():
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if folder.name != own and state == "R":
            return True
    return False
