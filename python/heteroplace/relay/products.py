"""Products of two matrices of floating point: what they read, before it is transposed.

TVM's gradients of dense layers are dense layers of transposes, each of which would be a task and a
tensor of its own.

    nn.dense(%g, transpose(%w))               ==>  nn.matmul(%g, %w)
    nn.dense(transpose(%g), transpose(%x))    ==>  nn.matmul(%g, %x, transpose_a=True)
    nn.dense(%x, transpose(transpose(%w)))    ==>  nn.dense(%x, %w)
"""

from __future__ import annotations

from typing import NamedTuple

import tvm
from tvm import relay

from heteroplace.relay.expressions import is_op_call, post_order, rebuild, static_shape

_DTYPES = ("float32", "float64")


class MatrixOperand(NamedTuple):
    """A matrix, and whether its transpose is meant."""

    value: relay.Expr
    is_transposed: bool

    def before(self) -> MatrixOperand:
        """Return the same as it is before it is transposed, if it is a transpose."""
        if not is_op_call(self.value, "transpose"):
            return self
        axes = self.value.attrs.axes
        is_swap = not axes or [int(axis) % 2 for axis in axes] == [1, 0]
        return MatrixOperand(self.value.args[0], self.is_transposed != is_swap)


def operands_of(expr: relay.Expr) -> tuple[MatrixOperand, MatrixOperand] | None:
    """Return what an expression, typed, multiplies; None: it is no such product."""
    if not is_op_call(expr, "nn.dense") and not is_op_call(expr, "nn.matmul"):
        return None
    types = [*(argument.checked_type for argument in expr.args), expr.checked_type]
    if any(len(static_shape(each)) != 2 or each.dtype != types[0].dtype for each in types):
        return None
    if types[0].dtype not in _DTYPES:
        return None
    a, b = expr.args
    if expr.op.name == "nn.dense":
        return MatrixOperand(a, False), MatrixOperand(b, True)
    return MatrixOperand(a, bool(expr.attrs.transpose_a)), MatrixOperand(
        b, bool(expr.attrs.transpose_b)
    )


def constant_weights(expr: relay.Expr) -> relay.Constant | None:
    """Return the constant of a float32 product or convolution of one group, typed; None: none.

    These are what kernels in bfloat16 compute.
    """
    weights = _filters(expr)
    if (operands := operands_of(expr)) is not None and expr.checked_type.dtype == "float32":
        (_, turns_a), (weights, _) = operands
        weights = None if turns_a else weights
    return weights if isinstance(weights, relay.Constant) else None


def gated_weights(expr: relay.Expr) -> tuple[relay.Constant, relay.Expr] | None:
    """Return the constant and the computed factor of the filters of such a convolution, or None.

    TVM scales filters instead of maps. Our kernels scale maps again where that is less work, and
    then read the constant, in bfloat16 too.
    """
    filters = _filters(expr)
    if filters is None or not is_op_call(filters, "multiply"):
        return None
    constant, gate = filters.args
    return (constant, gate) if isinstance(constant, relay.Constant) else None


def _filters(expr: relay.Expr) -> relay.Expr | None:
    if not is_op_call(expr, "nn.conv2d") or int(expr.attrs.groups) != 1:
        return None
    dtypes = {str(each.checked_type.dtype) for each in (*expr.args, expr)}
    return expr.args[1] if dtypes == {"float32"} else None


def without_transposes(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a typed module whose products read matrices as they are before they are transposed.

    What it computes stays, but for the order in which products are summed up. Spans stay.
    """
    main = mod["main"]
    mapped: dict[relay.Expr, relay.Expr] = {}

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        operands = operands_of(old)
        if operands is None or not any(is_op_call(value, "transpose") for value, _ in operands):
            return new
        a, b = map(_untransposed, operands)
        if (a.is_transposed, b.is_transposed) == (False, True):
            product = relay.nn.dense(mapped[a.value], mapped[b.value])
        else:
            product = relay.nn.matmul(
                mapped[a.value],
                mapped[b.value],
                transpose_a=a.is_transposed,
                transpose_b=b.is_transposed,
            )
        return relay.Call(product.op, product.args, product.attrs, None, old.span)

    rebuild(post_order(main.body), mapped, rewrite)
    function = relay.Function(main.params, mapped[main.body], attrs=main.attrs)
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))


def _untransposed(operand: MatrixOperand) -> MatrixOperand:
    while is_op_call(operand.value, "transpose"):
        operand = operand.before()
    return operand
