"""Intervals of a function's inputs -> intervals of all its values, operands first.

What an op without a rule returns may be anything that its type holds. Results that leave the range
of an integer type wrap around, and so may be anything as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relay

from heteroplace.relay.expressions import post_order, static_shape, tensor_types
from heteroplace.relay.ranges.interval import (
    BOOLEAN,
    EVERYTHING,
    Interval,
    hull,
    of_dtype,
    product,
    span_of,
)

Bounds = tuple[Interval, ...]
"""Of a value, tuples flattened."""
_Rule = Callable[[Any, Sequence[Interval]], Interval]
"""Of a call and the intervals of its arguments, tuples flattened."""
_MAX_CONSTANT = 2**20
"""Elements of floating-point constants beyond this are not looked at: they are weights."""


def value_bounds(
    function: relay.Function, inputs: Mapping[relay.Var, Interval]
) -> dict[relay.Expr, Bounds]:
    """Return the intervals of all values of a typed function without control flow.

    Parameters
    ----------
    inputs
        What is known of parameters; the others may be anything.
    """
    found: dict[relay.Expr, Bounds] = {}
    for parameter in function.params:
        types = tensor_types(parameter.checked_type)
        found[parameter] = tuple(inputs.get(parameter, of_dtype(t.dtype)) for t in types)
    for node in post_order(function.body):
        if node not in found and not isinstance(node, (relay.Function, relay.GlobalVar)):
            found[node] = _bounds_of(node, found)
    return found


def _bounds_of(node: relay.Expr, found: Mapping[relay.Expr, Bounds]) -> Bounds:
    if isinstance(node, relay.Constant):
        array = node.data.numpy()
        is_weight = array.dtype.kind == "f" and array.size > _MAX_CONSTANT
        return (EVERYTHING if is_weight else interval_of(array),)
    if isinstance(node, relay.Tuple):
        return tuple(each for field in node.fields for each in found[field])
    if isinstance(node, relay.TupleGetItem):
        counts = [len(tensor_types(field)) for field in node.tuple_value.checked_type.fields]
        first = sum(counts[: node.index])
        return found[node.tuple_value][first : first + counts[node.index]]
    if not isinstance(node, relay.Call):
        return ()
    limits = [of_dtype(type_.dtype) for type_ in tensor_types(node.checked_type)]
    arguments = [each for argument in node.args for each in found[argument]]
    name = getattr(node.op, "name", "")
    if name == "topk" and len(limits) == 2:
        return arguments[0], Interval(0, _extent(node) - 1)
    if name not in _RULES:
        return tuple(limits)
    result = _RULES[name](node, arguments)
    return tuple(result if result.is_within(limit) else limit for limit in limits)


def interval_of(array: np.ndarray) -> Interval:
    """Return the smallest interval around the numbers of an array."""
    if array.size == 0 or array.dtype.kind not in "biuf":
        return EVERYTHING
    return span_of([array.min().item(), array.max().item()])


def _extent(call: Any) -> int:
    """Elements along the axis, or the axes, of an op; of all axes if it names none."""
    shape = static_shape(tensor_types(call.args[0].checked_type)[0])
    axis = call.attrs.axis
    if axis is None:
        return math.prod(shape)
    axes = [int(each) % len(shape) for each in (axis if hasattr(axis, "__len__") else [axis])]
    if getattr(call.attrs, "exclude", False):
        axes = [each for each in range(len(shape)) if each not in axes]
    return math.prod(shape[each] for each in axes)


def _first(_call: Any, arguments: Sequence[Interval]) -> Interval:
    return arguments[0]


def _all(_call: Any, arguments: Sequence[Interval]) -> Interval:
    return hull(arguments)


def _boolean(_call: Any, _arguments: Sequence[Interval]) -> Interval:
    return BOOLEAN


def _within(low: float, high: float) -> _Rule:
    return lambda call, arguments: Interval(low, high)


def _rising(function: Callable[[float], float]) -> _Rule:
    """Of a function that never falls."""

    def rule(_call: Any, arguments: Sequence[Interval]) -> Interval:
        ends = (arguments[0].low, arguments[0].high)
        return span_of(end if math.isinf(end) else function(end) for end in ends)

    return rule


def _cast(call: Any, arguments: Sequence[Interval]) -> Interval:
    dtype = tensor_types(call.checked_type)[0].dtype
    if dtype == "bool" or dtype.startswith("float"):
        return BOOLEAN if dtype == "bool" else arguments[0]
    return _rising(math.trunc)(call, arguments)


def _clip(call: Any, arguments: Sequence[Interval]) -> Interval:
    low, high = float(call.attrs.a_min), float(call.attrs.a_max)
    return _rising(lambda end: min(max(end, low), high))(call, [_closed(arguments[0], low, high)])


def _closed(interval: Interval, low: float, high: float) -> Interval:
    return Interval(max(interval.low, low), max(min(interval.high, high), low))


def _add(_call: Any, arguments: Sequence[Interval]) -> Interval:
    return Interval(arguments[0].low + arguments[1].low, arguments[0].high + arguments[1].high)


def _negative(_call: Any, arguments: Sequence[Interval]) -> Interval:
    return Interval(-arguments[0].high, -arguments[0].low)


def _subtract(call: Any, arguments: Sequence[Interval]) -> Interval:
    return _add(call, [arguments[0], _negative(call, arguments[1:])])


def _multiply(_call: Any, arguments: Sequence[Interval]) -> Interval:
    return product(arguments[0], arguments[1])


def _abs(_call: Any, arguments: Sequence[Interval]) -> Interval:
    ends = [abs(arguments[0].low), abs(arguments[0].high)]
    return Interval(0 if arguments[0].contains(0) else min(ends), max(ends))


def _maximum(_call: Any, arguments: Sequence[Interval]) -> Interval:
    return Interval(
        max(each.low for each in arguments[:2]), max(each.high for each in arguments[:2])
    )


def _minimum(_call: Any, arguments: Sequence[Interval]) -> Interval:
    return Interval(
        min(each.low for each in arguments[:2]), min(each.high for each in arguments[:2])
    )


def _less(_call: Any, arguments: Sequence[Interval]) -> Interval:
    left, right = arguments
    if left.low >= right.high:
        return Interval(0, 0)
    return Interval(1, 1) if left.high < right.low else BOOLEAN


def _greater(call: Any, arguments: Sequence[Interval]) -> Interval:
    return _less(call, [arguments[1], arguments[0]])


def _where(_call: Any, arguments: Sequence[Interval]) -> Interval:
    condition, then, otherwise = arguments
    if condition == Interval(0, 0):
        return otherwise
    return then if condition == Interval(1, 1) else hull([then, otherwise])


def _remainder(call: Any, arguments: Sequence[Interval]) -> Interval:
    """Of a division by numbers above 0; that of `mod` has the sign of the dividend."""
    dividend, divisor = arguments
    if divisor.low <= 0:
        return EVERYTHING
    is_integer = "int" in tensor_types(call.checked_type)[0].dtype
    most = divisor.high - 1 if is_integer else divisor.high
    return Interval(0 if dividend.low >= 0 else -most, most)


def _quotient(_call: Any, arguments: Sequence[Interval]) -> Interval:
    dividend, divisor = arguments
    if divisor.low <= 0:
        return EVERYTHING
    exact = product(dividend, Interval(1 / divisor.high, 1 / divisor.low))
    if not math.isfinite(exact.low) or not math.isfinite(exact.high):
        return exact
    return Interval(math.floor(exact.low), math.ceil(exact.high))  # integers are rounded


def _summed(call: Any, arguments: Sequence[Interval]) -> Interval:
    count = _extent(call)
    return product(arguments[0], Interval(min(1, count), count))


def _index(call: Any, _arguments: Sequence[Interval]) -> Interval:
    return Interval(0, _extent(call) - 1)


_FIRST = (
    "reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "broadcast_to_like", "tile",
    "repeat", "reverse", "reverse_sequence", "layout_transform", "copy", "strided_slice",
    "nn.batch_flatten", "reshape_like", "take", "gather", "gather_nd", "max", "min", "split",
    "nn.depth_to_space", "nn.space_to_depth", "sort", "mean", "on_device", "device_copy",
)  # fmt: skip
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_FIRST, _first),
    **dict.fromkeys(("concatenate", "stack", "scatter_elements", "scatter_nd"), _all),
    **dict.fromkeys(("equal", "not_equal", "less_equal", "greater_equal"), _boolean),
    **dict.fromkeys(("logical_and", "logical_or", "logical_not", "logical_xor"), _boolean),
    **dict.fromkeys(("mod", "floor_mod", "trunc_mod"), _remainder),
    **dict.fromkeys(("divide", "floor_divide", "trunc_divide"), _quotient),
    **dict.fromkeys(("argmax", "argmin", "argsort"), _index),
    **dict.fromkeys(("sum", "cumsum"), _summed),
    **dict.fromkeys(("sigmoid", "nn.softmax"), _within(0, 1)),
    "tanh": _within(-1, 1),
    "erf": _within(-1, 1),
    "cast": _cast,
    "clip": _clip,
    "add": _add,
    "negative": _negative,
    "subtract": _subtract,
    "multiply": _multiply,
    "abs": _abs,
    "maximum": _maximum,
    "minimum": _minimum,
    "less": _less,
    "greater": _greater,
    "where": _where,
    "nn.relu": _rising(lambda end: max(end, 0)),
    "ceil": _rising(math.ceil),
    "floor": _rising(math.floor),
    "round": _rising(round),
    "trunc": _rising(math.trunc),
    "nn.pad": _all,
}
"""By op."""
