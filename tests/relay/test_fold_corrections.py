"""fold_corrections: constants become what kernels make of them in the run, not TVM's own ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

from heteroplace.relay.tasks.fold import fold_constants

pytestmark = pytest.mark.relay


def folded(expr: relay.Expr) -> Any:
    body = fold_constants(tvm.IRModule.from_expr(relay.Function([], expr)))["main"].body
    assert isinstance(body, relay.Constant)
    return body.data.numpy()


def test_division_by_zero_is_0() -> None:
    least, divisors = (relay.const(np.array(each), "int64") for each in ([-(2**63)] * 2, [0, -1]))
    for op, expected in ((relay.divide, [0, -(2**63)]), (relay.floor_mod, [0, 0])):
        assert folded(op(least, divisors)).tolist() == expected


def test_windows_of_nothing_but_minus_infinity_and_padding_have_it() -> None:
    least = relay.const(np.array([[[-np.inf, -np.inf, 1]]], "float32"))
    pooled = folded(relay.nn.max_pool1d(least, 2, 1, 1, padding=1))
    assert pooled.tolist() == [[[-np.inf, -np.inf, 1, 1]]]


@pytest.mark.parametrize("is_last", [False, True])
def test_places_of_what_is_all_least_are_within_the_axis(is_last: bool) -> None:
    for op, value in ((relay.argmax, -np.inf), (relay.argmin, np.inf)):
        data = relay.const(np.full((2, 3, 4), value, "float32"))
        found = folded(op(data, axis=[0, 2], select_last_index=is_last))
        assert found.tolist() == [7 if is_last else 0] * 3


@pytest.mark.parametrize("mode", ["update", "add", "mul", "min", "max"])
@pytest.mark.parametrize("axis", range(3))
def test_a_corner_is_written_where_its_places_are(axis: int, mode: str) -> None:
    generator = np.random.default_rng(axis)
    data = generator.integers(-9, 9, (2, 3, 4))
    places = generator.integers(0, data.shape[axis], (1, 2, 3))
    new = generator.integers(-9, 9, places.shape)
    expected = data.copy()
    join = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}.get(mode)
    for at, place in np.ndenumerate(places):
        there = (*at[:axis], place, *at[axis + 1 :])
        expected[there] = new[at] if join is None else join(expected[there], new[at])
    operands = (relay.const(each) for each in (data, places, new))
    np.testing.assert_array_equal(folded(relay.scatter_elements(*operands, axis, mode)), expected)


def test_nan_stays() -> None:
    data = relay.const(np.array([np.nan, -1, 2], "float32"))
    np.testing.assert_array_equal(folded(relay.nn.relu(data)), [np.nan, 0, 2])
