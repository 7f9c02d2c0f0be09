"""A tensor [tokens, experts, capacity] -> the mask whose seats it is one-hot over, and its factors.

    mask [T, E]                                          0 or 1
    cast(equal(cumsum(mask, 0) * mask, [1, .., cap]))    1 where a token has that seat
    the same times gates [T, E, 1]                       its gate there

A token's seat is its rank among those of the expert; those behind the capacity have none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from tvm import relay

from heteroplace.parts.routing.find.find_graph import is_call_of
from heteroplace.parts.routing.find.find_support import is_zero
from heteroplace.relay.expressions import static_shape

_RANK = 3
_WIDE = ("float32", "float64")


class Seats(NamedTuple):
    """A tensor [tokens, experts, capacity] that is 0 but where a token has a seat."""

    mask: relay.Expr
    """[tokens, experts], 0 or 1."""
    capacity: int
    factors: tuple[relay.Expr, ...]
    """[tokens, experts, 1]: it is their product where a token has a seat."""


def bare(value: relay.Expr) -> relay.Expr:
    """A value without the casts and axes of extent 1 around it."""
    while is_call_of(value, "cast", "expand_dims", "reshape", "squeeze"):
        before = [n for n in static_shape(value.args[0].checked_type) if n != 1]
        if before != [n for n in static_shape(value.checked_type) if n != 1]:
            break
        value = value.args[0]
    return value


def seats_of(value: relay.Expr) -> Seats | None:
    """Read a tensor as seats times factors; None: it is not proven to be that."""
    shape = static_shape(value.checked_type)
    if len(shape) != _RANK:
        return None
    others: list[relay.Expr] = []
    while not is_call_of(value, "equal"):
        step = _factor(value, shape)
        if step is None:
            return None
        value, other = step
        others += [] if other is None else [other]
    positions = _positions(value, shape)
    if positions is None:
        return None
    mask, is_masked = positions
    masks = [other for other in others if bare(other).same_as(bare(mask))]
    if not (is_masked or masks) or not _is_zero_or_one(mask):
        return None
    return Seats(mask, shape[2], tuple(other for other in others if other not in masks))


def _factor(
    value: relay.Expr, shape: tuple[int, ...]
) -> tuple[relay.Expr, relay.Expr | None] | None:
    """Take one factor [t, e, 1] off a tensor; None: it is made in another way."""
    if is_call_of(value, "cast"):
        # A factor does not survive a cast to integers, to bool or to half as many bits.
        inner, after = value.args[0], value.checked_type.dtype
        is_cut = inner.checked_type.dtype.startswith(("float", "bfloat")) and after not in _WIDE
        return None if is_cut and not is_call_of(bare(inner), "equal") else (inner, None)
    if is_call_of(value, "where") and is_zero(value.args[2]):
        condition, then = value.args[0], value.args[1]
        is_bool = condition.checked_type.dtype == "bool"  # else its factors count for nothing
        if is_bool and static_shape(condition.checked_type) == shape:
            is_one = isinstance(then, relay.Constant) and bool((then.data.numpy() == 1).all())
            is_factor = static_shape(then.checked_type) == (*shape[:2], 1)
            return (condition, None if is_one else then) if is_one or is_factor else None
    if is_call_of(value, "multiply", "logical_and"):
        for whole, other in (list(value.args), list(reversed(value.args))):
            sizes = [static_shape(each.checked_type) for each in (whole, other)]
            if sizes == [shape, (*shape[:2], 1)]:
                return whole, other
    return None


def _positions(equal: relay.Call, shape: tuple[int, ...]) -> tuple[relay.Expr, bool] | None:
    """Of equal(positions, [first, first + 1, ..]): the mask that they count, and whether a token
    that is not in it has no position."""
    for value, constant in (list(equal.args), list(reversed(equal.args))):
        if not isinstance(constant, relay.Constant):
            continue
        numbers = constant.data.numpy()
        if numbers.size != shape[2] or numbers.shape[-1:] != (shape[2],):
            return None
        first = int(numbers.reshape(-1)[0])
        if not np.array_equal(numbers.reshape(-1), first + np.arange(shape[2])):
            return None
        if static_shape(value.checked_type) != (*shape[:2], 1):
            return None
        return _counted(bare(value), first)
    return None


def _counted(value: relay.Expr, first: int) -> tuple[relay.Expr, bool] | None:
    while is_call_of(value, "add", "subtract") and isinstance(value.args[1], relay.Constant):
        number = value.args[1].data.numpy()
        if number.size != 1:
            return None
        # value = inner +- number, and value == first: inner == first -+ number.
        sign = -1 if value.op.name == "add" else 1
        first += sign * int(number.reshape(()))
        value = bare(value.args[0])
    is_masked = False
    counts, mask = value, None
    if is_call_of(value, "multiply"):
        for one, other in (list(value.args), list(reversed(value.args))):
            if is_call_of(bare(one), "cumsum"):
                counts, mask, is_masked = bare(one), other, True
    if not is_call_of(counts, "cumsum"):
        return None
    counted, attrs = counts.args[0], counts.attrs
    if attrs.axis is None or int(attrs.axis) != 0 or len(counts.checked_type.shape) != 2:
        return None
    if mask is not None and not bare(mask).same_as(bare(counted)):
        return None
    # Ranks begin with 1; of an exclusive sum with 0, which tokens outside of the mask have too.
    is_exclusive = bool(attrs.exclusive)
    if first != (0 if is_exclusive else 1):
        return None
    return counted, is_masked and not is_exclusive


def _is_zero_or_one(mask: relay.Expr) -> bool:
    mask = bare(mask)
    if mask.checked_type.dtype == "bool":
        return True
    if is_call_of(mask, "where") and is_zero(mask.args[2]):
        then = mask.args[1]
        return isinstance(then, relay.Constant) and bool((then.data.numpy() == 1).all())
    if is_call_of(mask, "one_hot"):
        on, off = (each.data.numpy() if isinstance(each, relay.Constant) else None
                   for each in mask.args[1:3])  # fmt: skip
        return on is not None and off is not None and on == 1 and off == 0
    return False
