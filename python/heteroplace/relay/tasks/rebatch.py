"""A Relay module for one item -> the same network for several items at once.

Celeritas (section 4.1) runs a network at several small batch sizes, which frameworks with free
batch dimensions have for nothing. A Relay module has fixed shapes, so each op is rewritten: the
types of all values follow anew from inputs that hold `batch` items, and shapes that are written
out (`reshape`, `broadcast_to`, `strided_slice`) are changed to match.

Every value either does not depend on the inputs, or holds the items along one axis, each item's
part in one piece (an axis of 12 becomes one of 12 * batch, item after item). An op is accepted
only if its kind keeps it so; what would mix items (a softmax over the items, a sum of them) is
refused by name, never approximated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple

import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.relay.axes.rules import ITEMS, Axes, apart_fault
from heteroplace.relay.axes.shapes import (
    CannotFollow,
    places_after_reshape,
    resized_axis,
    with_slice_of_parts,
)
from heteroplace.relay.expressions import post_order, static_shape, tensor_types
from heteroplace.relay.local_types import collected_diagnostics, write_types


def rebatch(
    mod: tvm.IRModule, batch: int, inputs: Collection[str] | None = None, rows: int = 1
) -> tvm.IRModule:
    """Return the network of `mod` for `batch` items that run together.

    Parameters
    ----------
    mod
        Module of one function `main` of plain dataflow; its inputs hold one item, along a leading
        dimension of `rows`. Weights may be bound or not.
    batch
        Number of items, >= 1.
    inputs
        Names of the parameters that hold items; None: all. The others are weights.
    rows
        Leading dimension of an input for one item, which may be a microbatch.

    Returns
    -------
    A typed module with the same ops (spans kept) in the same order; only a constant that is
    joined with the items is repeated for each by a `tile`.

    Raises
    ------
    UnsupportedRelayError
        An input has another leading dimension, or an op could mix items; the message names it.

    Notes
    -----
    before ==> after, for `batch` = 4:

        reshape(%x: float32[1, 8, 2, 2], newshape=[1, 32])
        ==> reshape(%x: float32[4, 8, 2, 2], newshape=[4, 32])
    """
    if batch < 1:
        raise UnsupportedRelayError(f"a batch of {batch} items; expected 1 or more")
    main = relay.transform.InferType()(mod)["main"]
    names = [parameter.name_hint for parameter in main.params]
    unknown = sorted(set(inputs or ()) - set(names))
    if unknown:
        raise UnsupportedRelayError(
            f"the model has no input {', '.join(unknown)}; it has {', '.join(names)}"
        )
    items = set(names if inputs is None else inputs)
    for parameter in main.params:
        if parameter.name_hint in items:
            _check_holds_items(parameter, rows)
    if batch == 1:
        return tvm.IRModule.from_expr(main)
    growth = Growth(Fraction(batch))
    return Rebatcher(dict.fromkeys(items, growth), f"{batch} items together").run(main)


def _check_holds_items(parameter: relay.Var, rows: int) -> None:
    """Raise UnsupportedRelayError unless the input is a tensor whose first dimension is `rows`."""
    type_ = parameter.checked_type
    if not isinstance(type_, relay.TensorType) or static_shape(type_)[:1] != (rows,):
        raise UnsupportedRelayError(
            f"input {parameter.name_hint!r} has type {type_}; expected a tensor whose first "
            f"dimension is {rows}, the batch. Name the inputs that have one (inputs=...)"
        )


class Growth(NamedTuple):
    """How much longer the axis that holds the items becomes."""

    scale: Fraction = Fraction(1)
    """How many times as long."""
    parts: int = 1
    """Items along it before, of which no axis may hold but a part of them."""


class Rebatched(NamedTuple):
    """An expression for several items, typed."""

    expr: relay.Expr
    axes: Axes
    """For each of its tensors the axis that holds the items; None: it does not depend on them."""
    growths: tuple[Growth, ...] = ()
    """For each of its tensors that of this axis; empty: none holds items."""


class Rebatcher:
    """One walk over a function, operands first, that changes how many items it is for.

    Parameters
    ----------
    growths
        By name of the parameters that hold items, along their leading dimension.
    purpose
        What the function is to run for, for messages.
    """

    def __init__(self, growths: Mapping[str, Growth], purpose: str) -> None:
        self._growths = growths
        self._purpose = purpose
        self._done: dict[relay.Expr, Rebatched] = {}

    def run(self, main: relay.Function) -> tvm.IRModule:
        """Return the typed module.

        Raises
        ------
        UnsupportedRelayError
            As `rebatch`.
        """
        body = self._rebatched(main)
        if None in body.axes:
            raise UnsupportedRelayError(
                f"output {body.axes.index(None)} of the model does not depend on the items, so for "
                f"{self._purpose} there is one of it; remove it from the model's outputs"
            )
        return self._module(main, body)

    def _module(self, main: relay.Function, body: Rebatched) -> tvm.IRModule:
        parameters = [self._done[parameter].expr for parameter in main.params]
        function = relay.Function(parameters, body.expr, attrs=main.attrs)
        return relay.transform.InferType()(tvm.IRModule.from_expr(function))

    def _rebatched(self, main: relay.Function) -> Rebatched:
        for parameter in main.params:
            self._done[parameter] = self._parameter(parameter)
        diagnostics: list[str] = []
        with collected_diagnostics(diagnostics):
            for node in post_order(main.body):
                if node not in self._done and not isinstance(node, tvm.ir.Op):
                    try:
                        self._done[node] = self._visit(node)
                    except tvm.TVMError as err:
                        reason = (diagnostics or str(err).strip().splitlines())[-1]
                        raise self._fault(node, f"its types do not fit: {reason}") from err
        return self._done[main.body]

    def _parameter(self, parameter: relay.Var) -> Rebatched:
        name = parameter.name_hint
        if name not in self._growths:
            return Rebatched(parameter, (None,) * len(tensor_types(parameter.checked_type)))
        type_, growth, axis = parameter.checked_type, self._growths[name], self._axis_of(parameter)
        shape = list(static_shape(type_))
        shape[axis] = int(growth.scale * shape[axis])
        var = relay.Var(name, relay.TensorType(shape, type_.dtype), parameter.span)
        write_types(var)
        return Rebatched(var, (axis,), (growth,))

    def _axis_of(self, parameter: relay.Var) -> int:
        """The axis of a parameter that holds items."""
        return 0

    def _visit(self, node: relay.Expr) -> Rebatched:
        if isinstance(node, relay.Constant):
            return Rebatched(node, (None,))
        if isinstance(node, relay.Tuple):
            fields = [self._done[field] for field in node.fields]
            expr = relay.Tuple([field.expr for field in fields], node.span)
            write_types(expr)
            axes = tuple(axis for field in fields for axis in field.axes)
            return Rebatched(expr, axes, _growths(fields))
        if isinstance(node, relay.TupleGetItem):
            whole = self._done[node.tuple_value]
            expr = relay.TupleGetItem(whole.expr, node.index, node.span)
            write_types(expr)
            growths = whole.growths[node.index : node.index + 1]
            return Rebatched(expr, (whole.axes[node.index],), growths)
        if isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op):
            return self._call(node)
        raise UnsupportedRelayError(
            f"the module holds a {type(node).__name__} expression; only dataflow (calls of "
            f"operators, tuples, constants) can be given another batch size: inline functions and "
            f"unroll loops first"
        )

    def _growth(self, call: relay.Call, read: Sequence[Rebatched]) -> Growth:
        """The growth of all that a call reads and that holds items."""
        pairs = [
            (axis, growth)
            for each in read
            for axis, growth in zip(each.axes, each.growths, strict=False)
        ]
        growths = dict.fromkeys(growth for axis, growth in pairs if axis is not None)
        if len(growths) > 1:
            raise self._fault(call, "it reads values that hold unlike numbers of them")
        return next(iter(growths), Growth())

    def _call(self, call: relay.Call) -> Rebatched:
        read = [self._done[argument] for argument in call.args]
        axes = tuple(axis for each in read for axis in each.axes)
        arguments = [each.expr for each in read]
        outs = tensor_types(call.checked_type)
        if all(axis is None for axis in axes):
            new = relay.Call(call.op, arguments, call.attrs, None, call.span)
            write_types(new)
            return Rebatched(new, (None,) * len(outs))
        growth = self._growth(call, read)
        try:
            new = self._with_shapes(call, arguments, axes, growth)
            write_types(new)
            growths = tuple(
                resized_axis(static_shape(old), static_shape(type_), growth.scale, ITEMS)
                for old, type_ in zip(outs, tensor_types(new.checked_type), strict=True)
            )
        except CannotFollow as err:
            raise self._fault(call, str(err)) from err
        ranks = [
            [len(type_.shape) for type_ in tensor_types(argument.checked_type)]
            for argument in call.args
        ]
        fault = apart_fault(call, axes, [rank for each in ranks for rank in each], growths, ITEMS)
        if fault:
            raise self._fault(call, fault)
        return Rebatched(new, growths, (growth,) * len(growths))

    def _with_shapes(
        self, call: relay.Call, arguments: list[relay.Expr], axes: Axes, growth: Growth
    ) -> relay.Call:
        """The call with the shapes that its attributes hold changed to those of the batch."""
        name = call.op.name
        axis = axes[0] if axes else None
        # An op of one argument is changed only if that holds items.
        if name == "reshape" and axis is not None:
            new = relay.reshape(arguments[0], _reshaped(call, axis, growth))
        elif name == "broadcast_to" and axis is not None:
            shape, old = (
                list(static_shape(call.checked_type)),
                static_shape(call.args[0].checked_type),
            )
            extent = old[axis]
            axis += len(shape) - len(old)
            if shape[axis] != extent:
                raise CannotFollow(f"it repeats the items, axis {axis} of {tuple(shape)}")
            shape[axis] = int(shape[axis] * growth.scale)
            new = relay.broadcast_to(arguments[0], shape)
        elif name == "strided_slice" and axis is not None:
            whole = static_shape(arguments[0].checked_type)
            new = with_slice_of_parts(call, arguments[0], whole, axis, ITEMS.many)
        elif name == "concatenate":
            fields = _repeated(call, arguments[0], axes, growth)
            new = relay.Call(call.op, [fields], call.attrs)
        else:
            new = relay.Call(call.op, arguments, call.attrs)
        return relay.Call(new.op, new.args, new.attrs, None, call.span)

    def _fault(self, call: relay.Expr, reason: str) -> UnsupportedRelayError:
        name = call.op.name if isinstance(call, relay.Call) else type(call).__name__
        where = f" of {call.span.source_name.name!r}" if isinstance(call.span, relay.Span) else ""
        return UnsupportedRelayError(
            f"{name}{where} cannot run for {self._purpose}: {reason}. Export the model with that "
            f"batch size instead"
        )


def _growths(fields: Sequence[Rebatched]) -> tuple[Growth, ...]:
    """Those of a tuple's tensors."""
    if not any(field.growths for field in fields):
        return ()
    return tuple(
        growth for field in fields for growth in field.growths or (Growth(),) * len(field.axes)
    )


def _reshaped(call: relay.Call, axis: int, growth: Growth) -> list[int]:
    """The new shape: the axis at which as much data precedes an item's part as before."""
    old, shape = static_shape(call.args[0].checked_type), list(static_shape(call.checked_type))
    new_places = places_after_reshape(prod(old[:axis]), 1, shape)
    places = [
        place for place, blocks in new_places if blocks == 1 and shape[place] % growth.parts == 0
    ]
    if not places:
        raise CannotFollow(
            f"it joins the items, axis {axis} of {old}, with the axes before: {shape}"
        )
    place = axis if axis in places else places[0]
    shape[place] = int(shape[place] * growth.scale)
    return shape


def _repeated(call: relay.Call, fields: relay.Expr, axes: Axes, growth: Growth) -> relay.Expr:
    """The tuple with its constants repeated for each item, so that they can be joined."""
    held = {axis for axis in axes if axis is not None}
    if None not in axes or len(held) != 1 or growth.scale.denominator != 1:
        return fields
    (at,) = held
    new = []
    for index, axis in enumerate(axes):
        field = relay.TupleGetItem(fields, index)
        if isinstance(fields, relay.Tuple):
            field = fields.fields[index]
        if axis is None:
            rank = len(tensor_types(fields.checked_type)[index].shape)
            repeats = [int(growth.scale) if place == at else 1 for place in range(rank)]
            field = relay.Call(
                tvm.ir.Op.get("tile"),
                [field],
                relay.tile(field, repeats).attrs,
                None,
                call.span,
            )
        new.append(field)
    return relay.Tuple(new)
