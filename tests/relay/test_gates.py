"""Gates of channels: which operand they scale, and how often they are computed."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import given
from numpy_relay import run_by_numpy
from relay_models import TARGET, cpu_cluster, module, random_costs, random_inputs, var, weights
from tvm import relay

import heteroplace as hp
from heteroplace.parts.kernels.rewrites.gates import ComputeOnce, ScaleMaps
from heteroplace.place_options import KERNELS
from heteroplace.relay.expressions import is_op_call, post_order
from heteroplace.relay.targets import OWN_KERNELS, kernel_target, with_stock_kernels
from heteroplace.relay.tasks.prepare import fuse
from tests.corpus import corpus
from tests.strategies import exact_cases

pytestmark = pytest.mark.relay


def gated(channels: int, size: int, out: int, kernel: int = 1) -> tvm.IRModule:
    """A squeeze-and-excite block as FoldScaleAxis leaves it: the gate scales the weights."""
    x = var("x", (1, channels, size, size))
    data = relay.nn.relu(x)
    gate = relay.sigmoid(relay.nn.global_avg_pool2d(data))
    scale = relay.expand_dims(relay.squeeze(gate, axis=[0, 2, 3]), axis=1, num_newaxis=2)
    weight = relay.multiply(weights(out, channels, kernel, kernel), scale)
    body = relay.nn.conv2d(data, weight, channels=out, kernel_size=(kernel, kernel))
    return module([x], body)


def rewritten(mod: tvm.IRModule) -> tvm.IRModule:
    return tvm.transform.Sequential([ScaleMaps(), relay.transform.InferType()])(mod)


def calls_of(mod: tvm.IRModule, name: str) -> list[relay.Call]:
    return [node for node in post_order(mod["main"].body) if is_op_call(node, name)]


@corpus
def random_gated(random: Random) -> tvm.IRModule:
    kernel = random.choice((1, 1, 3))
    size = random.randint(kernel, 9)
    return gated(random.randint(1, 9), size, random.randint(1, 40), kernel)


@pytest.mark.costly(6)
@given(random_gated())
@exact_cases(30)
def test_numbers_are_the_same_and_less_is_scaled(mod: tvm.IRModule) -> None:
    found = rewritten(mod)
    (before,), (after,) = calls_of(mod, "multiply"), calls_of(found, "multiply")
    sizes = [np.prod([int(n) for n in call.checked_type.shape]) for call in (before, after)]
    # An element of the weights counts as eight, since it is brought into its block too.
    assert tvm.ir.structural_equal(mod, found) or sizes[1] <= 8 * sizes[0]
    inputs = {name: array.astype("float64") for name, array in random_inputs(mod).items()}
    (expected,), (actual,) = run_by_numpy(mod, inputs), run_by_numpy(found, inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "out"), [("int8", "int32"), ("float16", "float16")])
def test_a_type_that_a_product_may_leave_is_not_scaled(dtype: str, out: str) -> None:
    x = var("x", (1, 4), dtype)
    weight = relay.multiply(relay.max(x, axis=0), relay.const(np.ones((2, 4), dtype)))
    mod = module([x], relay.nn.dense(x, weight, out_dtype=out))
    assert tvm.ir.structural_equal(rewritten(mod), relay.transform.InferType()(mod))


def test_a_small_map_is_scaled_by_the_gate_itself() -> None:
    mod = rewritten(gated(16, 7, 24))
    (conv,) = calls_of(mod, "nn.conv2d")
    assert isinstance(conv.args[1], relay.Constant)
    data, gate = conv.args[0].args
    assert is_op_call(data, "nn.relu") and is_op_call(gate, "sigmoid")


def test_a_large_map_and_a_gate_of_another_map_stay() -> None:
    large = gated(4, 32, 2)
    x, scale = var("x", (1, 64)), var("scale", (64,))
    product = relay.nn.dense(x, relay.multiply(weights(10, 64), scale), units=10)
    for mod in (large, module([x, scale], product)):
        assert tvm.ir.structural_equal(rewritten(mod), mod)


def test_a_dense_layer_is_given_scaled_rows() -> None:
    x = var("x", (3, 64))
    row = relay.nn.relu(x)
    gate = relay.clip(relay.mean(row, 0), 0, 1)
    mod = module([x], relay.nn.dense(row, relay.multiply(gate, weights(10, 64)), units=10))
    found = rewritten(mod)
    assert isinstance(calls_of(found, "nn.dense")[0].args[1], relay.Constant)
    inputs = random_inputs(mod)
    np.testing.assert_allclose(
        run_by_numpy(found, inputs)[0], run_by_numpy(mod, inputs)[0], rtol=1e-5, atol=1e-5
    )


def test_a_gate_is_a_kernel_of_its_own() -> None:
    x, y = var("x", (1, 16, 16, 16)), var("y", (1, 16, 1, 1))
    mod = module([x, y], relay.multiply(relay.nn.relu(x), relay.sigmoid(relay.exp(y))))
    assert len(_groups(mod)) == 1
    once = tvm.transform.Sequential([relay.transform.InferType(), ComputeOnce()])(mod)
    assert sorted(_groups(once)) == ["exp+sigmoid", "nn.relu+multiply"]


def _groups(mod: tvm.IRModule) -> list[str]:
    nodes = post_order(fuse(mod)["main"].body)
    functions = [node.op for node in nodes if isinstance(node, relay.Call)]
    return [
        "+".join(node.op.name for node in post_order(each.body) if isinstance(node, relay.Call))
        for each in functions
    ]


def test_layouts_change_in_kernels_of_their_own_around_what_is_padded() -> None:
    x = var("x", (1, 2, 4, 4, 16))
    plain = relay.layout_transform(x, "NCHW16c", "NCHW")
    padded = relay.nn.pad(relay.multiply(plain, plain), ((0, 0), (1, 1), (0, 0), (0, 0)))
    window = relay.strided_slice(padded, (1,), (33,), (1,), axes=(1,))
    blocked = relay.layout_transform(relay.sqrt(window), "NCHW", "NCHW16c")
    mod = module([x], relay.add(blocked, x))
    once = tvm.transform.Sequential([relay.transform.InferType(), ComputeOnce()])(mod)
    apart = [call.args[0].op.name for call in calls_of(once, "annotation.stop_fusion")]
    assert apart == ["layout_transform", "sqrt"]
    found = [
        relay.create_executor("graph", each, tvm.cpu(), TARGET).evaluate()(**random_inputs(mod))
        for each in (once, mod)
    ]
    np.testing.assert_array_equal(found[0].numpy(), found[1].numpy())


def test_targets_of_tvm_kernels_have_no_schedules_of_ours() -> None:
    own = kernel_target(tvm.target.Target(TARGET))
    assert OWN_KERNELS in own.keys and kernel_target(own) == own
    stock = tvm.target.Target(with_stock_kernels(cpu_cluster()).devices[0].target)
    assert kernel_target(stock) == stock and OWN_KERNELS not in stock.keys


@pytest.mark.costly
def test_a_block_of_a_network_has_its_numbers_by_all_kernels() -> None:
    mod = _block()
    inputs = random_inputs(mod)
    (expected,) = run_by_numpy(mod, inputs)
    symbols = {}
    for kernels in KERNELS:
        with tvm.transform.PassContext(opt_level=3):
            executable = hp.build(
                mod, cpu_cluster(), costs=random_costs, solver="heft", kernels=kernels
            )
        symbols[kernels] = executable.manifest.program_text
        (found,) = hp.Executor(executable).run(**inputs)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * abs(expected).max())
    assert "global_mean" in symbols["auto"] and "global_mean" not in symbols["tvm"]


def _block() -> tvm.IRModule:
    """Depthwise convolutions of several sizes and strides, each with a gate."""
    x = var("x", (1, 32, 13, 11))
    value = x
    for index, (kernel, stride, pad) in enumerate(((3, 1, 1), (5, 2, 2), (3, 2, 0))):
        value = relay.nn.conv2d(
            value,
            weights(32, 1, kernel, kernel, seed=index),
            strides=(stride, stride),
            padding=(pad, pad),
            groups=32,
            channels=32,
            kernel_size=(kernel, kernel),
        )
        value = relay.nn.relu(relay.nn.bias_add(value, weights(32, seed=index)))
        gate = relay.sigmoid(relay.nn.global_avg_pool2d(value))
        weight = weights(32, 32, 1, 1, seed=index + 9)
        value = relay.nn.conv2d(
            relay.multiply(value, gate), weight, channels=32, kernel_size=(1, 1)
        )
    return module([x], value)
