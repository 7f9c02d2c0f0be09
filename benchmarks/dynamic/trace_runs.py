"""A network with routers and the habits of a trace -> its runs, one after the other."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from heteroplace.measure.timed_runs import (
    TimedRuns,
    Timer,
    cluster_cores,
    on_cores,
    time_in_turns,
    time_runs,
)
from heteroplace.model.routed.route_profile import RouteProfile, RouteRecord
from heteroplace.parts.routing.dynamic.recorded_routes import ProfileBuilder
from heteroplace.parts.routing.dynamic.traces import TraceOptions, reached_records, synthesise
from heteroplace.parts.routing.relay.rewrite import model_digest, routers_of
from heteroplace.run.executor import Executor
from heteroplace.stats import median
from zoo.models.routed import RoutedNetwork

Inputs = Mapping[str, np.ndarray]
_WARM_RUNS = 3
_MIN_ROUNDS, _MAX_ROUNDS = 3, 7
_ROUNDS_NS = 4_000_000_000
"""Of all runs of one executor in all rounds, within these limits."""


@dataclass(frozen=True)
class TraceRuns:
    """The decisions of a network in a trace."""

    network: RoutedNetwork
    options: TraceOptions

    @cached_property
    def records(self) -> tuple[RouteRecord, ...]:
        """All decisions, with cells, by run and router."""
        routers = routers_of(self.network.mod)
        parents = {each.options.name: each.parent for each in routers if each.parent is not None}
        return tuple(reached_records(self.decided(), parents))

    def decided(self) -> Iterator[RouteRecord]:
        """Yield what each router decides if it is reached."""
        return synthesise(self.network.routers, replace(self.options, top_k=self.network.top_k))

    @cached_property
    def profile(self) -> RouteProfile:
        """What is known of the network when the trace is."""
        builder = ProfileBuilder(model_digest(self.network.bound), self.network.routers)
        for record in self.records:
            builder.add(record)
        return builder.profile()

    def inputs(self, records: Iterable[RouteRecord] | None = None) -> list[Inputs]:
        """Return for each run the inputs with which routers decide so; None: as in the trace."""
        by_run: dict[int, list[RouteRecord]] = {}
        for record in self.records if records is None else records:
            by_run.setdefault(record.run, []).append(record)
        return [self.network.steered(by_run[run], run) for run in sorted(by_run)]


def with_all_active(record: RouteRecord) -> RouteRecord:
    """Return a decision in which idle branches have a cell each, of the fullest ones.

    >>> record = RouteRecord(0, "r", (3, 0, 1), ((0,), (0,), (0,), (2,)))
    >>> with_all_active(record).loads
    (2, 1, 1)
    """
    assert record.cells is not None  # traces are of level 2
    cells = [list(branches) for branches in record.cells]
    loads = Counter(branch for branches in cells for branch in branches)
    for idle in [branch for branch in range(len(record.loads)) if not loads[branch]]:
        fullest = max(loads, key=lambda branch: (loads[branch], -branch))
        branches = next(each for each in cells if fullest in each)
        branches[branches.index(fullest)] = idle
        loads[fullest] -= 1
        loads[idle] += 1
    found = tuple(loads[branch] for branch in range(len(record.loads)))
    return replace(record, loads=found, cells=tuple(tuple(branches) for branches in cells))


def run_ns(executor: Executor, inputs: Sequence[Inputs]) -> list[int]:
    """Return the time of a run of each of the inputs, from submission to the last kernel."""
    for given in inputs[:_WARM_RUNS]:
        executor.run(given)
    with executor.trace(len(inputs)) as trace:
        for given in inputs:
            executor.run(given)
    return [request.finish_ns - request.start_ns for request in trace.requests]


def mean_run_ns(
    executors: Mapping[str, tuple[Executor, Sequence[Inputs]]],
) -> dict[str, float]:
    """Return the mean time of a run of the inputs of several executors by name, without Python's
    part: what is predicted is that.

    All take turns, so that they see the machine in one state. Of each run the second shortest of
    the rounds counts, as of the rounds by which kernels are costed: others only lengthen it. There
    are fewer rounds where the runs of one take long.
    """
    rounds: list[dict[str, list[int]]] = []
    num_rounds = _MAX_ROUNDS
    while len(rounds) < num_rounds:
        rounds.append({name: run_ns(*given) for name, given in executors.items()})
        longest_ns = max(1, *map(sum, rounds[0].values()))
        num_rounds = min(_MAX_ROUNDS, max(_MIN_ROUNDS, _ROUNDS_NS // longest_ns))
    return {
        name: float(np.sort([times[name] for times in rounds], axis=0)[1].mean())
        for name in executors
    }


def timer_of(executor: Executor, inputs: Sequence[Inputs]) -> Timer:
    """Return the timer of an executor that goes through inputs, from arrays to arrays.

    It is called by a thread on the cores of its plan, as peers are.
    """
    turns = itertools.cycle(inputs)

    def run() -> None:
        executor.run(next(turns))

    return on_cores(
        lambda num_runs: time_runs(run, num_runs), cluster_cores(executor.solution.cluster)
    )


def passes(timer: Timer, num_runs: int) -> Timer:
    """Return the timer of so many runs together, such as those of a whole trace.

    Of each run the median over the passes counts, without the first pass, which warms up: a mean of
    everything would be that of the few runs that other programs disturb.
    """

    def timed(num_passes: int) -> list[int]:
        found = [timer(num_runs) for _ in range(num_passes)]
        total = round(sum(median(times) for times in zip(*(found[1:] or found), strict=True)))
        return [total] * num_passes

    return timed


def time_trace(
    timers: Mapping[str, Timer],
    num_runs: int,
    *,
    steady: Collection[str] = (),
    num_rounds: int,
    turn_ns: int = 40_000_000,
) -> TimedRuns:
    """Time in turns what goes through the runs of a trace; return mean times of a run.

    A turn is of whole passes: where runs differ, the median of single ones is that of the commoner
    ones.

    Parameters
    ----------
    num_runs
        Of the trace.
    steady
        Names of what takes as long in every run: the median of single ones is taken.
    num_rounds, turn_ns
        See `time_in_turns`.
    """
    timed = time_in_turns(
        {
            name: timer if name in steady else passes(timer, num_runs)
            for name, timer in timers.items()
        },
        num_rounds=num_rounds,
        turn_ns=turn_ns,
        min_runs=1,
    )
    return TimedRuns(
        {
            name: turns
            if name in steady
            else tuple(replace(turn, median_ns=round(turn.median_ns / num_runs)) for turn in turns)
            for name, turns in timed.turns.items()
        }
    )
