"""Small networks in which routing is written in ordinary ops, and some that only look like it.

Cells are 6 rows of 4; `x` holds them, `ids` [6] says where they go, `s` [6, 3] are scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relay

ROWS, WIDTH, HIDDEN, EXPERTS, CAPACITY = 6, 4, 8, 3, 2
_RNG = np.random.default_rng(11)
_ZERO = relay.const(np.float32(0))

Inputs = tuple[relay.Var, relay.Var, relay.Var, relay.Var]
Make = Callable[[relay.Var, relay.Var, relay.Var, relay.Var], relay.Expr]


def weight(*shape: int) -> relay.Constant:
    return relay.const(_RNG.standard_normal(shape).astype("float32"))


def expert(x: relay.Expr) -> relay.Expr:
    """Two products with a relu between them."""
    hidden = relay.nn.relu(relay.nn.dense(x, weight(HIDDEN, WIDTH)))
    return relay.nn.dense(hidden, weight(WIDTH, HIDDEN))


def network(make: Make) -> tvm.IRModule:
    x = relay.var("x", shape=(ROWS, WIDTH))
    ids = relay.var("ids", shape=(ROWS,), dtype="int64")
    s = relay.var("s", shape=(ROWS, EXPERTS))
    c = relay.var("c", shape=(), dtype="bool")
    function = relay.Function([x, ids, s, c], make(x, ids, s, c))
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))


def inputs(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((ROWS, WIDTH)).astype("float32"),
        "ids": rng.integers(0, EXPERTS + 1, ROWS),
        "s": rng.standard_normal((ROWS, EXPERTS)).astype("float32"),
        "c": np.array(bool(seed % 2)),
    }


def is_expert(ids: relay.Expr, number: int) -> relay.Expr:
    """[6, 1]: the cells of one expert."""
    return relay.expand_dims(relay.equal(ids, relay.const(number, "int64")), 1)


def one_hot(s: relay.Expr) -> relay.Expr:
    """bool [6, 3]: the largest score."""
    best = relay.expand_dims(relay.argmax(s, axis=1), 1)
    return relay.equal(best, relay.const(np.arange(EXPERTS)[None], "int32"))


def probabilities(s: relay.Expr) -> relay.Expr:
    return relay.nn.softmax(s, axis=1)


def top_gates(s: relay.Expr, k: int = 2, is_normed: bool = True) -> relay.Expr:
    """[6, 3]: the k largest probabilities, scattered into zeros."""
    values, indices = relay.topk(probabilities(s), k, 1, "both", False, "int64")
    if is_normed:
        values = relay.divide(values, relay.sum(values, axis=1, keepdims=True))
    return relay.scatter_elements(relay.zeros((ROWS, EXPERTS), "float32"), indices, values, 1)


def column(matrix: relay.Expr, number: int) -> relay.Expr:
    return relay.strided_slice(matrix, [number], [number + 1], axes=[1])


def gated(gates: relay.Expr, values: Sequence[relay.Expr], base: relay.Expr | None = None):  # type: ignore[no-untyped-def]
    """base + the sum of gates[:, e] * values[e]"""
    total = base
    for number, value in enumerate(values):
        term = relay.multiply(column(gates, number), value)
        total = term if total is None else relay.add(total, term)
    return total


def stacked(gates: relay.Expr, values: Sequence[relay.Expr]) -> relay.Expr:
    """The same by a stack and a sum."""
    return relay.sum(relay.multiply(relay.stack(list(values), 1), relay.expand_dims(gates, 2)), 1)


def seats(mask: relay.Expr, first: int = 1, capacity: int = CAPACITY) -> relay.Expr:
    """[6, 3, capacity]: one-hot over the seats of experts."""
    positions = relay.multiply(relay.cumsum(mask, axis=0), mask)
    numbers = relay.const(np.arange(first, first + capacity, dtype="int32"))
    return relay.cast(relay.equal(relay.expand_dims(positions, 2), numbers), "float32")


def experts_at_once(v: relay.Expr) -> relay.Expr:
    """[3, seats, 4]: each expert's product of its own tokens."""
    hidden = relay.nn.batch_matmul(v, weight(EXPERTS, HIDDEN, WIDTH))
    hidden = relay.nn.relu(relay.add(hidden, weight(EXPERTS, 1, HIDDEN)))
    return relay.einsum((hidden, weight(EXPERTS, HIDDEN, WIDTH)), "ech,ehd->ecd")


def gshard(x: relay.Expr, s: relay.Expr, gates: relay.Expr | None = None) -> relay.Expr:
    """Dispatch and combine by einsum."""
    dispatch = seats(relay.cast(one_hot(s), "int32"))
    out = experts_at_once(relay.einsum((dispatch, x), "tec,td->ecd"))
    if gates is not None:
        dispatch = relay.multiply(dispatch, relay.expand_dims(gates, 2))
    return relay.einsum((dispatch, out), "tec,ecd->td")


def gshard_by_products(x: relay.Expr, s: relay.Expr) -> relay.Expr:
    """The same by dense products of matrices [tokens, experts * seats]."""
    dispatch = seats(relay.cast(one_hot(s), "int32"))
    flat = relay.reshape(dispatch, (ROWS, EXPERTS * CAPACITY))
    v = relay.nn.dense(relay.transpose(flat), relay.transpose(x))
    out = experts_at_once(relay.reshape(v, (EXPERTS, CAPACITY, WIDTH)))
    return relay.nn.dense(flat, relay.transpose(relay.reshape(out, (EXPERTS * CAPACITY, WIDTH))))


def _chain(x: relay.Expr, ids: relay.Expr, base: relay.Expr) -> relay.Expr:
    for number in range(EXPERTS):
        base = relay.where(is_expert(ids, number), expert(x), base)
    return base


def _nested_if(x: relay.Expr, c: relay.Expr, s: relay.Expr) -> relay.Expr:
    hidden = relay.nn.relu(x)
    inner = relay.If(
        relay.greater(relay.sum(s), _ZERO),
        relay.Tuple([expert(hidden), hidden]),
        relay.Tuple([relay.negative(x), expert(x)]),
    )
    other = relay.Tuple([x, x])
    chosen = relay.If(c, relay.Tuple([relay.TupleGetItem(inner, i) for i in range(2)]), other)
    return relay.add(relay.TupleGetItem(chosen, 0), relay.TupleGetItem(chosen, 1))


def _row_in_if(x: relay.Expr, ids: relay.Expr, c: relay.Expr) -> relay.Expr:
    return relay.If(c, relay.where(is_expert(ids, 0), expert(x), x), expert(x))


def _row_in_row(x: relay.Expr, ids: relay.Expr, s: relay.Expr) -> relay.Expr:
    inner = relay.where(relay.greater(column(s, 0), _ZERO), expert(relay.nn.relu(x)), x)
    return relay.where(is_expert(ids, 1), relay.nn.dense(inner, weight(WIDTH, WIDTH)), x)


FOUND: dict[str, tuple[Make, int, int]] = {
    # name: (network, routers, branches that one cell takes at most)
    "if": (lambda x, ids, s, c: relay.If(c, expert(x), relay.nn.relu(x)), 1, 1),
    "if of constants": (
        lambda x, ids, s, c: relay.If(c, weight(3), relay.zeros((3,), "float32")),
        1,
        1,
    ),  # fmt: skip
    "nested if with captures": (lambda x, ids, s, c: _nested_if(x, c, s), 2, 1),
    "where of one condition": (lambda x, ids, s, c: relay.where(c, expert(x), x), 1, 1),
    "where": (lambda x, ids, s, c: relay.where(is_expert(ids, 0), expert(x), x), 1, 1),
    "where, both sides": (
        lambda x, ids, s, c: relay.where(is_expert(ids, 0), expert(x), expert(x)),
        1,
        1,
    ),
    "where, the other side": (
        lambda x, ids, s, c: relay.where(is_expert(ids, 0), x, expert(x)),
        1,
        1,
    ),
    "chain of wheres": (lambda x, ids, s, c: _chain(x, ids, x), 1, 1),
    "chain that begins with 0": (
        lambda x, ids, s, c: _chain(x, ids, relay.zeros((ROWS, WIDTH), "float32")),
        1,
        1,
    ),
    "chain of conditions that overlap": (
        lambda x, ids, s, c: relay.where(
            relay.greater(column(s, 0), _ZERO),
            expert(x),
            relay.where(relay.greater(column(s, 1), _ZERO), expert(x), x),
        ),
        1,
        1,
    ),
    "a bias for each row": (
        lambda x, ids, s, c: relay.where(
            is_expert(ids, 0), relay.add(expert(x), weight(ROWS, WIDTH)), x
        ),
        1,
        1,
    ),
    "where in an if": (lambda x, ids, s, c: _row_in_if(x, ids, c), 2, 1),
    "where in a where": (lambda x, ids, s, c: _row_in_row(x, ids, s), 2, 1),
    "gates of the largest": (
        lambda x, ids, s, c: gated(
            relay.where(one_hot(s), probabilities(s), _ZERO), [expert(x) for _ in range(3)], x
        ),
        1,
        1,
    ),
    "gates times one-hot": (
        lambda x, ids, s, c: gated(
            relay.multiply(relay.cast(one_hot(s), "float32"), probabilities(s)),
            [expert(x) for _ in range(3)],
        ),
        1,
        1,
    ),
    "gates by label": (
        lambda x, ids, s, c: relay.add(
            relay.multiply(relay.cast(is_expert(ids, 0), "float32"), expert(x)),
            relay.multiply(relay.cast(is_expert(ids, 2), "float32"), expert(x)),
        ),
        1,
        1,
    ),
    "top 2 scattered": (
        lambda x, ids, s, c: gated(top_gates(s), [expert(x) for _ in range(3)]),
        1,
        2,
    ),
    "top 2 stacked": (
        lambda x, ids, s, c: stacked(top_gates(s), [expert(x) for _ in range(3)]),
        1,
        2,
    ),
    "gates above a threshold": (
        lambda x, ids, s, c: gated(
            relay.multiply(relay.cast(relay.greater(s, _ZERO), "float32"), s),
            [expert(x) for _ in range(3)],
        ),
        1,
        3,
    ),
    "masked summands": (
        lambda x, ids, s, c: relay.add(
            relay.where(is_expert(ids, 0), expert(x), _zeros()),
            relay.where(is_expert(ids, 1), expert(x), _zeros()),
        ),
        1,
        1,
    ),
    "one-hot einsum": (lambda x, ids, s, c: gshard(x, s), 1, 1),
    "one-hot einsum with gates": (lambda x, ids, s, c: gshard(x, s, probabilities(s)), 1, 1),
    "one-hot products": (lambda x, ids, s, c: gshard_by_products(x, s), 1, 1),
}


def _zeros() -> relay.Expr:
    return relay.zeros((ROWS, WIDTH), "float32")


def _three(x: relay.Expr) -> list[relay.Expr]:
    return [expert(x) for _ in range(3)]


def _cut(mask: relay.Expr, x: relay.Expr, dispatch: relay.Expr, combine: relay.Expr) -> relay.Expr:
    out = experts_at_once(relay.einsum((dispatch, x), "tec,td->ecd"))
    return relay.einsum((combine, out), "tec,ecd->td")


def _other_seats(x: relay.Expr, s: relay.Expr) -> relay.Expr:
    mask = relay.cast(one_hot(s), "int32")
    other = relay.cast(relay.greater(s, _ZERO), "int32")
    return _cut(mask, x, seats(mask), seats(other))


def _shared_expert(x: relay.Expr, ids: relay.Expr) -> relay.Expr:
    y = expert(x)
    return relay.add(relay.where(is_expert(ids, 0), y, x), y)


def _mixed_seats(x: relay.Expr, s: relay.Expr) -> relay.Expr:
    dispatch = seats(relay.cast(one_hot(s), "int32"))
    out = relay.nn.softmax(experts_at_once(relay.einsum((dispatch, x), "tec,td->ecd")), axis=1)
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
            relay.add(relay.cast(relay.greater(s, _ZERO), "float32"), relay.const(np.float32(0.1))),
            _three(x),
        ),
        "not provably 0",
    ),
    "gates divided by what may be 0": (
        lambda x, ids, s, c: gated(
            relay.divide(
                relay.cast(relay.greater(s, _ZERO), "float32"),
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
    "one gate for all rows": (
        lambda x, ids, s, c: gated(
            relay.reshape(relay.sum(one_hot_float(s), axis=0), (1, EXPERTS)), _three(x)
        ),
        "",
    ),
    "gates for each element": (
        lambda x, ids, s, c: relay.add(
            relay.multiply(relay.cast(relay.greater(x, _ZERO), "float32"), expert(x)), x
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
        lambda x, ids, s, c: relay.where(relay.greater(x, _ZERO), expert(x), x),
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
    "a where of values": (lambda x, ids, s, c: relay.where(is_expert(ids, 0), x, _zeros()), ""),
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
    "experts that others read": (lambda x, ids, s, c: _read_elsewhere(x, s), "others read"),
    "gated dispatch": (lambda x, ids, s, c: _gated_dispatch(x, s), "one-hot matrix alone"),
}


def one_hot_float(s: relay.Expr) -> relay.Expr:
    return relay.cast(one_hot(s), "float32")


def _shared_choice(x: relay.Expr, c: relay.Expr) -> relay.Expr:
    y = expert(x)
    return relay.add(relay.where(c, y, x), y)


def _gated_dispatch(x: relay.Expr, s: relay.Expr) -> relay.Expr:
    one = seats(relay.cast(one_hot(s), "int32"))
    return _cut(s, x, relay.multiply(one, relay.expand_dims(probabilities(s), 2)), one)
