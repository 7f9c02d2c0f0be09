"""Lowered batches of a plan for several items -> one list of kernel calls over one list of values.

What a batch imports is found among the others: in the value that one of them has made, or as
`Joined` parts of several.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from heteroplace.errors import LoweringError
from heteroplace.lower.kernels import Joined, KernelCall, KernelCalls, Value
from heteroplace.lower.segment_calls import NetworkPart
from heteroplace.lower.segments import ValueName

Items = tuple[int, ...]


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
    return Combiner(part_of, batches, tensors).run(inputs, outputs)


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """Where values of a lowered part belong."""

    key: Hashable
    """Equal for all places that share their values."""
    part: NetworkPart
    items: Items
    step: int = 0
    """Of the plan, the one that runs the task in question; with versions only, as the next."""
    device: int = 0
    """The one that runs it."""
    memory: int = 0
    """Its memory."""


class Combiner:
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
        self._imports: dict[int, dict[int, ValueName]] = {}
        """By part, the name of each value that it imports."""
        self._exports: dict[int, dict[ValueName, int]] = {}
        """By part, the value of each name that it exports."""
        self._values: list[Value] = []
        self._calls: list[KernelCall] = []
        self._ids: dict[tuple[Hashable, int], int] = {}
        """By key of the place, and value of its part."""
        self._named: dict[tuple[ValueName, Items], int] = {}
        """Inputs, and joined values."""

    def run(self, inputs: Sequence[ValueName], outputs: Sequence[ValueName]) -> KernelCalls:
        """Return the calls of all batches, and the values that they exchange."""
        self._add_inputs(inputs)
        self._add_batches()
        return self._finish(tuple(self._read(name, self._all) for name in outputs))

    def _add_inputs(self, inputs: Sequence[ValueName]) -> None:
        for name in inputs:
            tensor = self._tensors[name]
            shape = tensor.shape_of(len(self._all))
            value = Value(shape, tensor.dtype, name.name, items=self._all)
            self._named[name, self._all] = self._add(value)

    def _add_batches(self) -> None:
        segment = 0
        for items, part in self._part_of.items():
            for call in part.calls.calls:
                place = self._place(items, call.task)
                self._add_call(call, place, segment)
            segment += 1 + max((call.segment for call in part.calls.calls), default=0)

    def _finish(self, outputs: tuple[int, ...]) -> KernelCalls:
        kernels = {
            symbol: kernel
            for part in self._parts()
            for symbol, kernel in part.calls.kernels.items()
        }
        return KernelCalls(tuple(self._values), tuple(self._calls), outputs, kernels)

    def _parts(self) -> list[NetworkPart]:
        return list(self._part_of.values())

    def _place(self, items: Items, _: str) -> ValuePlace:
        """The place of a task's values in a batch."""
        return ValuePlace(items, self._part_of[items], items)

    def _add_call(self, call: KernelCall, place: ValuePlace, first_segment: int) -> None:
        new_call = replace(
            call,
            segment=first_segment + call.segment,
            reads=tuple(self._value(place, value) for value in call.reads),
            writes=tuple(self._value(place, value) for value in call.writes),
            items=place.items,
        )
        self._calls.append(new_call)

    def _add(self, value: Value) -> int:
        self._values.append(value)
        return len(self._values) - 1

    def _value(self, place: ValuePlace, value: int) -> int:
        """The value of the whole program that a value of a part is."""
        key = (place.key, value)
        if key not in self._ids:
            imported = self._imports_of(place.part).get(value)
            if imported is not None:
                place_value = self._imported(imported, place)
            else:
                place_value = self._own(place, value)
            self._ids[key] = place_value
        return self._ids[key]

    def _imported(self, name: ValueName, place: ValuePlace) -> int:
        return self._read(name, place.items)

    def _own(self, place: ValuePlace, value: int) -> int:
        own = place.part.calls.values[value]
        alias = None if own.alias_of is None else self._value(place, own.alias_of)
        return self._add(replace(own, alias_of=alias, items=place.items))

    def _imports_of(self, part: NetworkPart) -> dict[int, ValueName]:
        if id(part) not in self._imports:
            self._imports[id(part)] = {value: name for name, value in part.imports.items()}
        return self._imports[id(part)]

    def _exports_of(self, part: NetworkPart) -> dict[ValueName, int]:
        if id(part) not in self._exports:
            self._exports[id(part)] = dict(zip(part.exports, part.calls.outputs, strict=True))
        return self._exports[id(part)]

    def _made(self, name: ValueName, item: int) -> int:
        """The value that holds a tensor of one item, and perhaps of others."""
        if name.index is None:
            return self._named[name, self._all]
        place = self._place(self._batch_of[name.task, item], name.task)
        return self._value(place, self._exports_of(place.part)[name])

    def _read(self, name: ValueName, items: Items) -> int:
        """A value that holds a tensor of just these items."""
        if (name, items) not in self._named:
            values = [self._made(name, item) for item in items]
            self._named[name, items] = self._together(values, items, self._tensors.get(name))
        return self._named[name, items]

    def _together(self, part_values: list[int], items: Items, tensor: ItemTensor | None) -> int:
        """A value that holds just these items, of those that hold each of them."""
        is_whole = len(set(part_values)) == 1 and self._values[part_values[0]].items == items
        if is_whole or tensor is None or tensor.axis is None:
            return part_values[0]
        parts = [self._part(value, item) for value, item in zip(part_values, items, strict=True)]
        joined = Joined(tensor.outer, tuple(parts))
        return self._add(
            Value(tensor.shape_of(len(items)), tensor.dtype, items=items, joined=joined)
        )

    def _part(self, value: int, item: int) -> int:
        """The value that is made and holds an item of `value`, which may itself be joined."""
        while (alias := self._values[value].alias_of) is not None:
            value = alias
        part_of = self._values[value]
        if part_of.constant is not None:
            raise LoweringError(
                f"a task makes a constant {part_of.dtype}{list(part_of.shape)} for items "
                f"{part_of.items}, of which others read a part; "
                f"give it and its readers equal batches"
            )
        return value if part_of.joined is None else part_of.joined.parts[part_of.items.index(item)]
