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

import numpy as np

from heteroplace.model.memory_use.memory import memory_use
from heteroplace.model.plan import Copy, Run, Step
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.parts.throughput.split.module_plans import ModulePlans
from heteroplace.parts.throughput.split.module_problem import NO_END, LocalModule, LocalStep, Pair
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import Problem

MAX_LABELS = 64
"""Labels kept for each end."""
_BLOCK = 256
"""Labels that are compared at once."""
_Bytes = tuple[int, ...]


@dataclass(frozen=True)
class _Labels:
    """Chains of choices that end alike, the shortest first."""

    times_ns: np.ndarray
    """int64[num_labels]."""
    used: np.ndarray
    """int64[num_labels, num_memories], bytes."""
    choices: np.ndarray
    """int64[num_labels]: which choice was taken last."""
    before: np.ndarray
    """int64[num_labels]: place among the labels at the entry of that choice."""


@dataclass(frozen=True)
class _Choice:
    pair: Pair
    time_ns: int
    used: _Bytes
    local: tuple[LocalStep, ...]


def fitting_chain(
    problem: Problem,
    modules: Sequence[LocalModule],
    plans: Sequence[ModulePlans],
    deadline: Deadline,
) -> tuple[Step, ...] | None:
    """Return the shortest chain of known plans that was found to fit; None: none was found, or not
    by the deadline."""
    room, held = np.array(_room(problem)), _held(problem)
    weights = 1 / np.maximum(1, room)
    choices: dict[int, list[_Choice]] = {}
    for one in plans:
        if id(one) not in choices:
            if deadline.is_over():
                return None
            choices[id(one)] = _choices(problem, one, held)
    none = np.zeros(1, np.int64)
    ends = [{NO_END: _Labels(none, np.zeros((1, len(room)), np.int64), none, none)}]
    for one in plans:
        if deadline.is_over():
            return None
        grown: dict[int, list[_Labels]] = {}
        for index, choice in enumerate(choices[id(one)]):
            labels = ends[-1].get(choice.pair[0])
            if labels is None:
                continue
            used = labels.used + np.array(choice.used)
            (fits,) = np.nonzero((used <= room).all(1))
            times_ns = labels.times_ns[fits] + choice.time_ns
            longer = _Labels(times_ns, used[fits], np.full(len(fits), index), fits)
            grown.setdefault(choice.pair[1], []).append(longer)
        ends.append({end: _kept(labels, weights) for end, labels in grown.items()})
    if NO_END not in ends[-1] or not len(ends[-1][NO_END].times_ns):
        return None
    return _steps_of(modules, [choices[id(one)] for one in plans], ends)


def _steps_of(
    modules: Sequence[LocalModule],
    choices: Sequence[Sequence[_Choice]],
    ends: Sequence[dict[int, _Labels]],
) -> tuple[Step, ...]:
    """The chain of the shortest label at the end, followed back."""
    end, place = NO_END, 0
    taken: list[_Choice] = []
    for of_module, labels in zip(reversed(choices), reversed(ends), strict=False):
        choice = of_module[int(labels[end].choices[place])]
        end, place = choice.pair[0], int(labels[end].before[place])
        taken.append(choice)
    steps: list[Step] = []
    for module, choice in zip(modules, reversed(taken), strict=True):
        steps.extend(module.steps(choice.local))
    return tuple(steps)


def _kept(parts: Sequence[_Labels], weights: np.ndarray) -> _Labels:
    """Labels that no other dominates; if too many, the shortest and the smallest of them."""
    times_ns = np.concatenate([part.times_ns for part in parts])
    used = np.concatenate([part.used for part in parts])
    order = np.lexsort((*used.T[::-1], times_ns))
    used = used[order]
    kept_choices = np.empty(0, np.int64)
    for begin in range(0, len(order), _BLOCK):
        block = used[begin : begin + _BLOCK]
        # Of those before, and of the same block: a label that is dominated has one that is not.
        among = np.concatenate((used[kept_choices], block))
        is_below: np.ndarray = np.all(among[None] <= block[:, None], axis=2)
        is_below[:, len(kept_choices) :] &= np.tri(len(block), k=-1, dtype=bool)
        kept_choices = np.concatenate(
            (kept_choices, begin + np.nonzero(~np.any(is_below, axis=1))[0])
        )
    if len(kept_choices) > MAX_LABELS:
        half = MAX_LABELS // 2
        by_size = np.argsort(used[kept_choices[half:]] @ weights, kind="stable")
        kept_choices = np.concatenate(
            (kept_choices[:half], kept_choices[half:][np.sort(by_size[:half])])
        )
    chosen = order[kept_choices]
    return _Labels(
        times_ns[chosen],
        used[kept_choices],
        np.concatenate([part.choices for part in parts])[chosen],
        np.concatenate([part.before for part in parts])[chosen],
    )


def _choices(problem: Problem, plans: ModulePlans, held: _Bytes) -> list[_Choice]:
    choices = []
    for pair, kept_plans in plans.kept.items():
        for local, time_ns in kept_plans.items():
            used = _used(problem, plans.module.steps(local), held)
            choices.append(_Choice(pair, time_ns, used, local))
    return choices


def _used(problem: Problem, steps: Sequence[Step], held: _Bytes) -> _Bytes:
    """What steps add to each memory, without workspaces and what the host holds anyway."""
    graph, devices = problem.graph, problem.cluster.devices
    placement = [-1] * len(graph.tasks)
    workspaces = [0] * len(devices)
    for step in steps:
        if isinstance(step, Run):
            placement[step.task] = step.device
            num_bytes = graph.tasks[step.task].workspace_bytes
            workspaces[step.device] = max(workspaces[step.device], num_bytes)
    copies = [(step.tensor, step.dst) for step in steps if isinstance(step, Copy)]
    total = memory_use(graph, problem.cluster, placement, copies)
    used = [a - b for a, b in zip(total, held, strict=True)]
    for device, num_bytes in zip(devices, workspaces, strict=True):
        used[device.memory] -= num_bytes
    return tuple(used)


def _held(problem: Problem) -> _Bytes:
    """What the host holds anyway."""
    return memory_use(problem.graph, problem.cluster, [-1] * len(problem.graph.tasks), ())


def _room(problem: Problem) -> _Bytes:
    graph, cluster = problem.graph, problem.cluster
    room = [one.bytes - held for one, held in zip(cluster.memories, _held(problem), strict=True)]
    for device, one in enumerate(cluster.devices):
        can_run = (problem.native.run_ns[:, device] != IMPOSSIBLE).tolist()
        pairs = zip(graph.tasks, can_run, strict=True)
        room[one.memory] -= max((t.workspace_bytes for t, can in pairs if can), default=0)
    return tuple(room)
