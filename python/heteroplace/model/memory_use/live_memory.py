"""The rule by lifetime: how many bytes a plan has live at once in each memory.

Weights are live always, of each device the largest workspace, model inputs in the host memory,
which may be set once for many runs, and state in each memory where it is updated. A value (an item
of a tensor, or a shared tensor) is live in a memory from the step that brings it there to the last
step that reads it there, both included, in plan order, since a compiled program gives its bytes
away in that order (`lower/order/lifetimes.py`). It stays live while that reader is not done by
the time that a later step which brings something to that memory can start: whoever takes its bytes
then need not wait, and the plan is as long as simulated. Outputs stay in the host memory, or where
they are made if there is no host. A program may need a little more: values are aligned, and may
leave gaps.

A shared tensor that steps add to is one value from the first of them on; one that is made anew is
another value each time. An update takes the place of the state, so it needs no bytes, and waits
for all that read the state there.

What guarded steps make of one tensor is one value, from the first of them on. A routed buffer is
live, whole, from the first step that brings one of its tensors to the last that reads one. Weights
that loads bring are live from the first load to the last run of their task, and always where they
are kept.

What the static rule (`model/memory_use/memory.py`) counts is never less; where that fits, nothing
else need be looked at. The core has the same rule in `src/simulate/live_memory.cc`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import are_of_one_cpu
from heteroplace.model.memory_use.held_memory import held_bytes
from heteroplace.model.memory_use.weight_room import room_parts
from heteroplace.model.plan import Collective, Copy, Load, Plan, Run, Step, guard_of
from heteroplace.model.step_values import (
    Place,
    adds_to,
    items_of,
    kind_of,
    loaded_places,
    makes,
    occupied,
    reads,
    state_places,
    step_ns,
    value_bytes,
)


@dataclass(frozen=True, slots=True)
class LivePeak:
    """The most that is live in one memory."""

    num_bytes: int
    step: int | None
    """The first step of the plan that brings it to that; None: it is there before any."""


@dataclass(slots=True)
class LiveValue:
    """What a memory holds of an item of a tensor, or of a shared one."""

    first: int
    """The step that brings it."""
    last: int
    """The last step that brings or reads it."""
    arrival_ns: int
    """When it is whole."""
    end_ns: int
    """When all steps that bring or read it are done."""
    memory: int
    num_bytes: int
    tensor: int = -1
    """-1: weights, or what a collective brings for itself alone."""


InnerBytes = Callable[[int, Sequence[LiveValue], Sequence[LiveValue]], int]
"""(run, what it makes, what it reads last) -> bytes that it holds at most beyond what is live."""


def live_peaks(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    plan: Plan,
    views: Set[int] | None = None,
    inner: InnerBytes | None = None,
) -> tuple[LivePeak, ...]:
    """Return the peak of each memory. The plan must be whole.

    Parameters
    ----------
    views
        Tasks that give what they read another shape, to count as a compiled program does: these,
        and the giver of a broadcast, need no bytes for what they make, while members of another
        collective get what is on other hosts, and all items of an output are one value, from the
        first of them on, as are those that a step reads together. Collectives among them are
        computed by who reads their results: what members bring stays for all these, and as long
        again, as they do not wait for each other. None: each step makes values of its own, alone.
    inner
        What a run holds beside its tensors, of which not all may be there at once; None: nothing.

    Complexity: O(steps log steps + items read).
    """
    count = len(plan.steps)
    walk = _Walk(graph, cluster, costs, plan, views)
    live = held_bytes(graph, cluster, plan)
    peaks = [LivePeak(num_bytes, None) for num_bytes in live]
    begun: list[list[LiveValue]] = [[] for _ in range(count)]
    ended: list[list[LiveValue]] = [[] for _ in range(count)]
    for value in walk.values:
        if value.num_bytes:
            begun[value.first].append(value)
            if value.last < count:
                ended[value.last].append(value)
    taken = [list(dict.fromkeys(value.memory for value in values)) for values in begun]
    earliest = _earliest_takers(walk.starts, taken, len(live))
    # Of each memory (end, bytes) of what has been read for the last time.
    unfinished: list[list[tuple[int, int]]] = [[] for _ in live]
    for index in range(count):
        for memory, earliest_ns in zip(taken[index], earliest[index], strict=True):
            waiting = unfinished[memory]
            while waiting and waiting[0][0] <= earliest_ns:
                live[memory] -= heapq.heappop(waiting)[1]
        for value in begun[index]:
            live[value.memory] += value.num_bytes
        for memory in taken[index]:
            needed = live[memory]
            if inner is not None and isinstance(plan.steps[index], Run):
                done = [each for each in ended[index] if each.end_ns <= walk.finishes[index]]
                needed += inner(index, begun[index], done)
            if needed > peaks[memory].num_bytes:
                peaks[memory] = LivePeak(needed, index)
        for value in ended[index]:
            heapq.heappush(unfinished[value.memory], (value.end_ns, value.num_bytes))
    return tuple(peaks)


def live_curves(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return for each memory the (time_ns, bytes live from then on), ascending; the first is of 0.

    By time, while `live_peaks` goes by the order in which a program gives bytes away: a curve never
    is above the peak of its memory. The plan must be whole.
    """
    walk = _Walk(graph, cluster, costs, plan, None)
    changes: list[dict[int, int]] = [
        {0: num_bytes} for num_bytes in held_bytes(graph, cluster, plan)
    ]
    for value in walk.values:
        change, start_ns = changes[value.memory], walk.starts[value.first]
        change[start_ns] = change.get(start_ns, 0) + value.num_bytes
        if value.last < len(plan.steps):
            change[value.end_ns] = change.get(value.end_ns, 0) - value.num_bytes
    curves = []
    for change in changes:
        times = sorted(change)
        totals = accumulate(change[time_ns] for time_ns in times)
        curves.append(tuple(zip(times, totals, strict=True)))
    return tuple(curves)


def _earliest_takers(
    starts: Sequence[int], taken: Sequence[Sequence[int]], num_memories: int
) -> list[list[int]]:
    """For each step and each memory that it brings something to the earliest start, in ns, of any
    step from there on that does."""
    latest = max(starts, default=0)
    earliest = [latest] * num_memories
    takers: list[list[int]] = []
    for start_ns, memories in zip(reversed(starts), reversed(taken), strict=True):
        for memory in memories:
            earliest[memory] = min(earliest[memory], start_ns)
        takers.append([earliest[memory] for memory in memories])
    return takers[::-1]


class _Walk:
    """One pass over the steps: when each starts, and from when to when each value is there."""

    def __init__(
        self,
        graph: TaskGraph,
        cluster: Cluster,
        costs: CostTable,
        plan: Plan,
        views: Set[int] | None,
    ) -> None:
        self._graph = graph
        self._cluster = cluster
        self._plan = plan
        self._views = views
        self._states = frozenset(state_places(graph, cluster, plan.steps))
        self._outputs = frozenset(graph.outputs)
        self._there: dict[tuple[int, int, int], LiveValue] = {}
        """By tensor, memory and item."""
        self._read_until: dict[Place, int] = {}
        """When all steps that read a state there are done."""
        self._loaded = loaded_places(plan.steps)
        self._weights: dict[tuple[int, int], LiveValue] = {}
        """By task and memory, of weights that loads have brought."""
        self._together: list[list[LiveValue]] = []
        """What a step reads of several items."""
        self._summed: list[tuple[list[LiveValue], int]] = []
        """What a collective's readers sum, and when all of it is there."""
        self.starts: list[int] = []
        self.finishes: list[int] = []
        self.values: list[LiveValue] = []
        """All that a step brings; `last` is the number of steps for what is never freed."""
        rooms = room_parts(plan.steps, cluster, len(cluster.resources))
        free = [0] * (len(cluster.resources) + sum(map(len, rooms)))
        for index, step in enumerate(plan.steps):
            resources = (*occupied(graph, cluster, step), *rooms[index])
            start = max(
                (*(free[resource] for resource in resources), *self._waits(step)), default=0
            )
            finish = start + (step_ns(graph, cluster, costs, step) or 0)
            for resource in resources:
                free[resource] = finish
            self._read(index, step, finish)
            self._make(index, step, finish)
            self.starts.append(start)
            self.finishes.append(finish)
        self._keep_outputs()
        self._join()
        self._keep_summed()
        self._merge_buffers()
        self.values += self._weights.values()

    def _waits(self, step: Step) -> Iterator[int]:
        """When what a step reads, adds to or replaces is ready for it."""
        graph, cluster = self._graph, self._cluster
        for place in reads(graph, cluster, step):
            for value in self._values_at(place, step.items):
                yield value.arrival_ns
        if self._loaded:
            for value in self._weights_of(step):
                yield value.arrival_ns
        for tensor, memory in makes(graph, cluster, step):
            if adds_to(graph, step, tensor):
                for value in self._values_at((tensor, memory), step.items):
                    yield value.end_ns
            if graph.updates and tensor in graph.state_of:
                yield self._read_until.get((graph.state_of[tensor], memory), 0)

    def _values_at(self, place: Place, items: tuple[int, ...]) -> Iterator[LiveValue]:
        """The values of some items; model inputs that no step brought are always there."""
        tensor, memory = place
        for item in items_of(self._graph, tensor, items):
            value = self._there.get((tensor, memory, item))
            if value is not None:
                yield value

    def _weights_of(self, step: Step) -> Iterator[LiveValue]:
        """What loads have brought for a run."""
        if isinstance(step, Run):
            value = self._weights.get((step.task, self._cluster.devices[step.device].memory))
            if value is not None:
                yield value

    def _read(self, index: int, step: Step, finish: int) -> None:
        for value in self._weights_of(step) if self._loaded else ():
            value.last = index
            value.end_ns = max(value.end_ns, finish)
        for place in reads(self._graph, self._cluster, step):
            if place in self._states:
                self._read_until[place] = max(self._read_until.get(place, 0), finish)
            values = list(self._values_at(place, step.items))
            for value in values:
                value.last = index
                value.end_ns = max(value.end_ns, finish)
            if self._views is not None and len(values) > 1:
                self._together.append(values)

    def _make(self, index: int, step: Step, finish: int) -> None:
        graph = self._graph
        if self._views is not None and isinstance(step, Collective):
            self._exchange(index, step, finish)
            if step.task in self._views:
                places = reads(graph, self._cluster, step)
                brought = (each for place in places for each in self._values_at(place, step.items))
                self._summed.append((list(brought), finish))
        is_guarded = guard_of(step) is not None
        for tensor, memory in makes(graph, self._cluster, step):
            is_again = is_guarded or adds_to(graph, step, tensor)
            if is_again and (tensor, memory, 0) in self._there:
                _extend(self._there[tensor, memory, 0], index, finish)
                continue
            source = self._same_value(step, memory)
            is_update = (graph.state_of.get(tensor), memory) in self._states
            size = 0 if is_update or source is not None else graph.tensors[tensor].bytes
            for item in items_of(graph, tensor, step.items):
                instance = None if source is None else self._there.get((source, memory, item))
                if instance is not None:
                    _extend(instance, index, finish)
                    self._there[tensor, memory, item] = instance
                    continue
                value = LiveValue(index, index, finish, finish, memory, size, tensor)
                self._there[tensor, memory, item] = value
                self.values.append(value)
        if isinstance(step, Load):
            self._load(index, step, finish)

    def _load(self, index: int, step: Load, finish: int) -> None:
        for task in step.tasks:
            place = task, step.dst
            if place in self._weights:
                _extend(self._weights[place], index, finish)
            else:
                size = self._graph.tasks[task].weight_bytes
                self._weights[place] = LiveValue(index, index, finish, finish, step.dst, size)

    def _exchange(self, index: int, step: Collective, finish: int) -> None:
        """What members get of others for a collective alone; of what is added up one is the sum."""
        graph, cluster, kind = self._graph, self._cluster, kind_of(self._graph, step)
        if kind.reads == "root":
            return
        for memory in dict.fromkeys(memory for _, memory in makes(graph, cluster, step)):
            sent = [
                value_bytes(graph, tensor, step.items)
                for tensor, home in reads(graph, cluster, step)
                if home != memory and not are_of_one_cpu(cluster, home, memory)
            ]
            for size in sent[1:] if kind.sums and kind.makes != "each" else sent:
                self.values.append(LiveValue(index, index, finish, finish, memory, size))

    def _same_value(self, step: Step, memory: int) -> int | None:
        """The tensor that has the bytes of what a step makes in a memory; None: that has its own.

        If it is always there, it is no value of the walk.
        """
        if self._views is None or isinstance(step, (Copy, Load)):
            return None
        is_given = (
            isinstance(step, Collective)
            and kind_of(self._graph, step).name == "broadcast"
            and self._cluster.devices[step.devices[step.root]].memory == memory
        )
        return (
            self._graph.task_inputs[step.task][0] if is_given or step.task in self._views else None
        )

    def _keep_outputs(self) -> None:
        """Outputs stay in the host memory, or where they are made."""
        host, steps = self._cluster.host, self._plan.steps
        wholes: dict[Place, LiveValue] = {}
        for (tensor, memory, _), value in self._there.items():
            is_made = not isinstance(steps[value.first], Copy)
            if tensor in self._outputs and (is_made if host is None else memory == host):
                value.last = len(steps)
                whole = wholes.setdefault((tensor, memory), value)
                if self._views is not None and whole is not value:
                    whole.first = min(whole.first, value.first)
                    whole.num_bytes, value.num_bytes = whole.num_bytes + value.num_bytes, 0

    def _keep_summed(self) -> None:
        """What members bring stays until all have read it; see `Instruction.linger_ns`."""
        for values, ready_ns in self._summed:
            last = max((value.last for value in values), default=0)
            end_ns = max((value.end_ns for value in values), default=ready_ns)
            for value in values:
                value.last, value.end_ns = last, end_ns + (end_ns - ready_ns)

    def _join(self) -> None:
        """What a step reads together lies side by side from the first of it on."""
        for values in self._together:
            whole = min(values, key=lambda value: value.first)
            for value in values:
                if value is not whole:
                    whole.num_bytes, value.num_bytes = whole.num_bytes + value.num_bytes, 0
                    whole.last = max(whole.last, value.last)
                    whole.end_ns = max(whole.end_ns, value.end_ns)

    def _merge_buffers(self) -> None:
        """Of the tensors of a routed buffer only the whole is left, in each memory."""
        buffers: dict[tuple[str, int], LiveValue] = {}
        for (tensor, memory, _), value in self._there.items():
            name = self._graph.tensors[tensor].buffer
            if name is None:
                continue
            value.num_bytes = 0
            whole = buffers.setdefault(
                (name, memory), replace(value, num_bytes=self._graph.buffer_bytes[name])
            )
            whole.first = min(whole.first, value.first)
            whole.last = max(whole.last, value.last)
            whole.end_ns = max(whole.end_ns, value.end_ns)
        self.values += buffers.values()


def _extend(value: LiveValue, index: int, finish: int) -> None:
    """A step brings it again."""
    value.last = index
    value.arrival_ns, value.end_ns = max(value.arrival_ns, finish), max(value.end_ns, finish)
