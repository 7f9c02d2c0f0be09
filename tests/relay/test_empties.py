"""empties: tensors of no elements beside, before and behind others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, random_costs, var
from tvm import relay

import heteroplace as hp

pytestmark = pytest.mark.relay

X = np.arange(6, dtype="float32").reshape(2, 3)
Body = Callable[[relay.Expr], relay.Expr]


def nothing(x: relay.Expr) -> relay.Expr:
    """No columns of x."""
    return relay.tanh(relay.strided_slice(x, [0, 1], [2, 1]))


CASES: dict[str, tuple[Body, np.ndarray]] = {
    "joined with another": (
        lambda x: relay.concatenate([nothing(x), relay.negative(x), nothing(x)], 1),
        -X,
    ),
    "joined with two": (
        lambda x: relay.concatenate([x, nothing(x), relay.negative(x)], 1),
        np.concatenate([X, -X], 1),
    ),
    "summed": (lambda x: relay.sum(nothing(x), axis=1), np.zeros(2, "float32")),
    "multiplied": (lambda x: relay.prod(nothing(x), axis=1), np.ones(2, "float32")),
    "a product of no terms": (
        lambda x: relay.add(relay.nn.dense(nothing(x), nothing(x)), relay.sum(x)),
        np.full((2, 2), 15, "float32"),
    ),
    "padded": (
        lambda x: relay.nn.pad(nothing(x), [(0, 0), (1, 2)], pad_value=4),
        np.full((2, 3), 4, "float32"),
    ),
    "scattered": (
        lambda x: relay.scatter_elements(
            relay.negative(x),
            relay.const(np.zeros((2, 0), "int64")),
            nothing(x),
            axis=1,
        ),
        -X,
    ),
    "an output": (nothing, np.zeros((2, 0), "float32")),
}


@pytest.mark.costly(8)
@pytest.mark.parametrize("name", CASES)
def test_what_is_made_of_nothing(name: str) -> None:
    body, expected = CASES[name]
    x = var("x", X.shape)
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(module([x], body(x)), cpu_cluster(), {}, costs=random_costs)
    (found,) = hp.Executor(executable).run(x=X)
    np.testing.assert_array_equal(found, expected)


def test_an_input_of_no_elements_is_joined() -> None:
    """A cache that is empty yet."""
    past, now = var("past", (1, 0, 4)), var("now", (1, 2, 4))
    body = relay.concatenate([past, relay.negative(now)], 1)
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(module([past, now], body), cpu_cluster(), {}, costs=random_costs)
    values = np.arange(8, dtype="float32").reshape(1, 2, 4)
    inputs = {"past": np.zeros((1, 0, 4), "float32"), "now": values}
    (found,) = hp.Executor(executable).run(**inputs)
    np.testing.assert_array_equal(found, -values)
