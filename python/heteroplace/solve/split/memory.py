"""Plans of modules -> a chain of them that fits the memories.

Memories join the modules: each fits alone, but not all fastest plans together. The program over
the ends becomes one over labels (time, bytes in each memory), of which at each end only those are
kept that no other one dominates, and of these some. What it finds fits; what it misses is not
proven to be absent, so it says nothing about the bound.

The largest workspace of any task is set aside on each device, since it does not add up. Bytes are
those of the static rule, which add up over modules: what fits by it fits by lifetime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.model.memory import memory_use
from heteroplace.model.plan import Copy, Run, Step
from heteroplace.native.arrays import IMPOSSIBLE
from heteroplace.solve.problem import Problem
from heteroplace.solve.split.module_plans import ModulePlans
from heteroplace.solve.split.module_problem import NO_END, LocalModule, LocalStep, Pair

MAX_LABELS = 64
"""Labels kept for each end."""
_Bytes = tuple[int, ...]


@dataclass(frozen=True)
class _Label:
    time_ns: int
    used: _Bytes
    path: tuple[int, ...]
    """Which choice was taken in each module so far."""


@dataclass(frozen=True)
class _Choice:
    pair: Pair
    time_ns: int
    used: _Bytes
    local: tuple[LocalStep, ...]


def fitting_chain(
    problem: Problem, modules: Sequence[LocalModule], plans: Sequence[ModulePlans]
) -> tuple[Step, ...] | None:
    """Return the shortest chain of known plans that was found to fit; None: none was found."""
    room = _room(problem)
    weights = [1 / max(1, num_bytes) for num_bytes in room]
    choices = {id(one): _choices(problem, one) for one in plans}
    ends: dict[int, list[_Label]] = {NO_END: [_Label(0, (0,) * len(room), ())]}
    for one in plans:
        grown: dict[int, list[_Label]] = {}
        for index, choice in enumerate(choices[id(one)]):
            for label in ends.get(choice.pair[0], ()):
                used = tuple(a + b for a, b in zip(label.used, choice.used, strict=True))
                if all(u <= r for u, r in zip(used, room, strict=True)):
                    longer = _Label(label.time_ns + choice.time_ns, used, (*label.path, index))
                    grown.setdefault(choice.pair[1], []).append(longer)
        ends = {end: _kept(labels, weights) for end, labels in grown.items()}
    if not ends.get(NO_END):
        return None
    best = min(ends[NO_END], key=lambda label: (label.time_ns, label.path))
    steps: list[Step] = []
    for module, one, index in zip(modules, plans, best.path, strict=True):
        steps.extend(module.steps(choices[id(one)][index].local))
    return tuple(steps)


def _kept(labels: list[_Label], weights: Sequence[float]) -> list[_Label]:
    """Labels that no other dominates; if too many, the shortest and the smallest of them."""
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda one: (one.time_ns, one.used)):
        if not any(all(a <= b for a, b in zip(o.used, label.used, strict=True)) for o in kept):
            kept.append(label)
    if len(kept) <= MAX_LABELS:
        return kept

    def size(label: _Label) -> float:
        return sum(u * w for u, w in zip(label.used, weights, strict=True))

    shortest = kept[: MAX_LABELS // 2]
    return shortest + sorted(kept[MAX_LABELS // 2 :], key=size)[: MAX_LABELS // 2]


def _choices(problem: Problem, plans: ModulePlans) -> list[_Choice]:
    found = []
    for pair, kept in plans.kept.items():
        for local, time_ns in kept.items():
            used = _used(problem, plans.module.steps(local))
            found.append(_Choice(pair, time_ns, used, local))
    return found


def _used(problem: Problem, steps: Sequence[Step]) -> _Bytes:
    """What steps add to each memory, without workspaces and what the host holds anyway."""
    graph, cluster = problem.graph, problem.cluster
    placement = [-1] * len(graph.tasks)
    for step in steps:
        if isinstance(step, Run):
            placement[step.task] = step.device
    copies = [(step.tensor, step.dst) for step in steps if isinstance(step, Copy)]
    used = list(memory_use(graph, cluster, placement, copies))
    for memory, num_bytes in enumerate(memory_use(graph, cluster, [-1] * len(graph.tasks), ())):
        used[memory] -= num_bytes
    for device, one in enumerate(cluster.devices):
        sizes = [graph.tasks[t].workspace_bytes for t, d in enumerate(placement) if d == device]
        used[one.memory] -= max(sizes, default=0)
    return tuple(used)


def _room(problem: Problem) -> _Bytes:
    graph, cluster = problem.graph, problem.cluster
    room = [memory.bytes for memory in cluster.memories]
    for memory, num_bytes in enumerate(memory_use(graph, cluster, [-1] * len(graph.tasks), ())):
        room[memory] -= num_bytes
    for device, one in enumerate(cluster.devices):
        can_run = (problem.native.run_ns[:, device] != IMPOSSIBLE).tolist()
        pairs = zip(graph.tasks, can_run, strict=True)
        room[one.memory] -= max((t.workspace_bytes for t, can in pairs if can), default=0)
    return tuple(room)
