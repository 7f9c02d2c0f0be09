"""What cuDNN can compute of a fused function, by its Relay pattern."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relay

from heteroplace.lower.library_symbols import is_library_kernel, library_workspace_bytes
from heteroplace.parts.kernels.nvidia.cudnn_convolutions import Convolution, convolution_of

pytestmark = pytest.mark.relay


def var(name: str, *shape: int, dtype: str = "float32") -> relay.Var:
    return relay.var(name, shape=shape, dtype=dtype)


X, W, SUM = var("x", 1, 4, 8, 8), var("w", 6, 4, 3, 3), var("s", 1, 6, 6, 6)
BIAS = var("b", 6, 1, 1)


def conv(data: relay.Expr = X, filters: relay.Expr = W, **attributes: Any) -> relay.Expr:
    return relay.nn.conv2d(data, filters, **attributes)


def found(body: relay.Expr) -> Convolution | None:
    """What the function of a body is, its parameters in the order of their first use."""
    function = relay.Function(relay.analysis.free_vars(body), body)
    return convolution_of(relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"])


def name_of(body: relay.Expr) -> str | None:
    kernel = found(body)
    return None if kernel is None else kernel.name


PLAIN = "1x4x8x8x6x3x3:1x1x0x0x1x1x1"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (conv(), f"{PLAIN}:none:0,1,-,-"),
        (conv() + BIAS, f"{PLAIN}:none:0,1,2,-"),
        (BIAS + conv(), f"{PLAIN}:none:1,2,0,-"),
        (conv() + var("b", 1, 6, 1, 1), f"{PLAIN}:none:0,1,2,-"),
        (relay.nn.bias_add(conv(), var("b", 6)), f"{PLAIN}:none:0,1,2,-"),
        (relay.nn.bias_add(conv(), var("b", 6), axis=-3), f"{PLAIN}:none:0,1,2,-"),
        (relay.nn.relu(conv() + BIAS), f"{PLAIN}:relu:0,1,2,-"),
        (relay.nn.relu(conv() + BIAS + SUM), f"{PLAIN}:relu:0,1,2,3"),
        (relay.nn.relu(SUM + conv()), f"{PLAIN}:relu:1,2,-,0"),
        (relay.nn.batch_flatten(relay.nn.relu(conv())), f"{PLAIN}:relu:0,1,-,-"),
        (
            conv(strides=(2, 1), padding=(1, 2), dilation=(1, 2)),
            "1x4x8x8x6x3x3:2x1x1x2x1x2x1:none:0,1,-,-",
        ),
        (
            conv(filters=var("w", 4, 1, 3, 3), groups=4),
            "1x4x8x8x4x3x3:1x1x0x0x1x1x4:none:0,1,-,-",
        ),
    ],
)
def test_the_patterns_of_networks_are_convolutions(body: relay.Expr, name: str) -> None:
    assert name_of(body) == name


@pytest.mark.parametrize(
    "body",
    [
        relay.nn.dense(var("x", 8, 64), var("w", 32, 64)),
        relay.nn.relu(SUM),
        conv(padding=(0, 0, 1, 1)),
        conv(var("x", 1, 8, 8, 4), var("w", 3, 3, 4, 6), data_layout="NHWC", kernel_layout="HWIO"),
        conv(var("x", 1, 4, 8, 8, dtype="float16"), var("w", 6, 4, 3, 3, dtype="float16")),
        conv(var("x", 1, 4, 8, 8, dtype="int8"), var("w", 6, 4, 3, 3, dtype="int8")),
        conv(relay.nn.relu(X)),
        conv() * BIAS,
        relay.tanh(conv()),
        relay.nn.relu(relay.nn.relu(conv()) + BIAS),
        conv() + var("b", 6, 6),
        conv() + var("b", 1, 1, 1, 6),
        relay.nn.bias_add(conv(), var("b", 6), axis=2),
        conv() + BIAS + var("b2", 6, 1, 1),
        conv() + conv(X, var("w2", 6, 4, 3, 3)),
        conv() + conv(),
        conv() + var("batch", 2, 6, 6, 6),
        relay.clip(conv(), 0, 6),
        relay.reshape(conv(), (6, 6, 6)) + BIAS,
        relay.nn.conv2d_transpose(X, var("w", 4, 6, 3, 3)),
    ],
)
def test_what_it_cannot_compute_is_left_to_tvm(body: relay.Expr) -> None:
    assert found(body) is None


def test_a_symbol_says_what_it_needs() -> None:
    kernel = found(relay.nn.relu(conv() + BIAS + SUM))
    assert kernel is not None
    symbol = kernel.head("tf32", 91002) + "4096:1"
    assert is_library_kernel(symbol)
    assert library_workspace_bytes(symbol) == 4096
    assert library_workspace_bytes(kernel.unchosen("half")) == 0
    assert kernel.operand_sizes == {0: 256, 1: 216, 2: 6, 3: 216}
    assert kernel.result_shape == (1, 6, 6, 6)


def test_keys_differ_by_precision_and_architecture() -> None:
    kernel = found(conv())
    assert kernel is not None
    targets = [tvm.target.Target(f"cuda -arch={arch}") for arch in ("sm_80", "sm_90")]
    keys = {kernel.key(name, each) for name in ("float32", "tf32", "half") for each in targets}
    assert len(keys) == 6


def test_tensors_that_are_too_large_for_the_library_stay_with_tvm() -> None:
    filters = var("w", 64, 64, 3, 3)
    for rows, is_theirs in ((31, True), (32, False)):  # 2**31 numbers are one too many
        body = conv(var("x", rows, 64, 1024, 1024), filters, padding=(1, 1))
        assert (found(body) is not None) == is_theirs
