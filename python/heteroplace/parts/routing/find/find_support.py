"""An expression -> a mask of where it may be other than 0, if some of it is provably 0.

Gates of experts that a token does not go to are written in many ways: a one-hot vector of the
largest score times that score, values of a top-k scattered into zeros, a comparison times a
probability. All have a place where a 0 is put in; the rules here carry it to where it is used.

    multiply(cast(equal(ids, 3)), p)                 ==>  equal(ids, 3)
    scatter_elements(zeros, indices of top k, p)     ==>  scatter_elements(zeros, indices, ones)

What is 0 only in fact, but not by how it is made (`softmax`, `relu`, scores of -1e9), has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import rules_by_op, traits_of
from heteroplace.parts.routing.find.find_positive import is_positive, summed_axes
from heteroplace.relay.axes.rules import is_broadcast
from heteroplace.relay.axes.shapes import slice_entries
from heteroplace.relay.expressions import static_shape
from heteroplace.relay.local_types import write_types


class Origin(NamedTuple):
    """One of several masks that are made of one value."""

    source: relay.Expr
    """Numbers that are compared with constants, or a matrix of which it is a column."""
    number: int
    """The constant, or the place of the column."""
    most: int
    """How many masks of this source, of different numbers, may hold for one row."""


class Support(NamedTuple):
    """Where an expression may be other than 0."""

    mask: relay.Expr
    """int32, of the shape of the expression, never below 0; 0: there it is 0."""
    most: int
    """Upper bound on the places in one row (axis 0) where it is not."""
    origin: Origin | None = None
    """Which of several masks it is, of which few hold at once; None: not known."""


class Supports:
    """Finds supports, each once. Expressions are typed, and so are the masks."""

    def __init__(self) -> None:
        self._found: dict[relay.Expr, Support | None] = {}

    def of(self, expr: relay.Expr) -> Support | None:
        """Return where an expression may be other than 0; None: anywhere, as far as is proven."""
        if expr not in self._found:
            self._found[expr] = self._make(expr)
        return self._found[expr]

    def of_condition(self, condition: relay.Expr) -> Support:
        """Return where a condition is true, or other than 0: there, and nowhere else."""
        condition = as_boolean(condition)
        # The mask of a support may hold for more; what is proven of its rows holds for fewer too.
        support = self.of(condition)
        most = _width(condition) if support is None else support.most
        origin = _equal_origin(condition) if support is None else support.origin
        return Support(typed(relay.cast(condition, "int32")), most, origin)

    def _make(self, expr: relay.Expr) -> Support | None:
        if isinstance(expr, relay.Constant):
            value = expr.data.numpy()
            if value.dtype.kind not in "biuf" or value.ndim == 0 or value.all():
                return None
            rows = (value != 0).reshape(value.shape[0], -1).sum(axis=1)
            mask = relay.const((value != 0).astype("int32"))
            return Support(typed(mask), int(rows.max(initial=0)))
        if isinstance(expr, relay.TupleGetItem):
            return self._field(expr)
        if not isinstance(expr, relay.Call) or not isinstance(expr.op, tvm.ir.Op):
            return None
        rule = _RULES.get(expr.op.name)
        support = None if rule is None else rule(self, expr)
        if support is None and getattr(expr.checked_type, "dtype", "") == "bool":
            mask = typed(relay.cast(expr, "int32"))
            support = Support(mask, _equal_width(expr), _equal_origin(expr))
        return support

    def _field(self, expr: relay.TupleGetItem) -> Support | None:
        """Of a part of a `split`."""
        call = expr.tuple_value
        if not isinstance(call, relay.Call) or getattr(call.op, "name", "") != "split":
            return None
        return self._moved(call, expr.index)

    def _moved(self, call: relay.Call, then_index: int | None = None) -> Support | None:
        """Of an op that moves elements within their rows: the same op on the mask."""
        support = self.of(call.args[0])
        if support is None:
            return None
        arguments = [support.mask, *call.args[1:]]
        moved = relay.Call(call.op, arguments, call.attrs)
        mask = typed(moved if then_index is None else relay.TupleGetItem(moved, then_index))
        before, after = (static_shape(each.checked_type) for each in (call.args[0], mask))
        rows_stay = bool(before and after) and before[0] == after[0] and _keeps_rows(call)
        repeats = _repeats(before, after) * _most_taken(call) if rows_stay else 0
        most = support.most * repeats or _width(mask)
        origin = support.origin if rows_stay else None
        place = _column_place(call, then_index)
        if rows_stay and place is not None and _width(mask) == 1 < _width(call.args[0]):
            origin = Origin(call.args[0], place, support.most)
        return Support(mask, min(most, _width(mask)), origin)


def typed(expr: relay.Expr) -> relay.Expr:
    """Return an expression of typed parts with its own type written on it."""
    write_types(expr)
    return expr


def as_boolean(condition: relay.Expr) -> relay.Expr:
    """Return a condition as bool: true where it is other than 0."""
    dtype = condition.checked_type.dtype
    return (
        condition if dtype == "bool" else typed(relay.not_equal(condition, relay.const(0, dtype)))
    )


def is_zero(expr: relay.Expr) -> bool:
    """Say whether an expression is 0 everywhere by how it is made."""
    if isinstance(expr, relay.Constant):
        return not expr.data.numpy().any()
    name = getattr(expr.op, "name", "") if isinstance(expr, relay.Call) else ""
    rule = traits_of(name).zero
    if rule == "fill":
        return is_zero(expr.args[-1])
    if rule == "any":
        return any(is_zero(argument) for argument in expr.args)
    return rule == "always"


def _width(expr: relay.Expr) -> int:
    return prod(static_shape(expr.checked_type)[1:])


def _repeats(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """How often each element of a row may be there after an op that keeps rows."""
    return max(1, prod(after[1:]) // max(1, prod(before[1:])))


def _most_taken(call: relay.Call) -> int:
    """How often a `take` by constants takes one place, at most; 1 of other ops."""
    if call.op.name != "take":
        return 1
    _, counts = np.unique(call.args[1].data.numpy(), return_counts=True)
    return int(counts.max(initial=1))


def _keeps_rows(call: relay.Call) -> bool:
    """Row i of the result holds nothing but elements of row i."""
    name, attrs = call.op.name, call.attrs
    rank = len(call.args[0].checked_type.shape)
    if name == "transpose":
        return attrs.axes is not None and int(attrs.axes[0]) == 0
    if name == "strided_slice":
        extent = static_shape(call.args[0].checked_type)[0]
        entries = [each for each in slice_entries(call) if each[0] == 0]
        return all(
            begin == 0 and stride == 1 and end >= extent for _, begin, end, stride in entries
        )
    if name == "expand_dims":
        return int(attrs.axis) % (rank + 1) != 0
    if name == "take":
        return attrs.axis is not None and int(attrs.axis) % rank != 0 and not int(attrs.batch_dims)
    if name == "split":
        return int(attrs.axis) % rank != 0
    if name == "broadcast_to":  # a new axis in front is not that of the rows
        return len(call.checked_type.shape) == rank
    return traits_of(name).kind == "view" or name == "copy"


def _equal_sides(call: relay.Expr) -> tuple[relay.Expr, np.ndarray] | None:
    """Of equal(ids, constant): the ids, and the constant."""
    if not isinstance(call, relay.Call) or getattr(call.op, "name", "") != "equal":
        return None
    for ids, other in (call.args, reversed(call.args)):
        is_one_known = isinstance(other, relay.Constant) and not isinstance(ids, relay.Constant)
        if is_one_known and "int" in ids.checked_type.dtype:
            return ids, other.data.numpy()
    return None


def _equal_origin(call: relay.Expr) -> Origin | None:
    sides = _equal_sides(call)
    if sides is None or sides[1].size != 1:
        return None
    shape = static_shape(sides[0].checked_type)
    # Each number of a row is equal to one constant at most.
    return Origin(sides[0], int(sides[1].reshape(())), prod(shape[1:])) if shape else None


def _column_place(call: relay.Call, index: int | None) -> int | None:
    """Which column an op takes that takes a single one; None: none, or not known."""
    if index is not None:  # of a `split`: into so many equal parts, or behind these places
        ends = call.attrs.indices_or_sections
        is_equal = isinstance(ends, (int, tvm.tir.IntImm))
        return index if is_equal or not index else int(ends[index - 1])
    shape = static_shape(call.args[0].checked_type)
    if call.op.name == "take" and isinstance(call.args[1], relay.Constant):
        places, axis = call.args[1].data.numpy(), call.attrs.axis
        if axis is None or places.size != 1:
            return None
        place = int(places.reshape(-1)[0])
        # What becomes of another place is a matter of the mode.
        return place if 0 <= place < shape[int(axis)] else None
    if call.op.name == "strided_slice":
        begins = [(begin, axis) for axis, begin, _, _ in slice_entries(call) if axis != 0]
        return begins[0][0] % shape[begins[0][1]] if len(begins) == 1 else None
    return None


def _equal_width(call: relay.Call) -> int:
    """Each number of a row is equal to at most one of different constants."""
    sides, width = _equal_sides(call), _width(call)
    if sides is None:
        return width
    ids, constant = sides
    is_spread = constant.size == max(constant.shape, default=1) > 1
    if not is_spread or len(set(constant.reshape(-1).tolist())) != constant.size:
        return width
    axis = constant.ndim - int(np.argmax(constant.shape))  # from the back
    shape = static_shape(ids.checked_type)
    is_apart = axis > len(shape) or shape[-axis] == 1
    is_row = len(shape) == len(call.checked_type.shape)
    return min(width, prod(shape[1:])) if is_apart and is_row else width


def _through(supports: Supports, call: relay.Call) -> Support | None:
    """A function that is 0 at 0; the mask has the same elements."""
    return supports.of(call.args[0])


def _moved(supports: Supports, call: relay.Call) -> Support | None:
    return supports._moved(call)


def _taken(supports: Supports, call: relay.Call) -> Support | None:
    is_known = isinstance(call.args[1], relay.Constant) and not int(call.attrs.batch_dims)
    return supports._moved(call) if is_known else None


def _summed(supports: Supports, call: relay.Call) -> Support | None:
    """Of a sum, a maximum or a minimum: 0 where all that it is of are."""
    support = supports.of(call.args[0])
    if support is None:
        return None
    attrs = call.attrs
    mask = typed(relay.sum(support.mask, attrs.axis, attrs.keepdims, attrs.exclude))
    if 0 in summed_axes(call):
        return Support(mask, _width(mask))
    return Support(mask, min(support.most, _width(mask)), support.origin)


def _multiplied(supports: Supports, call: relay.Call) -> Support | None:
    """0 where one factor is."""
    parts = [support for support in map(supports.of, call.args) if support is not None]
    if not parts or not is_broadcast(call):
        return None
    shape = static_shape(call.checked_type)
    spread = [_spread(part, shape) for part in parts]
    mask = spread[0].mask
    if len(spread) == 2:
        mask = typed(relay.multiply(mask, spread[1].mask))
    origins = [part.origin for part in spread if part.origin is not None]
    origin = min(origins, key=lambda each: each.most, default=None)
    return Support(mask, min(part.most for part in spread), origin)


def _divided(supports: Supports, call: relay.Call) -> Support | None:
    """0 where the dividend is, if the divisor is not."""
    support = supports.of(call.args[0])
    if support is None or not is_positive(call.args[1]) or not is_broadcast(call):
        return None
    return _spread(support, static_shape(call.checked_type))


def _spread(support: Support, shape: tuple[int, ...]) -> Support:
    """The mask of a factor for a product of some shape."""
    before = static_shape(support.mask.checked_type)
    if before == shape:
        return support
    mask = typed(relay.broadcast_to(support.mask, shape))
    is_aligned = len(before) == len(shape) and before[0] == shape[0]
    if not is_aligned:
        return Support(mask, prod(shape[1:]))
    most = min(support.most * _repeats(before, shape), prod(shape[1:]))
    return Support(mask, most, support.origin)


def _chosen(supports: Supports, call: relay.Call) -> Support | None:
    """`where` with a 0 on one side."""
    condition, then, otherwise = call.args
    shape = static_shape(call.checked_type)
    if is_zero(otherwise):
        return _spread(supports.of_condition(condition), shape)
    if is_zero(then):
        negated = typed(relay.logical_not(as_boolean(condition)))
        return _spread(supports.of_condition(negated), shape)
    return None


def _cast(supports: Supports, call: relay.Call) -> Support | None:
    return supports.of(call.args[0])


def _one_hot(supports: Supports, call: relay.Call) -> Support | None:
    """A one-hot vector for each index, 0 elsewhere."""
    indices, _, off = call.args
    shape = static_shape(indices.checked_type)
    if not is_zero(off) or not shape or int(call.attrs.axis) == 0:
        return None
    one, zero = relay.const(1, "int32"), relay.const(0, "int32")
    attrs = call.attrs
    mask = relay.one_hot(indices, one, zero, int(attrs.depth), int(attrs.axis), "int32")
    return Support(typed(mask), prod(shape[1:]))


def _scattered(supports: Supports, call: relay.Call) -> Support | None:
    """Updates put into zeros."""
    data, indices, updates = call.args
    axis = int(call.attrs.axis) % len(data.checked_type.shape)
    if not is_zero(data) or str(call.attrs.reduction) not in ("update", "add"):
        return None
    zeros = typed(relay.zeros(static_shape(data.checked_type), "int32"))
    support = supports.of(updates)
    shape = static_shape(indices.checked_type)
    ones = typed(relay.ones(shape, "int32")) if support is None else support.mask
    mask = typed(relay.scatter_elements(zeros, indices, ones, axis, str(call.attrs.reduction)))
    each = prod(shape[1:]) if support is None else support.most
    return Support(mask, min(each, _width(mask)) if axis else _width(mask))


_Rule = Callable[[Supports, Any], "Support | None"]
_RULES: Mapping[str, _Rule] = rules_by_op(
    lambda op: op.support,
    {
        "zero_at_zero": _through,
        "move": _moved,
        "sum": _summed,
        "cast": _cast,
        "divide": _divided,
        "multiply": _multiplied,
        "one_hot": _one_hot,
        "scatter": _scattered,
        "take": _taken,
        "where": _chosen,
    },
)
"""By op."""
