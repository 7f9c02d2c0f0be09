"""Lowered kernels for CPUs -> the same, in which float64 becomes float16 by way of float32.

LLVM leaves that cast to a function of its runtime library, and TVM's has another convention of
what is in which register: the numbers that come out have nothing to do with those that go in.
From float32 processors have an instruction. onnxruntime rounds twice as well: a number that is
within 2**-29 of the middle of two neighbours may become the farther one.
"""

from __future__ import annotations

import tvm
from tvm import tir

from heteroplace.tir.lowered_functions import with_nodes


def half_by_float32(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels without casts of float64, or vectors of it, to float16.

    Parameters
    ----------
    functions
        Lowered functions of one kernel; they are not changed.
    """
    return with_nodes(functions, _replacement, "tir.Cast")


def _replacement(cast: tir.Cast) -> tir.PrimExpr | None:
    cast_type, read = str(cast.dtype), str(cast.value.dtype)
    if not cast_type.startswith("float16") or not read.startswith("float64"):
        return None
    return tir.Cast(cast_type, tir.Cast(cast_type.replace("float16", "float32"), cast.value))
