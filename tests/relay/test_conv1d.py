"""One-dimensional convolutions as matrix products and as convolutions of maps with one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_models as om
import pytest
import tvm
from relay_models import TARGET
from tvm import relay

from heteroplace.parts.kernels.rewrites import conv1d
from heteroplace.parts.kernels.rewrites.conv1d import without_conv1d

pytestmark = pytest.mark.relay

SHAPES = [(1, 3, 20), (2, 8, 33), (3, 16, 17)]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"strides": 2},
    {"padding": (2, 1)},
    {"padding": (0, 3), "strides": 3},
    {"dilation": 2, "padding": 2},
]


def convolution(shape: tuple[int, ...], outs: int, size: int, **options: Any) -> tvm.IRModule:
    """A convolution with what is elementwise behind it."""
    groups = options.get("groups", 1)
    rng = np.random.default_rng(size)
    filters = rng.standard_normal((outs, shape[1] // groups, size)).astype("float32")
    x = relay.var("x", shape=shape)
    y = relay.nn.conv1d(x, relay.const(filters), channels=outs, kernel_size=size, **options)
    return relay.transform.InferType()(tvm.IRModule.from_expr(relay.nn.relu(y)))


def rewritten(mod: tvm.IRModule) -> tvm.IRModule:
    typed = relay.transform.InferType()(mod)
    new = tvm.IRModule.from_expr(without_conv1d(typed["main"]))
    return relay.transform.InferType()(new)


def check(mod: tvm.IRModule, op: str) -> None:
    new = rewritten(mod)
    names = relay.analysis.list_op_freqs(new)
    assert "nn.conv1d" not in names
    assert op in names
    shape = [int(extent) for extent in mod["main"].params[0].checked_type.shape]
    data = np.random.default_rng(0).standard_normal(shape).astype("float32")
    ours, stock = (om.run_tvm(each, {}, {"x": data}, 3, TARGET)[0] for each in (new, mod))
    np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_convolution_is_a_product(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    is_map = "dilation" in options
    check(convolution(shape, 10, 5, **options), "nn.conv2d" if is_map else "nn.dense")


@pytest.mark.parametrize("groups", [2, 8])
@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
def test_one_of_groups_is_a_map(groups: int, options: dict[str, Any]) -> None:
    check(convolution((2, 8, 33), 16, 3, groups=groups, **options), "nn.conv2d")


def test_long_lines_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = convolution((1, 8, 40), 16, 3)
    check(mod, "nn.dense")
    monkeypatch.setattr(conv1d, "_MAX_WINDOWS", 8 * 3 * 38 - 1)
    check(mod, "nn.conv2d")


def test_weights_that_are_computed_stay() -> None:
    x, filters = relay.var("x", shape=(1, 3, 9)), relay.var("w", shape=(4, 3, 3))
    mod = tvm.IRModule.from_expr(relay.nn.conv1d(x, filters, channels=4, kernel_size=3))
    assert relay.analysis.list_op_freqs(rewritten(mod))["nn.conv1d"] == 1
