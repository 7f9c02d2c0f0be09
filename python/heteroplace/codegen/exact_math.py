"""Lowered kernels of a GPU -> the same with functions that are right for all numbers.

TVM's rules for CUDA take the hardware's short cuts: sin(x) becomes `__sinf(x)`, whose error has no
bound outside of -pi .. pi (at 1e4 three digits are left, at 1e6 one), log(x) `__logf(x)`, which has
four digits left near 1, and the error of `__expf(x)` grows with |x|. A plan that moves a task from
a core to a GPU must not change its numbers by more than rounding.

    sin(x)  ==>  sinf(x)                      of float32; other types have no short cut
    sigmoid(x)  ==>  1 / (1 + expf(-x))       which TVM would make of it afterwards, by `__expf`
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import tir

from heteroplace.codegen.lowered_functions import with_nodes

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


def exact_math(functions: tvm.IRModule) -> tvm.IRModule:
    """Return lowered functions of a GPU with the functions of `EXACT` in place of short cuts."""
    return with_nodes(functions, _exact, "tir.Call")


def _exact(call: tir.Call) -> tir.PrimExpr | None:
    if not isinstance(call.op, tvm.ir.Op) or not call.dtype.startswith("float32"):
        return None
    if call.op.name == "tir.sigmoid":
        one = tir.const(1.0, call.dtype)
        return one / (one + tir.call_pure_extern(call.dtype, EXACT["tir.exp"], -call.args[0]))
    name = EXACT.get(call.op.name)
    return None if name is None else tir.call_pure_extern(call.dtype, name, *call.args)
