"""kept_forms: sums and operands of which TVM's simplifier would make something else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, random_costs, var
from tvm import relay

import heteroplace as hp
from heteroplace.parts.parallel.training import training_step
from heteroplace.relay.tasks.kept_forms import DoublesAsProducts
from heteroplace.relay.tasks.prepare import prepare

pytestmark = pytest.mark.relay

Terms = tuple[relay.Expr, relay.Expr, relay.Expr]
ORDERS: dict[str, Callable[[Terms], relay.Expr]] = {
    "product first": lambda t: relay.add(relay.add(t[1], t[0]), t[2]),
    "squares first": lambda t: relay.add(relay.add(t[0], t[2]), t[1]),
    "the sum second": lambda t: relay.add(t[0], relay.add(t[1], t[2])),
}


def outputs(body: relay.Expr, **inputs: np.ndarray) -> np.ndarray:
    mod = module(list(relay.analysis.free_vars(body)), body)
    with tvm.transform.PassContext(opt_level=3):
        made = hp.build(mod, cpu_cluster(), costs=random_costs)
    (found,) = hp.Executor(made).run(**inputs)
    return np.asarray(found)


@pytest.mark.costly(6)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("is_power", [False, True])
def test_a_binomial_is_computed_as_it_stands(dtype: str, order: str, is_power: bool) -> None:
    """Three times the product, so that no factor is a whole number."""
    x, y = var("x", (3,), dtype), var("y", (3,), dtype)

    def square(value: relay.Expr) -> relay.Expr:
        if is_power and dtype == "float32":
            return relay.power(value, relay.const(2.0))
        return relay.multiply(value, value)

    three = relay.const(np.array([3, 5, 1], dtype))
    product = relay.multiply(three, relay.multiply(x, y))
    body = ORDERS[order]((square(x), product, square(y)))
    a, b = np.array([1, 2, 3], dtype), np.array([1, 3, 2], dtype)
    expected = a * a + np.array([3, 5, 1], dtype) * (a * b) + b * b
    np.testing.assert_allclose(outputs(body, x=a, y=b), expected, rtol=1e-6)


@pytest.mark.parametrize(("op", "fill"), [("bias_add", "zeros"), ("prelu", "ones")])
@pytest.mark.parametrize("is_like", [False, True])
def test_an_operand_of_zeros_or_ones_stays_one(op: str, fill: str, is_like: bool) -> None:
    x = var("x", (2, 4))
    operand = getattr(relay, fill)((4,), "float32")
    if is_like:
        operand = getattr(relay, f"{fill}_like")(relay.const(np.arange(4.0, dtype="float32")))
    data = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
    np.testing.assert_array_equal(outputs(getattr(relay.nn, op)(x, operand), x=data), data)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8"])
def test_a_value_added_to_itself_is_twice_it_to_the_bit(dtype: str) -> None:
    x = var("x", (256,), dtype)
    made = DoublesAsProducts()(module([x], relay.add(x, x)))
    assert made["main"].body.op.name == "multiply"
    assert DoublesAsProducts()(made).same_as(made)
    values = np.random.default_rng(0).integers(0, 256, 256 * np.dtype(dtype).itemsize)
    values = values.astype("uint8").view(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values + values
    np.testing.assert_array_equal(outputs(relay.add(x, x), x=values), expected)


def test_a_product_added_to_itself_is_compiled() -> None:
    x, w = var("x", (4, 6)), var("w", (6, 6))
    first, second = (relay.nn.relu(relay.nn.dense(x, w)) for _ in range(2))
    values = np.arange(24, dtype="float32").reshape(4, 6)
    found = outputs(relay.add(first, second), x=values, w=np.eye(6, dtype="float32"))
    np.testing.assert_array_equal(found, 2 * values)


def test_a_step_that_squares_a_product_is_prepared() -> None:
    x, w = var("x", (4, 6)), var("w", (6, 6))
    product = relay.nn.dense(x, w)
    step = training_step(module([x, w], relay.multiply(product, product)), ["w"])
    with tvm.transform.PassContext(opt_level=3):
        assert prepare(step.module)["main"].checked_type == step.module["main"].checked_type
