"""Gradients as TVM's registry writes them -> the same numbers in fewer ops of known shapes.

    collapse_sum_like(%g: [4, 8], %b: [8])     ==>  sum(%g, axis=[0])
    broadcast_to_like(%g: [4, 1], %x: [4, 8])  ==>  broadcast_to(%g, [4, 8])
    multiply(ones_like(%x), %g)                ==>  %g
    transpose(dense(%a, %b))                   ==>  dense(%b, %a)
    transpose(transpose(%w))                   ==>  %w

The `_like` forms read a tensor for its shape alone, which would keep activations alive until the
backward pass and tie tasks that have nothing to say to each other. A product with ones is dropped
where it changes neither shape nor type; sums are in TVM's order. Spans stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import relay

from heteroplace.relay.expressions import is_op_call, post_order, rebuild, spanned, static_shape
from heteroplace.relay.tasks.fold import children

_Rule = Callable[["_Simplifier", relay.Call, relay.Call], relay.Expr]


def simplified(function: relay.Function) -> relay.Function:
    """Return a function, whose types are inferred, in the forms above; what it computes stays."""
    nodes = post_order(function.body)
    mapped: dict[relay.Expr, relay.Expr] = {node: node for node in function.params}
    rebuild(nodes, mapped, _Simplifier(nodes, function.body))
    return relay.Function(function.params, mapped[function.body])


class _Simplifier:
    """A `rewrite` for `rebuild`."""

    def __init__(self, nodes: Sequence[relay.Expr], body: relay.Expr) -> None:
        self._num_readers = Counter(child for node in nodes for child in children(node))
        self._num_readers[body] += 1
        self._types: dict[relay.Expr, relay.TensorType] = {}
        self._lonely: set[relay.Expr] = set()
        """New calls that have one reader."""

    def __call__(self, old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if isinstance(new, (tvm.ir.Op, relay.Function, relay.GlobalVar)):
            return new
        result = new
        if isinstance(new, relay.TupleGetItem) and isinstance(new.tuple_value, relay.Tuple):
            result = new.tuple_value.fields[new.index]
        elif isinstance(new, relay.Call) and isinstance(new.op, tvm.ir.Op):
            rule = _RULES.get(new.op.name)
            if rule is not None:
                result = rule(self, old, new)
        is_lonely = self._num_readers[old] == 1
        if is_lonely and result not in self._types:
            self._lonely.add(result)
        elif not is_lonely:
            self._lonely.discard(result)
        self._types[result] = old.checked_type
        return result

    def shape(self, value: relay.Expr) -> tuple[int, ...]:
        """The shape of a new expression."""
        return static_shape(self._type(value))

    def _type(self, value: relay.Expr) -> relay.TensorType:
        own_type = self._types.get(value)
        return value.checked_type if own_type is None else own_type

    def is_same(self, value: relay.Expr, old: relay.Call) -> bool:
        """Say whether a new expression has the shape and type of the result of `old`."""
        type_, result = self._type(value), old.checked_type
        return type_.dtype == result.dtype and static_shape(type_) == static_shape(result)

    def is_read_once(self, value: relay.Expr) -> bool:
        """Say whether a new expression has a single reader."""
        return value in self._lonely


def _sum_to_shape(state: _Simplifier, old: relay.Call, new: relay.Call) -> relay.Expr:
    data, target = new.args[0], static_shape(old.checked_type)
    if state.is_same(data, old):
        return data
    shape = state.shape(data)
    lead = len(shape) - len(target)
    axes = list(range(lead))
    axes += [lead + at for at, extent in enumerate(target) if extent == 1 != shape[lead + at]]
    result = spanned(relay.sum(data, axes), old.span)
    if len(shape) - len(axes) == len(target):
        return result
    return spanned(relay.reshape(result, target), old.span)


def _broadcast_to_shape(state: _Simplifier, old: relay.Call, new: relay.Call) -> relay.Expr:
    if state.is_same(new.args[0], old):
        return new.args[0]
    return spanned(relay.broadcast_to(new.args[0], static_shape(old.checked_type)), old.span)


def _reshape(state: _Simplifier, old: relay.Call, new: relay.Call) -> relay.Expr:
    data = new.args[0]
    if is_op_call(data, "reshape"):
        data = data.args[0]
    elif new.op.name == "reshape" and not state.is_same(data, old):
        return new
    if state.is_same(data, old):
        return data
    return spanned(relay.reshape(data, static_shape(old.checked_type)), old.span)


def _cast(state: _Simplifier, old: relay.Call, new: relay.Call) -> relay.Expr:
    if state.is_same(new.args[0], old):
        return new.args[0]
    return spanned(relay.cast(new.args[0], old.checked_type.dtype), old.span)


def _fill(value: Callable[[Sequence[int], str], relay.Call]) -> _Rule:
    def rule(state: _Simplifier, old: relay.Call, new: relay.Call) -> relay.Expr:
        return spanned(value(static_shape(old.checked_type), old.checked_type.dtype), old.span)

    return rule


def _without(neutral: str, places: Sequence[int]) -> _Rule:
    """A rule that drops an operand of neutral elements at one of `places` of two."""

    def rule(state: _Simplifier, old: relay.Call, new: relay.Call) -> relay.Expr:
        for place in places:
            other = new.args[1 - place]
            if is_op_call(new.args[place], neutral) and state.is_same(other, old):
                return other
        return new

    return rule


def _where(state: _Simplifier, old: relay.Call, new: relay.Call) -> relay.Expr:
    """A scalar zero in place of a tensor of zeros."""
    condition, *values = new.args
    for place in (0, 1):
        if is_op_call(values[place], "zeros") and state.is_same(values[1 - place], old):
            values[place] = relay.const(0, old.checked_type.dtype)
            return spanned(relay.where(condition, *values), old.span)
    return new


def _transpose(state: _Simplifier, old: relay.Call, new: relay.Call) -> relay.Expr:
    data, axes = new.args[0], _axes(new, len(static_shape(old.checked_type)))
    is_composed = is_op_call(data, "transpose")
    if is_composed:
        inner = _axes(data, len(axes))
        data, axes = data.args[0], [inner[axis] for axis in axes]
    if axes == sorted(axes):
        return data
    if is_op_call(data, "nn.dense") and len(axes) == 2 and state.is_read_once(data):
        rows, columns = data.args
        swapped = relay.nn.dense(columns, rows, out_dtype=str(data.attrs.out_dtype))
        return spanned(swapped, data.span)
    return spanned(relay.transpose(data, axes), old.span) if is_composed else new


def _axes(transpose: relay.Call, rank: int) -> list[int]:
    given = transpose.attrs.axes
    return list(range(rank))[::-1] if not given else [int(axis) % rank for axis in given]


_RULES: Mapping[str, _Rule] = {
    "add": _without("zeros", (0, 1)),
    "broadcast_to_like": _broadcast_to_shape,
    "cast": _cast,
    "cast_like": _cast,
    "collapse_sum_like": _sum_to_shape,
    "collapse_sum_to": _sum_to_shape,
    "divide": _without("ones", (1,)),
    "multiply": _without("ones", (0, 1)),
    "ones_like": _fill(relay.ones),
    "reshape": _reshape,
    "reshape_like": _reshape,
    "transpose": _transpose,
    "where": _where,
    "zeros_like": _fill(relay.zeros),
}
