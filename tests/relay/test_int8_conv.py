"""Convolutions of 8 bits by our schedule: the sums are those of numpy, to the last bit."""

from __future__ import annotations

import numpy as np
import onnx_models as om
import pytest
import tvm
import tvm.contrib.graph_executor
from numpy_relay import executor_by_numpy
from relay_models import var
from tvm import relay

from heteroplace.parts.kernels.cpu.own_schedules import register_schedules
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.targets import kernel_target, multiplies_integers
from heteroplace.tvm_bridge import llvm_cpu_target

TARGET = tvm.target.Target(llvm_cpu_target().replace(" -keys=amx,cpu", ""))
"""Without AMX, which `test_amx.py` is about."""
pytestmark = pytest.mark.skipif(
    not multiplies_integers(TARGET), reason="this processor has no VNNI"
)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("channels", "size", "stride", "padding", "filter_size", "is_fused"),
    [
        ((16, 16), (7, 6), 1, 1, (3, 3), True),
        ((4, 32), (9, 17), 2, 0, (3, 2), False),
        ((3, 10), (8, 8), 1, 2, (5, 5), True),
        ((36, 16), (4, 16), 1, 0, (2, 2), False),
        ((8, 16), (5, 5), 1, 0, (1, 1), True),
        ((16, 64), (7, 14), 1, 0, (1, 1), True),
        ((64, 48), (6, 6), 2, 0, (1, 1), False),
    ],
)
def test_sums_of_products_are_exact(
    channels: tuple[int, int],
    size: tuple[int, int],
    stride: int,
    padding: int,
    filter_size: tuple[int, int],
    is_fused: bool,
) -> None:
    random = np.random.default_rng(sum(size))
    num_in, num_out = channels
    weight = random.integers(-128, 128, (num_out, num_in, *filter_size)).astype("int8")
    x = random.integers(0, 256, (2, num_in, *size)).astype("uint8")
    y = relay.nn.conv2d(
        var("x", x.shape, "uint8"),
        relay.const(weight),
        strides=(stride, stride),
        padding=(padding, padding),
        channels=num_out,
        kernel_size=filter_size,
        out_dtype="int32",
    )
    if is_fused:
        y = relay.nn.relu(
            y + relay.const(random.integers(-999, 999, (num_out, 1, 1)).astype("int32"))
        )
    _assert_exact(y, x)


@pytest.mark.parametrize(
    ("channels", "size", "stride", "padding", "filter_size", "dilation", "is_fused"),
    [
        (32, (9, 14), 1, 1, (3, 3), 1, True),
        (16, (7, 7), 2, 1, (3, 3), 1, False),
        (48, (8, 6), 1, 2, (5, 5), 1, True),
        (24, (5, 5), 1, 1, (3, 3), 1, False),
        (16, (28, 28), 1, 0, (3, 3), 1, True),
        (16, (15, 31), 2, 0, (3, 3), 1, True),
        (32, (9, 9), 1, 2, (3, 3), 2, False),
        (16, (16, 12), 2, 3, (7, 7), 1, True),
        (16, (4, 16), 3, 0, (1, 2), 1, False),
        (16, (1, 33), 1, (0, 3), (1, 7), 1, True),
    ],
)
def test_sums_of_each_channel_are_exact(
    channels: int,
    size: tuple[int, int],
    stride: int,
    padding: int | tuple[int, int],
    filter_size: tuple[int, int],
    dilation: int,
    is_fused: bool,
) -> None:
    random = np.random.default_rng(channels)
    x = random.integers(0, 256, (2, channels, *size)).astype("uint8")
    x.flat[:100] = 255
    weight = random.integers(-128, 128, (channels, 1, *filter_size)).astype("int8")
    weight[0] = -128
    y = relay.nn.conv2d(
        var("x", x.shape, "uint8"),
        relay.const(weight),
        strides=(stride, stride),
        dilation=(dilation, dilation),
        padding=padding,
        channels=channels,
        groups=channels,
        kernel_size=filter_size,
        out_dtype="int32",
    )
    if is_fused:
        y = relay.nn.relu(y)
    _assert_exact(y, x)


def test_products_of_a_depthwise_convolution_are_by_an_instruction_for_a_vector() -> None:
    y = relay.nn.conv2d(
        var("x", (1, 32, 8, 8), "uint8"),
        relay.const(np.ones((32, 1, 3, 3), "int8")),
        padding=(1, 1),
        channels=32,
        groups=32,
        kernel_size=(3, 3),
        out_dtype="int32",
    )
    assembly = _built(y).get_lib().get_source("asm")
    assert "vpdpbusd" in assembly
    assert "vpmulld" not in assembly


@pytest.mark.costly
def test_a_quantised_convolution_of_a_file_multiplies_bytes() -> None:
    weights = {
        **{"s": np.float32(0.1), "z": np.uint8(3), "w": np.ones((32, 32, 3, 3), "int8")},
        **{"ws": np.full(32, 0.1, "float32"), "wz": np.zeros(32, "int8")},
    }
    node = om.node("QLinearConv", "x s z w ws wz s z", "y", pads=[1] * 4)
    x = np.zeros((1, 32, 8, 8), "uint8")
    imported = from_onnx(om.typed_model([node], {"x": x}, ["y"], weights), simplify=False)
    assembly = _built(imported.mod["main"].body).get_lib().get_source("asm")
    assert "vpdpbusd" in assembly


def _built(y: relay.Expr) -> tvm.relay.backend.executor_factory.GraphExecutorFactoryModule:
    register_schedules()
    with tvm.transform.PassContext(opt_level=3):
        return relay.build(_module(y), target=kernel_target(TARGET))


def _module(y: relay.Expr) -> tvm.IRModule:
    function = relay.Function(relay.analysis.free_vars(y), y)
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))


def _assert_exact(y: relay.Expr, x: np.ndarray) -> None:
    (expected,) = executor_by_numpy(_module(y))({"x": x})
    module = tvm.contrib.graph_executor.GraphModule(_built(y)["default"](tvm.cpu()))
    module.run(x=x)
    np.testing.assert_array_equal(module.get_output(0).numpy(), expected)
