"""What benchmarks add to turns: balanced rounds, programs at once, waits for near cores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from heteroplace.costs.measurement import NEAR_CORES_NS
from heteroplace.measure.timed_runs import TimedRuns, Timer
from heteroplace.stats import median

Result = TypeVar("Result")
_NEAR_SLICE_S = 0.5


def balanced_rounds(timed: TimedRuns) -> dict[str, tuple[float, ...]]:
    """Return for each name the ns of its rounds that count, without what was done to all alike.

    A round's factor is the median, over the names, of the time in it over the name's median; each
    time is divided by the factor of its round.
    """
    medians = {name: timed.median_ns(name) for name in timed.turns}
    counted = {name: timed.counted(name) for name in timed.turns}
    factors = {
        index: median(
            [
                turns[index].median_ns / medians[name]
                for name, turns in timed.turns.items()
                if index in counted[name]
            ]
        )
        for index in set().union(*counted.values())
    }
    return {
        name: tuple(turns[index].median_ns / factors[index] for index in counted[name])
        for name, turns in timed.turns.items()
    }


def side_by_side(timers: Sequence[Timer]) -> Timer:
    """Return the timer of programs that run at once, each from a thread of its own.

    A run of it is one of each program: it takes as long as so many runs would one after the other
    at the rate that all have together.
    """

    def timer(num_runs: int) -> list[int]:
        together = zip(*at_once([partial(each, num_runs) for each in timers]), strict=True)
        return [round(len(timers) / sum(1 / ns for ns in each)) for each in together]

    return timer


def at_once(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Make all calls at once, each from a thread of its own; return what they return, in order.

    When all have ended, what one of them raised is raised.
    """
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Result]) -> Result:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


class NearCores:
    """Waits until cores are near, as long as its budget lasts. Not thread-safe.

    Parameters
    ----------
    core_to_core_ns
        Measures the core-to-core latency.
    budget_s
        Seconds for all waits together; then cores are taken as they are.
    """

    def __init__(self, core_to_core_ns: Callable[[], int | None], budget_s: float) -> None:
        self._core_to_core_ns = core_to_core_ns
        self._left_s = budget_s

    def wait(self) -> bool:
        """Wait until they are near; return False if the budget ended first."""
        while True:
            latency_ns = self._core_to_core_ns()
            if latency_ns is None or latency_ns < NEAR_CORES_NS:
                return True
            if self._left_s <= 0:
                return False
            self._left_s -= _NEAR_SLICE_S
            time.sleep(_NEAR_SLICE_S)
