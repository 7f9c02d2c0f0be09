"""Fusion rules of a backend -> groups of tasks that it would fuse anyway.

Moirai, section III-D, algorithm 1 and table I. A rule is a list of op types. The edge from `u` to
`v` may be contracted if the group of `v` is the only consumer of `u`, so that no second path leads
from `u` to `v` and the quotient stays acyclic:

- direct: `u` has one consumer and `v` one producer; fusible;
- multi-inputs: `v` has several producers, `u` one consumer; fusible, with one of the producers;
- multi-outputs: `u` has several consumers; never fusible.

Tasks are visited so that the tail of a rule is formed before its head. A group whose types are a
contiguous part of a rule waits for the rest; what never becomes a whole rule is released.

Where the paper is silent: consumers count as groups, so two tensors to one consumer are one; among
the producers of a join the one that completes the longest rule is taken, then the one that hands
over most bytes, then the lower id. Unlike Moirai: a tensor that the model returns counts as one
more consumer, for it must exist outside the fused kernel; and tasks are not fused if no device or
no colocation group suits both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from heteroplace.errors import SolverError
from heteroplace.model.graph import TaskGraph

Types = tuple[str, ...]


@dataclass(frozen=True)
class FusionRules:
    """Lists of op types that a backend fuses when they follow each other."""

    rules: tuple[Types, ...]
    type_of: Mapping[str, str] = field(default_factory=dict)
    """The type of ops that are called otherwise in `Task.op`, by their name there."""

    def __post_init__(self) -> None:
        for rule in self.rules:
            if len(rule) < 2:
                raise SolverError(f"fusion rule {rule} has fewer than 2 op types; leave it out")

    @cached_property
    def complete(self) -> frozenset[Types]:
        """All rules."""
        return frozenset(self.rules)

    @cached_property
    def partial(self) -> frozenset[Types]:
        """Every contiguous part of every rule: not only its beginnings."""
        parts = set()
        for rule in self.rules:
            for begin in range(len(rule)):
                for end in range(begin + 1, len(rule) + 1):
                    parts.add(rule[begin:end])
        return frozenset(parts)


MOIRAI_RULES = FusionRules(
    (("conv", "bn"), ("conv", "bn", "relu"), ("conv", "bn", "add", "relu")),
    {
        **dict.fromkeys(("Conv", "conv2d", "nn.conv1d", "nn.conv2d", "nn.conv3d"), "conv"),
        **dict.fromkeys(("BatchNormalization", "batch_norm", "nn.batch_norm"), "bn"),
        **dict.fromkeys(("Add",), "add"),
        **dict.fromkeys(("Relu", "ReLU", "nn.relu"), "relu"),
    },
)
"""Table I of the paper, with what ONNX and Relay call its ops."""


def fuse_by_rules(graph: TaskGraph, rules: FusionRules) -> tuple[tuple[int, ...], ...]:
    """Return the groups of Moirai's coarsening; give them to `coarsen`.

    Every task is in one group, and every group of several tasks is one whole rule, in its order.
    Linear in tasks and edges for rules of a given length.
    """
    fusion = _Fusion(graph, rules)
    for task in _consumers_first(graph):
        fusion.visit(task)
    return fusion.released()


def _consumers_first(graph: TaskGraph) -> Iterator[int]:
    """Tasks in post-order of a depth-first walk from the sources along consumers."""
    visited = [False] * len(graph.tasks)
    for root, before in enumerate(graph.predecessors):
        if before or visited[root]:
            continue
        visited[root] = True
        path = [(root, iter(graph.successors[root]))]
        while path:
            task, rest = path[-1]
            following = next((other for other in rest if not visited[other]), None)
            if following is None:
                path.pop()
                yield task
            else:
                visited[following] = True
                path.append((following, iter(graph.successors[following])))


class _Fusion:
    """Groups that grow at their heads while tasks are visited, consumers first."""

    def __init__(self, graph: TaskGraph, rules: FusionRules) -> None:
        self._graph = graph
        self._rules = rules
        returned = set(graph.outputs)
        self._is_returned = [
            any(tensor in returned for tensor in outputs) for outputs in graph.task_outputs
        ]
        self._own_types = [
            tuple(rules.type_of.get(op, op) for op in task.op.split("+")) for task in graph.tasks
        ]
        """Of each task; several where it is made of several ops."""
        self._head = list(range(len(graph.tasks)))
        """For each task the head of its group."""
        self._chain: list[tuple[int, ...]] = [(task,) for task in self._head]
        """For each head the tasks of its group, in the order of the rule."""
        self._begins = self._rule_beginnings()
        self._choice: dict[int, int] = {}
        """For each head that several tasks could be bound to, the one that is."""

    def visit(self, task: int) -> None:
        """Bind a task, still alone, to its consumer group if that is part of a rule."""
        head = self._only_consumer(task)
        if head is None or not self._conforms(task, head):
            return
        if head not in self._choice:
            rivals = [
                rival
                for rival in self._graph.predecessors[head]
                if self._only_consumer(rival) == head and self._conforms(rival, head)
            ]
            self._choice[head] = max(rivals, key=lambda rival: self._merit(rival, head))
        if self._choice[head] != task:
            return
        self._chain[task] = (task, *self._chain[head])
        for member in self._chain[task]:
            self._head[member] = task

    def released(self) -> tuple[tuple[int, ...], ...]:
        """All groups by their first task; what is no whole rule is cut into whole rules."""
        groups: list[tuple[int, ...]] = []
        for task, head in enumerate(self._head):
            if task == head:
                groups.extend(self._cut(self._chain[head]))
        return tuple(sorted(groups))

    def _cut(self, chain: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """The longest whole rules from the head on; what is left over is alone."""
        begin = 0
        while begin < len(chain):
            end = len(chain)
            while end > begin + 1 and self._types(chain[begin:end]) not in self._rules.complete:
                end -= 1
            yield chain[begin:end]
            begin = end

    def _types(self, tasks: Sequence[int]) -> Types:
        return tuple(op for task in tasks for op in self._own_types[task])

    def _only_consumer(self, task: int) -> int | None:
        """Head of the one group that reads from a task, if the task feeds that head."""
        if self._is_returned[task]:
            return None
        heads = {self._head[consumer] for consumer in self._graph.successors[task]}
        if len(heads) != 1:
            return None
        head = heads.pop()
        return head if head in self._graph.successors[task] else None

    def _conforms(self, task: int, head: int) -> bool:
        """The types of both form a part of a rule, and both can be in one place."""
        chain = (task, *self._chain[head])
        return self._types(chain) in self._rules.partial and self._is_compatible(chain)

    def _is_compatible(self, chain: tuple[int, ...]) -> bool:
        tasks = [self._graph.tasks[task] for task in chain]
        groups = {task.together for task in tasks if task.together is not None}
        allowed = [set(task.devices) for task in tasks if task.devices is not None]
        return len(groups) <= 1 and (not allowed or bool(set.intersection(*allowed)))

    def _merit(self, task: int, head: int) -> tuple[int, int, int]:
        """Length of the longest rule that the task can complete, bytes handed over, lower id."""
        tail = self._types(self._chain[head])
        lengths = [
            len(begin) + len(tail)
            for begin in self._begins[task]
            if begin + tail in self._rules.complete
        ]
        num_bytes = sum(
            self._graph.tensors[tensor].bytes
            for tensor in self._graph.task_outputs[task]
            if head in self._graph.tensors[tensor].consumers
        )
        return max(lengths, default=0), num_bytes, -task

    def _rule_beginnings(self) -> list[frozenset[Types]]:
        """For each task the beginnings of rules that a chain of tasks ending in it spells."""
        beginnings = {rule[:end] for rule in self._rules.rules for end in range(1, len(rule) + 1)}
        begins: list[frozenset[Types]] = []
        for task_id, own in enumerate(self._own_types):
            met_types: set[Types] = set()
            if own in beginnings:
                met_types.add(own)
            for producer in self._graph.predecessors[task_id]:
                if self._graph.successors[producer] == (task_id,):
                    longer = {begin + own for begin in begins[producer]}
                    met_types |= longer & beginnings
            begins.append(frozenset(met_types))
        return begins
