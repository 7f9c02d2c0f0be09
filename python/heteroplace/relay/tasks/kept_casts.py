"""Casts that change numbers -> a form in which TVM's simplifier keeps them.

Of two casts in a row SimplifyExpr leaves out the first one if its type is as wide as its operand's,
also where it has no sign and the operand has one (-1 of int8 is 255 of uint8), or where floats have
fewer digits than integers; and it leaves out a cast to an integer behind a clip to its limits,
whatever there is behind the point, and one to a flag or a shorter float likewise. A clip of floats
to their limits, which holds infinity, it leaves out. It ends at the limits of uint64.

    cast(cast(%x int8, "uint8"), ..)         ==>  cast(reinterpret(%x, "uint8"), ..)
    cast(cast(%x int32, "float32"), ..)      ==>  cast(trunc(cast(%x, "float32")), ..)
    cast(cast(clip(%x, 0, 255), "uint8"), ..)
        ==>  cast(cast(trunc(clip(%x, 0, 255)), "uint8"), ..)
    cast(cast(clip(%x, 0, 1), "bool"), ..)   ==>  cast(not_equal(clip(%x, 0, 1), 0), ..)
    cast(cast(clip(%x, -1, 1), "float16"), ..)
        ==>  cast(cast(minimum(maximum(%x, -1), 1), "float16"), ..)
    cast(clip(%x, 0, 9), "uint64")           ==>  cast(minimum(maximum(%x, 0), 9), "uint64")

To it `cast_like(%x, %y)` is a cast as well, and is made one here first.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.expressions import function_pass, is_dataflow, is_op_call, rebuilt
from heteroplace.relay.tasks.spans import with_span

_OPS, _LIKE = ("cast", "clip"), ("cast_like",)
_DIGITS = {"float16": 11, "float32": 24, "float64": 53}
"""Of whole numbers that each type holds, in bits."""
_LARGE = 2**23
"""From here on a float32 is a whole number."""
_UNKNOWN = "uint64"
"""The type whose limits TVM's simplifier cannot say."""


def KeptCasts() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass, which goes before SimplifyExpr."""

    def plain(function: relay.Function) -> relay.Function:
        return rebuilt(function, _by_type, ops=_LIKE) if is_dataflow(function) else function

    def with_kept(function: relay.Function) -> relay.Function:
        return rebuilt(function, _kept, ops=_OPS) if is_dataflow(function) else function

    passes = [
        function_pass("PlainCasts", plain, ops=_LIKE),
        function_pass("KeptCasts", with_kept, ops=_OPS),
    ]
    return tvm.transform.Sequential(passes, name="KeptCasts")


def _by_type(old: relay.Call, new: relay.Call) -> relay.Expr:
    """Return a cast to the type of another value as one to a type."""
    operand = new.args[0]
    return with_span(relay.cast(operand, _dtype(old)), {operand}, old.span)


def _kept(old: relay.Call, new: relay.Call) -> relay.Expr:
    """Return what stands for a cast or a clip, whose type is known, with new operands."""
    if is_op_call(old, "clip"):
        is_kept = _dtype(old) != _UNKNOWN and not _is_to_limits(old)
        return new if is_kept else _placed(_extremes(old, new), old, new)
    first, operand = old.args[0], new.args[0]
    read, result_dtype = _dtype(first), _dtype(old)
    if is_op_call(first, "cast"):
        operand = _first_kept(first, operand, result_dtype)
    elif is_op_call(first, "clip") and result_dtype == _UNKNOWN:
        operand = _extremes(first, operand)
    if (
        read.startswith("int")
        and result_dtype.startswith("uint")
        and _bits(result_dtype) >= _bits(read)
    ):
        wide = (
            relay.cast(operand, result_dtype[1:]) if _bits(result_dtype) > _bits(read) else operand
        )
        return _placed(relay.reinterpret(wide, result_dtype), old, new)
    if operand.same_as(new.args[0]):
        return new
    return _placed(relay.cast(operand, result_dtype), old, new)


def _first_kept(old: relay.Call, new: relay.Expr, result_dtype: str) -> relay.Expr:
    """Return the first of two casts in a form that stays, if it should and would not."""
    operand, dtype = old.args[0], _dtype(old)
    read = _dtype(operand)
    if dtype in _DIGITS and "int" in read:
        return relay.trunc(new) if _bits(read) > _DIGITS[dtype] else new
    if not is_op_call(operand, "clip") or not is_op_call(new, "cast"):
        return new
    if dtype == "bool":
        return relay.not_equal(new.args[0], relay.const(0, read))
    if "int" not in dtype:
        if _bits(dtype) > _bits(read):
            return new
        return relay.cast(_extremes(operand, new.args[0]), dtype)
    if result_dtype == _UNKNOWN and is_op_call(new.args[0], "clip"):
        return relay.cast(_extremes(operand, new.args[0]), dtype)
    if not read.startswith("float") or is_whole(operand):
        return new
    return relay.cast(relay.trunc(new.args[0]), dtype)


def _extremes(old: relay.Call, new: relay.Call) -> relay.Expr:
    """Return a clip as a maximum and a minimum."""
    if not is_op_call(new, "clip"):
        return new
    dtype = _dtype(old)

    def limit(value: float) -> relay.Expr:
        if dtype.startswith("float"):
            return relay.const(value, dtype)
        limits = np.iinfo(dtype)
        return relay.const(np.array(min(max(int(value), limits.min), limits.max), dtype))

    low, high = limit(float(old.attrs.a_min)), limit(float(old.attrs.a_max))
    return relay.minimum(relay.maximum(new.args[0], low), high)


def _is_to_limits(clip: relay.Call) -> bool:
    """Whether it holds infinity alone, to the largest number of its type."""
    dtype = _dtype(clip)
    if not dtype.startswith(("float", "bfloat")):
        return False
    most = float(tvm.tir.max_value(dtype).value)
    return (float(clip.attrs.a_min), float(clip.attrs.a_max)) == (-most, most)


def is_whole(expr: relay.Expr) -> bool:
    """Say whether floats are whole numbers for certain, by the ops that made them; typed."""
    left = [expr]
    while left:
        value = left.pop()
        if isinstance(value, relay.Constant):
            array = value.data.numpy()
            if not np.array_equal(array, np.trunc(array)):
                return False
            continue
        name = getattr(getattr(value, "op", None), "name", "")
        kind = traits_of(name).kind
        if kind == "rounding" or (name == "cast" and "int" in _dtype(value.args[0])):
            continue
        if name == "clip" and (value.attrs.a_min >= _LARGE or _has_whole_limits(value)):
            if value.attrs.a_min < _LARGE:
                left.append(value.args[0])
            continue
        if kind != "arithmetic":
            return False
        left.extend(value.args)
    return True


def _has_whole_limits(clip: relay.Call) -> bool:
    return float(clip.attrs.a_min).is_integer() and float(clip.attrs.a_max).is_integer()


def _dtype(expr: relay.Expr) -> str:
    return str(expr.checked_type.dtype)


def _bits(dtype: str) -> int:
    return int(tvm.DataType(dtype).bits)


def _placed(value: relay.Expr, old: relay.Expr, new: relay.Call) -> relay.Expr:
    """Return an expression whose new parts have the span of what they stand for."""
    new_nodes, operand = set(), new
    for _ in range(3):
        if not isinstance(operand, relay.Call):
            break
        operand = operand.args[0]
        new_nodes.add(operand)
    return with_span(value, new_nodes, old.span)
