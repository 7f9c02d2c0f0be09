"""Networks that only look like routing, with what the report says of each; the others are in
`routed_patterns.py`."""

from __future__ import annotations

import numpy as np
from routed_patterns import (
    EXPERTS,
    ROWS,
    WIDTH,
    ZERO,
    Make,
    column,
    expert,
    experts_at_once,
    gated,
    is_expert,
    one_hot,
    probabilities,
    seats,
    stacked,
    weight,
    zeros,
)
from tvm import relay


def _three(x: relay.Expr) -> list[relay.Expr]:
    return [expert(x) for _ in range(3)]


def _cut(mask: relay.Expr, x: relay.Expr, dispatch: relay.Expr, combine: relay.Expr) -> relay.Expr:
    out = experts_at_once(relay.einsum((dispatch, x), "tec,td->ecd"))
    return relay.einsum((combine, out), "tec,ecd->td")


def _other_seats(x: relay.Expr, s: relay.Expr) -> relay.Expr:
    mask = relay.cast(one_hot(s), "int32")
    other = relay.cast(relay.greater(s, ZERO), "int32")
    return _cut(mask, x, seats(mask), seats(other))


def _shared_expert(x: relay.Expr, ids: relay.Expr) -> relay.Expr:
    y = expert(x)
    return relay.add(relay.where(is_expert(ids, 0), y, x), y)


def _mixed_seats(x: relay.Expr, s: relay.Expr) -> relay.Expr:
    dispatch = seats(relay.cast(one_hot(s), "int32"))
    out = relay.nn.softmax(experts_at_once(relay.einsum((dispatch, x), "tec,td->ecd")), axis=1)
    return relay.einsum((dispatch, out), "tec,ecd->td")


def _numbered_seats(x: relay.Expr, s: relay.Expr, is_bias: bool) -> relay.Expr:
    """What becomes of a token depends on the number of its seat."""
    dispatch = seats(relay.cast(one_hot(s), "int32"), capacity=WIDTH)  # which fits either axis
    out = experts_at_once(relay.einsum((dispatch, x), "tec,td->ecd"))
    out = (
        relay.nn.bias_add(out, weight(WIDTH), axis=1)
        if is_bias
        else relay.trilu(out, relay.const(0), upper=False)
    )
    return relay.einsum((dispatch, out), "tec,ecd->td")


def _read_elsewhere(x: relay.Expr, s: relay.Expr) -> relay.Expr:
    dispatch = seats(relay.cast(one_hot(s), "int32"))
    out = experts_at_once(relay.einsum((dispatch, x), "tec,td->ecd"))
    y = relay.einsum((dispatch, out), "tec,ecd->td")
    return relay.add(y, relay.sum(out))


def _masked_softmax(s: relay.Expr, low: float) -> relay.Expr:
    return probabilities(relay.where(one_hot(s), s, relay.const(np.float32(low))))


LEFT: dict[str, tuple[Make, str]] = {
    # name: (network, what its report says; "": nothing, it does not look like a router)
    "gates of a softmax": (
        lambda x, ids, s, c: gated(probabilities(s), _three(x)),
        "not provably 0",
    ),
    "gates of a relu": (lambda x, ids, s, c: gated(relay.nn.relu(s), _three(x)), "not provably 0"),
    "gates of a sigmoid": (
        lambda x, ids, s, c: gated(relay.sigmoid(s), _three(x)),
        "not provably 0",
    ),
    "gates of a masked softmax": (
        lambda x, ids, s, c: gated(_masked_softmax(s, -1e9), _three(x)),
        "not provably 0",
    ),
    "gates of 1 elsewhere": (
        lambda x, ids, s, c: gated(
            relay.where(one_hot(s), s, relay.const(np.float32(1))), _three(x)
        ),
        "not provably 0",
    ),
    "gates of almost 0 elsewhere": (
        lambda x, ids, s, c: gated(
            relay.where(one_hot(s), s, relay.const(np.float32(1e-30))), _three(x)
        ),
        "not provably 0",
    ),
    "gates above a threshold, plus something": (
        lambda x, ids, s, c: gated(
            relay.add(relay.cast(relay.greater(s, ZERO), "float32"), relay.const(np.float32(0.1))),
            _three(x),
        ),
        "not provably 0",
    ),
    "gates divided by what may be 0": (
        lambda x, ids, s, c: gated(
            relay.divide(
                relay.cast(relay.greater(s, ZERO), "float32"),
                relay.sum(relay.nn.relu(s), axis=1, keepdims=True),
            ),
            _three(x),
        ),
        "not provably 0",
    ),
    "gates scattered into ones": (
        lambda x, ids, s, c: gated(
            relay.scatter_elements(
                relay.ones((ROWS, EXPERTS), "float32"),
                relay.topk(s, 1, 1, "indices", False, "int64"),
                column(s, 0),
                1,
            ),
            _three(x),
        ),
        "not provably 0",
    ),
    "stacked gates of a softmax": (
        lambda x, ids, s, c: stacked(probabilities(s), _three(x)),
        "not provably 0",
    ),
    "several gates of one stacked term": (
        lambda x, ids, s, c: stacked(relay.where(one_hot(s), s, ZERO), [expert(x)]),
        "not one float32 for each row and term",
    ),
    "one gate for all rows": (
        lambda x, ids, s, c: gated(
            relay.reshape(relay.sum(one_hot_float(s), axis=0), (1, EXPERTS)), _three(x)
        ),
        "",
    ),
    "gates for each element": (
        lambda x, ids, s, c: relay.add(
            relay.multiply(relay.cast(relay.greater(x, ZERO), "float32"), expert(x)), x
        ),
        "",
    ),
    "gates within the experts": (
        lambda x, ids, s, c: relay.add(
            expert(relay.multiply(column(one_hot_float(s), 0), x)),
            expert(relay.multiply(column(one_hot_float(s), 1), x)),
        ),
        "",
    ),
    "values that others read": (lambda x, ids, s, c: _shared_expert(x, ids), ""),
    "a where of elements": (
        lambda x, ids, s, c: relay.where(relay.greater(x, ZERO), expert(x), x),
        "not one for each row",
    ),
    "a where of columns": (
        lambda x, ids, s, c: relay.where(
            relay.const(np.array([[True, False, True, True]])), expert(x), x
        ),
        "not one for each row",
    ),
    "a where whose sides are cheap": (
        lambda x, ids, s, c: relay.where(is_expert(ids, 0), relay.nn.relu(x), x),
        "",
    ),
    "a where of values": (lambda x, ids, s, c: relay.where(is_expert(ids, 0), x, zeros()), ""),
    "a where behind a softmax over rows": (
        lambda x, ids, s, c: relay.where(is_expert(ids, 0), relay.nn.softmax(expert(x), axis=0), x),
        "mixes the rows",
    ),
    "a where behind a mean over rows": (
        lambda x, ids, s, c: relay.where(
            is_expert(ids, 0),
            relay.broadcast_to(relay.mean(expert(x), 0, keepdims=True), (ROWS, WIDTH)),
            x,
        ),
        "no side is worth",
    ),
    "a where behind attention": (
        lambda x, ids, s, c: relay.where(
            is_expert(ids, 0),
            relay.nn.softmax(
                relay.nn.dense(relay.nn.dense(expert(x), relay.nn.relu(x)), weight(WIDTH, ROWS)),
                axis=0,
            ),
            x,
        ),
        "mixes the rows",
    ),
    "a where behind a running sum": (
        lambda x, ids, s, c: relay.where(is_expert(ids, 0), relay.cumsum(expert(x), axis=0), x),
        "mixes the rows",
    ),
    "a where behind reversed rows": (
        lambda x, ids, s, c: relay.where(is_expert(ids, 0), relay.reverse(expert(x), 0), x),
        "mixes the rows",
    ),
    "a where behind rows that are joined": (
        lambda x, ids, s, c: relay.where(
            is_expert(ids, 0),
            relay.reshape(relay.nn.relu(relay.reshape(expert(x), (3, 8))), (ROWS, WIDTH)),
            x,
        ),
        "no side is worth",
    ),
    "a where of the other axis": (
        lambda x, ids, s, c: relay.transpose(
            relay.where(
                relay.transpose(is_expert(ids, 0)), relay.transpose(expert(x)), relay.transpose(x)
            )
        ),
        "not one for each row",
    ),
    "a where of one condition, cheap": (
        lambda x, ids, s, c: relay.where(c, relay.nn.relu(x), x),
        "",
    ),
    "a where of one condition, read elsewhere": (lambda x, ids, s, c: _shared_choice(x, c), ""),
    "a product of rows with their mask": (
        lambda x, ids, s, c: relay.multiply(relay.cast(is_expert(ids, 0), "float32"), expert(x)),
        "",
    ),
    "a maximum of experts": (
        lambda x, ids, s, c: relay.maximum(
            expert(x), relay.multiply(column(one_hot_float(s), 0), expert(x))
        ),
        "",
    ),
    "seats that begin with 0, unmasked": (
        lambda x, ids, s, c: _cut(
            s,
            x,
            seats(relay.cast(one_hot(s), "int32"), 0),
            seats(relay.cast(one_hot(s), "int32"), 0),
        ),
        "not provably one-hot",
    ),
    "seats that begin with 2": (
        lambda x, ids, s, c: _cut(
            s,
            x,
            seats(relay.cast(one_hot(s), "int32"), 2),
            seats(relay.cast(one_hot(s), "int32"), 2),
        ),
        "not provably one-hot",
    ),
    "seats of other experts": (lambda x, ids, s, c: _other_seats(x, s), "other seats"),
    "seats of a mask above 1": (
        lambda x, ids, s, c: _cut(
            s,
            x,
            seats(relay.cast(relay.nn.relu(s), "int32")),
            seats(relay.cast(relay.nn.relu(s), "int32")),
        ),
        "not provably one-hot",
    ),
    "seats by scores": (
        lambda x, ids, s, c: relay.einsum((s, relay.einsum((s, x), "te,td->ed")), "te,ed->td"),
        "",
    ),
    "experts that mix seats": (lambda x, ids, s, c: _mixed_seats(x, s), "each seat"),
    "experts with a triangle": (lambda x, ids, s, c: _numbered_seats(x, s, False), "each seat"),
    "experts with biases of seats": (lambda x, ids, s, c: _numbered_seats(x, s, True), "each seat"),
    "experts that others read": (lambda x, ids, s, c: _read_elsewhere(x, s), "others read"),
    "gates of 64 bits": (lambda x, ids, s, c: _combined_by(x, s, "float64", None), "are float64"),
    "gates of whole numbers": (lambda x, ids, s, c: _combined_by(x, s, "int32", None), "are int32"),
    "gates cut to whole numbers": (
        lambda x, ids, s, c: _combined_by(x, s, "float32", "int32"),
        "not provably one-hot",
    ),
    "gates cut to conditions": (
        lambda x, ids, s, c: _combined_by(x, s, "float32", "bool"),
        "not provably one-hot",
    ),
    "gates as conditions": (
        lambda x, ids, s, c: _combined_by(x, s, "float32", "where"),
        "not provably one-hot",
    ),
    "gated dispatch": (lambda x, ids, s, c: _gated_dispatch(x, s), "one-hot matrix alone"),
}


def one_hot_float(s: relay.Expr) -> relay.Expr:
    return relay.cast(one_hot(s), "float32")


def _shared_choice(x: relay.Expr, c: relay.Expr) -> relay.Expr:
    y = expert(x)
    return relay.add(relay.where(c, y, x), y)


def _combined_by(x: relay.Expr, s: relay.Expr, dtype: str, then: str | None) -> relay.Expr:
    """Gates of some type, and what is done with them before they count."""
    one = seats(relay.cast(one_hot(s), "int32"))
    gates = relay.multiply(probabilities(s), relay.const(np.float32(3)))
    gates = relay.expand_dims(relay.cast(gates, dtype), 2)
    combine = relay.multiply(relay.cast(one, dtype), gates)
    if then == "where":
        combine = relay.where(combine, relay.const(np.float32(1)), ZERO)
    elif then is not None:
        combine = relay.cast(combine, then)
    return _cut(s, x, one, relay.cast(combine, "float32"))


def _gated_dispatch(x: relay.Expr, s: relay.Expr) -> relay.Expr:
    one = seats(relay.cast(one_hot(s), "int32"))
    return _cut(s, x, relay.multiply(one, relay.expand_dims(probabilities(s), 2)), one)
