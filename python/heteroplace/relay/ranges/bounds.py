"""Intervals of a function's inputs -> intervals of all its values, operands first.

What an op without a rule returns may be anything that its type holds. Results that leave the range
of an integer type wrap around, and so may be anything as well. An interval of floats says that
there is no NaN, whose comparisons and casts may give anything: what may be infinite may be one,
too, and what may be NaN is `EVERYTHING`. Ends of floats are numbers of the type, as rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relay

from heteroplace.model.op_traits.op_table import rules_by_op
from heteroplace.relay.expressions import post_order, shared_array, static_shape, tensor_types
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
_NEAR = 1e-5
"""How far kernels of bounded functions may exceed them (`parts/kernels/cpu/vector_math.py`)."""
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
    bounds_of: dict[relay.Expr, Bounds] = {}
    for parameter in function.params:
        types = tensor_types(parameter.checked_type)
        bounds_of[parameter] = tuple(
            _held(inputs.get(parameter, EVERYTHING), t.dtype) for t in types
        )
    for node in post_order(function.body):
        if node not in bounds_of and not isinstance(node, (relay.Function, relay.GlobalVar)):
            bounds_of[node] = _bounds_of(node, bounds_of)
    return bounds_of


def _bounds_of(node: relay.Expr, bounds_of: Mapping[relay.Expr, Bounds]) -> Bounds:
    if isinstance(node, relay.Constant):
        array = shared_array(node.data)
        is_weight = array.dtype.kind == "f" and array.size > _MAX_CONSTANT
        return (_held(EVERYTHING if is_weight else interval_of(array), node.data.dtype),)
    if isinstance(node, relay.Tuple):
        return tuple(each for field in node.fields for each in bounds_of[field])
    if isinstance(node, relay.TupleGetItem):
        counts = [len(tensor_types(field)) for field in node.tuple_value.checked_type.fields]
        first = sum(counts[: node.index])
        return bounds_of[node.tuple_value][first : first + counts[node.index]]
    if not isinstance(node, relay.Call):
        return ()
    dtypes = [type_.dtype for type_ in tensor_types(node.checked_type)]
    arguments = [each for argument in node.args for each in bounds_of[argument]]
    name = getattr(node.op, "name", "")
    if name == "topk" and len(dtypes) == 2:
        results = [arguments[0], _index(node, arguments)]
    else:
        results = [_RULES[name](node, arguments) if name in _RULES else EVERYTHING] * len(dtypes)
    return tuple(_held(each, dtype) for each, dtype in zip(results, dtypes, strict=True))


def _held(interval: Interval, dtype: str) -> Interval:
    """What a value of a type may be, that is in an interval before it is rounded to the type."""
    if dtype.startswith(("bool", "int", "uint")):
        limits = of_dtype(dtype)
        return interval if interval.is_within(limits) else limits
    if not dtype.startswith("float"):  # bfloat16, whose constants are bits to numpy
        return EVERYTHING
    kind = np.dtype(dtype).type
    most = float(np.finfo(kind).max)
    if not interval.is_within(Interval(-most, most)):
        return EVERYTHING
    low, high = kind(interval.low), kind(interval.high)
    low = low if float(low) <= interval.low else np.nextafter(low, kind(-math.inf))
    high = high if float(high) >= interval.high else np.nextafter(high, kind(math.inf))
    return Interval(float(low), float(high)) if np.isfinite([low, high]).all() else EVERYTHING


def interval_of(array: np.ndarray) -> Interval:
    """Return the smallest interval around the numbers of an array."""
    if array.size == 0 or array.dtype.kind not in "biuf":
        return EVERYTHING
    return span_of([array.min().item(), array.max().item()])


def _shape(expr: relay.Expr) -> tuple[int, ...]:
    return static_shape(tensor_types(expr.checked_type)[0])


def _dtype(expr: relay.Expr) -> str:
    return str(tensor_types(expr.checked_type)[0].dtype)


def _extent(call: Any) -> int:
    """Elements along the axis, or the axes, of an op; of all axes if it names none."""
    shape = _shape(call.args[0])
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


def _written(mode: str) -> _Rule:
    """Of data into which updates are written; if they are added or multiplied, of anything."""

    def rule(call: Any, arguments: Sequence[Interval]) -> Interval:
        is_bounded = str(getattr(call.attrs, mode)) in ("update", "min", "max")
        return hull([arguments[0], arguments[2]]) if is_bounded else EVERYTHING

    return rule


def _relaid(call: Any, arguments: Sequence[Interval]) -> Interval:
    """Blocks that the extents do not fill have zeros."""
    fills = math.prod(_shape(call)) == math.prod(_shape(call.args[0]))
    return arguments[0] if fills else hull([arguments[0], Interval(0, 0)])


def _within(low: float, high: float) -> _Rule:
    """Of a function of floats that makes NaN of NaN only."""
    return lambda call, arguments: Interval(low, high) if _is_finite(arguments[0]) else EVERYTHING


def _is_finite(interval: Interval) -> bool:
    return math.isfinite(interval.low) and math.isfinite(interval.high)


def _of_elements(call: Any, arguments: Sequence[Interval]) -> Interval:
    """Of reductions that take one of the elements, if there is one."""
    return arguments[0] if _extent(call) else EVERYTHING


def _rising(function: Callable[[float], float]) -> _Rule:
    """Of a function that never falls."""

    def rule(_call: Any, arguments: Sequence[Interval]) -> Interval:
        ends = (arguments[0].low, arguments[0].high)
        return span_of(end if math.isinf(end) else function(end) for end in ends)

    return rule


def _cast(call: Any, arguments: Sequence[Interval]) -> Interval:
    dtype = _dtype(call)
    if dtype == "bool" or dtype.startswith("float"):
        return BOOLEAN if dtype == "bool" else arguments[0]
    return _rising(math.trunc)(call, arguments)


def _clip(call: Any, arguments: Sequence[Interval]) -> Interval:
    low, high = float(call.attrs.a_min), float(call.attrs.a_max)
    if not _dtype(call).startswith("float"):  # limits are of the type of the numbers
        low, high = (each if math.isinf(each) else math.trunc(each) for each in (low, high))
    elif not _is_finite(arguments[0]):  # NaN is kept (`tir/keep_nan.py`)
        return EVERYTHING
    # Of limits that are not in order the lower one counts last.
    return _rising(lambda end: max(min(end, high), low))(call, arguments)


def _round(_call: Any, arguments: Sequence[Interval]) -> Interval:
    """Halves may go to either side."""
    low, high = arguments[0].low, arguments[0].high
    return Interval(math.floor(low), math.ceil(high)) if _is_finite(arguments[0]) else EVERYTHING


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
    # Of floats x - floor(x / y) * y is rounded at the size of x.
    if divisor.low <= 0 or "int" not in _dtype(call):
        return EVERYTHING
    most = divisor.high - 1
    return Interval(0 if dividend.low >= 0 else -most, most)


def _quotient(call: Any, arguments: Sequence[Interval]) -> Interval:
    dividend, divisor = arguments
    if divisor.low <= 0 or not (_is_finite(dividend) and _is_finite(divisor)):
        return EVERYTHING
    ends = [(a, b) for a in (dividend.low, dividend.high) for b in (divisor.low, divisor.high)]
    if "int" in _dtype(call):  # rounded to either side; a float would lose digits
        return span_of(q for a, b in ends for q in (a // b, -(-a // b)))
    exact = span_of(a / b for a, b in ends)
    return Interval(math.floor(exact.low), math.ceil(exact.high)) if _is_finite(exact) else exact


def _summed(call: Any, arguments: Sequence[Interval]) -> Interval:
    """Of at least one number, or none if each sum leaves out the number that it is at."""
    count = _extent(call)
    dtypes = _dtype(call.args[0]), _dtype(call)
    if dtypes[0] != dtypes[1] and dtypes[0].startswith("float"):
        return EVERYTHING
    least = 0 if getattr(call.attrs, "exclusive", False) else min(1, count)
    exact = product(arguments[0], Interval(least, count))
    return _many_times_rounded(exact, count, dtypes[1])


def _mean(call: Any, arguments: Sequence[Interval]) -> Interval:
    """A sum that is divided; of integers it may have wrapped around before."""
    count, dtype = _extent(call), _dtype(call)
    total = product(arguments[0], Interval(count, count))
    if not count or _held(total, dtype) in (EVERYTHING, of_dtype(dtype)):
        return EVERYTHING
    return _many_times_rounded(arguments[0], count + 1, dtype)


def _many_times_rounded(exact: Interval, count: int, dtype: str) -> Interval:
    """What a sum of so many numbers may be, that is in an interval if it is exact."""
    if not dtype.startswith("float"):
        return exact
    # Higham, "Accuracy and Stability of Numerical Algorithms", (4.4), in whatever order.
    error = 2 * count * float(np.finfo(dtype).eps) * max(abs(exact.low), abs(exact.high))
    return exact if count <= 1 else exact.moved(-error, error)


def _index(call: Any, _arguments: Sequence[Interval]) -> Interval:
    """Kernels begin from place 0 (`tir/fold_starts.py`), so also if all elements are -inf."""
    count = _extent(call)
    return Interval(0, count - 1) if count else EVERYTHING


_RULES: Mapping[str, _Rule] = rules_by_op(
    lambda op: op.bounds,
    {
        "first": _first,
        "all": _all,
        "elements": _of_elements,
        "remainder": _remainder,
        "quotient": _quotient,
        "index": _index,
        "sum": _summed,
        "unit": _within(0, 1 + _NEAR),
        "signed_unit": _within(-1 - _NEAR, 1 + _NEAR),
        "relayout": _relaid,
        "mean": _mean,
        "scatter_elements": _written("reduction"),
        "scatter_nd": _written("mode"),
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
        "relu": _rising(lambda end: max(end, 0)),
        "ceil": _rising(math.ceil),
        "floor": _rising(math.floor),
        "round": _round,
        "trunc": _rising(math.trunc),
    },
)
"""By op."""
