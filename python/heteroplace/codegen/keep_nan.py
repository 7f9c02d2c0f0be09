"""Lowered kernels -> the same in which the larger or smaller of two floats is NaN if either is.

TVM lowers max(a, b) to "a if a > b else b", which is b where a is NaN: of `nn.relu` and `clip` a
NaN comes out as a number (ONNX and onnxruntime: NaN), and what went wrong before is hidden.

    max(x, 0)  ==>  let a = x in select(0 > a, 0, a)                        one instruction, as max
    max(x, y)  ==>  let a = x in let b = y in select(isnan(a), a, select(a > b, a, b))

Maxima and minima over several elements (max pools, `max`, `min`) stay as they are: there the second
form takes up to eight times as long. Whether a NaN comes out of those depends on where it stands.

Of two zeros of different sign either may come out, as of `max` itself.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tir

from heteroplace.codegen.lowered_functions import with_nodes


def keep_nan(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels with max and min of floats replaced, as the module's text shows.

    Parameters
    ----------
    functions
        Lowered functions of one kernel; they are not changed.
    """
    return with_nodes(functions, _in_store, "tir.BufferStore")


def _in_store(store: tir.BufferStore) -> tir.Stmt:
    rewrite = _of_floats(is_folded=_reads(store.value, store.buffer))
    return tir.stmt_functor.ir_transform(store, None, rewrite, ["tir.Max", "tir.Min"])


def _reads(value: tir.PrimExpr, buffer: tir.Buffer) -> bool:
    """Tell whether `value` depends on what it takes the place of: a fold over many elements."""
    found: list[bool] = []

    def look(node: object) -> None:
        if isinstance(node, tir.BufferLoad) and node.buffer.data.same_as(buffer.data):
            found.append(True)

    tir.stmt_functor.post_order_visit(value, look)
    return bool(found)


def _of_floats(is_folded: bool) -> Callable[[tir.Max | tir.Min], tir.PrimExpr | None]:
    """Return what gives the replacement of a max or min; None: it stays."""

    def replacement(value: tir.Max | tir.Min) -> tir.PrimExpr | None:
        if "float" not in str(value.dtype):
            return None  # Whole numbers have no NaN.
        beats = tir.GT if isinstance(value, tir.Max) else tir.LT
        # Each side once: it may hold branches, which LLVM would not join again.
        a, b = tir.Var("a", value.dtype), tir.Var("b", value.dtype)
        if _is_number(value.b):
            return tir.Let(a, value.a, tir.Select(beats(value.b, a), value.b, a))
        if is_folded:
            return None
        # Not "a != a", which TVM's simplifier takes for false.
        chosen = tir.Select(tir.isnan(a), a, tir.Select(beats(a, b), a, b))
        return tir.Let(a, value.a, tir.Let(b, value.b, chosen))

    return replacement


def _is_number(value: tir.PrimExpr) -> bool:
    """Tell whether a value is a constant that is not NaN, also one of several equal ones."""
    if isinstance(value, tir.Broadcast):
        value = value.value
    return isinstance(value, tir.FloatImm) and value.value == value.value
