"""Conditions and supports -> columns and matrices of masks, as typed expressions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relay

from heteroplace.parts.routing.find.find_support import Support, as_boolean, typed
from heteroplace.relay.expressions import static_shape


def two_way(condition: relay.Expr) -> relay.Expr:
    """Return the mask [1, 2] of one condition: the first branch if it holds, else the second."""
    chosen = relay.cast(relay.reshape(as_boolean(condition), (1, 1)), "int32")
    other = relay.subtract(relay.const(1, "int32"), chosen)
    return typed(relay.concatenate([chosen, other], 1))


def column(values: relay.Expr, index: int) -> relay.Expr:
    """Return one column [cells, 1] of values [cells, .., 1 ..]."""
    shape = static_shape(values.checked_type)
    matrix = typed(relay.reshape(values, (shape[0], -1)))
    if static_shape(matrix.checked_type)[1] == 1:
        return matrix
    return typed(relay.take(matrix, relay.const(np.array([index]), "int32"), axis=1))


def joined(columns: Sequence[relay.Expr]) -> relay.Expr:
    """Return a matrix of columns."""
    return columns[0] if len(columns) == 1 else typed(relay.concatenate(list(columns), 1))


def chosen_first(conditions: Sequence[Support]) -> list[relay.Expr]:
    """Return for each condition the column of where it holds and none before it does."""
    columns = [column(condition.mask, 0) for condition in conditions]
    if most_at_once(conditions) == 1:
        return columns
    chosen = columns[:1]
    for each in columns[1:]:
        free = none_of(chosen)
        chosen.append(typed(relay.multiply(each, free)))
    return chosen


def most_at_once(supports: Sequence[Support | None]) -> int:
    """Return how many of some masks hold for one row at most: fewer than all if one source decides.

    Examples
    --------
    Of equal(ids, 0) and equal(ids, 1) one; of two columns of a matrix what a row of it has.
    """
    origins = [None if support is None else support.origin for support in supports]
    known_origins = [origin for origin in origins if origin is not None]
    is_same = all(origin.source.same_as(known_origins[0].source) for origin in known_origins)
    numbers = {origin.number for origin in known_origins}
    if not is_same or len(known_origins) < len(supports) or len(numbers) < len(known_origins):
        return len(supports)
    return min(len(supports), known_origins[0].most) if known_origins else 0


def none_of(columns: Sequence[relay.Expr]) -> relay.Expr:
    """Return 1 for the cells that are in no column, else 0."""
    total = columns[0]
    for each in columns[1:]:
        total = relay.add(total, each)
    return typed(relay.cast(relay.equal(total, relay.const(0, "int32")), "int32"))


def is_chosen(values: relay.Expr, rank: int) -> relay.Expr:
    """Return whether a column is other than 0, as a condition for rows of some rank."""
    shape = (static_shape(values.checked_type)[0], *[1] * (rank - 1))
    return typed(relay.not_equal(relay.reshape(values, shape), relay.const(0, "int32")))


def spread(values: relay.Expr, shape: tuple[int, ...]) -> relay.Expr:
    """Return values for all elements of a shape."""
    before = static_shape(values.checked_type)
    return values if before == shape else typed(relay.broadcast_to(values, shape))
