"""Lowered kernels of products -> the same with vectors stored whole wherever all lanes are inside.

Where the columns are not so many whole vectors, TVM stores every element by itself, each if it is
inside. Only the last vector of a row need be:

    for lane in 16:                          if first + 15 < 197:
        if first + lane < 197:       ==>         out[first : first + 16] = ...
            out[first + lane] = ...          else:
                                                 for lane in 16: ...
"""

from __future__ import annotations

import tvm
from tvm import tir

from heteroplace.tir.lowered_functions import is_kernel_of, with_nodes

_OPS = (
    "heteroplace_packed_matmul",
    "heteroplace_batch_matmul",
    "heteroplace_bfloat16_matmul",
)
"""Where a kernel is of others, what it stores has to stay one statement (`in_place`)."""


def whole_vectors(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels with such loops split; kernels of other ops as they are.

    Parameters
    ----------
    functions
        Lowered functions of one kernel for a CPU; they are not changed.
    """
    if not is_kernel_of(functions, _OPS):
        return functions
    split = with_nodes(functions, _split, "tir.For")
    return functions if split.same_as(functions) else tir.transform.VectorizeLoop()(split)


def _split(loop: tvm.Object) -> tvm.Object | None:
    """The two ways of a loop over lanes; None: it is no such loop."""
    guard = loop.body
    is_guarded = isinstance(guard, tir.IfThenElse) and guard.else_case is None
    if loop.kind != tir.ForKind.SERIAL or not is_guarded or not isinstance(guard.condition, tir.LT):
        return None
    store = guard.then_case
    if not isinstance(loop.extent, tir.IntImm) or not isinstance(store, tir.BufferStore):
        return None
    steps = [
        tvm.arith.detect_linear_equation(each, [loop.loop_var])
        for each in (guard.condition.a, guard.condition.b, store.indices[-1])
    ]
    if [each and _value(each[0]) for each in steps] != [1, 0, 1]:
        return None
    # Rows, in which vectors are stored already.
    if tvm.DataType(store.value.dtype).lanes > 1:
        return None
    last = {loop.loop_var: loop.min + loop.extent - 1}
    are_all_inside = tir.stmt_functor.substitute(guard.condition, last)
    # A variable belongs to one loop.
    lane = tir.Var(loop.loop_var.name, loop.loop_var.dtype)
    stored = tir.stmt_functor.substitute(guard.then_case, {loop.loop_var: lane})
    whole = tir.For(lane, loop.min, loop.extent, tir.ForKind.VECTORIZED, stored)
    return tir.IfThenElse(are_all_inside, whole, loop)


def _value(expression: tir.PrimExpr) -> int | None:
    return int(expression) if isinstance(expression, tir.IntImm) else None
