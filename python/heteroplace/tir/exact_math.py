"""Lowered kernels -> the same with functions and casts that are right for all numbers.

TVM's rules for CUDA take the hardware's short cuts: sin(x) becomes `__sinf(x)`, whose error has no
bound outside of -pi .. pi (at 1e4 three digits are left, at 1e6 one). log(x) becomes `__logf(x)`,
which has four digits left near 1, and the error of `__expf(x)` grows with |x|. A plan that moves a
task from a core to a GPU must not change its numbers by more than rounding.

    sin(x)  ==>  sinf(x)                      of float32; other types have no short cut
    sigmoid(x)  ==>  1 / (1 + expf(-x))       which TVM would make of it afterwards, by `__expf`

TVM prints `reinterpret(1.0f)` as `*(int *)(&(1.0f))`, which no compiler takes: a constant has no
address. Such constants hide a number from the simplifier (`keep_nan.hidden`), and stay hidden:

    reinterpret(1.0f)        ==>  1065353216
    reinterpret(1065353216)  ==>  __int_as_float(1065353216)

LLVM leaves a CPU's cast of float64 to float16 to a function of its runtime library. TVM's has
another convention of what is in which register: the numbers that come out have nothing to do with
those that go in. From float32 processors have an instruction. onnxruntime rounds twice as well: a
number that is within 2**-29 of the middle of two neighbours may become the farther one.

    float16(x)  ==>  float16(float32(x))      of float64
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tvm
from tvm import tir

from heteroplace.tir.lowered_functions import with_nodes

EXACT: Mapping[str, str] = {
    "tir.exp": "expf",
    "tir.exp10": "exp10f",
    "tir.log": "logf",
    "tir.log2": "log2f",
    "tir.log10": "log10f",
    "tir.sin": "sinf",
    "tir.cos": "cosf",
}
"""What TVM takes a short cut for, and CUDA's function of float32."""

_FLOATS_OF_BITS: Mapping[str, str] = {
    "float16": "__ushort_as_half",
    "bfloat16": "__ushort_as_bfloat16",
    "float32": "__int_as_float",
    "float64": "__longlong_as_double",
}
"""CUDA's function for the number that some bits stand for."""


def exact_math(functions: tvm.IRModule) -> tvm.IRModule:
    """Return lowered functions of a GPU that CUDA compiles, with `EXACT` in place of short cuts."""
    return with_nodes(functions, _exact, "tir.Call")


def half_by_float32(functions: tvm.IRModule) -> tvm.IRModule:
    """Return kernels of a CPU without casts of float64, or vectors of it, to float16."""
    return with_nodes(functions, _twice_rounded, "tir.Cast")


def _twice_rounded(cast: tir.Cast) -> tir.PrimExpr | None:
    cast_type, read = str(cast.dtype), str(cast.value.dtype)
    if not cast_type.startswith("float16") or not read.startswith("float64"):
        return None
    return tir.Cast(cast_type, tir.Cast(cast_type.replace("float16", "float32"), cast.value))


def _exact(call: tir.Call) -> tir.PrimExpr | None:
    if not isinstance(call.op, tvm.ir.Op):
        return None
    if call.op.name == "tir.reinterpret":
        return _reinterpreted(call.args[0], call.dtype)
    if not call.dtype.startswith("float32"):
        return None
    if call.op.name == "tir.sigmoid":
        one = tir.const(1.0, call.dtype)
        return one / (one + tir.call_pure_extern(call.dtype, EXACT["tir.exp"], -call.args[0]))
    name = EXACT.get(call.op.name)
    return None if name is None else tir.call_pure_extern(call.dtype, name, *call.args)


def _reinterpreted(constant: tir.PrimExpr, dtype: str) -> tir.PrimExpr | None:
    """Return the same without the address of a constant; None: it is no constant."""
    if isinstance(constant, tir.FloatImm) and dtype.startswith("int"):
        return tir.IntImm(dtype, _bits(constant))
    if isinstance(constant, tir.IntImm) and dtype in _FLOATS_OF_BITS:
        return tir.call_pure_extern(dtype, _FLOATS_OF_BITS[dtype], constant)
    return None  # `reinterpret(0, "handle")` is TVM's null pointer


def _bits(number: tir.FloatImm) -> int:
    """Return the bits of a constant as a signed whole number of its width."""
    if number.dtype == "bfloat16":
        return int(np.float32(number.value).view(np.int32)) >> 16
    width = np.dtype(number.dtype).itemsize * 8
    return int(np.array(number.value, number.dtype).view(f"int{width}"))
