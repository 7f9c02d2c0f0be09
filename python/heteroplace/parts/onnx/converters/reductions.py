"""Reduce* ==> Relay, axes given as an attribute or as an operand, of any extent.

ONNX operator specification. TVM's maximum begins from the lowest finite number, so that the
maximum of nothing but -inf (a row that a mask covers wholly) would be finite; its kernels have no
axis of no elements, whose reduction is a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import Converter, OnnxCall, const, dtype_of, shape_of

Reduce = Callable[[relay.Expr, list[int], bool], relay.Expr]
"""(operand, axes, keepdims) -> the reduced tensor."""
Map = Callable[[relay.Expr], relay.Expr]

_ROWS, _ROW_MULTIPLE, _MIN_IN_ROWS = (64, 32, 16, 8, 4, 2), 32, 4096
"""Into how many rows of how many elements a tensor is cut that is folded as a whole."""


def axes_of(call: OnnxCall, operand: int = 1) -> list[int] | None:
    """Return the axes of a reduction, counted from the front; None: all of them."""
    given = call.attributes.get("axes")
    if call.has(operand):
        given = call.constant(operand, "axes").reshape(-1)
    if given is None or len(given) == 0:
        return [] if call.number("noop_with_empty_axes", 0) else None
    rank = len(call.shape(0))
    return sorted({int(axis) % rank for axis in given})


def _converter(reduce: Reduce, empty: float, before: Map | None, after: Map | None) -> Converter:
    """Return the converter of a reduction whose value over nothing is `empty`."""

    def convert(call: OnnxCall) -> relay.Expr:
        shape = call.shape(0)
        axes = axes_of(call)
        axes = list(range(len(shape))) if axes is None else axes
        keepdims = bool(call.number("keepdims", 1))
        data = call.operand(0) if before is None else before(call.operand(0))
        if 0 in shape:
            reduced_shape = [1 if i in axes else size for i, size in enumerate(shape)]
            left = (
                reduced_shape
                if keepdims
                else [size for i, size in enumerate(shape) if i not in axes]
            )
            data = const(np.full(left, _identity(empty, call.dtype(0))), call.dtype(0))
        elif axes:
            data = reduce(data, axes, keepdims)
        if after is None:
            return data
        dtype = call.dtype(0)
        if dtype.startswith("float"):
            return after(data)
        # Of integers the whole part is left, as in onnxruntime.
        return relay.cast(after(relay.cast(data, "float64")), dtype)

    return convert


def _identity(value: float, dtype: str) -> float | int:
    if np.isfinite(value) or dtype.startswith("float"):
        return value
    if dtype == "bool":
        return int(value > 0)
    limits = np.iinfo(dtype)
    return int(limits.max if value > 0 else limits.min)


def fold_of_all(fold: Callable[..., relay.Expr], data: relay.Expr) -> relay.Expr:
    """Return the largest or smallest element, of rows first: cores share these, in whole vectors.

    Parameters
    ----------
    fold
        `relay.max` or `relay.min`, which find the same in any order.
    """
    size = prod(shape_of(data))
    fitting = (rows for rows in _ROWS if size % (rows * _ROW_MULTIPLE) == 0)
    rows = next(fitting, 1) if size >= _MIN_IN_ROWS else 1
    if rows > 1:
        data = fold(relay.reshape(data, [rows, -1]), axis=1)
    return fold(data)


def _maximum(data: relay.Expr, axes: list[int], keepdims: bool) -> relay.Expr:
    return _extreme(data, axes, keepdims, relay.max, relay.any, -np.inf)


def _minimum(data: relay.Expr, axes: list[int], keepdims: bool) -> relay.Expr:
    return _extreme(data, axes, keepdims, relay.min, relay.all, np.inf)


def _extreme(
    data: relay.Expr,
    axes: list[int],
    keepdims: bool,
    reduce: Callable[..., relay.Expr],
    reduce_bool: Callable[..., relay.Expr],
    infinity: float,
) -> relay.Expr:
    dtype = dtype_of(data)
    if dtype == "bool":
        return reduce_bool(data, axis=axes, keepdims=keepdims)
    if len(axes) == len(shape_of(data)):
        result = fold_of_all(reduce, data)
        result = relay.reshape(result, [1] * len(axes)) if keepdims else result
    else:
        result = reduce(data, axis=axes, keepdims=keepdims)
    if not dtype.startswith("float"):
        return result
    limit = const(infinity, dtype)
    is_infinite = relay.all(relay.equal(data, limit), axis=axes, keepdims=keepdims)
    return relay.where(is_infinite, limit, result)


def _sum(data: relay.Expr, axes: list[int], keepdims: bool) -> relay.Expr:
    return relay.sum(data, axis=axes, keepdims=keepdims)


def _mean(data: relay.Expr, axes: list[int], keepdims: bool) -> relay.Expr:
    return relay.mean(data, axis=axes, keepdims=keepdims)


def _product(data: relay.Expr, axes: list[int], keepdims: bool) -> relay.Expr:
    return relay.prod(data, axis=axes, keepdims=keepdims)


def _log_sum_exp(data: relay.Expr, axes: list[int], keepdims: bool) -> relay.Expr:
    dtype = dtype_of(data)
    if not dtype.startswith("float"):
        raise FrontendError(f"of {dtype} it is rounded differently by each runtime; cast it first")
    largest = relay.max(data, axis=axes, keepdims=True)
    shift = relay.where(relay.isfinite(largest), largest, const(0, dtype))
    total = relay.sum(relay.exp(relay.subtract(data, shift)), axis=axes, keepdims=keepdims)
    return relay.add(relay.log(total), shift if keepdims else relay.squeeze(shift, axes))


def _square(data: relay.Expr) -> relay.Expr:
    return relay.multiply(data, data)


REDUCTIONS: dict[str, Converter] = {
    "ReduceL1": _converter(_sum, 0, relay.abs, None),
    "ReduceL2": _converter(_sum, 0, _square, relay.sqrt),
    "ReduceLogSum": _converter(_sum, 0, None, relay.log),
    "ReduceLogSumExp": _converter(_log_sum_exp, -np.inf, None, None),
    "ReduceMax": _converter(_maximum, -np.inf, None, None),
    "ReduceMean": _converter(_mean, np.nan, None, None),
    "ReduceMin": _converter(_minimum, np.inf, None, None),
    "ReduceProd": _converter(_product, 1, None, None),
    "ReduceSum": _converter(_sum, 0, None, None),
    "ReduceSumSquare": _converter(_sum, 0, _square, None),
}
