"""Loads with places -> who lies where in the room for weights, what that makes wait, what it takes.

In a memory with little room the weights of branches that do not stay take turns in one range of
bytes, its room. A plan says where each of them lies. A load begins when all runs, earlier in plan
order, of tasks whose weights have had any of its bytes are done, so that at no time more is held
than the range has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Load, Plan, Run, Step
from heteroplace.model.step_values import loaded_places
from heteroplace.model.units import format_bytes

_Place = tuple[int, int]
"""(first byte, bytes)"""


@dataclass(frozen=True)
class HeldWeights:
    """What the weights of branches take in one memory where branches run."""

    memory: int
    stays_bytes: int
    """Of those that are there from the start."""
    room_bytes: int
    """For those that loads bring, in turns."""

    @property
    def total_bytes(self) -> int:
        """What is held at any time, at most."""
        return self.stays_bytes + self.room_bytes


def held_weights(graph: TaskGraph, cluster: Cluster, plan: Plan) -> tuple[HeldWeights, ...]:
    """Return what the weights of branches take, for each memory where some run.

    Loads without places are held for themselves, each in bytes of its own.
    """
    loaded = loaded_places(plan.steps)
    stays: dict[tuple[int, int], int] = {}
    memories: dict[int, None] = {}
    for step in plan.steps:
        if isinstance(step, Run) and graph.tasks[step.task].branch is not None:
            place = step.task, cluster.devices[step.device].memory
            memories[place[1]] = None
            if place not in loaded:
                stays[place] = graph.tasks[step.task].weight_bytes
    ends: dict[int, int] = defaultdict(int)
    own: dict[tuple[int, int], int] = {}
    for load in plan.loads:
        memories[load.dst] = None
        if load.place is None:
            own |= {(task, load.dst): graph.tasks[task].weight_bytes for task in load.tasks}
        else:
            ends[load.dst] = max(ends[load.dst], sum(load.place))
    return tuple(
        HeldWeights(
            memory,
            sum(size for (_, there), size in stays.items() if there == memory),
            ends[memory] + sum(size for (_, there), size in own.items() if there == memory),
        )
        for memory in sorted(memories)
    )


def room_parts(steps: Iterable[Step], cluster: Cluster, first: int) -> list[tuple[int, ...]]:
    """Return for each step the parts of rooms that it occupies, as what serves one step at a time.

    Parameters
    ----------
    first
        Number of the first part; others follow it.

    A load occupies the parts that its weights lie in, and so does a run that reads them.
    """
    steps = list(steps)
    places = _places(steps)
    if not places:
        return [()] * len(steps)
    edges: dict[int, set[int]] = defaultdict(set)
    for (_, memory), (begin, size) in places.items():
        edges[memory] |= {begin, begin + size}
    numbers: dict[tuple[int, int], int] = {}
    for memory in sorted(edges):
        for edge in sorted(edges[memory])[:-1]:
            numbers[memory, edge] = first + len(numbers)
    parts = {
        (task, memory): tuple(
            numbers[memory, edge] for edge in sorted(edges[memory]) if begin <= edge < begin + size
        )
        for (task, memory), (begin, size) in places.items()
    }
    return [
        tuple(
            dict.fromkeys(part for place in _used(step, cluster) for part in parts.get(place, ()))
        )
        for step in steps
    ]


def room_faults(graph: TaskGraph, cluster: Cluster, plan: Plan) -> Iterator[tuple[int | None, str]]:
    """What is wrong with the places of loads, and with what they take: (step, None if it is of
    none, fault). All that steps name must exist."""
    if not plan.loads and plan.weights_budget is None:
        return
    last = _last_reads(plan.steps, cluster)
    weights_of_places: dict[tuple[int, int], tuple[_Place, int]] = {}
    for index, step in enumerate(plan.steps):
        if not isinstance(step, Load):
            continue
        if step.place is None:
            if plan.weights_budget is not None:
                yield index, "it has no place in the room for weights, and the plan has a budget"
            continue
        begin, size = step.place
        need = sum(graph.tasks[task].weight_bytes for task in step.tasks)
        if begin < 0 or size < need:
            yield index, f"its place is {size} bytes from byte {begin} on; it needs {need}"
        for place, (taken, earlier) in weights_of_places.items():
            task, memory = place
            if memory != step.dst or not _overlap(taken, step.place):
                continue
            if task in step.tasks:
                if taken != step.place:
                    yield index, f"step {earlier} loads the same to byte {taken[0]}"
            elif last.get(place, -1) > index:
                name = graph.tasks[task].name
                yield index, f"it takes bytes of the weights of {name!r}, which a later step reads"
        weights_of_places |= {(task, step.dst): (step.place, index) for task in step.tasks}
    yield from ((None, fault) for fault in _budget_faults(graph, cluster, plan))


def _budget_faults(graph: TaskGraph, cluster: Cluster, plan: Plan) -> Iterator[str]:
    budget = plan.weights_budget
    for held in held_weights(graph, cluster, plan) if budget is not None else ():
        assert budget is not None
        if held.total_bytes > budget:
            yield (
                f"weights of branches take {format_bytes(held.total_bytes)} of memory "
                f"{cluster.memories[held.memory].name!r} ({held.stays_bytes} bytes stay, the room "
                f"for loads has {held.room_bytes}); the budget is {format_bytes(budget)} "
                f"({held.total_bytes - budget} bytes too few)"
            )


def _places(steps: Sequence[Step]) -> Mapping[tuple[int, int], _Place]:
    """The place of weights by (task, memory)."""
    places: dict[tuple[int, int], _Place] = {}
    for step in steps:
        if isinstance(step, Load) and step.place is not None:
            places |= dict.fromkeys(((task, step.dst) for task in step.tasks), step.place)
    return places


def _used(step: Step, cluster: Cluster) -> list[tuple[int, int]]:
    """(task, memory) whose weights a step brings or reads."""
    if isinstance(step, Load):
        return [(task, step.dst) for task in step.tasks]
    if isinstance(step, Run):
        return [(step.task, cluster.devices[step.device].memory)]
    return []


def _last_reads(steps: Sequence[Step], cluster: Cluster) -> Mapping[tuple[int, int], int]:
    return {
        place: index
        for index, step in enumerate(steps)
        if isinstance(step, Run)
        for place in _used(step, cluster)
    }


def _overlap(one: _Place, other: _Place) -> bool:
    return one[0] < sum(other) and other[0] < sum(one)
