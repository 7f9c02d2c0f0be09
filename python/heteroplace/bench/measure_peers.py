"""Compare run times on a shared machine: everything takes turns, many times.

A machine that others use changes its speed from second to second, and the distance between two of
its cores (the time that a cache line takes from one to the other) from minute to minute. So all
that is compared runs in one process, in rounds; a result is the median over the rounds of the
medians in a round, and the distance is measured before and after each round. Rounds during which
other programs used the cores are left out, as long as enough rounds remain: they are chosen by
what the others did, not by the results.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil

Timer = Callable[[int], Sequence[int]]
"""Runs something so many times and returns the wall time of each run in ns."""

MIN_RUNS = 4
MAX_RUNS = 200
QUIET_CORES = 0.1
"""Others that use fewer cores than this do not disturb."""
_LEAST_SHARE = 1 / 3
"""At least this part of the rounds counts."""
_BUSY_FIELDS = ("user", "nice", "system", "irq", "softirq", "steal")
_QUIET_NS = 1_000_000
_QUIET_SLICE_S = 0.01


@dataclass(frozen=True)
class Comparison:
    """What rounds of several things gave."""

    rounds_ns: Mapping[str, tuple[int, ...]]
    """For each name the median of each round."""
    hops_ns: tuple[int, ...]
    """One hop of a cache line between two cores, before and after each round; empty: unknown."""

    others_cores: tuple[float, ...] = ()
    """For each round how many cores other programs used; empty: unknown, every round counts."""

    @property
    def counted(self) -> tuple[int, ...]:
        """The rounds that count, ascending: the quiet ones, but at least a third of all."""
        num_rounds = len(next(iter(self.rounds_ns.values()), ()))
        if not self.others_cores:
            return tuple(range(num_rounds))
        ranked = sorted(range(num_rounds), key=lambda index: (self.others_cores[index], index))
        quiet = [index for index in ranked if self.others_cores[index] <= QUIET_CORES]
        return tuple(sorted(ranked[: max(len(quiet), math.ceil(num_rounds * _LEAST_SHARE))]))

    def median_ns(self, name: str) -> int:
        """Return the median over the rounds that count."""
        return int(statistics.median(self.rounds_ns[name][index] for index in self.counted))

    def best_ns(self, name: str) -> int:
        """Return the fastest round of all."""
        return min(self.rounds_ns[name])

    def ratio(self, name: str, other: str) -> float:
        """Return the median, over the rounds that count, of time of `name` / time of `other`."""
        left, right = self.rounds_ns[name], self.rounds_ns[other]
        return statistics.median(left[index] / right[index] for index in self.counted)

    @property
    def median_others_cores(self) -> float | None:
        """Return how many cores others used in the rounds that count; None: unknown."""
        if not self.others_cores:
            return None
        return statistics.median(self.others_cores[index] for index in self.counted)

    @property
    def median_hop_ns(self) -> int | None:
        """The median of the hops; None: unknown."""
        return int(statistics.median(self.hops_ns)) if self.hops_ns else None


def compare_timers(
    timers: Mapping[str, Timer],
    *,
    num_rounds: int = 9,
    round_ns: int = 80_000_000,
    hop_ns: Callable[[], int | None] | None = None,
    on_round: Callable[[int], None] | None = None,
) -> Comparison:
    """Time several things in turns.

    Parameters
    ----------
    timers
        What to time, by name. Each round begins with another one.
    num_rounds
        Number of rounds, at least 1.
    round_ns
        Each timer gets about this long in each round, but at least `MIN_RUNS` runs. The first run
        of each turn warms up and is not counted.
    hop_ns
        Measures a hop between two cores; None from it: there is only one.
    on_round
        Called with the number of rounds done, after each.
    """
    if num_rounds < 1:
        raise ValueError(f"num_rounds must be at least 1, got {num_rounds}")
    num_runs = {}
    for name, timer in timers.items():
        run_ns = max(1, *timer(3)[1:])
        num_runs[name] = min(MAX_RUNS, max(MIN_RUNS, round_ns // run_ns))
    names = list(timers)
    rounds: dict[str, list[int]] = {name: [] for name in names}
    hops: list[int | None] = []
    others: list[float] = []
    for done in range(num_rounds):
        before = _Usage.now()
        first = done % len(names)
        hops.append(_hop(hop_ns))
        for name in names[first:] + names[:first]:
            wait_until_quiet()
            times = timers[name](num_runs[name] + 1)[1:]
            rounds[name].append(int(statistics.median(times)))
        hops.append(_hop(hop_ns))
        others.append(_Usage.now().others_since(before))
        if on_round is not None:
            on_round(done + 1)
    return Comparison(
        {name: tuple(values) for name, values in rounds.items()},
        tuple(hop for hop in hops if hop is not None),
        tuple(others),
    )


@dataclass(frozen=True)
class _Usage:
    """Seconds at one moment."""

    wall: float
    own: float
    """Processor time of this process."""
    machine: float
    """Processor time of everything on this machine."""

    @classmethod
    def now(cls) -> _Usage:
        times = psutil.cpu_times()
        machine = sum(getattr(times, name, 0.0) for name in _BUSY_FIELDS)
        return cls(time.perf_counter(), time.process_time(), machine)

    def others_since(self, before: _Usage) -> float:
        """Cores that others used since `before`; the clocks' steps can make it less than 0."""
        others = (self.machine - before.machine) - (self.own - before.own)
        return max(0.0, others / (self.wall - before.wall))


def wait_until_quiet(limit_s: float = 1.0) -> bool:
    """Wait until no thread of this process works any more; return False if that takes too long.

    Workers of thread pools spin for a while after their last task, and would disturb what runs
    next.
    """
    end = time.perf_counter() + limit_s
    while time.perf_counter() < end:
        before = time.process_time_ns()
        time.sleep(_QUIET_SLICE_S)
        if time.process_time_ns() - before < _QUIET_NS:
            return True
    return False


def _hop(hop_ns: Callable[[], int | None] | None) -> int | None:
    if hop_ns is None:
        return None
    wait_until_quiet()
    return hop_ns()
