"""Compare run times on a shared machine: everything takes turns, many times.

A machine that others use changes its speed from second to second, and the distance between two of
its cores (the time that a cache line takes from one to the other) from minute to minute. So all
that is compared runs in one process, in rounds; a result is the median over the rounds of the
medians in a round, and the distance is measured before and after each round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Timer = Callable[[int], Sequence[int]]
"""Runs something so many times and returns the wall time of each run in ns."""

MIN_RUNS = 4
MAX_RUNS = 200
_QUIET_NS = 1_000_000
_QUIET_SLICE_S = 0.01


@dataclass(frozen=True)
class Comparison:
    """What rounds of several things gave."""

    rounds_ns: Mapping[str, tuple[int, ...]]
    """For each name the median of each round."""
    hops_ns: tuple[int, ...]
    """One hop of a cache line between two cores, before and after each round; empty: unknown."""

    def median_ns(self, name: str) -> int:
        """Return the median over the rounds."""
        return int(statistics.median(self.rounds_ns[name]))

    def best_ns(self, name: str) -> int:
        """Return the fastest round."""
        return min(self.rounds_ns[name])

    def ratio(self, name: str, other: str) -> float:
        """Return the median over the rounds of time of `name` / time of `other` in the round."""
        pairs = zip(self.rounds_ns[name], self.rounds_ns[other], strict=True)
        return statistics.median(left / right for left, right in pairs)

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
    for done in range(num_rounds):
        first = done % len(names)
        hops.append(_hop(hop_ns))
        for name in names[first:] + names[:first]:
            wait_until_quiet()
            times = timers[name](num_runs[name] + 1)[1:]
            rounds[name].append(int(statistics.median(times)))
        hops.append(_hop(hop_ns))
        if on_round is not None:
            on_round(done + 1)
    return Comparison(
        {name: tuple(values) for name, values in rounds.items()},
        tuple(hop for hop in hops if hop is not None),
    )


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
