"""Small networks in which routing is written in ordinary ops.

Cells are 6 rows of 4; `x` holds them, `ids` [6] says where they go, `s` [6, 3] are scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relay

ROWS, WIDTH, HIDDEN, EXPERTS, CAPACITY = 6, 4, 8, 3, 2
_RNG = np.random.default_rng(11)
ZERO = relay.const(np.float32(0))

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
        relay.greater(relay.sum(s), ZERO),
        relay.Tuple([expert(hidden), hidden]),
        relay.Tuple([relay.negative(x), expert(x)]),
    )
    other = relay.Tuple([x, x])
    chosen = relay.If(c, relay.Tuple([relay.TupleGetItem(inner, i) for i in range(2)]), other)
    return relay.add(relay.TupleGetItem(chosen, 0), relay.TupleGetItem(chosen, 1))


def _row_in_if(x: relay.Expr, ids: relay.Expr, c: relay.Expr) -> relay.Expr:
    return relay.If(c, relay.where(is_expert(ids, 0), expert(x), x), expert(x))


def _row_in_row(x: relay.Expr, ids: relay.Expr, s: relay.Expr) -> relay.Expr:
    inner = relay.where(relay.greater(column(s, 0), ZERO), expert(relay.nn.relu(x)), x)
    return relay.where(is_expert(ids, 1), relay.nn.dense(inner, weight(WIDTH, WIDTH)), x)


def zeros() -> relay.Expr:
    return relay.zeros((ROWS, WIDTH), "float32")


def _padded(x: relay.Expr, ids: relay.Expr, s: relay.Expr) -> relay.Expr:
    """Only a part of the cells that are not padding go to the expert."""
    is_valid = relay.greater(column(s, 0), ZERO)
    chosen = relay.where(is_valid, is_expert(ids, 0), relay.const(False))
    other = relay.where(is_valid, relay.const(False), is_expert(ids, 1))
    return relay.where(chosen, expert(x), relay.where(other, expert(x), x))


def largest(s: relay.Expr, values: relay.Expr) -> relay.Expr:
    """[6, 3]: values at the largest score, else 0."""
    return relay.where(one_hot(s), values, ZERO)


def with_neighbours(x: relay.Expr, ids: relay.Expr) -> relay.Expr:
    """Two experts that also read other rows than those that go to them."""
    others = relay.take(x, relay.const([1, 2, 3, 4, 5, 0]), axis=0)
    near = relay.add(expert(x), relay.nn.dense(others, weight(WIDTH, WIDTH)))
    hidden = relay.nn.relu(x)
    mean = relay.einsum((weight(ROWS, ROWS), hidden), "ij,jd->id")
    far = relay.add(relay.nn.dense(mean, weight(WIDTH, WIDTH)), hidden)
    return relay.where(is_expert(ids, 0), near, relay.where(is_expert(ids, 1), far, x))


def _of_other_rows(x: relay.Expr, ids: relay.Expr) -> relay.Expr:
    """The first condition of a row is that of another row."""
    turned = relay.take(relay.equal(ids, relay.const(0, "int64")), relay.const([5, 4, 3, 2, 1, 0]),
                        axis=-1)  # fmt: skip
    rest = relay.where(is_expert(ids, 1), expert(x), x)
    return relay.where(relay.expand_dims(turned, 1), expert(x), rest)


def _same_column_twice(x: relay.Expr, s: relay.Expr) -> relay.Expr:
    gates = largest(s, probabilities(s))
    last = relay.split(gates, [2], axis=1)[1]
    return relay.add(relay.multiply(last, expert(x)), relay.multiply(column(gates, 2), expert(x)))


def _for_all_rows(x: relay.Expr, ids: relay.Expr) -> relay.Expr:
    """The first gate counts the cells of all rows."""
    chosen = relay.cast(relay.equal(ids, relay.const(0, "int64")), "float32")
    count = relay.sum(relay.broadcast_to(chosen, (ROWS, ROWS)), axis=1, keepdims=True)
    other = relay.cast(is_expert(ids, 1), "float32")
    return relay.add(relay.multiply(count, expert(x)), relay.multiply(other, expert(x)))


FOUND: dict[str, tuple[Make, int, int]] = {
    # name: (network, routers, branches that one cell takes at most)
    "if": (lambda x, ids, s, c: relay.If(c, expert(x), relay.nn.relu(x)), 1, 1),
    "if of constants": (
        lambda x, ids, s, c: relay.If(c, weight(3), relay.zeros((3,), "float32")),
        1,
        1,
    ),
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
            relay.greater(column(s, 0), ZERO),
            expert(x),
            relay.where(relay.greater(column(s, 1), ZERO), expert(x), x),
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
            relay.where(one_hot(s), probabilities(s), ZERO), [expert(x) for _ in range(3)], x
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
    "gates of a one-hot op": (
        lambda x, ids, s, c: gated(
            relay.multiply(
                relay.one_hot(
                    relay.argmax(s, axis=1), relay.const(1.0), relay.const(0.0), 3, -1, "float32"
                ),
                probabilities(s),
            ),
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
            relay.multiply(relay.cast(relay.greater(s, ZERO), "float32"), s),
            [expert(x) for _ in range(3)],
        ),
        1,
        3,
    ),
    "masked summands": (
        lambda x, ids, s, c: relay.add(
            relay.where(is_expert(ids, 0), expert(x), zeros()),
            relay.where(is_expert(ids, 1), expert(x), zeros()),
        ),
        1,
        1,
    ),
    "wheres of masks that are masked": (lambda x, ids, s, c: _padded(x, ids, s), 1, 1),
    "where of gates as a condition": (
        lambda x, ids, s, c: relay.where(
            relay.cast(column(largest(s, relay.nn.relu(relay.negative(s))), 1), "bool"),
            expert(x),
            x,
        ),
        1,
        1,
    ),
    "rows that are read with others": (lambda x, ids, s, c: with_neighbours(x, ids), 1, 1),
    "conditions of other rows": (lambda x, ids, s, c: _of_other_rows(x, ids), 1, 1),
    "gates taken twice": (
        lambda x, ids, s, c: stacked(
            relay.take(largest(s, probabilities(s)), relay.const([0, 0, 1]), axis=1),
            [expert(x) for _ in range(3)],
        ),
        1,
        2,
    ),
    "gates of one column twice": (lambda x, ids, s, c: _same_column_twice(x, s), 1, 2),
    "gates of all rows": (lambda x, ids, s, c: _for_all_rows(x, ids), 1, 2),
    "gates taken from all places": (
        lambda x, ids, s, c: relay.add(
            relay.multiply(
                relay.expand_dims(
                    relay.take(largest(s, probabilities(s)), relay.const([0, 3, 6, 9, 12, 15])), 1
                ),
                expert(x),
            ),
            x,
        ),
        1,
        1,
    ),
    "one-hot einsum": (lambda x, ids, s, c: gshard(x, s), 1, 1),
    "one-hot einsum with gates": (lambda x, ids, s, c: gshard(x, s, probabilities(s)), 1, 1),
    "one-hot products": (lambda x, ids, s, c: gshard_by_products(x, s), 1, 1),
}
