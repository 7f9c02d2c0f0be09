"""A graph, a plan and a domain -> the value of every tensor where and when the plan has it.

Abstract interpretation as in DistIR (arXiv 2111.05426, section 3.3): one walk over the steps in
plan order, parametric in what values are. Domains: types (`domain_types`), numpy arrays
(`domain_numpy`: the reference executor), either of them for each value (`domain_mixed`), and times
(`domain_cost`: the simulator's oracle). A domain says what model inputs are and what a step makes
of what it reads; where values lie is the walk's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from heteroplace.errors import PlanError
from heteroplace.model.checks.check_guards import require_unguarded
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Step
from heteroplace.model.step_values import adds_to, state_places, values_made, values_read
from heteroplace.model.text.plan_text import quote_step

Key = tuple[int, int, int]
"""(tensor, memory, item); item 0 for a shared tensor."""
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class StepCall:
    """A step that is being interpreted."""

    index: int
    """Its position in the plan."""
    step: Step
    reads: tuple[Key, ...]
    """By place as `model.step_values.reads` has them, then by item."""
    makes: tuple[Key, ...]
    """By place as `model.step_values.makes` has them, then by item."""


class Domain(Protocol[Value]):
    """What values are, and what steps make of them."""

    def given(self, key: Key) -> Value:
        """Return the value of a model input."""

    def apply(self, call: StepCall, values: Mapping[Key, Value]) -> Mapping[Key, Value]:
        """Return the value of each key that a step makes.

        Parameters
        ----------
        values
            Of each key that it reads, and of each that it makes and that is there already: the
            shared tensors that it adds to.
        """


@dataclass(frozen=True)
class Interpretation(Generic[Value]):
    """What a plan has made in the end."""

    values: Mapping[Key, Value]
    """Of each tensor in each memory, for each item; of state, what has replaced it."""
    state: Mapping[int, tuple[tuple[int, Value], ...]]
    """For each model input that is state (memory, value) after the plan, ascending by memory."""


def interpret(
    graph: TaskGraph, cluster: Cluster, plan: Plan, domain: Domain[Value]
) -> Interpretation[Value]:
    """Walk a plan, which `check_plan` accepts, once.

    Raises
    ------
    PlanError
        A step reads a value that is not there, or a domain refuses it; the step is quoted. Or a
        step is guarded or loads weights.
    """
    require_unguarded(plan, "interpretations")
    walk = _Walk(graph, cluster, plan, domain)
    for index, step in enumerate(plan.steps):
        walk.run(index, step)
    return Interpretation(walk.values, walk.state())


class _Walk(Generic[Value]):
    def __init__(
        self, graph: TaskGraph, cluster: Cluster, plan: Plan, domain: Domain[Value]
    ) -> None:
        self._graph = graph
        self._cluster = cluster
        self._plan = plan
        self._domain = domain
        self.values: dict[Key, Value] = {}
        updated = {state for state, _ in graph.updates}
        self._inputs = frozenset(graph.inputs) - updated
        every = range(len(cluster.memories))
        self._homes = frozenset(every if cluster.host is None else (cluster.host,))
        self._states = state_places(graph, cluster, plan.steps)
        for tensor, memory in self._states:
            self.values[tensor, memory, 0] = domain.given((tensor, memory, 0))

    def run(self, index: int, step: Step) -> None:
        graph, cluster = self._graph, self._cluster
        read = tuple(values_read(graph, cluster, step))
        made = tuple(values_made(graph, cluster, step))
        values = {key: self._find(index, key) for key in read}
        for key in made:
            if key in self.values and adds_to(graph, step, key[0]):
                values[key] = self.values[key]
        found = self._domain.apply(StepCall(index, step, read, made), values)
        for key in made:
            self.values[key] = found[key]
            state = graph.state_of.get(key[0])
            if state is not None:
                # The weight that the step has replaced; nobody may read it any more.
                self.values.pop((state, key[1], 0), None)

    def _find(self, index: int, key: Key) -> Value:
        if key not in self.values:
            tensor, memory, item = key
            if tensor not in self._inputs or memory not in self._homes:
                name = self._graph.tensors[tensor].name
                step = quote_step(self._plan, index, self._graph, self._cluster)
                raise PlanError(
                    f"{step}: it reads tensor {name!r} of item {item}, which is not in memory "
                    f"{self._cluster.memories[memory].name!r} by then; `check_plan` lists all such "
                    f"faults"
                )
            self.values[key] = self._domain.given(key)
        return self.values[key]

    def state(self) -> dict[int, tuple[tuple[int, Value], ...]]:
        """What has become of each state, by memory."""
        update_of = dict(self._graph.updates)
        found: dict[int, list[tuple[int, Value]]] = {}
        for tensor, memory in sorted(self._states):
            key = (update_of[tensor], memory, 0)
            value = self.values[key] if key in self.values else self.values[tensor, memory, 0]
            found.setdefault(tensor, []).append((memory, value))
        return {tensor: tuple(values) for tensor, values in found.items()}


def values_of(
    made: Interpretation[Value], tensor: int, items: Iterable[int]
) -> dict[int, list[Value]]:
    """Return for each item all values of a tensor, ascending by memory."""
    asked = set(items)
    found: dict[int, list[Value]] = {}
    for (own, _, item), value in sorted(made.values.items(), key=lambda entry: entry[0]):
        if own == tensor and item in asked:
            found.setdefault(item, []).append(value)
    return found
