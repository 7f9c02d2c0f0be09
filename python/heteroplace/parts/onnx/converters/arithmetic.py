"""Element by element ==> Relay: what TVM's importer lacks or rounds badly.

ONNX operator specification. Mish and Softplus are written so that no intermediate overflows or
loses its digits.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relay

from heteroplace.entries import load_entry
from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import (
    OnnxCall,
    as_float32,
    const,
    constant_value,
    dtype_name,
    stacked_product,
)

_ROUNDED = "heteroplace.relay.bfloat16_rounding:rounded_value"
"""Loaded for models in bfloat16."""


def bit_shift(call: OnnxCall) -> relay.Expr:
    """Convert BitShift; by the width of the type or more (or less than 0), nothing is left."""
    data, amount, dtype = call.operand(0), call.operand(1), call.dtype(0)
    width = np.iinfo(dtype).bits
    is_signed = dtype.startswith("int")
    is_outside = relay.greater_equal(amount, const(width, dtype))
    if is_signed:
        is_outside = relay.logical_or(is_outside, relay.less(amount, const(0, dtype)))
    if call.text("direction", "LEFT") == "RIGHT":
        if is_signed:
            return relay.right_shift(data, relay.where(is_outside, const(width - 1, dtype), amount))
        shifted = relay.right_shift(data, relay.where(is_outside, const(0, dtype), amount))
    else:
        shifted = relay.left_shift(data, relay.where(is_outside, const(0, dtype), amount))
    return relay.where(is_outside, const(0, dtype), shifted)


def sign(call: OnnxCall) -> relay.Expr | None:
    """Convert Sign of floats, of which TVM makes 0 of NaN, and of what has none: 0 or 1; TVM has no
    -1 to compare it with."""
    data, dtype = call.operand(0), call.dtype(0)
    if dtype.startswith("float"):
        return relay.where(relay.isnan(data), data, relay.sign(data))
    return relay.minimum(data, const(1, dtype)) if dtype.startswith("uint") else None


def prelu(call: OnnxCall) -> relay.Expr | None:
    """Convert PRelu whose slope has more axes than its data, as a scalar has, or of no elements.

    TVM's converter gives the slope the shape of the data, and flattens both.
    """
    data, slope = call.operand(0), call.operand(1)
    shape = call.shape(0)
    if shape and 0 not in shape and np.broadcast_shapes(shape, call.shape(1)) == shape:
        return None
    is_below = relay.less(data, const(0, call.dtype(0)))
    return relay.where(is_below, relay.multiply(data, slope), data)


def shrink(call: OnnxCall) -> relay.Expr:
    """Convert Shrink: x + bias below -lambd, x - bias above lambd, else 0.

    Of integers the whole part is left, as in onnxruntime; TVM's converter rounds the attributes to
    the type of the data.
    """
    dtype = call.dtype(0)
    wide = {"float16": "float32", "float32": "float32"}.get(dtype, "float64")
    data = relay.cast(call.operand(0), wide) if wide != dtype else call.operand(0)
    bias = const(call.number("bias", 0.0), wide)
    limit = call.number("lambd", 0.5)
    upper = relay.where(
        relay.greater(data, const(limit, wide)), relay.subtract(data, bias), const(0, wide)
    )
    result = relay.where(relay.less(data, const(-limit, wide)), relay.add(data, bias), upper)
    return relay.cast(result, dtype) if wide != dtype else result


def mod(call: OnnxCall) -> relay.Expr:
    """Convert Mod: the sign of the divisor, or (fmod) of the dividend."""
    a, b, dtype = call.operand(0), call.operand(1), call.dtype(0)
    is_float = dtype.startswith("float")
    if not is_float:
        return relay.mod(a, b) if call.number("fmod", 0) else relay.floor_mod(a, b)
    rest = relay.mod(a, b)
    if call.number("fmod", 0):
        return rest
    zero = const(0, dtype)
    differs = relay.logical_and(
        relay.not_equal(rest, zero),
        relay.not_equal(relay.less(rest, zero), relay.less(b, zero)),
    )
    # A rest of nothing has the sign of the divisor.
    nothing = relay.where(relay.less(b, zero), const(-0.0, dtype), zero)
    rest = relay.where(differs, relay.add(rest, b), rest)
    return relay.where(relay.equal(rest, zero), nothing, rest)


def mean(call: OnnxCall) -> relay.Expr:
    """Convert Mean of operands that are broadcast; TVM's converter wants them to be alike."""
    total = call.operand(0)
    for index in range(1, len(call.operands)):
        total = relay.add(total, call.operand(index))
    return relay.divide(total, const(len(call.operands), call.dtype(0)))


def mish(call: OnnxCall) -> relay.Expr:
    """Convert Mish: x tanh(log(1 + e**x)) = x n / (n + 2) with n = e**x (e**x + 2)."""
    data, dtype = call.operand(0), call.dtype(0)
    two = const(2, dtype)
    # Beyond 20, n is so large that the quotient is one, and its square must not overflow.
    power = relay.exp(relay.minimum(data, const(20, dtype)))
    n = relay.multiply(power, relay.add(power, two))
    return relay.multiply(data, relay.divide(n, relay.add(n, two)))


def softplus(call: OnnxCall) -> relay.Expr:
    """Convert Softplus: log(1 + e**x) = max(x, 0) + log(1 + e**-|x|)."""
    data, dtype = call.operand(0), call.dtype(0)
    small = relay.exp(relay.negative(relay.abs(data)))
    positive = relay.maximum(data, const(0, dtype))
    return relay.add(positive, _log_one_plus(small, dtype))


def _log_one_plus(data: relay.Expr, dtype: str) -> relay.Expr:
    """Return log(1 + x) of x in 0 .. 1: of small x, whose digits 1 + x loses, by four terms."""
    series: relay.Expr = const(-1 / 4, dtype)
    for coefficient in (1 / 3, -1 / 2, 1.0):
        series = relay.add(relay.multiply(series, data), const(coefficient, dtype))
    logarithm = relay.log(relay.add(const(1, dtype), data))
    is_small = relay.less(data, const(0.01, dtype))
    return relay.where(is_small, relay.multiply(series, data), logarithm)


def clip(call: OnnxCall) -> relay.Expr | None:
    """Convert Clip whose bounds are operands: each may be left out, or be computed.

    TVM's converter forgets a bound where the other is left out or is no constant too.
    """
    if call.opset < 11:
        return None
    result, dtype = call.operand(0), call.dtype(0)
    bounds = [constant_value(call.operand(i), call.params) if call.has(i) else None for i in (1, 2)]
    if dtype.startswith("float") and all(bound is not None for bound in bounds):
        low, high = (float(np.asarray(bound).reshape(())) for bound in bounds)
        if low <= high:  # else all is `high`, and TVM's clip says `low`
            return relay.clip(result, low, high)
    if call.has(1):
        result = relay.maximum(result, call.operand(1))
    return relay.minimum(result, call.operand(2)) if call.has(2) else result


def cumulative_product(call: OnnxCall) -> relay.Expr:
    """Convert CumProd: along an axis, backward or without the element itself."""
    axis = int(call.constant(1, "axis").reshape(-1)[0])
    data = call.operand(0)
    if call.number("reverse", 0):
        data = relay.reverse(data, axis)
    result = relay.cumprod(data, axis=axis, exclusive=bool(call.number("exclusive", 0)))
    return relay.reverse(result, axis) if call.number("reverse", 0) else result


def determinant(call: OnnxCall) -> relay.Expr:
    """Convert Det of matrices of up to 3 rows, by its definition."""
    data, size = call.operand(0), call.shape(0)[-1]

    def element(row: int, column: int) -> relay.Expr:
        part = relay.take(data, const(row, "int32"), axis=-2)
        return relay.take(part, const(column, "int32"), axis=-1)

    def minor(rows: list[int], columns: list[int]) -> relay.Expr:
        if len(rows) == 1:
            return element(rows[0], columns[0])
        total = None
        for i, column in enumerate(columns):
            rest = [other for other in columns if other != column]
            term = relay.multiply(element(rows[0], column), minor(rows[1:], rest))
            if total is None:
                total = term
            else:
                total = relay.subtract(total, term) if i % 2 else relay.add(total, term)
        return total

    if not 1 <= size <= 3:
        raise FrontendError(f"the determinant of {size} rows is not supported, only of up to 3")
    return minor(list(range(size)), list(range(size)))


def elu(call: OnnxCall) -> relay.Expr:
    """Convert Elu: x, or alpha (e**x - 1) below zero."""
    data, dtype = call.operand(0), call.dtype(0)
    zero, one = const(0, dtype), const(1, dtype)
    below = relay.subtract(relay.exp(relay.minimum(data, zero)), one)
    scaled = relay.multiply(const(call.number("alpha", 1.0), dtype), below)
    return relay.where(relay.less(data, zero), scaled, data)


def thresholded_relu(call: OnnxCall) -> relay.Expr:
    """Convert ThresholdedRelu; TVM's converter multiplies by 0, of which an infinity makes NaN."""
    data, dtype = call.operand(0), call.dtype(0)
    is_above = relay.greater(data, const(call.number("alpha", 1.0), dtype))
    return relay.where(is_above, data, const(0, dtype))


def bit_cast(call: OnnxCall) -> relay.Expr:
    """Convert BitCast: the same bits as another type of the same width."""
    source, target = call.dtype(0), dtype_name(int(call.number("to", 0)))
    widths = [8 if name == "bool" else int(tvm.DataType(name).bits) for name in (source, target)]
    if widths[0] != widths[1]:
        raise FrontendError(f"{source} and {target} have not as many bits")
    if "bool" in (source, target):  # it has eight bits in ONNX, and one in Relay
        return relay.cast(call.operand(0), target)
    return relay.reinterpret(call.operand(0), target)


def cast(call: OnnxCall) -> relay.Expr | None:
    """Convert Cast and CastLike of bfloat16, which TVM's code generator cannot widen, of floats to
    bool, where TVM takes NaN for false, and to the same type, where TVM makes no kernel."""
    to = dtype_name(int(call.number("to", 0))) if "to" in call.attributes else call.dtype(1)
    if call.dtype(0) == to:
        return call.operand(0)
    if to == "bool" and call.dtype(0).startswith("float"):
        return relay.logical_not(relay.equal(call.operand(0), const(0, call.dtype(0))))
    if call.dtype(0) != "bfloat16":
        return None
    return relay.cast(as_float32(call.operand(0)), to)


def mat_mul(call: OnnxCall) -> relay.Expr:
    """Convert MatMul of vectors, matrices and stacks of them."""
    return stacked_product(call.operand(0), call.operand(1), call.dtype(0))


def top_k(call: OnnxCall) -> relay.expr.TupleWrapper:
    """Convert TopK: values and positions of the largest or smallest along an axis."""
    if call.dtype(0) in ("uint64", "bool"):
        raise FrontendError(f"TVM cannot sort {call.dtype(0)}; cast it to int64 before")
    k = call.constant(1, "k").reshape(-1)[0] if call.has(1) else call.attributes["k"]
    axis = int(call.number("axis", -1)) % len(call.shape(0))
    is_ascending = not call.number("largest", 1)
    data, dtype = call.operand(0), call.dtype(0)
    is_short = dtype in ("int16", "uint16")  # which TVM's kernel does not know
    result = relay.topk(
        relay.cast(data, "int32") if is_short else data,
        int(k),
        axis,
        "both",
        is_ascend=is_ascending,
        dtype="int64",
    )
    if not is_short:
        return result
    return relay.expr.TupleWrapper(relay.Tuple([relay.cast(result[0], dtype), result[1]]), 2)


def round_to_bfloat16(call: OnnxCall) -> relay.Expr:
    """Convert our RoundToBFloat16: the nearest float32 whose lower half is zero, ties to even."""
    number = call.operand(0)
    wide = number if call.dtype(0) == "float32" else relay.cast(number, "float32")
    rounded: relay.Expr = load_entry(_ROUNDED)(wide)
    return rounded
