"""Hold the indices of ops that read or write where they are told inside of the data.

    gather(%data, %i)  ==>  gather(%data, minimum(maximum(%i, 0), size - 1))

An index outside of its axis counts as the nearest one inside, as of TVM's `take`; so does a length
that is too long, and a box of `roi_align` that is not finite is an empty one. (onnxruntime looks
for such indices and ends the run with an error; a kernel has no way to say so.) What is known to be
inside stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relay

from heteroplace.relay.expressions import (
    function_pass,
    post_order,
    rebuilt,
    static_shape,
    tensor_types,
)
from heteroplace.relay.ranges.bounds import Bounds, value_bounds
from heteroplace.relay.ranges.interval import Interval
from heteroplace.relay.tasks.spans import with_span

_MAX_COORDINATE = 2.0**20
"""Of a box; beyond it, positions inside of it would be lost in rounding."""
_Limits = tuple[np.ndarray, np.ndarray]
"""Lowest and highest index, each of a shape that broadcasts with the indices."""


def GuardIndices() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass after which no op reads or writes outside of its tensors.

    The types of the result are not inferred where something has changed.
    """

    return function_pass("GuardIndices", _guarded, ops=_GUARDS)


def _guarded(function: relay.Function) -> relay.Function:
    nodes = post_order(function.body)
    if not any(_name(node) in _GUARDS for node in nodes):
        return function
    bounds = value_bounds(function, {})

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        guard = _GUARDS.get(_name(old))
        return new if guard is None else guard(old, new, bounds)

    return rebuilt(function, rewrite)


def _name(node: relay.Expr) -> str:
    return str(getattr(node.op, "name", "")) if isinstance(node, relay.Call) else ""


def _shape(expr: relay.Expr) -> tuple[int, ...]:
    return static_shape(tensor_types(expr.checked_type)[0])


def _take(old: relay.Call, new: relay.Call, _bounds: Mapping[relay.Expr, Bounds]) -> relay.Expr:
    """Of mode "fast", which trusts its indices."""
    if str(old.attrs.mode) in ("clip", "wrap"):
        return new
    attrs = old.attrs
    axis = None if attrs.axis is None else int(attrs.axis)
    value = relay.take(*new.args, axis=axis, batch_dims=int(attrs.batch_dims), mode="clip")
    return with_span(value, set(new.args), old.span)


def _roi_align(
    old: relay.Call, new: relay.Call, _bounds: Mapping[relay.Expr, Bounds]
) -> relay.Expr:
    """Boxes are rows of the image's index and four coordinates, all floating point."""
    boxes = new.args[1]
    highest = np.array([_shape(old.args[0])[0] - 1, *[_MAX_COORDINATE] * 4], "float32")
    lowest = np.array([0, *[-_MAX_COORDINATE] * 4], "float32")
    dtype = tensor_types(old.args[1].checked_type)[0].dtype
    low, high = relay.const(lowest, dtype), relay.const(highest, dtype)
    # Comparisons with NaN are false, so it becomes the lowest, too.
    held = relay.where(relay.greater_equal(boxes, low), boxes, low)
    held = relay.where(relay.less_equal(held, high), held, high)
    return _with_argument(old, new, 1, held)


def _guard(limits: Callable[[Any], _Limits]) -> Callable[..., relay.Expr]:
    """Of an op whose second argument are indices."""

    def guard(old: relay.Call, new: relay.Call, bounds: Mapping[relay.Expr, Bounds]) -> relay.Expr:
        lowest, highest = limits(old)
        if not highest.size or not np.prod(_shape(old.args[1])):
            return new
        if bounds[old.args[1]][0].is_within(Interval(lowest.max().item(), highest.min().item())):
            return new
        dtype = tensor_types(old.args[1].checked_type)[0].dtype
        low = relay.const(np.maximum(lowest, np.iinfo(dtype).min), dtype)
        high = relay.const(np.minimum(highest, np.iinfo(dtype).max), dtype)
        held = relay.minimum(relay.maximum(new.args[1], low), high)
        return _with_argument(old, new, 1, held)

    return guard


def _adv_index(old: relay.Call, new: relay.Call, bounds: Mapping[relay.Expr, Bounds]) -> relay.Expr:
    """Its one argument is a tuple: data, and indices along each of the first axes."""
    data, *indices = tensor_types(old.args[0].checked_type)
    sizes = static_shape(data)[: len(indices)]
    if 0 in sizes:
        return new
    index_fields = old.args[0].fields if isinstance(old.args[0], relay.Tuple) else None
    fields = _fields(new.args[0], 1 + len(indices))
    for position, (size, type_) in enumerate(zip(sizes, indices, strict=True), 1):
        within = Interval(0, size - 1)
        if index_fields is None or not bounds[index_fields[position]][0].is_within(within):
            low, high = relay.const(0, type_.dtype), relay.const(size - 1, type_.dtype)
            held = relay.minimum(relay.maximum(fields[position], low), high)
            fields[position] = with_span(held, {fields[position]}, old.span)
    return _with_argument(old, new, 0, relay.Tuple(fields))


def _fields(values: relay.Expr, count: int) -> list[relay.Expr]:
    if isinstance(values, relay.Tuple):
        return list(values.fields)
    return [relay.TupleGetItem(values, index) for index in range(count)]


def _with_argument(
    old: relay.Call, new: relay.Call, position: int, value: relay.Expr
) -> relay.Call:
    arguments = list(new.args)
    arguments[position] = with_span(value, set(new.args), old.span)
    return relay.Call(new.op, arguments, new.attrs, new.type_args, new.span)


def _along_axis(call: Any) -> _Limits:
    return np.array(0), np.array(_shape(call.args[0])[int(call.attrs.axis)] - 1)


def _of_scatter(call: Any) -> _Limits:
    """It counts negative indices from the end."""
    size = _shape(call.args[0])[int(call.attrs.axis)]
    return np.array(-size), np.array(size - 1)


def _of_first_axes(call: Any) -> _Limits:
    """The first axis of the indices goes along axes of the data."""
    batch = int(getattr(call.attrs, "batch_dims", 0) or 0)
    depth, *rest = _shape(call.args[1])
    sizes = np.array(_shape(call.args[0])[batch : batch + depth], "int64")
    highest = (sizes - 1).reshape([depth, *[1] * len(rest)])
    return np.zeros_like(highest), highest


def _of_lengths(call: Any) -> _Limits:
    return np.array(0), np.array(_shape(call.args[0])[int(call.attrs.seq_axis)])


_GUARDS: Mapping[str, Callable[..., relay.Expr]] = {
    "take": _take,
    "gather": _guard(_along_axis),
    "scatter_elements": _guard(_of_scatter),
    "gather_nd": _guard(_of_first_axes),
    "scatter_nd": _guard(_of_first_axes),
    "reverse_sequence": _guard(_of_lengths),
    "adv_index": _adv_index,
    "vision.roi_align": _roi_align,
}
"""By op: from a typed call, the same with new arguments, and intervals, what stands for it."""
