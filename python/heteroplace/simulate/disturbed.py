"""Plan + interference -> durations of its steps as they run beside each other, and when they run.

Times are as they are when a plan really runs: at the pace that the machine has now, longer where
other devices work meanwhile, and with the delay of a wait across devices. Messages between hosts
follow each other on a channel by their bytes: the latency of one passes beside those of the next,
which solvers and bounds leave out. Several runs are played at once, as columns of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.weight_room import room_parts
from heteroplace.model.plan import Copy, Guard, Load, Plan, Run, Step, guard_of
from heteroplace.model.routed.decision import Decision
from heteroplace.model.routed.routed_values import branch_of_rows
from heteroplace.model.step_values import (
    Place,
    Value,
    adds_to,
    makes,
    occupied,
    rows_bytes,
    values_made,
    values_read,
)
from heteroplace.model.timeline import Timeline
from heteroplace.simulate.interference import FloatArray, Interference

_MAX_ROUNDS = 20
_STILL = 0.001
"""Overlaps change durations and durations overlaps, until no duration changes by more than this."""


@dataclass(frozen=True)
class _Waits:
    """What a step waits for: earlier steps, by position in the plan."""

    own: tuple[int, ...]
    """On a resource that it occupies too."""
    others: tuple[int, ...]
    """On others: it hears of their end a little later."""
    messages: tuple[tuple[int, int], ...]
    """(step, ns) of messages on the same channel, and so long before their end."""
    fetched: tuple[int, ...]
    """Tensors that it fetches; see `fetched_bytes`."""


class DisturbedRuns:
    """Runs of a plan whose steps disturb each other.

    Raises
    ------
    CostMismatchError
        `interference` belongs to another graph or cluster.
    """

    def __init__(
        self, graph: TaskGraph, cluster: Cluster, plan: Plan, interference: Interference
    ) -> None:
        interference.check(graph, cluster)
        self._graph, self._plan, self._interference = graph, plan, interference
        self._waits = _waits(graph, cluster, plan)
        self._loss = _Loss(graph, cluster, plan, interference)

    def durations(
        self, costs: CostTable, alone_ns: FloatArray, decisions: Sequence[Decision | None]
    ) -> FloatArray:
        """Return how long steps take beside each other, [num_steps, num_runs].

        Parameters
        ----------
        alone_ns
            [num_steps, num_runs]: what they take by `costs`, 0 where they are left out.
        decisions
            Of each run; None: none, or one that is not known.
        """
        pace, steps = self._interference.pace(costs), self._plan.steps
        factors = [pace[step.device] if isinstance(step, Run) else 1.0 for step in steps]
        fetch_ns = [self._fetch_ns(decision) for decision in decisions]
        slower_ns = np.where(alone_ns > 0, np.array(fetch_ns).T, 0.0)
        paced_ns = alone_ns * np.array(factors)[:, None] + slower_ns
        duration_ns: FloatArray = paced_ns
        for _ in range(_MAX_ROUNDS):
            start, finish = self.play(duration_ns)
            before, duration_ns = duration_ns, paced_ns + self._loss.of(start, finish)
            if np.all(np.abs(duration_ns - before) <= _STILL * before):
                break
        return duration_ns

    def play(self, duration_ns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return start and finish of every step of every run, [num_steps, num_runs]."""
        wait_ns = self._interference.wait_ns
        start, finish = np.zeros(duration_ns.shape), np.zeros(duration_ns.shape)
        for index, wait in enumerate(self._waits):
            begin = start[index]
            for other in wait.own:
                np.maximum(begin, finish[other], out=begin)
            for other in wait.others:
                np.maximum(begin, finish[other] + wait_ns, out=begin)
            for other, early_ns in wait.messages:
                np.maximum(begin, finish[other] - early_ns, out=begin)
            finish[index] = begin + duration_ns[index]
        return start, finish

    def shares_beside(self, start: FloatArray, finish: FloatArray) -> FloatArray:
        """Return the shares of each device's work during which others work, [2, num_devices].

        The first row is for devices of the same memory, the second for copies into and out of it:
        the mean over their resources. It is 1 for a device without work.

        Parameters
        ----------
        start, finish
            [num_steps], in ns, as `play` returns them for one run.
        """
        return self._loss.shares(start, finish)

    def _fetch_ns(self, decision: Decision | None) -> list[float]:
        """What each step takes longer for what it fetches."""
        rate = self._interference.fetch_ns_per_byte
        return [
            rate * sum(_held_bytes(self._graph, tensor, decision) for tensor in wait.fetched)
            for wait in self._waits
        ]


def times_alone(plan: Plan, timeline: Timeline) -> FloatArray:
    """Return how long the steps of a simulated plan take, [num_steps, 1]; 0 for others."""
    alone_ns = np.zeros((len(plan.steps), 1))
    for span in timeline.spans:
        alone_ns[span.step] = span.finish_ns - span.start_ns
    return alone_ns


def fetched_bytes(graph: TaskGraph, cluster: Cluster, plan: Plan) -> FloatArray:
    """Return for each step the bytes that it fetches from another device's cache, [num_steps].

    They were made by another device of the same memory, and nothing on its own has read them yet.
    """
    waits = _waits(graph, cluster, plan)
    num_bytes = [sum(_held_bytes(graph, tensor, None) for tensor in wait.fetched) for wait in waits]
    return np.array(num_bytes, dtype=np.float64)


def _held_bytes(graph: TaskGraph, tensor: int, decision: Decision | None) -> int:
    """Bytes of a tensor; of one in a routed buffer, of the rows that are there."""
    tensor_record = graph.tensors[tensor]
    branch = None if tensor_record.buffer is None else branch_of_rows(graph, tensor_record)
    if branch is None or decision is None:
        return tensor_record.bytes
    return rows_bytes(graph, tensor, Guard(*branch), decision)


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
    rooms = room_parts(plan.steps, cluster, len(cluster.resources))
    for index, (step, parts) in enumerate(zip(plan.steps, rooms, strict=True)):
        resources = frozenset(occupied(graph, cluster, step))
        ahead = {holder[each] for each in (*resources, *parts) if each in holder}
        before: set[int] = set()
        tensors: list[int] = []
        for tensor, src, item in values_read(graph, cluster, step):
            if tensor in states:
                readers.setdefault((tensor, src), set()).add(index)
            makers = bringers.get((tensor, src, item), ())
            before.update(makers)
            if makers and isinstance(step, Run) and (tensor, item, step.device) not in fetched:
                fetched.add((tensor, item, step.device))
                maker = makers[-1]
                maker_step = plan.steps[maker]
                if isinstance(maker_step, Run) and not resources & resources_of[maker]:
                    tensors.append(tensor)
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
        waits.append(_Waits(own, others, tuple(messages.items()), tuple(tensors)))
        resources_of.append(resources)
        holder.update(dict.fromkeys((*resources, *parts), index))
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


class _Loss:
    """The time that runs of a plan lose because of what works beside them.

    A task with slowdown s advances at 1 / s of its speed while all others work, so it loses
    1 - 1 / s of that time; where some of them work, in proportion.
    """

    def __init__(
        self, graph: TaskGraph, cluster: Cluster, plan: Plan, interference: Interference
    ) -> None:
        busy: dict[int, list[int]] = {}
        for index, step in enumerate(plan.steps):
            for resource in occupied(graph, cluster, step):
                busy.setdefault(resource, []).append(index)
        self._steps = [
            np.array([at for at, step in enumerate(plan.steps) if _is_on(step, device)], dtype=int)
            for device in range(len(cluster.devices))
        ]
        beside = [_beside(cluster, index) for index in range(len(cluster.devices))]
        self._beside, self._busy = beside, busy
        rates: dict[int, list[tuple[int, float]]] = {}
        """By resource (step, loss for each ns that it works)."""
        for index, step in enumerate(plan.steps):
            if not isinstance(step, Run):
                continue
            slowdowns = (interference.slowdown, interference.copy_slowdown)
            for slowdown, resources in zip(slowdowns, beside[step.device], strict=True):
                rate = 1.0 - 1.0 / float(slowdown[step.task, step.device])
                for resource in resources if rate else ():
                    rates.setdefault(resource, []).append((index, rate / len(resources)))
        self._resources = [
            (np.array(busy[resource]), np.array([step for step, _ in of]), _column(of))
            for resource, of in rates.items()
            if resource in busy
        ]
        """(steps that occupy it, steps that lose by it, their rates), each step once."""

    def of(self, start: FloatArray, finish: FloatArray) -> FloatArray:
        """Return what each step loses if all run at these times, in ns, [num_steps, num_runs]."""
        lost = np.zeros(start.shape)
        for run in range(start.shape[1]):
            for busy, steps, rates in self._resources:
                work = _BusyTime(start[busy, run], finish[busy, run])
                worked = work.until(finish[steps, run]) - work.until(start[steps, run])
                lost[steps, run] += rates * worked
        return lost

    def shares(self, start: FloatArray, finish: FloatArray) -> FloatArray:
        """See `DisturbedRuns.shares_beside`."""
        shares = np.ones((2, len(self._steps)))
        for device, (steps, kinds) in enumerate(zip(self._steps, self._beside, strict=True)):
            own_ns = float((finish[steps] - start[steps]).sum())
            for kind, resources in enumerate(kinds if own_ns else ()):
                worked = 0.0
                for resource in resources:
                    if resource in self._busy:
                        busy = self._busy[resource]
                        work = _BusyTime(start[busy], finish[busy])
                        worked += float(
                            (work.until(finish[steps]) - work.until(start[steps])).sum()
                        )
                shares[kind, device] = worked / own_ns / max(1, len(resources))
        return shares


def _is_on(step: Step, device: int) -> bool:
    return isinstance(step, Run) and step.device == device


def _column(rates: Sequence[tuple[int, float]]) -> FloatArray:
    return np.array([rate for _, rate in rates])


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

    def __init__(self, starts: FloatArray, finishes: FloatArray) -> None:
        self._starts, self._finishes = starts, finishes
        self._busy = np.concatenate(([0.0], np.cumsum(finishes - starts)))
        """Busy time before each span, and in all."""

    def until(self, times: FloatArray) -> FloatArray:
        """Return how long it is busy before each of some times."""
        latest = np.searchsorted(self._starts, times, side="right") - 1
        inside = np.minimum(times, self._finishes[latest]) - self._starts[latest]
        return np.where(latest < 0, 0.0, self._busy[latest] + inside)
