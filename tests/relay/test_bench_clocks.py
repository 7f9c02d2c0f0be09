"""What the timers of benchmarks count, of executors that only wait."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.dynamic.bounds import together
from benchmarks.dynamic.trace_runs import passes, time_trace, timer_of
from benchmarks.peers.turns import (
    side_by_side,
)
from benchmarks.run.against_peers import OURS, PeerPrograms, row_of
from benchmarks.run.comparison import call_timers
from heteroplace.errors import ExecutionError
from heteroplace.measure.timed_runs import (
    Timer,
    time_in_turns,
)

MS = 1_000_000
LAST_CORE = max(os.sched_getaffinity(0))
INPUTS: Mapping[str, np.ndarray] = {}


class Waiting:
    """An executor whose calls take stated times, one after the other, then from the first on.

    Its plan is one of the last core; `cores` are those on which it was called.
    """

    solution = SimpleNamespace(
        cluster=SimpleNamespace(devices=[SimpleNamespace(cores=(LAST_CORE,))])
    )

    def __init__(self, *times_ms: float, then_ms: float | None = None) -> None:
        turns = itertools.cycle(times_ms)
        self._times_ms = (
            turns if then_ms is None else itertools.chain(times_ms, itertools.repeat(then_ms))
        )
        self.cores: set[int] = set()

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        self.cores |= os.sched_getaffinity(0)
        time.sleep(next(self._times_ms) / 1e3)
        return []

    def run_many(
        self, inputs: Iterable[Mapping[str, np.ndarray]], *, in_flight: int
    ) -> Iterator[list[np.ndarray]]:
        return map(self.run, inputs)

    def benchmark(self, num_runs: int) -> list[int]:
        return [1] * num_runs


class Failing(Waiting):
    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        raise ExecutionError("kernel fell")


def test_times_beside_peers_have_what_the_caller_takes() -> None:
    programs = PeerPrograms({(OURS, 1): Waiting(2)}, {}, {}, {}, INPUTS)
    timed = time_in_turns(programs.timers(), num_rounds=1, turn_ns=1)
    assert row_of("m", 1, timed, programs)["ours_ms"] >= 2


def test_the_mean_of_a_trace_has_its_rare_runs() -> None:
    inputs = [INPUTS] * 3
    timers = {"ours": timer_of(Waiting(1, 1, 10), inputs), "dense": lambda count: [5 * MS] * count}
    timed = time_trace(timers, len(inputs), steady=("dense",), num_rounds=1, turn_ns=1)
    assert timed.median_ns("ours") >= 4 * MS
    assert timed.median_ns("dense") == 5 * MS


def test_a_disturbed_run_does_not_count_in_the_mean_of_a_trace() -> None:
    times = itertools.chain([900, 900, 900, 1, 1, 10, 700, 1, 10], itertools.cycle([1, 1, 10]))
    timer = passes(lambda count: [next(times) for _ in range(count)], 3)
    assert timer(4) == [12] * 4
    assert timer(1) == [12]


def timers_of_a_failure() -> dict[str, Timer]:
    one, other = Waiting(1), Failing()
    both = [timer_of(executor, [INPUTS]) for executor in (one, other)]
    return {
        "halves": together(both),
        "side by side": side_by_side(both),
    }


@pytest.mark.parametrize("name", ["halves", "side by side"])
def test_what_a_thread_raises_is_raised(name: str) -> None:
    with pytest.raises(ExecutionError, match="kernel fell"):
        timers_of_a_failure()[name](2)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is all that there is")
@pytest.mark.parametrize("way", ["call", "trace"])
def test_a_plan_is_called_on_its_cores_as_peers_are(way: str) -> None:
    executor = Waiting(1)
    timers: dict[str, Timer] = {
        "call": call_timers({"ours": executor}, {}, INPUTS)["ours"],
        "trace": timer_of(executor, [INPUTS]),
    }
    executor.cores.clear()
    timers[way](3)
    assert executor.cores == {LAST_CORE}
    assert len(os.sched_getaffinity(0)) > 1
