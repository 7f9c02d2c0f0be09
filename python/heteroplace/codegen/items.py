"""Network + plan of several items -> kernel calls: every batch by kernels of its own size.

A plan may run the tasks of several items together as batches, and those of one task on several
devices (DiviML, section II). The tasks of one batch are cut and optimised like a network for so
many items (`rebatch`, which proves that no op mixes items, or refuses); what they exchange with
other batches has the neutral layout. Where a batch reads other items than one batch has made, the
value is `Joined`: `joins` finds a place where its parts already lie side by side, or copies them.

before ==> after, for two tasks and `run a @ d items 0,1`, `run b @ d items 0`, `run b @ e items 1`

    a(x[2, 8]) -> y[2, 8]      read by b as y[0:1], on device d, and as y[1:2], on device e
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import tvm
from tvm import relay

from heteroplace.codegen.kernels import (
    Joined,
    KernelCall,
    KernelCalls,
    NetworkPart,
    Value,
    lower_parts,
)
from heteroplace.codegen.segments import ValueName, call_names, cut_segments
from heteroplace.codegen.targets import cluster_targets
from heteroplace.errors import LoweringError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.relay.expressions import static_shape, task_of_span, tensor_types
from heteroplace.relay.tasks.rebatch import rebatch
from heteroplace.tvm_bridge import register_cuda_compiler

Items = tuple[int, ...]
_Kind = tuple[int, tuple[tuple[str, int], ...]]
"""Size of a batch, and the target of each task that runs in it: equal ones share their kernels."""


@dataclass(frozen=True)
class ItemTensor:
    """A tensor of the neutral module: its type for one item, and where more items go."""

    shape: tuple[int, ...]
    dtype: str
    axis: int | None
    """None: it does not depend on the inputs, and is the same for all items."""

    @property
    def outer(self) -> int:
        """Product of the extents before the axis of the items."""
        return prod(self.shape[: self.axis])

    def shape_of(self, num_items: int) -> tuple[int, ...]:
        """Return the shape for several items."""
        if self.axis is None:
            return self.shape
        return tuple(
            extent * num_items if at == self.axis else extent
            for at, extent in enumerate(self.shape)
        )


def lower_items(mod: tvm.IRModule, graph: TaskGraph, cluster: Cluster, plan: Plan) -> KernelCalls:
    """Lower every batch of a plan for several items.

    Parameters
    ----------
    mod
        Neutral module for one item, whose inputs have a leading dimension of 1; its spans name the
        tasks of `graph`.

    Returns
    -------
    The calls, each with its `items`. Inputs and outputs hold all items of the plan, as those of the
    same network for a batch of that size do.

    Raises
    ------
    UnsupportedRelayError
        An op could mix items, or an input has no leading dimension of 1; the message names it.
    LoweringError
        An op cannot be compiled for its target.
    """
    targets, target_of_device = cluster_targets(cluster)
    if any(target.kind.name == "cuda" for target in targets):
        register_cuda_compiler()
    batches: dict[Items, dict[str, int]] = {}
    for step in plan.steps:
        if isinstance(step, Run):
            target = target_of_device[step.device]
            batches.setdefault(step.items, {})[graph.tasks[step.task].name] = target
    sizes = {len(items) for items in batches}
    # Whoever runs items one by one splits inputs and joins outputs too: the proof is asked anyway.
    mods = {size: rebatch(mod, size) for size in sorted((sizes | {2}) - {1})} | {1: mod}
    kinds: dict[_Kind, list[Items]] = {}
    for items, target_of_task in sorted(batches.items()):
        kinds.setdefault((len(items), tuple(target_of_task.items())), []).append(items)
    everything = {task.name: len(targets) for task in graph.tasks}
    cuts = [
        cut_segments(mods[size], (*targets, None), everything | dict(target_of_task))
        for size, target_of_task in kinds
    ]
    parts = lower_parts([segments for segments, _ in cuts])
    part_of = {
        items: part
        for members, part in zip(kinds.values(), parts, strict=True)
        for items in members
    }
    tensors = _item_tensors(mod["main"], mods[max(mods)]["main"])
    names = [ValueName(parameter.name_hint) for parameter in mod["main"].params]
    return combine_batches(part_of, batches, tensors, names, cuts[0][1])


def combine_batches(
    part_of: Mapping[Items, NetworkPart],
    batches: Mapping[Items, Collection[str]],
    tensors: Mapping[ValueName, ItemTensor],
    inputs: Sequence[ValueName],
    outputs: Sequence[ValueName],
) -> KernelCalls:
    """Put the calls of all batches together; what a batch imports is found among the others.

    Parameters
    ----------
    part_of
        The lowered part of the network of each batch.
    batches
        The tasks that run in each batch; every item is in one batch of each task.
    tensors
        All that batches and the model exchange.
    """
    return _Combiner(part_of, batches, tensors).run(inputs, outputs)


def _item_tensors(one: relay.Function, more: relay.Function) -> dict[ValueName, ItemTensor]:
    """Every tensor of the network that may be exchanged, from it for one item and for several."""
    found = {}
    for parameter in one.params:
        (type_,) = tensor_types(parameter.checked_type)
        shape = static_shape(type_)
        found[ValueName(parameter.name_hint)] = ItemTensor(shape, type_.dtype, 0)
    calls = {name: call for call, name in call_names(more).items()}
    for call, name in call_names(one).items():
        pairs = zip(
            tensor_types(call.checked_type), tensor_types(calls[name].checked_type), strict=True
        )
        for index, (type_, batched) in enumerate(pairs):
            shape, grown = static_shape(type_), static_shape(batched)
            changed = [at for at, extent in enumerate(shape) if extent != grown[at]]
            key = ValueName(name, index, task_of_span(call) or "")
            found[key] = ItemTensor(shape, type_.dtype, changed[0] if changed else None)
    return found


class _Combiner:
    """Puts the calls of all batches together; what a batch imports is found among the others."""

    def __init__(
        self,
        part_of: Mapping[Items, NetworkPart],
        batches: Mapping[Items, Collection[str]],
        tensors: Mapping[ValueName, ItemTensor],
    ) -> None:
        self._part_of = part_of
        self._tensors = tensors
        self._all = tuple(sorted({item for items in batches for item in items}))
        self._batch_of: dict[tuple[str, int], Items] = {}
        for items, tasks in batches.items():
            self._batch_of |= dict.fromkeys(product(tasks, items), items)
        self._imports = {
            items: {value: name for name, value in part.imports.items()}
            for items, part in part_of.items()
        }
        self._exports = {
            items: dict(zip(part.exports, part.calls.outputs, strict=True))
            for items, part in part_of.items()
        }
        self._values: list[Value] = []
        self._ids: dict[tuple[Items, int], int] = {}
        """By batch and value of its part."""
        self._named: dict[tuple[ValueName, Items], int] = {}
        """Inputs, and joined values."""

    def run(self, inputs: Sequence[ValueName], outputs: Sequence[ValueName]) -> KernelCalls:
        for name in inputs:
            tensor = self._tensors[name]
            shape = tensor.shape_of(len(self._all))
            value = Value(shape, tensor.dtype, name.name, items=self._all)
            self._named[name, self._all] = self._add(value)
        calls, segment = [], 0
        for items, part in self._part_of.items():
            calls += [self._call(call, items, segment) for call in part.calls.calls]
            segment += 1 + max((call.segment for call in part.calls.calls), default=0)
        found = tuple(self._read(name, self._all) for name in outputs)
        kernels = {
            symbol: kernel
            for part in self._part_of.values()
            for symbol, kernel in part.calls.kernels.items()
        }
        return KernelCalls(tuple(self._values), tuple(calls), found, kernels)

    def _call(self, call: KernelCall, items: Items, first_segment: int) -> KernelCall:
        return replace(
            call,
            segment=first_segment + call.segment,
            reads=tuple(self._value(items, value) for value in call.reads),
            writes=tuple(self._value(items, value) for value in call.writes),
            items=items,
        )

    def _add(self, value: Value) -> int:
        self._values.append(value)
        return len(self._values) - 1

    def _value(self, items: Items, value: int) -> int:
        """The value of the whole program that a value of a batch's part is."""
        if (items, value) not in self._ids:
            imported = self._imports[items].get(value)
            if imported is not None:
                found = self._read(imported, items)
            else:
                own = self._part_of[items].calls.values[value]
                alias = None if own.alias_of is None else self._value(items, own.alias_of)
                found = self._add(replace(own, alias_of=alias, items=items))
            self._ids[items, value] = found
        return self._ids[items, value]

    def _made(self, name: ValueName, item: int) -> int:
        """The value that holds a tensor of one item, and perhaps of others."""
        if name.index is None:
            return self._named[name, self._all]
        items = self._batch_of[name.task, item]
        return self._value(items, self._exports[items][name])

    def _read(self, name: ValueName, items: Items) -> int:
        """A value that holds a tensor of just these items."""
        if (name, items) in self._named:
            return self._named[name, items]
        made = [self._made(name, item) for item in items]
        tensor = self._tensors[name]
        is_made = name.index is not None and self._batch_of[name.task, items[0]] == items
        if is_made or tensor.axis is None:
            return made[0]
        parts = [self._part(value, item) for value, item in zip(made, items, strict=True)]
        joined = Joined(tensor.outer, tuple(parts))
        shape = tensor.shape_of(len(items))
        self._named[name, items] = self._add(Value(shape, tensor.dtype, items=items, joined=joined))
        return self._named[name, items]

    def _part(self, value: int, item: int) -> int:
        """The value that is made and holds an item of `value`, which may itself be joined."""
        while (alias := self._values[value].alias_of) is not None:
            value = alias
        found = self._values[value]
        if found.constant is not None:
            raise LoweringError(
                f"a task makes a constant {found.dtype}{list(found.shape)} for items "
                f"{found.items}, of which others read a part; give it and its readers equal batches"
            )
        return value if found.joined is None else found.joined.parts[found.items.index(item)]
