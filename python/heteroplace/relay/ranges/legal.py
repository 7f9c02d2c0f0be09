"""A function -> intervals of its inputs for which its ops do what they are meant to.

A kernel divides by 0 and takes any index (`tir/safe_integers.py`, `relay/index_guards.py`),
but what is measured should be what a user runs, and onnxruntime, which we compare with, takes
neither. What an op needs of an argument is carried backward, from results to inputs:

    x / (y - z)   needs   y - z in [1, 7]   so   y in [4, 7], z in [0, 3]

Needs may contradict each other, or reach an op without a rule; then they are not met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import rules_by_op, traits_of
from heteroplace.relay.expressions import (
    post_order,
    static_shape,
    tensor_types,
)
from heteroplace.relay.ranges.interval import BOOLEAN, FlagRows, Interval, of_dtype, product
from heteroplace.relay.router_ops import routing_kind

DIVISORS = Interval(1, 7)
_SHIFTS = Interval(0, 7)
_Needs = list[tuple[relay.Expr, Interval]]
"""Of arguments."""
_Rule = Callable[[Any, Interval], _Needs]
"""Of a call, and the goal: what is needed of its result."""


def legal_inputs(function: relay.Function) -> dict[relay.Var, Interval]:
    """Return an interval for each parameter of which ops need something, and for all of integers.

    Parameters
    ----------
    function
        Typed; dataflow only.
    """
    needed: dict[relay.Expr, Interval] = {}

    def need(node: relay.Expr, interval: Interval) -> None:
        if isinstance(node, relay.TupleGetItem):
            if isinstance(node.tuple_value, relay.Tuple):
                need(node.tuple_value.fields[node.index], interval)
                return
            node = node.tuple_value
        if isinstance(node, relay.Tuple):
            for field in node.fields:
                need(field, interval)
            return
        own_needs = needed.get(node)
        met = interval if own_needs is None else own_needs.meet(interval)
        # Of a branch for negative numbers and one for others, the latter is what we want.
        needed[node] = met or max(interval, own_needs or interval, key=lambda each: each.low)

    for node in reversed(post_order(function.body)):
        if isinstance(node, relay.Call):
            for argument, interval in needs_of(node):
                need(argument, interval)
            rule = _RULES.get(getattr(node.op, "name", ""))
            if node in needed and rule is not None:
                for argument, interval in rule(node, needed[node]):
                    need(argument, interval)
    intervals = {}
    for parameter in function.params:
        needs_of_input = needed.get(parameter) or _free(
            tensor_types(parameter.checked_type)[0].dtype
        )
        if needs_of_input is not None:
            intervals[parameter] = needs_of_input
    return intervals


def legal_tensors(function: relay.Function) -> list[Interval | None]:
    """Return `legal_inputs` of a kernel's function for each tensor that it reads, in their order;
    None: whatever it is, it is legal.

    A router takes masks that give a cell at most `top_k` branches.
    """
    legal = legal_inputs(function)
    intervals: list[Interval | None] = []
    for parameter in function.params:
        if isinstance(parameter.checked_type, tvm.ir.TupleType):
            intervals += [_free(each.dtype) for each in tensor_types(parameter.checked_type)]
        else:
            intervals.append(legal.get(parameter))
    if routing_kind(function.body) == "router":  # its mask is the first that it reads
        intervals[0] = FlagRows(0, 1, int(function.body.attrs["top_k"]))
    return intervals


def _free(dtype: str) -> Interval | None:
    """What numbers are in of which no op needs anything; None: of floating point."""
    if "float" in dtype:
        return None
    # What has 8 bits is quantised, and takes them all. Else 0 and 1 are among the numbers of a
    # mask, a length, an identifier.
    return of_dtype(dtype) if dtype in ("int8", "uint8") else BOOLEAN


def needs_of(call: relay.Call) -> _Needs:
    """What an op needs of its arguments, whatever its result is for."""
    name = getattr(call.op, "name", "")
    if traits_of(name).kind == "division":
        is_integer = "int" in tensor_types(call.checked_type)[0].dtype
        return [(call.args[1], DIVISORS)] if is_integer else []
    if name in ("left_shift", "right_shift"):
        return [(call.args[1], _SHIFTS)]
    if name == "adv_index" and isinstance(call.args[0], relay.Tuple):
        data, *indices = call.args[0].fields
        sizes = zip(indices, _shape(data), strict=False)
        return [(index, Interval(0, max(0, size - 1))) for index, size in sizes]
    if name not in _INDEXED:
        return []
    position, limit = _INDEXED[name](call)
    return [(call.args[position], Interval(0, max(0, limit - 1)))]


def _shape(expr: relay.Expr) -> tuple[int, ...]:
    return static_shape(tensor_types(expr.checked_type)[0])


def _along_axis(call: Any) -> tuple[int, int]:
    shape, axis = _shape(call.args[0]), call.attrs.axis
    return 1, math.prod(shape) if axis is None else shape[int(axis)]


def _of_first_axes(call: Any) -> tuple[int, int]:
    """Indices that are vectors: each number is held to the smallest of the axes."""
    shape = _shape(call.args[0])
    batch = int(getattr(call.attrs, "batch_dims", 0) or 0)
    count = _shape(call.args[1])[0]
    return 1, min(shape[batch : batch + count], default=1)


def _room(call: Any) -> int:
    """Places of a cache, the second operand's or the first's, where new rows are within it."""
    (_, _, one, _), (_, _, other, _) = (_shape(argument) for argument in call.args[:2])
    return abs(one - other) + 1


_INDEXED: Mapping[str, Callable[[Any], tuple[int, int]]] = rules_by_op(
    lambda op: op.indices,
    {
        "axis": _along_axis,
        "first_axes": _of_first_axes,
        "one_hot": lambda call: (0, int(call.attrs.depth)),
        "roi_align": lambda call: (1, _shape(call.args[0])[0]),
        "rows": lambda call: (2, _room(call)),
        "past": lambda call: (3, _room(call)),
        "lengths": lambda call: (1, _shape(call.args[0])[int(call.attrs.seq_axis)] + 1),
    },
)
"""By op: position of the indices, and what they are below."""


def _same(call: Any, goal: Interval) -> _Needs:
    return [(call.args[0], goal)]


def _every(call: Any, goal: Interval) -> _Needs:
    return [(argument, goal) for argument in call.args]


def _branches(call: Any, goal: Interval) -> _Needs:
    return [(argument, goal) for argument in call.args[1:]]


def _constant(expr: relay.Expr) -> Interval | None:
    """The interval of a small constant."""
    if not isinstance(expr, relay.Constant):
        return None
    array = expr.data.numpy()
    return Interval(array.min().item(), array.max().item()) if array.size else None


def _halves(goal: Interval) -> tuple[Interval, Interval]:
    """Two intervals whose sums are in the goal: one about the low end, one from 0."""
    if math.isinf(goal.low) or math.isinf(goal.high):
        return goal, goal
    room = (goal.high - goal.low) // 2
    return Interval(goal.low, goal.low + room), Interval(0, room)


def _sum(call: Any, goal: Interval) -> _Needs:
    left, right = call.args
    for one, other in ((left, right), (right, left)):
        constant = _constant(other)
        if constant is not None:
            low = goal.low - constant.low
            return [(one, Interval(low, max(low, goal.high - constant.high)))]
    return list(zip(call.args, _halves(goal), strict=True))


def _difference(call: Any, goal: Interval) -> _Needs:
    left, right = call.args
    constant = _constant(right)
    if constant is not None:
        low = goal.low + constant.high
        return [(left, Interval(low, max(low, goal.high + constant.low)))]
    constant = _constant(left)
    if constant is not None:
        low = constant.high - goal.high
        return [(right, Interval(low, max(low, constant.low - goal.low)))]
    near, rest = _halves(goal)
    return [(left, near.moved(rest.high, rest.high)), (right, rest)]


def _factors(call: Any, goal: Interval) -> _Needs:
    if goal.low < 0 or math.isinf(goal.high):
        return []
    left, right = call.args
    for one, other in ((left, right), (right, left)):
        constant = _constant(other)
        if constant is not None:
            if constant.low <= 0:
                return []
            low = math.ceil(goal.low / constant.low)
            return [(one, Interval(low, max(low, goal.high // constant.high)))]
    low = math.ceil(math.sqrt(goal.low))
    return _every(call, Interval(low, max(low, math.isqrt(int(goal.high)))))


def _negated(call: Any, goal: Interval) -> _Needs:
    return [(call.args[0], product(goal, Interval(-1, -1)))]


_RULES: Mapping[str, _Rule] = rules_by_op(
    lambda op: op.needs,
    {
        "same": _same,
        "every": _every,
        "branches": _branches,
        "sum": _sum,
        "difference": _difference,
        "factors": _factors,
        "negative": _negated,
    },
)
"""By op; what is needed of the result of another op is not carried on."""
