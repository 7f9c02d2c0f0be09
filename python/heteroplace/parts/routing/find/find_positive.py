"""An expression -> whether it is above 0, or not below it, everywhere, by how it is made.

A gate that is divided by a sum is 0 elsewhere only if that sum is nowhere 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relay

from heteroplace.model.op_traits.op_table import rules_by_op, traits_of


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
    rule = _POSITIVE.get(getattr(expr.op, "name", ""))
    return rule is not None and rule(expr)


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


def is_nonnegative(expr: relay.Expr) -> bool:
    """Say whether an expression is nowhere below 0, by how it is made."""
    if isinstance(expr, relay.TupleGetItem):
        call = expr.tuple_value
        name = getattr(getattr(call, "op", None), "name", "")
        return traits_of(name).nonnegative == "fields" and is_nonnegative(call.args[0])
    if isinstance(expr, relay.Constant):
        return bool((expr.data.numpy() >= 0).all())
    if not isinstance(expr, relay.Call):
        return False
    rule = _NONNEGATIVE.get(getattr(expr.op, "name", ""))
    return rule is not None and rule(expr)


def _positive_sum(call: relay.Call) -> bool:
    args = call.args
    return any(is_positive(args[i]) and is_nonnegative(args[1 - i]) for i in range(2))


def _nonnegative_cast(call: relay.Call) -> bool:
    return call.args[0].checked_type.dtype == "bool" or is_nonnegative(call.args[0])


_Rule = Callable[[Any], bool]
_POSITIVE: Mapping[str, _Rule] = rules_by_op(
    lambda op: op.positive,
    {
        "clip": lambda call: float(call.attrs.a_min) > 0,
        "any": lambda call: any(map(is_positive, call.args)),
        "all": lambda call: all(map(is_positive, call.args)),
        "first": lambda call: is_positive(call.args[0]),
        "add": _positive_sum,
        "reduction": lambda call: is_positive(call.args[0]) or _holds_largest(call.args[0], call),
    },
)
"""By op: whether a call is above 0 everywhere."""
_NONNEGATIVE: Mapping[str, _Rule] = rules_by_op(
    lambda op: op.nonnegative,
    {
        "always": lambda call: True,
        "all": lambda call: all(map(is_nonnegative, call.args)),
        "first": lambda call: is_nonnegative(call.args[0]),
        "branches": lambda call: all(map(is_nonnegative, call.args[1:])),
        "cast": _nonnegative_cast,
        "fields": lambda call: False,  # a tuple; its fields are not negative if the operand is not
    },
)
"""By op: whether a call is nowhere below 0."""
