"""Batch products of transposed matrices -> the same products of the matrices as they lie in memory.

    nn.batch_matmul(%a, transpose(%v))  ==>  nn.batch_matmul(%a, %v, transpose_b=False)

ONNX multiplies by the values of an attention as they lie, in rows of a head. An importer for TVM
transposes them, because TVM's product sums along rows. That transpose is a task of its own, which
moves single numbers. Keys are transposed twice, which copies whole rows: these transposes stay.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.axes.rules import is_broadcast
from heteroplace.relay.expr_map import ExprMap, ExprSet
from heteroplace.relay.expressions import (
    function_pass,
    is_op_call,
    op_name,
    readers_of,
    rebuilt,
    spanned,
    static_shape,
)

_PRODUCT = "nn.batch_matmul"
_OPS = (_PRODUCT,)
_DTYPES = frozenset({"float32", "float64"})
_SWAP = (0, 2, 1)
"""Axes of a transpose of each matrix of a batch."""


def Untransposed() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass, which goes before FuseOps."""

    def run(function: relay.Function) -> relay.Function:
        turned = _needless_transposes(function)
        mapped: ExprMap[relay.Expr] = ExprMap()

        def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
            if not any(side in turned for side in old.args):
                return new
            sides = [mapped[side.args[0] if side in turned else side] for side in old.args]
            flags = (old.attrs.transpose_a, old.attrs.transpose_b)
            turns_a, turns_b = (
                bool(flag) != (side in turned) for flag, side in zip(flags, old.args, strict=True)
            )
            product = relay.nn.batch_matmul(
                *sides, old.attrs.out_dtype, transpose_a=turns_a, transpose_b=turns_b
            )
            return spanned(product, old.span)

        return rebuilt(function, rewrite, mapped, _OPS) if turned else function

    return function_pass("Untransposed", run, ops=_OPS)


def _needless_transposes(function: relay.Function) -> ExprSet:
    """Return the transposes that only products read, of matrices with contiguous rows."""
    return ExprSet(
        node
        for node, readers in readers_of(function).items()
        if _swaps(node)
        and all(map(_is_float_product, readers))
        and _rows_lie_together(node.args[0])
    )


def _swaps(node: relay.Expr) -> bool:
    if not is_op_call(node, "transpose") or not node.attrs.axes:
        return False
    return tuple(int(axis) % len(_SWAP) for axis in node.attrs.axes) == _SWAP


def _is_float_product(node: relay.Expr) -> bool:
    if not is_op_call(node, _PRODUCT):
        return False
    dtypes = {each.checked_type.dtype for each in (*node.args, node)}
    return len(dtypes) == 1 and dtypes <= _DTYPES


def _rows_lie_together(value: relay.Expr) -> bool:
    """Say whether the last axis is the last of the tensor that the matrices are copied from."""
    axis = len(static_shape(value.checked_type)) - 1
    while isinstance(value, relay.Call):
        before = _before(value, axis)
        if before is None:
            break
        value, axis = before
    return axis == len(static_shape(value.checked_type)) - 1


def _before(call: relay.Call, axis: int) -> tuple[relay.Expr, int] | None:
    """Return the operand that a copy reads, and where the axis is there; None: it is no copy, or
    the axis is not one there."""
    name = op_name(call)
    if name is None:
        return None
    shape, kind = static_shape(call.checked_type), traits_of(name).kind
    if kind == "permute":
        axes = call.attrs.axes or range(len(shape))[::-1]
        return call.args[0], int(axes[axis]) % len(shape)
    if kind == "view":
        source = static_shape(call.args[0].checked_type)
        places = (
            place
            for place, extent in enumerate(source)
            if extent == shape[axis] and prod(source[place:]) == prod(shape[axis:])
        )
        place = next(places, None)
        return None if place is None else (call.args[0], place)
    if is_broadcast(call):
        same = (each for each in call.args if static_shape(each.checked_type) == shape)
        operand = next(same, None)
        return None if operand is None else (operand, axis)
    return None
