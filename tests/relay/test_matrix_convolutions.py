"""Convolutions as products of matrices: the same numbers, of those that are such products."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import given
from numpy_relay import run_by_numpy
from own_kernels import check_by_all_kernels
from relay_models import module, random_inputs, var, weights
from tvm import relay

from heteroplace.parts.kernels.rewrites.matrix_convolutions import MatrixConvolutions
from heteroplace.relay.expressions import post_order
from tests.corpus import corpus
from tests.strategies import exact_cases

pytestmark = pytest.mark.relay


def as_products(mod: tvm.IRModule) -> tvm.IRModule:
    passes = [relay.transform.InferType(), MatrixConvolutions(), relay.transform.InferType()]
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(mod)


def op_names(mod: tvm.IRModule) -> list[str]:
    nodes = post_order(mod["main"].body)
    return [node.op.name for node in nodes if isinstance(node, relay.Call)]


def conv(
    data: relay.Expr, num_in: int, num_out: int, groups: int = 1, kernel: int = 1, stride: int = 1
) -> relay.Call:
    return relay.nn.conv2d(
        data,
        weights(num_out, num_in // groups, kernel, kernel),
        channels=num_out,
        kernel_size=(kernel, kernel),
        strides=(stride, stride),
        padding=(kernel // 2, kernel // 2),
        groups=groups,
    )


@corpus
def random_products(random: Random) -> tvm.IRModule:
    groups = random.choice((1, 2, 3))
    channels = groups * random.randint(1, 6)
    size = 1 if random.random() < 0.4 else random.randint(2, 6)
    x = var("x", (random.choice((1, 1, 2)), channels, size, size + (size > 1)))
    value = x
    for _ in range(random.randint(1, 4)):
        before, channels = channels, groups * random.randint(1, 6)
        value = conv(value, before, channels, groups, random.choice((1, 1, 3)))
        for _ in range(random.randint(0, 3)):
            kind = random.choice(("relu", "swish", "bias", "scale", "row", "sum"))
            if kind == "relu":
                value = relay.nn.relu(value)
            elif kind == "swish":
                value = relay.multiply(relay.sigmoid(value), value)
            elif kind == "bias":
                value = relay.add(value, weights(*random.choice(((1,), ())), channels, 1, 1))
            elif kind == "scale":
                value = relay.subtract(relay.const(1.5), value)
            elif kind == "row":
                value = relay.add(value, weights(1, size + (size > 1)))
            else:
                value = relay.maximum(relay.tanh(value), relay.nn.leaky_relu(value, 0.5))
    return module([x], value)


@given(random_products())
@pytest.mark.costly(10)
@exact_cases(10)
def test_numbers_are_those_of_the_convolutions(mod: tvm.IRModule) -> None:
    inputs = {name: array.astype("float64") for name, array in random_inputs(mod).items()}
    found = as_products(mod)
    with np.errstate(over="ignore"):  # a sigmoid far below 0 is 0
        (expected,), (actual,) = run_by_numpy(mod, inputs), run_by_numpy(found, inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_what_is_elementwise_is_done_in_the_form_of_the_product() -> None:
    x = var("x", (1, 8, 5, 5))
    value = relay.nn.relu(relay.add(conv(x, 8, 12, groups=4), weights(12, 1, 1)))
    mod = as_products(module([x], value))
    assert op_names(mod) == ["reshape", "nn.batch_matmul", "add", "nn.relu", "reshape"]
    point = var("x", (2, 8, 1, 1))
    value = conv(relay.sigmoid(relay.add(conv(point, 8, 4), weights(1, 4, 1, 1))), 4, 8)
    names = ["reshape", "nn.dense", "add", "sigmoid", "nn.dense", "reshape"]
    assert op_names(as_products(module([point], value))) == names


def test_what_is_no_product_stays() -> None:
    x, point = var("x", (1, 8, 5, 5)), var("point", (1, 8, 1, 1))
    two = var("two", (2, 8, 5, 5))
    for data, body in (
        (x, conv(x, 8, 8)),
        (x, conv(x, 8, 8, groups=8)),
        (x, conv(x, 8, 8, groups=4, kernel=3)),
        (x, conv(x, 8, 8, groups=4, stride=2)),
        (two, conv(two, 8, 8, groups=4)),
        (point, relay.nn.relu(conv(point, 8, 8, kernel=3))),
    ):
        mod = relay.transform.InferType()(module([data], body))
        assert tvm.ir.structural_equal(as_products(mod), mod)


@pytest.mark.costly
def test_a_unit_with_shuffled_groups_has_its_numbers_by_all_kernels() -> None:
    x = var("x", (1, 24, 7, 5))
    value = relay.nn.relu(relay.add(conv(x, 24, 36, groups=3), weights(36, 1, 1)))
    value = relay.transpose(relay.reshape(value, (1, 3, 12, 7, 5)), (0, 2, 1, 3, 4))
    value = conv(relay.reshape(value, (1, 36, 7, 5)), 36, 36, groups=36, kernel=3)
    value = relay.nn.relu(relay.add(conv(value, 36, 24, groups=3), x))
    gate = relay.sigmoid(conv(conv(relay.nn.global_avg_pool2d(value), 24, 6), 6, 24))
    mod = module([x], relay.multiply(value, gate))
    check_by_all_kernels(mod, random_inputs(mod))
