"""What the shards have of an op's result, from what they have of its operands; and their calls.

Ops whose axes have labels (`labels.py`) are decided by these. Ops that only move data have a rule
each here. Of all others the call of the first shard is typed, and the table that says which ops
keep the parts of an axis apart (`axes.rules`) is asked, as for items that run together.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import rules_by_op
from heteroplace.parts.parallel.shard.cuts import Cut, Kept, State, part_shape
from heteroplace.parts.parallel.shard.labels import Labels, labels_of
from heteroplace.parts.parallel.shard.sharded_network import Node
from heteroplace.relay.axes.rules import SHARDS, apart_fault
from heteroplace.relay.axes.shapes import (
    CannotFollow,
    places_after_reshape,
    resized_axis,
    slice_entries,
    with_attributes,
    with_slice_of_parts,
)
from heteroplace.relay.expressions import static_shape, tensor_types
from heteroplace.relay.local_types import write_types

States = tuple[State, ...]

_LINEAR_NAMES = (
    "reshape transpose squeeze expand_dims nn.batch_flatten negative strided_slice split copy "
    "broadcast_to sum"
)
_LINEAR = frozenset(_LINEAR_NAMES.split())
"""Ops of one operand whose result on a sum is the sum of their results."""
_LINEAR_TOGETHER = frozenset(("add", "subtract", "concatenate"))
"""The same, if all operands are sums."""


class OtherCut(NamedTuple):
    """Another way to cut an axis, with which it might be followed further."""

    blocks: int
    """So many times the blocks."""
    units: int | None
    """Units of a block; None: as they are."""


class CannotCarry(CannotFollow):
    """The shards' parts cannot be followed through an op."""

    def __init__(self, reason: str, others: Sequence[OtherCut] = ()) -> None:
        super().__init__(reason)
        self.others = tuple(others)
        """How the axis might be cut instead."""


class Carrier:
    """The rules, with what they have found: layers that are alike are asked about once."""

    def __init__(self) -> None:
        self._labels: dict[tuple[Any, ...], Labels | None] = {}
        self._found: dict[tuple[Any, ...], States | CannotCarry] = {}

    def labels(self, call: Node) -> Labels | None:
        """Return the labels of a call; see `labels_of`."""
        if call.key not in self._labels:
            self._labels[call.key] = labels_of(call)
        return self._labels[call.key]

    def companions(self, call: Node, leader: int, cut: Cut) -> States:
        """Return how all operands must be cut if operand `leader` is cut so.

        Raises
        ------
        CannotCarry
            That axis cannot be cut.
        """
        shapes = call.operand_shapes
        labels = self.labels(call)
        if labels is not None:
            label = labels.operands[leader][cut.axis]
            if not label:
                raise CannotCarry(f"it needs all of axis {cut.axis} of {shapes[leader]}")
            needs = tuple(_labelled(axes, label, cut) for axes in labels.operands)
        elif call.op in ("concatenate", "stack"):
            needs = (cut,) * len(shapes)
        else:
            needs = tuple(cut if at == leader else Kept.WHOLE for at in range(len(shapes)))
        for shape, need in zip(shapes, needs, strict=True):
            if isinstance(need, Cut) and not need.fits(shape[need.axis]):
                raise CannotCarry(
                    f"axis {need.axis} of {shape} has no {need.blocks} x {need.units} parts"
                )
        return needs

    def carry(self, call: Node, states: States) -> States:
        """Return what the shards have of the results of a call.

        Parameters
        ----------
        call
            The call as it was.
        states
            Of the tensors that it reads; whole or cut, as `companions` says.

        Raises
        ------
        CannotCarry
            The parts of the shards cannot be followed through this op.
        """
        key = (call.key, states)
        if key not in self._found:
            try:
                self._found[key] = self._carry(call, states)
            except CannotCarry as err:
                self._found[key] = err
            except CannotFollow as err:
                self._found[key] = CannotCarry(str(err))
        carried = self._found[key]
        if isinstance(carried, CannotCarry):
            raise carried
        return carried

    def _carry(self, call: Node, states: States) -> States:
        cuts = [(at, state) for at, state in enumerate(states) if isinstance(state, Cut)]
        count = len(call.shapes)
        if not cuts:
            return (Kept.WHOLE,) * count
        leader, cut = cuts[0]
        labels = self.labels(call)
        if labels is not None:
            return (_by_labels(labels, leader, cut),)
        rule = _RULES.get(call.op)
        if rule is not None:
            return (rule(call, cut),) * count
        if call.op == "concatenate" and cut.axis == _axis(call, 0):
            return (_joined(call, states),)
        if call.op == "split" and cut.axis == _axis(call, 0):
            return (_split(call, cut),) * count
        return _by_types(call, states, cut)


def is_linear(call: Node, states: Sequence[object]) -> bool:
    """Say whether a call makes summands of its result out of summands of its operands."""
    if any(state is not Kept.SUM for state in states):
        return False
    return call.op in (_LINEAR_TOGETHER if len(states) > 1 else _LINEAR)


def part_call(
    call: Node, arguments: list[relay.Expr], states: States, outs: States, shard: int
) -> relay.Call:
    """Return the call of one shard.

    Parameters
    ----------
    call
        The call as it was.
    arguments
        What the shard has of its operands, which are cut as `states` say; types need not be known.
    outs
        What `Carrier.carry` says of its results.

    Raises
    ------
    CannotFollow
        A slice cuts the axis.
    """
    cuts = [state for state in states if isinstance(state, Cut)]
    if not cuts:
        return with_attributes(call.expr, arguments)
    shapes = call.operand_shapes
    result = part_shape(call.shapes[0], outs[0], shard)
    if call.op in ("reshape", "broadcast_to"):
        make = relay.reshape if call.op == "reshape" else relay.broadcast_to
        new = make(arguments[0], result)
    elif call.op == "strided_slice":
        part = part_shape(shapes[0], states[0], shard)
        new = _sliced(call, arguments[0], part, cuts[0], shard)
    elif call.op == "split" and cuts[0].axis == _axis(call, 0):
        new = _split_part(call, arguments, cuts[0], shard)
    elif call.op in ("nn.dense", "nn.matmul") and call.expr.attrs.units is not None:
        new = with_attributes(call.expr, arguments, units=result[-1])
    elif call.op.startswith("nn.conv"):
        new = _convolution_part(call, arguments, states, outs, shard)
    else:
        new = with_attributes(call.expr, arguments)
    return relay.Call(new.op, new.args, new.attrs)


def _labelled(axes: tuple[str, ...], label: str, cut: Cut) -> State:
    return cut.along(axes.index(label)) if label in axes else Kept.WHOLE


def _by_labels(labels: Labels, leader: int, cut: Cut) -> State:
    label = labels.operands[leader][cut.axis]
    if label == "g" and labels.groups is not None and not cut.fits(labels.groups):
        raise CannotCarry(
            f"its {labels.groups} groups have no {cut.blocks} x {cut.units} parts",
            [OtherCut(1, labels.groups)],
        )
    return cut.along(labels.result.index(label)) if label in labels.result else Kept.SUM


def _reshaped(call: Node, cut: Cut) -> State:
    (old,) = call.operand_shapes
    (shape,) = call.shapes
    others = []
    for axis, blocks in places_after_reshape(prod(old[: cut.axis]), cut.blocks, shape):
        state = cut.along(axis, blocks)
        if state.fits(shape[axis]):
            return state
        units, rest = divmod(shape[axis], blocks)
        if not rest and units > 1:
            others += [OtherCut(1, units), OtherCut(units, None)]
    raise CannotCarry(
        f"it makes {shape} of {old}, in which no axis has {cut.units} parts of axis {cut.axis}",
        others,
    )


def _broadcast_to(call: Node, cut: Cut) -> State:
    (old,) = call.operand_shapes
    return cut.along(cut.axis + len(call.shapes[0]) - len(old))


def _sliced_state(call: Node, cut: Cut) -> State:
    (old,) = call.operand_shapes
    taken = _taken_blocks(call, cut)
    if taken is not None:
        return cut.along(cut.axis, taken[1] - taken[0])
    if call.shapes[0][cut.axis] != old[cut.axis]:
        count = old[cut.axis] // call.shapes[0][cut.axis]
        raise CannotCarry(f"it cuts axis {cut.axis} of {old}", [OtherCut(count, None)])
    with_slice_of_parts(call.expr, call.expr.args[0], old, cut.axis, SHARDS.many)
    return cut


_RULES = rules_by_op(
    lambda op: op.cut, {"reshape": _reshaped, "broadcast": _broadcast_to, "slice": _sliced_state}
)
"""Ops of one operand that move data: (call, cut of the operand) -> state of the result."""


def _taken_blocks(call: Node, cut: Cut) -> tuple[int, int] | None:
    """The blocks (first, end) that a slice along the cut axis takes; None: it takes no blocks."""
    (old,) = call.operand_shapes
    extent, block = old[cut.axis], old[cut.axis] // cut.blocks
    entries = {axis: rest for axis, *rest in slice_entries(call.expr)}
    if cut.axis not in entries or str(call.expr.attrs.slice_mode) != "end":
        return None
    begin, end, stride = entries[cut.axis]
    begin, end = (at + extent if at < 0 else min(at, extent) for at in (begin, end))
    if stride != 1 or begin % block or end % block or begin >= end:
        return None
    return begin // block, end // block


def _sliced(
    call: Node, data: relay.Expr, part: tuple[int, ...], cut: Cut, shard: int
) -> relay.Call:
    taken = _taken_blocks(call, cut)
    (old,) = call.operand_shapes
    if taken is None:
        return with_slice_of_parts(call.expr, data, part, cut.axis, SHARDS.many)
    begin, end, strides = [0] * len(part), list(part), [1] * len(part)
    for axis, first, last, step in slice_entries(call.expr):
        begin[axis], end[axis], strides[axis] = first, last, step
    if min(strides) < 0:
        raise CannotCarry("it runs backwards, which has no form with one entry per axis")
    block = cut.extent(old[cut.axis], shard) // cut.blocks
    begin[cut.axis], end[cut.axis] = taken[0] * block, taken[1] * block
    return relay.strided_slice(data, begin, end, strides)


def _joined(call: Node, states: States) -> State:
    """Fields that are joined along the axis that is cut: their blocks follow each other."""
    blocks, units = 0, set()
    first = states[0]
    assert isinstance(first, Cut)  # `companions` cuts all fields
    for shape, state in zip(call.operand_shapes, states, strict=True):
        assert isinstance(state, Cut)
        blocks += state.blocks
        units.add(shape[first.axis] // state.blocks)
    if len(units) > 1:
        raise CannotCarry(f"it joins tensors whose blocks have unlike sizes: {sorted(units)}")
    return first.along(first.axis, blocks)


def _split(call: Node, cut: Cut) -> State:
    (old,) = call.operand_shapes
    extents = {shape[cut.axis] for shape in call.shapes}
    count = len(call.shapes)
    if len(extents) > 1:
        raise CannotCarry(f"it splits axis {cut.axis} of {old} into unlike parts")
    if cut.blocks % count:
        raise CannotCarry(f"it splits axis {cut.axis} of {old} in {count}", [OtherCut(count, None)])
    return cut.along(cut.axis, cut.blocks // count)


def _split_part(call: Node, arguments: list[relay.Expr], cut: Cut, shard: int) -> relay.Call:
    given = call.expr.attrs.indices_or_sections
    if isinstance(given, tvm.tir.IntImm):
        return with_attributes(call.expr, arguments)
    places = [cut.extent(int(place), shard) for place in given]
    return relay.split(arguments[0], places, cut.axis).tuple_value


def _convolution_part(
    call: Node, arguments: list[relay.Expr], states: States, outs: States, shard: int
) -> relay.Call:
    changed = {}
    out, kernel = outs[0], states[1]
    groups = int(call.expr.attrs.groups)
    layout = str(call.expr.attrs.out_layout) or str(call.expr.attrs.data_layout)
    is_along_channels = isinstance(out, Cut) and layout[out.axis] == "C"
    if isinstance(out, Cut) and is_along_channels and call.expr.attrs.channels is not None:
        changed["channels"] = out.extent(int(call.expr.attrs.channels), shard)
    if isinstance(kernel, Cut) and is_along_channels and groups > 1:
        changed["groups"] = kernel.extent(groups, shard)
    return with_attributes(call.expr, arguments, **changed)


def _by_types(call: Node, states: States, cut: Cut) -> States:
    """Type the call of the first shard, and look which axis of its results is a part."""
    if call.op.startswith("qnn.") or (call.op == "take" and int(call.expr.attrs.batch_dims)):
        raise CannotCarry("its operands belong together in a way that types do not tell")
    shapes = call.operand_shapes
    parts = iter(part_shape(shape, state, 0) for shape, state in zip(shapes, states, strict=True))
    arguments = [_variable(child.expr.checked_type, parts) for child in call.children]
    new = with_attributes(call.expr, arguments)
    try:
        write_types(new)
    except tvm.TVMError as err:
        raise CannotCarry("the types of its parts do not fit") from err
    scale = Fraction(cut.units, cut.shares[0])
    cut_states = [
        resized_axis(static_shape(part), whole, scale, SHARDS)
        for part, whole in zip(tensor_types(new.checked_type), call.shapes, strict=True)
    ]
    axes = tuple(state.axis if isinstance(state, Cut) else None for state in states)
    fault = apart_fault(new, axes, [len(shape) for shape in shapes], tuple(cut_states), SHARDS)
    if fault:
        raise CannotCarry(fault)
    return tuple(Kept.WHOLE if axis is None else cut.along(axis) for axis in cut_states)


def _variable(type_: tvm.ir.Type, parts: Any) -> relay.Expr:
    if isinstance(type_, relay.TupleType):
        return relay.Tuple([_variable(field, parts) for field in type_.fields])
    return relay.var("part", shape=next(parts), dtype=type_.dtype)


def _axis(call: Node, operand: int) -> int:
    return int(call.expr.attrs.axis) % len(call.operand_shapes[operand])
