"""Plan -> which value each step reads, of tensors that have several.

What a collective makes is in the memories of all its devices, as values of their own. A shared
tensor has a value in each memory, which runs add to, make anew, or put in the place of state. A
version is such a value from the step that makes it on; a step reads the last one that was made in
its memory, or brought there, before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from heteroplace.errors import LoweringError
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Copy, Plan, Run
from heteroplace.model.step_values import (
    adds_to,
    items_of,
    makes,
    state_places,
    versioned_tensors,
)

START = -1
"""In place of a step: before all."""


@dataclass(frozen=True, slots=True)
class Version:
    """A value of a tensor in the memory in which a step makes it."""

    tensor: int
    memory: int
    step: int
    """START: it is state, there before the run."""
    items: tuple[int, ...] = (0,)


class Versions:
    """The versions of one plan, which `check_plan` has seen."""

    def __init__(self, graph: TaskGraph, cluster: Cluster, plan: Plan) -> None:
        self._graph = graph
        self._cluster = cluster
        self.tensors = versioned_tensors(graph)
        """Ids of the tensors that have versions; all others have one value for each item."""
        self._steps: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        """By tensor, memory and item: since which steps it has the versions of the next."""
        self._found: dict[tuple[int, int, int], list[Version]] = defaultdict(list)
        self.made: dict[tuple[int, int, int], Version] = {}
        """By step, tensor and memory."""
        self.before: dict[Version, Version] = {}
        """For each version that is added to, or that is an update, what it is made of."""
        for tensor, memory in state_places(graph, cluster, plan.steps):
            self._note(START, memory, 0, Version(tensor, memory, START))
        for index, step in enumerate(plan.steps):
            for tensor, memory in makes(graph, cluster, step):
                if tensor not in self.tensors:
                    continue
                if isinstance(step, Copy):
                    for item in items_of(graph, tensor, step.items):
                        source_version = self.read(tensor, item, step.src, index)
                        self._note(index, memory, item, source_version)
                    continue
                version = Version(tensor, memory, index, step.items)
                self._make(version, is_added=adds_to(graph, step, tensor))

    def read(self, tensor: int, item: int, memory: int, step: int) -> Version:
        """Return what a step reads in a memory, of one item.

        Raises
        ------
        LoweringError
            Nothing is there.
        """
        item = items_of(self._graph, tensor, (item,))[0]
        steps = self._steps.get((tensor, memory, item), [])
        place = bisect_left(steps, step)
        if place == 0:
            name, where = self._graph.tensors[tensor].name, self._cluster.memories[memory].name
            raise LoweringError(
                f"step {step} of the plan reads item {item} of {name!r} in memory {where!r}, where "
                f"none was made or brought before; the module and its plan do not belong together"
            )
        return self._found[tensor, memory, item][place - 1]

    def size_apart(self, step: Run | Collective) -> int:
        """Return for how many items the kernels of a task apart are."""
        outputs = self._graph.task_outputs[step.task]
        shared = all(self._graph.tensors[tensor].shared for tensor in outputs)
        return 1 if shared else len(step.items)

    def _make(self, version: Version, *, is_added: bool) -> None:
        tensor, memory, step = version.tensor, version.memory, version.step
        self.made[step, tensor, memory] = version
        state = self._graph.state_of.get(tensor)
        if state is not None:
            self.before[version] = self.read(state, 0, memory, step)
        elif is_added and self._found.get((tensor, memory, 0)):
            self.before[version] = self._found[tensor, memory, 0][-1]
        for item in items_of(self._graph, tensor, version.items):
            self._note(step, memory, item, version)

    def _note(self, step: int, memory: int, item: int, version: Version) -> None:
        key = (version.tensor, memory, item)
        self._steps[key].append(step)
        self._found[key].append(version)


def runs_apart(graph: TaskGraph, task: int) -> bool:
    """Say whether a task is in no batch: a collective, or one that knows of no items."""
    if collective_kind(graph.tasks[task].op) is not None:
        return True
    reads = graph.task_inputs[task]
    return graph.is_made_once(task) and all(graph.tensors[tensor].shared for tensor in reads)
