"""Lowered kernels -> the same in which numbers that are rounded to bytes are read from their bits.

QuantizeLinear rounds by a sum with M = 3 * 2^22, near which floats are whole
(`parts/onnx/converters/quantized/quantized.py`). Such a sum already holds the whole number in its
last bits:

    uint8(max(min(max(min(x + M, most), least) - M + z, 255), 0))
        ==>  uint8(bits(min(max(x + M, M - z), M + 255 - z)) + z)

Three instructions for a vector in place of seven, with the same bytes: M - z and M + 255 - z are
within the limits, where floats are whole numbers and no difference is rounded. A NaN becomes 0, as
processors convert one. Where z is 0, a ReLU before the sum is left out: the clip does its work.
"""

from __future__ import annotations

import tvm
from tvm import tir

from heteroplace.relay.tasks.folded_steps import ROUNDING_SHIFT
from heteroplace.tir.keep_nan import hidden, hidden_number
from heteroplace.tir.lowered_functions import with_nodes

_WHOLE = (2**23, 2**24)
"""Between these floats of 32 bits are whole, and neighbours differ by 1."""
_BYTE = "uint8"
_MAX_BYTE = 255


def rounded_bytes(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels with these conversions replaced.

    Parameters
    ----------
    functions
        Lowered functions of one kernel for a CPU, as TVM made them; they are not changed.
    """
    return with_nodes(functions, _replacement, "tir.Cast")


def _replacement(cast: tir.Cast) -> tir.PrimExpr | None:
    """What stands for a conversion to bytes; None: it stays."""
    if cast.dtype.partition("x")[0] != _BYTE:
        return None
    clipped = _clipped(cast.value)
    if clipped is None or clipped[1:] != (0.0, float(_MAX_BYTE)):
        return None
    steps, zero = clipped[0], 0.0
    offset = _number(steps.b) if isinstance(steps, tir.Add) else None
    if offset is not None:
        steps, zero = steps.a, offset
    if not isinstance(steps, tir.Sub) or _number(steps.b) != ROUNDING_SHIFT:
        return None
    within = _clipped(steps.a)
    if within is None or not _can_be_read(within, zero):
        return None
    value, kind = within[0], tvm.DataType(cast.value.dtype)
    if zero == 0 and _is_relu(value.a):
        value = tir.Add(value.a.a, value.b)
    least, most = (_constant(ROUNDING_SHIFT + each - zero, kind) for each in (0, _MAX_BYTE))
    # In this order, and hidden from `keep_nan`: a NaN is not above the least.
    within_byte = tir.Min(tir.Max(value, hidden(least)), hidden(most))
    whole = str(kind).replace("float32", "int32")
    bits = tir.call_intrin(whole, "tir.reinterpret", within_byte)
    if zero:
        bits = bits + _constant(int(zero), tvm.DataType(whole))
    return tir.Cast(cast.dtype, bits)


def _can_be_read(within: tuple[tir.PrimExpr, float, float], zero: float) -> bool:
    """Tell whether a clipped sum with the shift is a whole number, and what is read is within."""
    value, least, most = within
    is_shifted = isinstance(value, tir.Add) and _number(value.b) == ROUNDING_SHIFT
    is_whole = _WHOLE[0] <= least and most < _WHOLE[1]
    is_wide = least <= ROUNDING_SHIFT - zero and ROUNDING_SHIFT + _MAX_BYTE - zero <= most
    return is_shifted and is_whole and is_wide and zero == int(zero)


def _clipped(value: tir.PrimExpr) -> tuple[tir.PrimExpr, float, float] | None:
    """What max(min(x, most), least) clips to constants, with them; None: it is nothing such."""
    if not isinstance(value, tir.Max) or not isinstance(value.a, tir.Min):
        return None
    least, most = _number(value.b), _number(value.a.b)
    return None if least is None or most is None else (value.a.a, least, most)


def _is_relu(value: tir.PrimExpr) -> bool:
    return isinstance(value, tir.Max) and _number(value.b) == 0


def _number(value: tir.PrimExpr) -> float | None:
    """The float that an expression is, also one of several equal ones.

    `exact_floats` multiplies a number by a hidden 1 where TVM would leave out a sum with it.
    """
    scalar = value.value if isinstance(value, tir.Broadcast) else value
    if isinstance(scalar, tir.Mul) and hidden_number(scalar.b) == 1:
        scalar = scalar.a
    return float(scalar.value) if isinstance(scalar, tir.FloatImm) else None


def _constant(value: float, kind: tvm.DataType) -> tir.PrimExpr:
    scalar = tir.const(value, str(kind).partition("x")[0])
    return scalar if kind.lanes == 1 else tir.Broadcast(scalar, kind.lanes)
