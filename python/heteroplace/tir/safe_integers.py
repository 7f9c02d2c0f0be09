"""Lowered kernels -> the same in which divisions and shifts of integers have one right result.

On x86 a division by 0, and the least integer by -1, end the process; a shift by as many bits as the
number has, or by a negative count, gives what the instruction at hand makes of it. As in numpy:

    a / 0, a % 0  ==>  0                       least / -1  ==>  least          least % -1  ==>  0
    a << n, n outside of [0, bits)  ==>  0     a >> n, n likewise  ==>  -1 if a < 0 else 0

Divisions and shifts by constants stay as they are, and so do those whose divisor or count is within
limits for certain. (ONNX says nothing of such operands; onnxruntime ends, or shifts as in C.)

TVM lowers `floor_mod(x + 8, 16)` of int32 to `truncmod(x + 8 + 16 * k, 16)`. It chooses k so that
the least possible sum is not negative. The sum then overflows, and the result is wrong. Floored
divisions of data are therefore written out here, from C's division and remainder:

    r = a % b,  wrong = -1 if r != 0 and the signs of r and b differ, else 0
    floor_mod(a, b)  ==>  r + (wrong & b)      floor_div(a, b)  ==>  a / b + wrong
    floor_mod(a, 16)  ==>  a & 15              floor_div(a, 16)  ==>  a >> 4
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tvm
from tvm import arith, tir

from heteroplace.tir.lowered_functions import with_nodes

_DIVISIONS = (tir.Div, tir.Mod, tir.FloorDiv, tir.FloorMod)
_REMAINDERS = (tir.Mod, tir.FloorMod)
_FLOORED = (tir.FloorDiv, tir.FloorMod)
_SHIFTS = ("tir.shift_left", "tir.shift_right")


def define_integers(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels with divisions and shifts defined for all operands.

    Parameters
    ----------
    functions
        Lowered functions of one kernel; they are not changed.
    """
    kinds = ("tir.Div", "tir.Mod", "tir.FloorDiv", "tir.FloorMod", "tir.Call")
    return with_nodes(functions, _replacement, *kinds)


def _replacement(value: tir.PrimExpr) -> tir.PrimExpr | None:
    """What stands for a division or shift; None: it stays."""
    if "int" not in str(value.dtype):
        return None
    if isinstance(value, _DIVISIONS):
        if _may_trap(value.b):
            return _once(value.a, value.b, _division(value))
        return _floored(value, value.a, value.b) if _may_overflow(value) else None
    if isinstance(value, tir.Call) and getattr(value.op, "name", "") in _SHIFTS:
        data, count = value.args
        limit = tvm.DataType(value.dtype).bits
        bound = arith.Analyzer().const_int_bound(_scalar(count))
        is_legal = bound.min_value >= 0 and bound.max_value < limit
        return None if is_legal else _once(data, count, _shift(value, limit))
    return None


def _once(
    left: tir.PrimExpr,
    right: tir.PrimExpr,
    build: Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr],
) -> tir.PrimExpr:
    """Give the right operand a name, which is read several times.

    The left one, which may hold others of these, has none: TVM's simplifier follows a name to what
    it stands for wherever it is read.
    """
    b = tir.Var("b", right.dtype)
    return tir.Let(b, right, build(left, b))


def _may_trap(divisor: tir.PrimExpr) -> bool:
    bound = arith.Analyzer().const_int_bound(_scalar(divisor))
    return bool(bound.min_value <= 0 and bound.max_value >= -1)


def _may_overflow(value: tir.Div | tir.Mod | tir.FloorDiv | tir.FloorMod) -> bool:
    """Tell whether TVM may add to the dividend: it knows the limits of loops, not those of data."""
    if not isinstance(value, _FLOORED) or str(value.dtype).startswith("uint"):
        return False
    bound = arith.Analyzer().const_int_bound(_scalar(value.a))
    largest = tir.max_value(value.dtype.split("x")[0]).value
    return not (bound.min_value >= 0 and bound.max_value <= largest) and _reads_data(value.a)


def _reads_data(value: tir.PrimExpr) -> bool:
    loads: list[tir.BufferLoad] = []

    def look(node: object) -> None:
        if isinstance(node, tir.BufferLoad):
            loads.append(node)

    tir.stmt_functor.post_order_visit(value, look)
    return bool(loads)


def _floored(
    value: tir.Div | tir.Mod | tir.FloorDiv | tir.FloorMod, a: tir.PrimExpr, b: tir.PrimExpr
) -> tir.PrimExpr:
    """Write out a floored division of signed numbers.

    CUDA code repeats what a name stands for wherever it is read, so operands are read rarely.
    """
    divisor, is_remainder = _scalar(b), isinstance(value, _REMAINDERS)
    is_positive = isinstance(divisor, tir.IntImm) and divisor.value > 0
    if is_positive and divisor.value & (divisor.value - 1) == 0:
        if is_remainder:
            return a & _constant(divisor.value - 1, a.dtype)
        return tir.shift_right(a, _constant(divisor.value.bit_length() - 1, a.dtype))
    dividend, remainder = tir.Var("dividend", a.dtype), tir.Var("remainder", a.dtype)
    sign = _constant(tvm.DataType(a.dtype).bits - 1, a.dtype)
    if is_positive:
        wrong = tir.shift_right(remainder, sign)
    else:
        is_rest = tir.Cast(a.dtype, tir.NE(remainder, _constant(0, a.dtype)))
        wrong = -is_rest & tir.shift_right(remainder ^ b, sign)
    if is_remainder:
        return tir.Let(remainder, tir.Mod(a, b), remainder + (wrong & b))
    quotient = tir.Let(remainder, tir.Mod(dividend, b), tir.Div(dividend, b) + wrong)
    return tir.Let(dividend, a, quotient)


def _scalar(value: tir.PrimExpr) -> tir.PrimExpr:
    return value.value if isinstance(value, tir.Broadcast) else value


def _division(
    value: tir.Div | tir.Mod | tir.FloorDiv | tir.FloorMod,
) -> Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr]:
    is_signed = not str(value.dtype).startswith("uint")

    def build(a: tir.PrimExpr, b: tir.PrimExpr) -> tir.PrimExpr:
        """Divide by 1 instead of 0 and -1, then do what is missing.

        No select has the division inside: TVM takes its condition for granted there, though both of
        its sides are computed. No comparison stands twice: TVM would give it a name, and fails on
        names of comparisons of vectors.
        """
        extra = tir.Select(
            tir.EQ(b, _constant(0, a.dtype)), _constant(1, a.dtype), _constant(0, a.dtype)
        )
        if is_signed:
            is_minus = tir.EQ(b, _constant(-1, a.dtype))
            extra += tir.Select(is_minus, _constant(2, a.dtype), _constant(0, a.dtype))
        added = tir.Var("added", a.dtype)
        is_floored = is_signed and isinstance(value, _FLOORED)
        result = _once(a, b + added, partial(_floored, value) if is_floored else type(value))
        if not isinstance(value, _REMAINDERS):
            result *= _constant(1, a.dtype) - added
        return tir.Let(added, extra, result)

    return build


def _shift(value: tir.Call, limit: int) -> Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr]:
    is_left = value.op.name == "tir.shift_left"
    is_signed = not str(value.dtype).startswith("uint")
    unsigned = value.dtype if not is_signed else f"u{value.dtype}"

    def build(a: tir.PrimExpr, b: tir.PrimExpr) -> tir.PrimExpr:
        count, last = tir.Cast(unsigned, b), _constant(limit - 1, unsigned)
        shifted = tir.Call(value.dtype, value.op, [a, tir.Cast(b.dtype, tir.Min(count, last))])
        if is_signed and not is_left:
            return shifted  # by all bits but one: the sign is left
        return tir.Select(tir.LE(count, last), shifted, _constant(0, a.dtype))

    return build


def _constant(value: int, dtype: str) -> tir.PrimExpr:
    """A constant, also of several lanes."""
    kind = tvm.DataType(dtype)
    scalar = tir.const(value, dtype.split("x")[0])
    return scalar if kind.lanes == 1 else tir.Broadcast(scalar, kind.lanes)
