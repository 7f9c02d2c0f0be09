"""Sums over rows for several items at once: equal to the sum of those of each, or refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from numpy_relay import run_by_numpy
from relay_models import module, var
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.relay.tasks.item_sums import sums_of_items

ROWS, ITEMS = 3, 4
Made = tuple[list[relay.Var], relay.Expr]


def product() -> Made:
    x, dy = var("x", (ROWS, 5)), var("dy", (ROWS, 2))
    return [x, dy], relay.nn.matmul(x, dy, transpose_a=True)


def turned_product() -> Made:
    x, dy = var("x", (ROWS, 5)), var("dy", (ROWS, 2))
    return [x, dy], relay.transpose(relay.nn.matmul(x, dy, transpose_a=True))


def scaled_sum() -> Made:
    x, scale = var("x", (ROWS, 2, 5)), var("scale", (5,))
    return [x, scale], relay.sum(relay.multiply(x, relay.sqrt(scale)), axis=[0, 1])


def sum_of_all_but_one() -> Made:
    x = var("x", (ROWS, 2, 5))
    return [x], relay.reshape(relay.sum(x, axis=[2], exclude=True), (1, 5))


def negative_axis() -> Made:
    x = var("x", (ROWS, 5))
    return [x], relay.sum(relay.tanh(x), axis=[-2], keepdims=True)


SUMS: list[Callable[[], Made]] = [
    product, turned_product, scaled_sum, sum_of_all_but_one, negative_axis,
]  # fmt: skip


@pytest.mark.parametrize("make", SUMS, ids=lambda make: make.__name__)
def test_the_sum_over_all_items_is_that_of_the_sums_of_each(make: Callable[[], Made]) -> None:
    one = module(*make())
    names = [p.name_hint for p in one["main"].params if p.name_hint != "scale"]
    several = sums_of_items(one, ITEMS, dict.fromkeys(names, 0))
    assert several["main"].ret_type == one["main"].ret_type
    rng = np.random.default_rng(0)
    scale = rng.random(5)
    shapes = {p.name_hint: [int(n) for n in p.checked_type.shape] for p in one["main"].params}
    items = [{name: rng.standard_normal(shapes[name]) for name in names} for _ in range(ITEMS)]
    rest = {"scale": scale} if "scale" in shapes else {}
    each = sum(run_by_numpy(one, item | rest)[0] for item in items)
    whole = {name: np.concatenate([item[name] for item in items]) for name in names}
    (found,) = run_by_numpy(several, whole | rest)
    np.testing.assert_allclose(found, each, rtol=1e-12)


def mean() -> Made:
    x = var("x", (ROWS, 5))
    return [x], relay.mean(x, axis=[0])


def root_of_a_sum() -> Made:
    x = var("x", (ROWS, 5))
    return [x], relay.sqrt(relay.sum(x, axis=[0]))


def sum_and_one() -> Made:
    x, one = var("x", (ROWS, 5)), var("scale", (5,))
    return [x, one], relay.add(relay.sum(x, axis=[0]), one)


def sum_of_columns() -> Made:
    x = var("x", (ROWS, 5))
    return [x], relay.sum(x, axis=[1])


def softmax_over_rows() -> Made:
    x = var("x", (ROWS, 5))
    return [x], relay.sum(relay.nn.softmax(x, axis=0), axis=[0])


def of_no_item() -> Made:
    scale = var("scale", (5,))
    return [scale], relay.sum(scale, axis=[0])


def product_of_columns() -> Made:
    x, y = var("x", (ROWS, 5)), var("y", (ROWS, 5))
    return [x, y], relay.nn.matmul(x, y, transpose_b=True)


def scalar() -> Made:
    x = var("x", ())
    return [x], relay.multiply(x, relay.const(2.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (mean, "mean"),
        (root_of_a_sum, "sqrt.* computes with a sum"),
        (sum_and_one, "add.* computes with a sum"),
        (sum_of_columns, "result 0 is no sum over items"),
        (softmax_over_rows, "softmax"),
        (of_no_item, "result 0 is no sum over items"),
        (product_of_columns, "dense"),
        (scalar, "'x' is a scalar"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_no_sum_over_items_is_refused(make: Callable[[], Made], message: str) -> None:
    one = module(*make())
    names = [p.name_hint for p in one["main"].params if p.name_hint != "scale"]
    with pytest.raises(UnsupportedRelayError, match=message):
        sums_of_items(one, ITEMS, dict.fromkeys(names, 0))


def test_several_results_are_all_sums() -> None:
    x, dy = var("x", (ROWS, 5)), var("dy", (ROWS, 2))
    sums = [relay.nn.matmul(x, dy, transpose_a=True), relay.sum(dy, axis=[0])]
    several = sums_of_items(module([x, dy], relay.Tuple(sums)), ITEMS, {"x": 0, "dy": 0})
    assert isinstance(several["main"].ret_type, tvm.ir.TupleType)
    with pytest.raises(UnsupportedRelayError, match="result 1 is no sum"):
        sums_of_items(module([x, dy], relay.Tuple([sums[0], dy])), ITEMS, {"x": 0, "dy": 0})
