"""Where expressions may be other than 0, and which are above it: as proven, and as computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy_relay import run_by_numpy
from relay_models import module, var
from tvm import relay

from heteroplace.parts.routing.find.find_positive import is_nonnegative, is_positive
from heteroplace.parts.routing.find.find_support import (
    Support,
    Supports,
    as_boolean,
    is_zero,
    typed,
)

pytestmark = pytest.mark.relay

ROWS, WIDTH = 4, 6
X, P, IDS = var("x", (ROWS, WIDTH)), var("p", (ROWS, 1)), var("ids", (ROWS, 1), "int32")
ZEROS = relay.zeros((ROWS, WIDTH), "float32")
Make = Callable[[], relay.Expr]


def known(values: object, dtype: str = "float32") -> relay.Constant:
    return relay.const(np.array(values, dtype))


def chosen(number: int = 3) -> relay.Expr:
    """1 in rows of one id."""
    return relay.cast(relay.equal(IDS, known(number, "int32")), "float32")


def scattered(k: int = 2, data: relay.Expr = ZEROS) -> relay.Expr:
    """The largest values, where they are."""
    top = relay.topk(X, k, axis=1, ret_type="both", dtype="int32")
    return relay.scatter_elements(data, top[1], top[0], axis=1)


def columns(*numbers: int) -> relay.Expr:
    return relay.cast(relay.equal(IDS, known([numbers], "int32")), "float32")


def split_column(index: int) -> relay.Expr:
    return relay.split(scattered(), WIDTH, axis=1)[index]


def shared() -> relay.Expr:
    """Gates that add up to 1."""
    total = relay.sum(relay.abs(scattered()), axis=1, keepdims=True)
    return relay.divide(scattered(), relay.maximum(total, known(1e-3)))


FOUND: dict[str, tuple[Make, int]] = {
    "a comparison times a probability": (lambda: chosen() * P, 1),
    "a comparison with different constants": (lambda: columns(0, 1, 2, 3, 4, 5), 1),
    "a comparison with equal constants": (lambda: columns(0, 1, 1, 2, 3, 4), WIDTH),
    "the largest values": (scattered, 2),
    "a gate for each of two largest": (shared, 2),
    "of a product the rarer": (lambda: scattered(3) * columns(0, 1, 2, 3, 4, 5), 1),
    "a one-hot vector": (
        lambda: relay.one_hot(
            *(relay.squeeze(IDS, [1]), known(1.0), known(0.0), WIDTH, -1, "float32")
        ),
        1,
    ),
    "known zeros": (lambda: known(np.eye(ROWS, WIDTH) + np.eye(ROWS, WIDTH, 1)), 2),
    "where it is so": (lambda: relay.where(relay.less(X, known(0.0)), X, ZEROS), WIDTH),
    "where it is not so": (lambda: relay.where(relay.less(X, known(0.0)), ZEROS, X), WIDTH),
    "a function that is 0 at 0": (lambda: relay.tanh(-scattered()), 2),
    "a sum along a row": (lambda: relay.sum(scattered(), axis=1), 1),
    "a sum over rows": (lambda: relay.sum(scattered(), axis=0, keepdims=True), WIDTH),
    "a column": (lambda: split_column(4), 1),
    "columns that are taken twice": (
        lambda: relay.take(scattered(), known([1, 1, 2], "int32"), axis=1),
        3,
    ),
    "another shape": (lambda: relay.reshape(scattered(), (ROWS, 2, 3)), 2),
    "rows that are mixed": (lambda: relay.reshape(scattered(), (2, 2 * WIDTH)), 2 * WIDTH),
    "columns for rows": (lambda: relay.transpose(scattered()), ROWS),
    "columns for as many rows": (
        lambda: relay.transpose(relay.take(scattered(), known([0, 2, 3, 5], "int32"), axis=1)),
        ROWS,
    ),
    "a gate times all of a row": (lambda: chosen() * X, WIDTH),
    "a gate for all of a row": (lambda: relay.broadcast_to(chosen(), (ROWS, WIDTH)), WIDTH),
}
"""By what it is: the expression, and in how many places of a row it is not 0 at most."""

LEFT: dict[str, Make] = {
    "zeros in fact": lambda: relay.nn.softmax(X),
    "other values beside them": lambda: scattered() + X,
    "1 where it is 0": lambda: relay.exp(scattered()),
    "divided by what may be 0": lambda: scattered() / relay.sum(X, axis=1, keepdims=True),
    "a divisor": lambda: X / scattered(),
    "no zeros on either side": lambda: relay.where(relay.less(X, known(0.0)), X, P),
    "one-cold vectors": lambda: relay.one_hot(
        *(relay.squeeze(IDS, [1]), known(0.0), known(1.0), WIDTH, -1, "float32")
    ),
    "values put into others": lambda: scattered(data=X),
    "columns by an input": lambda: relay.take(scattered(), IDS, axis=1),
    "no zeros": lambda: known(np.ones((ROWS, WIDTH))),
    "a number": lambda: known(0.0),
    "a product of inputs": lambda: X * P,
}


def values_of(*exprs: relay.Expr) -> list[np.ndarray]:
    """Of random inputs, some of them 0."""
    random = np.random.default_rng(7)
    inputs = {
        "x": random.normal(size=(ROWS, WIDTH)).round().astype("float32"),
        "p": random.uniform(size=(ROWS, 1)).astype("float32"),
        "ids": np.array([[3], [0], [3], [5]], "int32"),
    }
    return run_by_numpy(module([X, P, IDS], relay.Tuple(list(exprs))), inputs)


def check_support(expr: relay.Expr, found: Support) -> None:
    value, mask = values_of(expr, found.mask)
    assert value.shape == mask.shape and (mask >= 0).all()
    assert found.mask.checked_type.dtype == "int32"
    assert not value[mask == 0].any()
    assert ((mask > 0).reshape(len(mask), -1).sum(axis=1) <= found.most).all()


@pytest.mark.parametrize("name", FOUND)
def test_what_is_0_is_found(name: str) -> None:
    make, most = FOUND[name]
    expr = typed(make())
    found = Supports().of(expr)
    assert found is not None and found.most == most
    check_support(expr, found)


@pytest.mark.parametrize("name", LEFT)
def test_what_may_be_other_than_0_anywhere_has_no_mask(name: str) -> None:
    assert Supports().of(typed(LEFT[name]())) is None


def test_masks_of_one_value_know_what_they_are_of() -> None:
    supports = Supports()
    compared = [supports.of(typed(chosen(number) * P)) for number in (0, 3)]
    for number, found in zip((0, 3), compared, strict=True):
        assert found is not None and found.origin == (IDS, number, 1)
    gates = typed(relay.split(scattered(), WIDTH, axis=1).astuple())
    column = supports.of(typed(relay.TupleGetItem(gates, 4)))
    assert column is not None and column.origin is not None
    assert column.origin[1:] == (4, 2) and column.origin.source.same_as(gates.args[0])
    mixed = supports.of(typed(relay.transpose(relay.TupleGetItem(gates, 4))))
    assert mixed is not None and mixed.origin is None


def test_a_condition_holds_where_its_mask_does() -> None:
    for condition, most in ((IDS, 1), (X, WIDTH), (relay.equal(IDS, known(3, "int32")), 1)):
        found = Supports().of_condition(typed(condition))
        assert found.most == most
        value, mask, as_bool = values_of(condition, found.mask, as_boolean(typed(condition)))
        np.testing.assert_array_equal(mask, value != 0)
        np.testing.assert_array_equal(as_bool, value != 0)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: ZEROS, True),
        (lambda: relay.zeros_like(X), True),
        (lambda: known([0.0, 0.0]), True),
        (lambda: known([0.0, 1.0]), False),
        (lambda: relay.full(known(0.0), (2,)), True),
        (lambda: relay.full(known(2.0), (2,)), False),
        (
            lambda: relay.broadcast_to(relay.reshape(ZEROS, (ROWS, WIDTH, 1)), (ROWS, WIDTH, 2)),
            True,
        ),
        (lambda: X * ZEROS, True),
        (lambda: X + ZEROS, False),
        (lambda: relay.ones((2,), "float32"), False),
        (lambda: X, False),
        (lambda: relay.reshape(X, (ROWS * WIDTH,)), False),
    ],
)
def test_zeros_are_known_by_how_they_are_made(make: Make, expected: bool) -> None:
    assert is_zero(typed(make())) == expected


def summed_softmax(axis: int = 1, source_axis: int = 1, is_ascend: bool = False) -> relay.Expr:
    top = relay.topk(
        relay.nn.softmax(X, axis=source_axis), 2, axis=1, ret_type="both", is_ascend=is_ascend
    )
    return relay.sum(top[0], axis=axis, keepdims=True)


POSITIVE: dict[str, tuple[Make, bool, bool]] = {
    "numbers above 0": (lambda: known([1.0, 2.0]), True, True),
    "numbers from 0 on": (lambda: known([0.0, 2.0]), False, True),
    "numbers below 0": (lambda: known([-1.0, 2.0]), False, False),
    "clipped above 0": (lambda: relay.clip(X, 1e-3, 9.0), True, False),
    "clipped at 0": (lambda: relay.clip(X, 0.0, 9.0), False, False),
    "at least 1": (lambda: relay.maximum(X, known(1.0)), True, False),
    "at most 1": (lambda: relay.minimum(X, known(1.0)), False, False),
    "more than something": (lambda: relay.abs(X) + known(1.0), True, True),
    "a number more": (lambda: X + known(1.0), False, False),
    "products above 0": (lambda: known(2.0) * relay.clip(X, 1.0, 2.0), True, False),
    "a product that may be 0": (lambda: known(2.0) * relay.abs(X), False, True),
    "without signs": (lambda: relay.abs(X), False, True),
    "exponents": (lambda: relay.exp(X), False, True),
    "the largest of a softmax": (summed_softmax, True, True),
    "of a softmax along others": (lambda: summed_softmax(source_axis=0), False, True),
    "summed along others": (lambda: summed_softmax(axis=0), False, True),
    "shapes": (lambda: relay.reshape(relay.sqrt(known([[4.0]])), (1,)), True, True),
    "one of two": (lambda: relay.where(relay.less(X, P), relay.nn.relu(X), P), False, False),
    "one of two above": (
        lambda: relay.where(relay.less(X, P), relay.nn.relu(X), relay.abs(P)),
        *(False, True),
    ),
    "a truth": (lambda: relay.cast(relay.less(X, P), "float32"), False, True),
    "an input": (lambda: X, False, False),
    "differences": (lambda: relay.abs(X) - relay.abs(P), False, False),
}
"""By what it is: the expression, whether it is known to be above 0, and not to be below."""


@pytest.mark.parametrize("name", POSITIVE)
def test_what_is_above_0_is_known_by_how_it_is_made(name: str) -> None:
    make, positive, nonnegative = POSITIVE[name]
    expr = typed(make())
    assert (is_positive(expr), is_nonnegative(expr)) == (positive, nonnegative)
    (value,) = values_of(expr)
    assert (value > 0).all() or not positive
    assert (value >= 0).all() or not nonnegative


def test_the_smallest_of_a_softmax_may_be_0() -> None:
    smallest = typed(summed_softmax(is_ascend=True))
    assert not is_positive(smallest) and is_nonnegative(smallest)
