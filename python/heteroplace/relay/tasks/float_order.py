"""Keep the order of floating-point arithmetic through TVM's simplifiers.

Floating-point addition and multiplication are not associative. (x + 12582912) - 12582912 rounds x
to a whole number, and (x * 1e38) * 1e-38 is infinite where x * 1e38 is. TVM re-associates both:

    SimplifyExpr    (x + c) + d  ==>  x + (c + d)
                    (x * c) * d  ==>  x * (c * d)
                    (x + c) * d  ==>  x * d + c * d
    FoldScaleAxis   ((conv(x, w) + c) - c) * d  ==>  (conv(x, w * d) + c * d) - c * d

The first three are blocked for all floats. FoldScaleAxis still moves the scale of a batch norm into
weights: a sum is rounded at the size of its terms before and after. It is blocked where two sums
with constants follow one another, and where a scale is so large or small that its product with
a weight may overflow or vanish. It is blocked too where the gate of a product of rows is computed:
the matrix would be scaled in every run, and a router that the gate depends on would be there twice.

    FoldScaleAxis   dense(x, w) * gate  ==>  dense(x, w * gate)

A barrier is an identity op that no rewrite looks through. It is there during one pass only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.expressions import function_pass, is_dataflow, is_op_call, op_name, rebuilt

_BARRIER = "annotation.checkpoint"
_SIMPLIFIED = ("add", "multiply")
_SCALED = ("add", "subtract", "multiply")
_MATRIX_RANK = 2
"""Of what nn.dense makes; convolutions make more."""
_MAX_SCALE_EXPONENT = 60
"""Scales between 2^-60 and 2^60 may be folded into weights."""

GUARDED_PASSES = ("SimplifyExpr", "SimplifyExprPostAlterOp", "FoldScaleAxis")
"""Names of TVM's passes that re-associate floats."""


def in_float_order(step: tvm.transform.Pass) -> tvm.transform.Pass:
    """Return one of the `GUARDED_PASSES`, of the same name, which does not re-associate floats."""
    if step.info.name == "FoldScaleAxis":
        return between_barriers(step, "Floats", _SCALED, _between_scales)
    return between_barriers(step, "Floats", _SIMPLIFIED, _after)


def between_barriers(
    step: tvm.transform.Pass,
    name: str,
    ops: Sequence[str],
    separate: Callable[[relay.Call, relay.Call], relay.Expr],
) -> tvm.transform.Pass:
    """Return a pass of the same name, which finds barriers in dataflow and leaves none.

    Parameters
    ----------
    name
        What the barriers separate, for the names of the passes around `step`.
    ops
        Names of the ops that `separate` is called for.
    separate
        Returns a call with barriers, from the old call and the one with new operands.
    """
    level = step.info.opt_level

    def separated(function: relay.Function) -> relay.Function:
        return rebuilt(function, separate, ops=ops) if is_dataflow(function) else function

    def joined(function: relay.Function) -> relay.Function:
        if not is_dataflow(function):
            return function
        return rebuilt(function, _without_barrier, ops=(_BARRIER,))

    passes = [
        function_pass(f"Separate{name}", separated, level, ops),
        relay.transform.InferType(),
        step,
        function_pass(f"Join{name}", joined, level, (_BARRIER,)),
        relay.transform.InferType(),
    ]
    return tvm.transform.Sequential(passes, opt_level=level, name=step.info.name)


def _after(old: relay.Call, new: relay.Call) -> relay.Expr:
    """Put a barrier after a sum or product of floats."""
    return with_barrier(new, new.span) if _is_float(old) else new


def _between_scales(old: relay.Call, new: relay.Call) -> relay.Expr:
    """Put barriers around what no scale may pass."""
    if not _is_float(old):
        return new
    if is_op_call(old, "multiply"):
        if not any(map(_is_extreme, old.args)) and not _is_computed_gate(old):
            return new
    elif not _is_sum_with_constant(old) or not any(map(_ends_in_sum_with_constant, old.args)):
        return new
    operands = [
        arg if isinstance(arg, relay.Constant) else with_barrier(arg, new.span) for arg in new.args
    ]
    return with_barrier(relay.Call(new.op, operands, new.attrs, new.type_args, new.span), new.span)


def _without_barrier(old: relay.Call, new: relay.Call) -> relay.Expr:
    return new.args[0]


def with_barrier(value: relay.Expr, span: relay.Span | None) -> relay.Call:
    """Return a value that no rewrite looks through."""
    return relay.Call(tvm.ir.Op.get(_BARRIER), [value], None, [], span)


def _is_float(call: relay.Call) -> bool:
    return "float" in str(call.checked_type.dtype)


def _is_sum_with_constant(expr: relay.Expr) -> bool:
    is_sum = op_name(expr) in ("add", "subtract", "nn.bias_add")
    return is_sum and any(isinstance(arg, relay.Constant) for arg in expr.args)


def _ends_in_sum_with_constant(expr: relay.Expr) -> bool:
    while traits_of(op_name(expr)).passes_scale:
        expr = expr.args[0]
    return _is_sum_with_constant(expr)


def _is_computed_gate(call: relay.Call) -> bool:
    """Whether a product of two matrices is of nothing that is constant."""
    is_matrix = len(call.checked_type.shape) == _MATRIX_RANK
    return is_matrix and not any(isinstance(arg, relay.Constant) for arg in call.args)


def _is_extreme(expr: relay.Expr) -> bool:
    """Whether a constant holds a scale that may overflow or vanish in a product with a weight."""
    if not isinstance(expr, relay.Constant):
        return False
    scales = np.abs(expr.data.numpy().astype(np.float64))
    scales = scales[scales != 0]
    low, high = 2.0**-_MAX_SCALE_EXPONENT, 2.0**_MAX_SCALE_EXPONENT
    return not bool(np.all((scales >= low) & (scales <= high)))
