"""An expression -> whether it is above 0, or not below it, everywhere, by how it is made.

A gate that is divided by a sum is 0 elsewhere only if that sum is nowhere 0.
"""

from __future__ import annotations

from tvm import relay


def summed_axes(call: relay.Call) -> list[int]:
    """Return the axes that a reduction adds up, or takes the largest of."""
    rank = len(call.args[0].checked_type.shape)
    if call.attrs.axis is None:
        return list(range(rank))
    named = [int(axis) % rank for axis in call.attrs.axis]
    return [a for a in range(rank) if a not in named] if call.attrs.exclude else named


def is_positive(expr: relay.Expr) -> bool:
    """Say whether an expression is above 0 everywhere, by how it is made."""
    if isinstance(expr, relay.Constant):
        return bool((expr.data.numpy() > 0).all())
    if not isinstance(expr, relay.Call):
        return False
    name, args = getattr(expr.op, "name", ""), expr.args
    if name == "clip":
        return float(expr.attrs.a_min) > 0
    if name == "maximum":
        return any(is_positive(each) for each in args)
    if name == "add":
        return any(is_positive(args[i]) and is_nonnegative(args[1 - i]) for i in range(2))
    if name in ("multiply", "divide"):
        return all(is_positive(each) for each in args)
    if name in ("sqrt", "reshape", "expand_dims", "squeeze", "broadcast_to", "transpose"):
        return is_positive(args[0])
    if name in ("sum", "max"):
        return is_positive(args[0]) or _holds_largest(args[0], expr)
    return False


def _holds_largest(expr: relay.Expr, reduction: relay.Call) -> bool:
    """The largest values of a softmax, which add up to 1, along the axis that is reduced."""
    if not isinstance(expr, relay.TupleGetItem) or expr.index:
        return False
    call = expr.tuple_value
    if getattr(getattr(call, "op", None), "name", "") != "topk" or int(call.attrs.is_ascend):
        return False
    source = call.args[0]
    if getattr(getattr(source, "op", None), "name", "") != "nn.softmax":
        return False
    rank = len(source.checked_type.shape)
    axes = {int(call.attrs.axis) % rank, int(source.attrs.axis) % rank}
    return set(summed_axes(reduction)) == axes


_NONNEGATIVE_OF_SUCH = frozenset(
    (
        *("sum", "max", "mean", "multiply", "add", "maximum", "reshape", "expand_dims"),
        *("squeeze", "broadcast_to", "take", "strided_slice", "transpose", "where"),
    )
)
"""Ops that make nothing below 0 of what is not."""


def is_nonnegative(expr: relay.Expr) -> bool:
    """Say whether an expression is nowhere below 0, by how it is made."""
    if isinstance(expr, relay.TupleGetItem):
        call = expr.tuple_value
        name = getattr(getattr(call, "op", None), "name", "")
        return name in ("topk", "split") and is_nonnegative(call.args[0])
    if isinstance(expr, relay.Constant):
        return bool((expr.data.numpy() >= 0).all())
    if not isinstance(expr, relay.Call):
        return False
    name = getattr(expr.op, "name", "")
    if name in ("nn.softmax", "sigmoid", "exp", "nn.relu", "abs", "sqrt"):
        return True
    if name in _NONNEGATIVE_OF_SUCH:
        values = expr.args[1:] if name == "where" else expr.args
        values = values[:1] if name == "take" else values
        return all(is_nonnegative(each) for each in values)
    return name == "cast" and (
        expr.args[0].checked_type.dtype == "bool" or is_nonnegative(expr.args[0])
    )
