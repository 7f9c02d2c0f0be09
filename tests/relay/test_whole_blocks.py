"""Channels with zeros behind them: the same numbers, and no map in blocks of odd sizes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import given
from numpy_relay import run_by_numpy
from own_kernels import check_by_all_kernels
from relay_models import TARGET, module, random_inputs, var, weights
from tvm import relay

from heteroplace.parts.kernels.rewrites.whole_blocks import WholeBlocks
from heteroplace.relay.expressions import is_op_call, post_order
from heteroplace.relay.targets import float_lanes
from tests.corpus import corpus
from tests.strategies import exact_cases

pytestmark = pytest.mark.relay

_LANES = 8


def in_whole_blocks(mod: tvm.IRModule) -> tvm.IRModule:
    passes = [relay.transform.InferType(), WholeBlocks(_LANES), relay.transform.InferType()]
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(mod)


def conv(
    data: relay.Expr,
    num_in: int,
    num_out: int,
    kernel: int = 1,
    seed: int = 0,
    scales: relay.Expr | None = None,
) -> relay.Call:
    """With filters that are scaled for each channel that they read."""
    filters: relay.Expr = weights(num_out, num_in, kernel, kernel, seed=seed)
    if scales is not None:
        filters = relay.multiply(filters, relay.mean(scales, 0, keepdims=True))
    value = relay.nn.conv2d(
        data,
        filters,
        channels=num_out,
        kernel_size=(kernel, kernel),
        padding=(kernel // 2, kernel // 2),
    )
    return relay.add(value, weights(num_out, 1, 1, seed=seed + 1))


def depthwise(data: relay.Expr, channels: int) -> relay.Call:
    return relay.nn.conv2d(
        data,
        weights(channels, 1, 3, 3),
        channels=channels,
        kernel_size=(3, 3),
        padding=(1, 1),
        groups=channels,
    )


def conv_shapes(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    nodes = post_order(mod["main"].body)
    return [
        tuple(int(extent) for extent in node.checked_type.shape)
        for node in nodes
        if is_op_call(node, "nn.conv2d")
    ]


@corpus
def random_maps(random: Random) -> tvm.IRModule:
    """Layers of random channels, some with a gate of maps or of filters, or a joined map."""
    size, channels = random.randint(1, 6), random.randint(1, 12)
    x = var("x", (random.randint(1, 2), channels, size, size))
    value = x
    for layer in range(random.randint(1, 5)):
        before, channels = channels, random.randint(1, 20)
        scales = random.choice((None, None, relay.nn.global_avg_pool2d(value)))
        value = conv(value, before, channels, random.choice((1, 3)), layer, scales)
        for _ in range(random.randint(0, 3)):
            kind = random.choice(("relu", "swish", "depthwise", "gate", "joined", "sum"))
            if kind == "relu":
                value = relay.nn.relu(value)
            elif kind == "swish":
                value = relay.multiply(value, relay.sigmoid(value))
            elif kind == "depthwise":
                value = depthwise(value, channels)
            elif kind == "gate":
                gate = conv(relay.nn.global_avg_pool2d(value), channels, channels, seed=9)
                value = relay.multiply(value, relay.sigmoid(gate))
            elif kind == "joined":
                value, channels = relay.concatenate([value, relay.tanh(value)], 1), 2 * channels
            else:
                value = relay.maximum(relay.tanh(value), value)
    return module([x], random.choice((relay.nn.batch_flatten(value), relay.nn.relu(value))))


@pytest.mark.costly(20)
@given(random_maps())
@exact_cases(10)
def test_numbers_are_the_same(mod: tvm.IRModule) -> None:
    found = in_whole_blocks(mod)
    inputs = {name: array.astype("float64") for name, array in random_inputs(mod).items()}
    with np.errstate(over="ignore"):  # a sigmoid far below 0 is 0
        (expected,), (actual,) = run_by_numpy(mod, inputs), run_by_numpy(found, inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_layers_between_others_have_whole_blocks() -> None:
    x = var("x", (1, 16, 32, 32))
    value = relay.nn.relu(conv(relay.nn.relu(conv(x, 16, 12)), 12, 20))
    mod = in_whole_blocks(module([x], conv(depthwise(value, 20), 20, 8)))
    assert [shape[1] for shape in conv_shapes(mod)] == [16, 24, 24, 8]
    assert not [node for node in post_order(mod["main"].body) if is_op_call(node, "nn.pad")]


def test_maps_that_others_read_and_those_that_would_double_stay() -> None:
    x = var("x", (1, 8, 32, 32))
    once = conv(x, 8, 12)
    joined = relay.concatenate([once, x], 1)
    doubled = conv(conv(x, 8, 4), 4, 8)
    ended = conv(x, 8, 12)
    for body in (conv(joined, 20, 8), doubled, ended, conv(relay.log(once), 12, 8)):
        mod = relay.transform.InferType()(module([x], body))
        assert tvm.ir.structural_equal(in_whole_blocks(mod), mod)


def test_what_is_small_is_cut_where_others_read_it() -> None:
    x = var("x", (1, 8, 32, 32))
    means = relay.nn.global_avg_pool2d(conv(x, 8, 12))
    mod = in_whole_blocks(module([x], relay.nn.batch_flatten(means)))
    (cut,) = [node for node in post_order(mod["main"].body) if is_op_call(node, "strided_slice")]
    assert [int(extent) for extent in cut.checked_type.shape] == [1, 12, 1, 1]


def test_a_vector_of_the_target_is_a_block() -> None:
    assert float_lanes(tvm.target.Target("llvm -mcpu=skylake-avx512")) == 16
    assert float_lanes(tvm.target.Target("llvm -mcpu=haswell")) == 8


@pytest.mark.costly
def test_a_block_of_a_network_has_its_numbers_by_all_kernels() -> None:
    lanes = float_lanes(tvm.target.Target(TARGET))
    narrow, wide = lanes + lanes // 2, 4 * lanes + lanes // 2
    x = var("x", (1, lanes, 12, 12))
    value = conv(x, lanes, narrow)
    inner = relay.nn.relu(conv(value, narrow, wide))
    inner = relay.nn.relu(depthwise(inner, wide))
    gate = relay.sigmoid(conv(relay.nn.global_avg_pool2d(inner), wide, wide))
    value = relay.add(value, conv(relay.multiply(inner, gate), wide, narrow))
    mod = module([x], relay.nn.relu(conv(value, narrow, 2 * lanes, 3)))
    check_by_all_kernels(mod, random_inputs(mod))


@pytest.mark.parametrize("channels", [2, 3, 5, 6, 7])
def test_a_gate_of_one_channel_scales_all_of_a_padded_map(channels: int) -> None:
    x = var("x", (1, 8, 6, 6))
    maps = conv(x, 8, channels, 3)
    gate = relay.nn.conv2d(maps, weights(1, channels, 6, 6), channels=1, kernel_size=(6, 6))
    mod = module([x], conv(relay.multiply(maps, relay.sigmoid(gate)), channels, 4))
    with tvm.transform.PassContext(opt_level=3):
        passes = [relay.transform.InferType(), WholeBlocks(4), relay.transform.InferType()]
        found = tvm.transform.Sequential(passes)(mod)
    inputs = {name: array.astype("float64") for name, array in random_inputs(mod).items()}
    (expected,), (actual,) = run_by_numpy(mod, inputs), run_by_numpy(found, inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)
