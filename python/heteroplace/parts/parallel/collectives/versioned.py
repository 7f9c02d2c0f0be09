"""Network + plan with collectives, sums over items or state -> kernel calls, step by step.

Tasks of one batch are lowered together, as for any plan of several items (`items`). Tasks apart are
not in batches: collectives, of which each member computes what it keeps (`collectives`), and tasks
that know of no items, which run once in each memory that needs them. The module is cut where a
reader has a choice of values, and the plan says which is its own (`versions`).

What adds to a value takes over its bytes, and so does what replaces state: in the kernel, where it
is proven that each element is read before it is written (`in_place`), or else by a copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from heteroplace.errors import LoweringError
from heteroplace.lower.in_place import may_run_in_place
from heteroplace.lower.items.combine import Items, ItemTensor
from heteroplace.lower.items.item_axes import item_inputs, item_tensors
from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.segment_calls import lower_parts
from heteroplace.lower.segments import ValueName, cut_segments
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Plan, Run, devices_of
from heteroplace.parts.parallel.collectives.cut_module import CutModule, cut_module
from heteroplace.parts.parallel.collectives.joined_sums import JoinableSums, is_joined_sum
from heteroplace.parts.parallel.collectives.output_axes import item_axes
from heteroplace.parts.parallel.collectives.steps import NetworkSteps, StepCombiner, StepPart
from heteroplace.parts.parallel.collectives.sums_in_updates import sums_in_updates
from heteroplace.parts.parallel.collectives.versions import Versions, runs_apart
from heteroplace.relay.targets import cluster_targets
from heteroplace.relay.tasks.rebatch import rebatch

_CutKey = tuple[int, frozenset[int], frozenset[int]]
"""Number of items, tasks that add to what is there, and those that add up all items at once."""


@dataclass(frozen=True)
class _Kind:
    """What equal parts have in common."""

    size: int
    """Number of items."""
    target_of_task: tuple[tuple[str, int], ...]
    adding: frozenset[int] = frozenset()
    """Tasks that add what they make to what is there."""
    sums: frozenset[int] = frozenset()
    """Its tasks, if they add up all the items at once."""

    @property
    def cut_key(self) -> _CutKey:
        """What parts that come of one cut module have in common."""
        return self.size, self.adding, self.sums


@dataclass(frozen=True)
class _LoweredKinds:
    """What plans of the same kinds of parts have in common."""

    parts: Mapping[_Kind, StepPart]
    tensors: Mapping[ValueName, ItemTensor]
    """By name in the graph, and in cut modules, the tensors that are read for other items."""


def lower_versioned(
    mod: tvm.IRModule,
    graph: TaskGraph,
    cluster: Cluster,
    plan: Plan,
    lowered_parts: MutableMapping[Hashable, Any],
) -> KernelCalls:
    """Lower all that the steps of a plan run.

    Parameters
    ----------
    mod
        Neutral module for one item, of any number of rows; its spans name the tasks of `graph`.
    lowered_parts
        Parts that other plans of this module and graph share with this one; new ones are added.

    Returns
    -------
    The calls, each with its step and device. Inputs and outputs that are not shared hold all items.

    Raises
    ------
    UnsupportedRelayError
        An output could mix items; the message names the op.
    LoweringError
        An op cannot be compiled for its target, or a step cannot be lowered.
    """
    targets, target_of_device = cluster_targets(cluster)
    versions = Versions(graph, cluster, plan)
    planned = _Kinds(graph, plan, versions, target_of_device)
    texts = tuple(f"{target} host {target.host}" for target in targets)
    members = tuple(sorted(planned.members.items()))
    sums = sums_in_updates(graph, cluster, plan)
    key = (texts, plan.items, members, tuple(planned.kinds), frozenset(sums))
    if key not in lowered_parts:
        lowered_parts[key] = _lower_kinds(mod, graph, plan.items, planned, targets, sums)
    lowered: _LoweredKinds = lowered_parts[key]
    steps = NetworkSteps(
        graph,
        cluster,
        plan,
        versions,
        {items: lowered.parts[kind] for items, kind in planned.batches.items()},
        {key: lowered.parts[kind] for key, kind in planned.apart.items()},
        target_of_device,
        sums,
    )
    kernels = {
        name: kernel
        for part in lowered.parts.values()
        for name, kernel in part.lowered.calls.kernels.items()
    }

    def is_safe(symbol: str, read: int, write: int) -> bool:
        return may_run_in_place(kernels[symbol], read, write)

    return StepCombiner(steps, lowered.tensors, is_safe).combined()


def _lower_kinds(
    mod: tvm.IRModule,
    graph: TaskGraph,
    num_items: int,
    planned: _Kinds,
    targets: Sequence[tvm.target.Target],
    in_readers: Collection[int],
) -> _LoweredKinds:
    mods = _modules(mod, graph, planned.sizes)
    joined = frozenset(tensor for task in planned.sums for tensor in graph.task_inputs[task])
    sums = JoinableSums(mod, graph) if planned.sums else None
    cuts: dict[_CutKey, CutModule] = {}
    for kind in planned.kinds:
        if kind.sums and sums is not None:
            cuts[kind.cut_key] = sums.cut(kind.sums, kind.size)
        elif kind.cut_key not in cuts:
            cuts[kind.cut_key] = cut_module(
                mods[kind.size], graph, planned.members, kind.adding, joined, in_readers
            )
    everything = {task.name: len(targets) for task in graph.tasks}
    segments = [
        cut_segments(
            cuts[kind.cut_key].mod,
            (*targets, None),
            everything | dict(kind.target_of_task),
        )
        for kind in planned.kinds
    ]
    parts = {}
    for kind, part, (_, names) in zip(
        planned.kinds,
        lower_parts([segment_kind for segment_kind, _ in segments]),
        segments,
        strict=True,
    ):
        cut = cuts[kind.cut_key]
        name_of = dict(zip(cut.exported, names, strict=True))
        parts[kind] = StepPart(part, cut.imports, name_of)
    tensors = {} if sums is None else sums.tensors
    tensors |= _exchanged(mod, graph, num_items, cuts, max(planned.sizes))
    return _LoweredKinds(parts, tensors)


def _modules(mod: tvm.IRModule, graph: TaskGraph, sizes: Sequence[int]) -> dict[int, tvm.IRModule]:
    """The module for each number of items."""
    names, rows = item_inputs(mod["main"], graph)
    return {size: mod if size == 1 else rebatch(mod, size, names, rows) for size in sizes}


def _exchanged(
    mod: tvm.IRModule,
    graph: TaskGraph,
    num_items: int,
    cuts: Mapping[_CutKey, CutModule],
    largest: int,
) -> dict[ValueName, ItemTensor]:
    """As `_LoweredKinds.tensors`."""
    tensors = item_axes(mod, graph, num_items)
    if largest == 1:
        return tensors
    whole = {size: cut for (size, _, sums), cut in cuts.items() if not sums}
    one, more = whole.get(1), whole[largest]
    if one is None:
        one = cut_module(mod, graph, {})
    return tensors | item_tensors(one.mod["main"], more.mod["main"])


class _Kinds:
    """Which parts a plan needs, and where."""

    def __init__(
        self,
        graph: TaskGraph,
        plan: Plan,
        versions: Versions,
        target_of_device: Sequence[int],
    ) -> None:
        self._graph = graph
        batches: dict[Items, dict[str, int]] = defaultdict(dict)
        adding: dict[Items, set[int]] = defaultdict(set)
        sums: dict[Items, set[int]] = defaultdict(set)
        apart: dict[tuple[int, int, bool], dict[str, int]] = defaultdict(dict)
        self.members: dict[int, int] = {}
        adding_steps = {version.step for version in versions.before}
        for index, step in enumerate(plan.steps):
            if not isinstance(step, (Run, Collective)):
                continue
            name = graph.tasks[step.task].name
            adds = index in adding_steps and graph.tasks[step.task].adds
            if isinstance(step, Collective):
                self._count_members(step)
            if runs_apart(graph, step.task):
                size = versions.size_apart(step)
                for device in devices_of(step):
                    target = target_of_device[device]
                    apart[size, target, adds][name] = target
                continue
            batches[step.items][name] = target_of_device[devices_of(step)[0]]
            if adds:
                adding[step.items].add(step.task)
            if is_joined_sum(graph, step):
                sums[step.items].add(step.task)
        self.sums = frozenset().union(*sums.values())
        """Tasks that add up several items at once."""
        self.batches = {
            items: _Kind(
                len(items),
                tuple(tasks.items()),
                frozenset(adding[items]),
                self._checked_sums(items, tasks, sums[items], adding[items]),
            )
            for items, tasks in sorted(batches.items())
        }
        """By items."""
        task_id = {task.name: index for index, task in enumerate(graph.tasks)}
        self.apart = {
            key: _Kind(
                key[0],
                tuple(tasks.items()),
                frozenset(task_id[name] for name in tasks) if key[2] else frozenset(),
            )
            for key, tasks in apart.items()
        }
        """By number of items, target, and whether the tasks add to what is there."""
        self.kinds = list(dict.fromkeys([*self.batches.values(), *self.apart.values()]))
        self.sizes = sorted({kind.size for kind in self.kinds if not kind.sums})

    def _count_members(self, step: Collective) -> None:
        kind = collective_kind(self._graph.tasks[step.task].op)
        assert kind is not None
        if kind.reads == "root" or len(self._graph.task_inputs[step.task]) > 1:
            return
        if self.members.setdefault(step.task, len(step.devices)) != len(step.devices):
            raise LoweringError(
                f"collective {self._graph.tasks[step.task].name!r} runs on {len(step.devices)} "
                f"devices and on {self.members[step.task]}; a task has the same number of them in "
                f"all its steps"
            )

    def _checked_sums(
        self, items: Items, tasks: Collection[str], sums: set[int], adding: set[int]
    ) -> frozenset[int]:
        """The tasks that add up all items of a batch: all of them or none, and nothing before."""
        others = set(tasks) - {self._graph.tasks[task].name for task in sums}
        if sums and (others or adding):
            names = ", ".join(self._graph.tasks[task].name for task in sorted(sums))
            also = f"{', '.join(sorted(others))} run for the same ones"
            raise LoweringError(
                f"{names} add up items {items} at once, and "
                f"{also if others else 'other items are added up there'}; run these tasks item by "
                f"item"
            )
        return frozenset(sums)
