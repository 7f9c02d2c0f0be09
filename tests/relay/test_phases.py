"""Transposed convolutions by their phases: the same numbers, where it covers them."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from numpy_relay import run_by_numpy
from relay_models import cpu_cluster, module, random_costs, random_inputs, var, weights
from tvm import relay

import heteroplace as hp
from heteroplace.parts.kernels.rewrites.phases import WEAVE_OP, ConvolvePhases
from heteroplace.place_options import KERNELS
from heteroplace.relay.expressions import post_order
from tests.corpus import corpus
from tests.strategies import exact_cases

pytestmark = pytest.mark.relay


def transposed(data: relay.Expr, weight: relay.Expr, channels: int, **attrs: Any) -> relay.Expr:
    kernel = tuple(int(extent) for extent in weight.data.shape[2:])
    return relay.nn.conv2d_transpose(data, weight, channels=channels, kernel_size=kernel, **attrs)


def by_phases(mod: tvm.IRModule) -> tvm.IRModule:
    passes = [relay.transform.InferType(), ConvolvePhases(), relay.transform.InferType()]
    return tvm.transform.Sequential(passes)(mod)


def op_names(mod: tvm.IRModule) -> list[str]:
    nodes = post_order(mod["main"].body)
    return [node.op.name for node in nodes if isinstance(node, relay.Call)]


@corpus
def random_transposed(random: Random) -> tvm.IRModule:
    """Of odd sizes, with paddings of each side and of the output."""
    channels_in, channels = random.randint(1, 4), random.randint(1, 4)
    size = random.randint(1, 6), random.randint(1, 6)
    kernel = random.randint(1, 5), random.randint(1, 5)
    strides = random.randint(1, 3), random.randint(2, 4)
    pads = [random.randint(0, extent - 1) for extent in (*kernel, *kernel)]
    made = [
        (size[axis] - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[axis + 2]
        for axis in (0, 1)
    ]
    for axis in (0, 1):
        if made[axis] < 1:
            pads[axis] = pads[axis + 2] = 0
    more = tuple(random.randint(0, stride - 1) for stride in strides)
    x = var("x", (random.randint(1, 2), channels_in, *size))
    weight = weights(channels_in, channels, *kernel, seed=random.randint(0, 99))
    body = transposed(
        x, weight, channels, strides=strides, padding=tuple(pads), output_padding=more
    )
    return module([x], body)


@pytest.mark.costly
@given(random_transposed())
@exact_cases(60)
def test_numbers_are_those_of_the_definition(mod: tvm.IRModule) -> None:
    found = by_phases(mod)
    assert "nn.conv2d_transpose" not in op_names(found) or WEAVE_OP not in op_names(found)
    inputs = {name: array.astype("float64") for name, array in random_inputs(mod).items()}
    (expected,), (actual,) = run_by_numpy(mod, inputs), run_by_numpy(found, inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_all_of_a_stride_as_wide_as_the_filter_is_one_small_convolution() -> None:
    x = var("x", (1, 32, 5, 5))
    mod = by_phases(module([x], transposed(x, weights(32, 16, 2, 2), 16, strides=(2, 2))))
    assert op_names(mod) == ["nn.conv2d", WEAVE_OP]
    conv = mod["main"].body.args[0]
    assert [int(extent) for extent in conv.attrs.kernel_size] == [1, 1]
    assert int(conv.attrs.channels) == 64


def test_what_it_does_not_cover_stays() -> None:
    x, w = var("x", (1, 4, 5, 5)), var("w", (4, 4, 3, 3))
    constant, doubles = weights(4, 4, 3, 3), var("y", (1, 4, 5, 5), "float64")
    computed = relay.nn.conv2d_transpose(x, w, strides=(2, 2), channels=4, kernel_size=(3, 3))
    of_doubles = relay.const(constant.data.numpy().astype("float64"))
    for inputs, body in (
        ([x, w], computed),
        ([x], transposed(x, constant, 4)),
        ([x], transposed(x, weights(4, 2, 3, 3), 4, strides=(2, 2), groups=2)),
        ([x], transposed(x, constant, 4, strides=(2, 2), dilation=(2, 2))),
        ([doubles], transposed(doubles, of_doubles, 4, strides=(2, 2))),
    ):
        mod = module(inputs, body)
        assert tvm.ir.structural_equal(by_phases(mod), mod)


@pytest.mark.costly(8)
def test_compiled_maps_stay_in_blocks_of_channels() -> None:
    x = var("x", (1, 16, 6, 5))

    def conv(data: relay.Expr, seed: int) -> relay.Expr:
        kernel = weights(16, 16, 3, 3, seed=seed)
        return relay.nn.conv2d(data, kernel, padding=(1, 1), channels=16, kernel_size=(3, 3))

    value = transposed(conv(x, 0), weights(16, 16, 2, 2), 16, strides=(2, 2))
    value = relay.nn.relu(relay.nn.bias_add(value, weights(16)))
    uneven = transposed(
        value, weights(16, 3, 3, 4), 3, strides=(2, 3), padding=(1, 0, 0, 2), output_padding=(1, 1)
    )
    mod = module([x], relay.Tuple([conv(value, 1), uneven]))
    inputs = random_inputs(mod)
    expected = run_by_numpy(mod, inputs)
    for kernels in KERNELS:
        with tvm.transform.PassContext(opt_level=3):
            executable = hp.build(
                mod, cpu_cluster(), costs=random_costs, solver="heft", kernels=kernels
            )
        found = hp.Executor(executable).run(**inputs)
        for actual, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())
