"""What is where so far, while a plan is walked: the values of each tensor, by memory and item.

A shared tensor is one value in a memory; what is told of it is which items it stands for: those
whose parts were added up, those of the run that made it anew, or all of them for state.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Step
from heteroplace.model.step_values import Place, adds_to, makes, state_places

_NONE: frozenset[int] = frozenset()


class Presence:
    """Model inputs are there from the start, state where its updates are made."""

    def __init__(
        self, graph: TaskGraph, cluster: Cluster, plan: Plan, steps: Iterable[Step]
    ) -> None:
        """Begin.

        Parameters
        ----------
        steps
            Those of `plan` that name only what exists.
        """
        self._graph = graph
        self._cluster = cluster
        self._shares = graph.has_shared_values
        self._all_items = range(plan.items)
        self._items: dict[Place, set[int]] = {}
        """Items of each tensor in each memory."""
        self._states = frozenset(state_places(graph, cluster, steps))
        self._replaced: set[Place] = set()
        """Places of state whose update is there instead."""
        self._added: set[Place] = set()
        """Places that steps add to."""
        self._read: set[Place] = set()
        """Of these, those that were read."""
        self._copied: set[Place] = set()
        """Places of shared tensors that a copy has brought."""
        memories = range(len(cluster.memories))
        homes = memories if cluster.host is None else (cluster.host,)
        updated = {state for state, _ in graph.updates}
        for tensor in graph.inputs:
            for memory in () if tensor in updated else homes:
                self._items[tensor, memory] = set(self._all_items)
        for place in self._states:
            self._items[place] = set(self._all_items)

    def items_at(self, place: Place) -> Set[int]:
        """Return the items that a place has, or stands for."""
        return self._items.get(place, _NONE)

    def has(self, place: Place, items: Iterable[int]) -> bool:
        """Say whether a place has all of some items."""
        return self._items.get(place, _NONE).issuperset(items)

    def absent(self, place: Place, items: Iterable[int]) -> list[int]:
        """Return those of some items that a place does not have."""
        there = self._items.get(place, ())
        return [item for item in items if item not in there]

    def is_replaced(self, place: Place) -> bool:
        """Say whether state was there, and its update is now."""
        return place in self._replaced

    def read(self, place: Place) -> None:
        """Note that a step reads a place."""
        if place in self._added:
            self._read.add(place)

    def copy(self, place: Place, items: Iterable[int]) -> str:
        """Note items that a copy brings; return what is wrong with it, "": nothing."""
        tensor, _ = place
        if not self._graph.tensors[tensor].shared:
            self._items.setdefault(place, set()).update(items)
            return ""
        self._items[place] = set(items)
        self._copied.add(place)
        if place in self._added:
            return "it takes the place of what steps have added up there"
        return "its update is there already" if place in self._replaced else ""

    def make(self, step: Step) -> list[str]:
        """Note what a run or a collective makes; return what is wrong with that."""
        faults: list[str] = []
        places = makes(self._graph, self._cluster, step)
        if not self._shares:
            for place in places:
                if place in self._items:
                    self._items[place].update(step.items)
                else:
                    self._items[place] = set(step.items)
            return faults
        for place in places:
            tensor, memory = place
            tensor_record = self._graph.tensors[tensor]
            if adds_to(self._graph, step, tensor):
                if place in self._read:
                    faults.append(
                        f"it adds to tensor {tensor_record.name!r}, which was read before"
                    )
                if place in self._copied:
                    faults.append(
                        f"it adds to tensor {tensor_record.name!r}, which was copied there"
                    )
                self._added.add(place)
            elif tensor_record.shared:
                self._items[place] = set()
            self._items.setdefault(place, set()).update(step.items)
            state = self._graph.state_of.get(tensor)
            if state is not None:
                self._replaced.add((state, memory))
                self._items.pop((state, memory), None)
        return faults
