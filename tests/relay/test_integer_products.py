"""Products of dequantised numbers are of integers, or of floats where a target needs it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from numpy_relay import executor_by_numpy
from tvm import relay

from heteroplace.relay.expressions import is_op_call, post_order
from heteroplace.relay.legalize import Legalize
from heteroplace.relay.tasks.integer_products import IntegerProducts
from tests.strategies import exact_cases

VNNI, OTHER = "llvm -mcpu=cascadelake", "llvm -mcpu=skylake-avx512"


def dequantised(values: relay.Expr, zero: int | None, scale: object) -> relay.Expr:
    """As the importer writes it."""
    data = relay.cast(values, "int32")
    if zero is not None:
        data = data - relay.const(zero, "int32")
    return relay.cast(data, "float32") * relay.const(np.asarray(scale, "float32"))


def weight_of(random: np.random.Generator, shape: tuple[int, ...], of_each: bool) -> relay.Expr:
    values = random.integers(-128, 128, shape).astype("float32")
    steps = random.uniform(0.01, 0.1, shape[0] if of_each else 1).astype("float32")
    spread = relay.reshape(relay.const(steps), (-1, *(1,) * (len(shape) - 1)))
    return relay.const(values) * spread


def inferred(body: relay.Expr) -> tvm.IRModule:
    function = relay.Function(relay.analysis.free_vars(body), body)
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))


def rewritten(mod: tvm.IRModule) -> tvm.IRModule:
    return relay.transform.InferType()(IntegerProducts()(mod))


def products(mod: tvm.IRModule) -> list[relay.Call]:
    names = ("nn.conv2d", "nn.dense")
    nodes = post_order(mod["main"].body)
    return [node for node in nodes if any(is_op_call(node, name) for name in names)]


def random_network(random: Random) -> tuple[tvm.IRModule, np.ndarray]:
    """A convolution or a dense layer, with a bias behind it or none."""
    numbers = np.random.default_rng(random.randrange(2**32))
    dtype = random.choice(["uint8", "int8"])
    limits = np.iinfo(dtype)
    zero = random.choice([None, 0, random.randint(limits.min, limits.max)])
    of_each = random.random() < 0.5
    if random.random() < 0.4:
        rows, depth, columns = (random.randint(1, 5) for _ in range(3))
        x = relay.var("x", shape=(rows, depth), dtype=dtype)
        weight = weight_of(numbers, (columns, depth), of_each)
        body = relay.nn.dense(dequantised(x, zero, 0.03), weight)
    else:
        groups, kernel = random.choice([1, 1, 2]), random.choice([1, 2, 3])
        channels, made = groups * random.randint(1, 3), groups * random.randint(1, 3)
        x = relay.var("x", shape=(2, channels, random.randint(4, 6), 5), dtype=dtype)
        weight = weight_of(numbers, (made, channels // groups, kernel, kernel), of_each)
        body = relay.nn.conv2d(
            dequantised(x, zero, 0.03),
            weight,
            padding=[random.randint(0, 1) for _ in range(4)],
            strides=(random.randint(1, 2), 1),
            groups=groups,
        )
    if random.random() < 0.5:
        body = relay.nn.relu(body + relay.const(np.float32(0.7)))
    shape = [int(extent) for extent in x.type_annotation.shape]
    return inferred(body), numbers.integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.costly
@given(st.integers(0, 2**32))
@exact_cases(40)
def test_products_of_whole_numbers_are_the_same_scaled(seed: int) -> None:
    mod, x = random_network(Random(seed))
    found = rewritten(mod)
    (product,) = products(found)
    assert product.checked_type.dtype == "int32"
    assert [str(each.checked_type.dtype) for each in product.args] == ["uint8", "int8"]
    (expected,), (got,) = (executor_by_numpy(each)({"x": x}) for each in (mod, found))
    assert got.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))
    again = rewritten(found)
    tvm.ir.assert_structural_equal(again, found)


X = relay.var("x", shape=(1, 4, 6, 6), dtype="uint8")
WEIGHT = relay.const(np.ones((4, 4, 1, 1), "float32")) * relay.const(np.float32(0.5))


@pytest.mark.parametrize(
    "body",
    [
        relay.nn.conv2d(dequantised(X, 3, np.ones((1, 4, 1, 1))), WEIGHT),
        relay.nn.conv2d(dequantised(X, 3, 0.1), WEIGHT + relay.const(np.float32(0.5))),
        relay.nn.conv2d(
            dequantised(X, 3, 0.1),
            relay.const(np.full((4, 4, 1, 1), 0.5, "float32")) * relay.const(np.float32(1)),
        ),
        relay.nn.conv2d(
            dequantised(X, 3, 0.1),
            relay.const(np.ones((4, 4, 1, 1), "float32"))
            * relay.const(np.ones((1, 4, 1, 1), "float32")),
        ),
        relay.nn.conv2d(
            relay.cast(X, "float32") * relay.const(np.float32(0.1)), WEIGHT, padding=(1, 1)
        ),
        relay.nn.conv2d(
            dequantised(X, 3, 0.1),
            relay.const(np.ones((1, 1, 6, 4), "float32")) * relay.const(np.float32(1)),
            data_layout="NHWC",
            kernel_layout="HWIO",
        ),
        relay.nn.conv2d(dequantised(X, 256, 0.1), WEIGHT, padding=(1, 1)),
        relay.nn.conv2d(dequantised(X, -1, 0.1), WEIGHT),
        relay.nn.conv2d(
            dequantised(X, 3, 0.1),
            relay.cast(
                relay.const(np.full((4, 4, 1, 1), 100, "int8")) * relay.const(3, "int8"), "float32"
            ),
        ),
    ],
    ids=[
        "scales",
        "sum",
        "fractions",
        "input-channels",
        "not-by-int32",
        "layout",
        "zero-too-large",
        "zero-below-0",
        "weights-that-wrap",
    ],
)
def test_other_products_stay(body: relay.Expr) -> None:
    mod = inferred(body)
    tvm.ir.assert_structural_equal(rewritten(mod), mod)


@pytest.mark.costly(5)
@pytest.mark.parametrize("target", [VNNI, OTHER])
@given(st.integers(0, 2**32))
@exact_cases(10)
def test_targets_that_would_saturate_multiply_floats(target: str, seed: int) -> None:
    mod, x = random_network(Random(seed))
    found = rewritten(mod)
    with tvm.target.Target(target), tvm.transform.PassContext(opt_level=3):
        legal = relay.transform.InferType()(Legalize()(found))
    (expected,), (got,) = (executor_by_numpy(each)({"x": x}) for each in (found, legal))
    np.testing.assert_array_equal(got, expected)
    is_float = {each.checked_type.dtype for each in products(legal)} == {"float32"}
    assert is_float == (target == OTHER)


@pytest.mark.parametrize("target", ["llvm -mcpu=haswell", OTHER])
def test_weights_of_products_in_floats_are_constants(target: str) -> None:
    """Panels are made ahead of constants alone. Those of two products stay one."""
    x, weights = relay.var("x", shape=(4, 8), dtype="uint8"), np.arange(64, dtype="int8")
    constant = relay.const(weights.reshape(8, 8))
    first = relay.nn.dense(x, constant, out_dtype="int32")
    mod = inferred(relay.nn.dense(relay.cast(first, "uint8"), constant, out_dtype="int32"))
    with tvm.target.Target(target), tvm.transform.PassContext(opt_level=3):
        legal = relay.transform.InferType()(Legalize()(mod))
    one, other = (product.args[1] for product in products(legal))
    assert isinstance(one, relay.Constant) and one.same_as(other)
    np.testing.assert_array_equal(one.data.numpy().ravel(), weights.astype("float32"))
