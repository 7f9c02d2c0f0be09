"""Plan + costs + interference -> the run time to expect, with its scatter.

`simulate` gives the makespan of a plan for fixed times, which is what solvers minimise and bounds
hold for. Here the same plan is played with times as they are when it really runs: at the pace that
the machine has now, longer where other devices work meanwhile, drawn from measured runs instead of
fixed, and with the delay of a wait across devices. Messages between hosts follow each other on a
channel by their bytes: the latency of one passes beside those of the next, which solvers and bounds
leave out. All draws are played at once, as rows of arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.decision import Decision
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Load, Plan, Run, Step, guard_of
from heteroplace.model.solution import RunTime
from heteroplace.model.step_values import (
    Place,
    Value,
    adds_to,
    makes,
    occupied,
    values_made,
    values_read,
)
from heteroplace.model.timeline import Span, Timeline
from heteroplace.simulate.interference import FloatArray, Interference, no_interference
from heteroplace.simulate.simulator import simulate

NUM_DRAWS = 101
_MAX_ROUNDS = 20
_STILL = 0.001
"""Overlaps change durations and durations overlaps, until no duration changes by more than this."""


@dataclass(frozen=True)
class Expectation:
    """How long a plan is expected to run."""

    makespan_ns: int
    """Median over the draws."""
    low_ns: int
    """A tenth of all runs are quicker."""
    high_ns: int
    """A tenth of all runs are slower."""
    timeline: Timeline
    """With the median start and finish of every step over the draws."""

    @property
    def run_time(self) -> RunTime:
        """The same without its timeline."""
        return RunTime(self.makespan_ns, self.low_ns, self.high_ns)


@dataclass(frozen=True)
class _Waits:
    """What a step waits for: earlier steps, by position in the plan."""

    own: tuple[int, ...]
    """On a resource that it occupies too."""
    others: tuple[int, ...]
    """On others: it hears of their end a little later."""
    messages: tuple[tuple[int, int], ...]
    """(step, ns) of messages on the same channel, and so long before their end."""
    fetched_bytes: int
    """See `fetched_bytes`."""


def expect(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    plan: Plan,
    interference: Interference,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
    decision: Decision | None = None,
) -> Expectation:
    """Return the run time to expect of `plan`, and when its steps are expected to run.

    Complexity: O(steps x draws).

    Parameters
    ----------
    decision
        As in `simulate`.

    Raises
    ------
    CostMismatchError
        `costs` or `interference` belong to another graph or cluster.
    PlanError
        As `simulate`.
    """
    interference.check(graph, cluster)
    simulated = simulate(graph, cluster, costs, plan, decision=decision)
    times = np.zeros((len(plan.steps), 2))
    for span in simulated.spans:
        times[span.step] = span.start_ns, span.finish_ns
    waits = _waits(graph, cluster, plan)
    fetched = np.array([wait.fetched_bytes for wait in waits], dtype=np.float64)
    pace = interference.pace(costs)
    factors = [pace[step.device] if isinstance(step, Run) else 1.0 for step in plan.steps]
    alone_ns = (times[:, 1] - times[:, 0]) * np.array(factors)
    alone_ns += interference.fetch_ns_per_byte * fetched
    duration_ns = _disturbed(graph, cluster, plan, interference, alone_ns, waits)
    scattered = duration_ns[:, None] * _draws(plan, interference, num_draws, seed)
    start, finish = _play(waits, scattered, interference.wait_ns)
    ends = finish.max(axis=0) if len(plan.steps) else np.zeros(1)
    low, middle, high = (round(float(np.quantile(ends, q))) for q in (0.1, 0.5, 0.9))
    starts = np.median(start, axis=1).round().astype(np.int64).tolist()
    finishes = np.median(finish, axis=1).round().astype(np.int64).tolist()
    spans = tuple(
        Span(span.step, span.resource, starts[span.step], finishes[span.step])
        for span in simulated.spans
    )
    timeline = Timeline(spans, "simulated", simulated.peak_bytes, middle, plan.items)
    return Expectation(middle, low, high, timeline)


def expect_alone(graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan) -> Expectation:
    """Return the run time to expect where tasks do not disturb each other and do not scatter.

    It is the simulated time but for messages between hosts. Raises as `expect`.
    """
    return expect(graph, cluster, costs, plan, no_interference(graph, cluster), num_draws=1)


def fetched_bytes(graph: TaskGraph, cluster: Cluster, plan: Plan) -> FloatArray:
    """Return for each step the bytes that it fetches from another device's cache, [num_steps].

    They were made by another device of the same memory, and nothing on its own has read them yet.
    """
    waits = _waits(graph, cluster, plan)
    return np.array([wait.fetched_bytes for wait in waits], dtype=np.float64)


def _disturbed(
    graph: TaskGraph,
    cluster: Cluster,
    plan: Plan,
    interference: Interference,
    alone_ns: FloatArray,
    waits: Sequence[_Waits],
) -> FloatArray:
    """Durations of the steps while others work beside them, [num_steps]."""
    loss = _Loss(graph, cluster, plan, interference)
    duration_ns = alone_ns
    for _ in range(_MAX_ROUNDS):
        start, finish = _play(waits, duration_ns[:, None], interference.wait_ns)
        before, duration_ns = duration_ns, alone_ns + loss.of(start[:, 0], finish[:, 0])
        if np.all(np.abs(duration_ns - before) <= _STILL * before):
            break
    return duration_ns


def _waits(graph: TaskGraph, cluster: Cluster, plan: Plan) -> list[_Waits]:
    """What each step waits for, by the rules of the simulator."""
    holder: dict[int, int] = {}
    bringers: dict[Value, tuple[int, ...]] = {}
    """Of each value the steps that bring it; more than one if they are guarded."""
    loaders: dict[tuple[int, int], set[int]] = {}
    """By task and memory the loads of its weights."""
    fetched: set[tuple[int, int, int]] = set()
    states = set(graph.state_of.values())
    readers: dict[Place, set[int]] = {}
    """Of state: what replaces it waits for all of them."""
    waits: list[_Waits] = []
    units = frozenset(range(len(cluster.units)))
    resources_of: list[frozenset[int]] = []
    for index, step in enumerate(plan.steps):
        resources = frozenset(occupied(graph, cluster, step))
        ahead = {holder[resource] for resource in resources if resource in holder}
        before: set[int] = set()
        fetched_bytes = 0
        for tensor, src, item in values_read(graph, cluster, step):
            if tensor in states:
                readers.setdefault((tensor, src), set()).add(index)
            makers = bringers.get((tensor, src, item), ())
            before.update(makers)
            if makers and isinstance(step, Run) and (tensor, item, step.device) not in fetched:
                fetched.add((tensor, item, step.device))
                maker = makers[-1]
                made = plan.steps[maker]
                if isinstance(made, Run) and not resources & resources_of[maker]:
                    fetched_bytes += graph.tensors[tensor].bytes
        for tensor, memory in makes(graph, cluster, step):
            if adds_to(graph, step, tensor):
                before.update(bringers.get((tensor, memory, 0), ()))
            if tensor in graph.state_of:
                before |= readers.get((graph.state_of[tensor], memory), set()) - {index}
        if isinstance(step, Run):
            weights = step.task, cluster.devices[step.device].memory
            before |= loaders.get(weights, set())
        messages = {}
        for other in ahead - before:
            latency_ns = 0 if resources & units else _latency_ns(cluster, plan.steps[other])
            if latency_ns:
                messages[other] = latency_ns
        before |= ahead - messages.keys()
        own = tuple(other for other in before if resources & resources_of[other])
        others = tuple(other for other in before if not resources & resources_of[other])
        waits.append(_Waits(own, others, tuple(messages.items()), fetched_bytes))
        resources_of.append(resources)
        holder.update(dict.fromkeys(resources, index))
        is_guarded = guard_of(step) is not None
        for value in values_made(graph, cluster, step):
            bringers[value] = (*(bringers.get(value, ()) if is_guarded else ()), index)
        if isinstance(step, Load):
            for task in step.tasks:
                loaders.setdefault((task, step.dst), set()).add(index)
    return waits


def _latency_ns(cluster: Cluster, step: Step) -> int:
    """How long the last byte of a message is under way; 0: it is none, but a copy on one host."""
    if not isinstance(step, (Copy, Load)):
        return 0
    hosts, links = cluster.memory_hosts, [cluster.links[link] for link in step.route]
    return sum(link.latency_ns for link in links if hosts[link.src] != hosts[link.dst])


def _play(
    waits: Sequence[_Waits], duration_ns: FloatArray, wait_ns: int
) -> tuple[FloatArray, FloatArray]:
    """Start and finish of every step in every draw, [num_steps, num_draws]."""
    start, finish = np.zeros(duration_ns.shape), np.zeros(duration_ns.shape)
    for index, wait in enumerate(waits):
        begin = start[index]
        for other in wait.own:
            np.maximum(begin, finish[other], out=begin)
        for other in wait.others:
            np.maximum(begin, finish[other] + wait_ns, out=begin)
        for other, early_ns in wait.messages:
            np.maximum(begin, finish[other] - early_ns, out=begin)
        finish[index] = begin + duration_ns[index]
    return start, finish


def _draws(plan: Plan, interference: Interference, num_draws: int, seed: int) -> FloatArray:
    """Factors of the durations, [num_steps, num_draws]; devices scatter independently."""
    random = np.random.default_rng(seed)
    rows = [
        np.resize(random.permutation(len(scatter)), num_draws) for scatter in interference.scatter
    ]
    factors = np.ones((len(plan.steps), num_draws))
    for index, step in enumerate(plan.steps):
        if isinstance(step, Run):
            factors[index] = interference.scatter[step.device][rows[step.device], step.task]
    return factors


class _Loss:
    """The time that runs of a plan lose because of what works beside them.

    A task with slowdown s advances at 1 / s of its speed while all others work, so it loses
    1 - 1 / s of that time; where some of them work, in proportion.
    """

    def __init__(
        self, graph: TaskGraph, cluster: Cluster, plan: Plan, interference: Interference
    ) -> None:
        self._num_steps = len(plan.steps)
        self._num_resources = len(cluster.resources)
        self._occupied = [occupied(graph, cluster, step) for step in plan.steps]
        beside = [_beside(cluster, index) for index in range(len(cluster.devices))]
        self._rates: list[tuple[int, tuple[int, ...], float]] = []
        """(step, resources beside it, loss for each ns that one of them works)."""
        for index, step in enumerate(plan.steps):
            if not isinstance(step, Run):
                continue
            slowdowns = (interference.slowdown, interference.copy_slowdown)
            for slowdown, resources in zip(slowdowns, beside[step.device], strict=True):
                rate = 1.0 - 1.0 / float(slowdown[step.task, step.device])
                if resources and rate:
                    self._rates.append((index, resources, rate / len(resources)))

    def of(self, start: FloatArray, finish: FloatArray) -> FloatArray:
        """Return what each step loses if all run at these times, in ns, [num_steps]."""
        work = [_BusyTime() for _ in range(self._num_resources)]
        starts, finishes = start.tolist(), finish.tolist()
        for index, resources in enumerate(self._occupied):
            for resource in resources:
                work[resource].add(starts[index], finishes[index])
        lost = np.zeros(self._num_steps)
        for index, resources, rate in self._rates:
            begin, end = starts[index], finishes[index]
            lost[index] += rate * sum(work[r].between(begin, end) for r in resources)
        return lost


def _beside(cluster: Cluster, device: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Resources that work beside a device: units of others of its memory, and its links'."""
    memory = cluster.devices[device].memory
    own = set(cluster.unit_ids[device])
    units = {
        unit
        for other, at in enumerate(cluster.devices)
        if at.memory == memory
        for unit in cluster.unit_ids[other]
    }
    links = {
        resource
        for index, link in enumerate(cluster.links)
        if memory in (link.src, link.dst)
        for resource in cluster.link_resources[index]
    }
    return tuple(sorted(units - own)), tuple(sorted(links - own - units))


class _BusyTime:
    """When one resource is busy: spans that do not overlap, in ascending order."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._busy: list[float] = []
        """Busy time before each span."""
        self._finishes: list[float] = []

    def add(self, start: float, finish: float) -> None:
        """Add a span that begins where the last one ended, or later."""
        before = self._before(len(self._starts))
        self._starts.append(start)
        self._finishes.append(finish)
        self._busy.append(before)

    def between(self, start: float, finish: float) -> float:
        """Return how long it is busy in a span of time."""
        return self._until(finish) - self._until(start)

    def _before(self, index: int) -> float:
        if index == 0:
            return 0.0
        return self._busy[index - 1] + self._finishes[index - 1] - self._starts[index - 1]

    def _until(self, time: float) -> float:
        index = bisect_right(self._starts, time)
        if index == 0:
            return 0.0
        return (
            self._busy[index - 1] + min(time, self._finishes[index - 1]) - self._starts[index - 1]
        )
