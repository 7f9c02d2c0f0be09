"""Products of bytes by VNNI: exact, for any number of rows and columns."""

from __future__ import annotations

import numpy as np
import onnx_models as om
import pytest
import tvm
from relay_models import TARGET
from tvm import relay

from heteroplace.parts.kernels.cpu.grouped_matmul_op import INT8_MATMUL
from heteroplace.parts.kernels.rewrites.int8_products import with_int8_products
from heteroplace.relay.targets import kernel_target, multiplies_integers

OWN = kernel_target(tvm.target.Target(TARGET))
pytestmark = [
    pytest.mark.relay,
    pytest.mark.skipif(not multiplies_integers(OWN), reason="this processor has no VNNI"),
]


def dense(rows: int, columns: int, depth: int, weights: np.ndarray) -> relay.Function:
    """A product with constant weights and what a quantised network has behind it."""
    x = relay.var("x", shape=(rows, depth), dtype="uint8")
    total = relay.nn.dense(x, relay.const(weights), out_dtype="int32")
    steps = relay.add(total, relay.const(np.arange(columns, dtype="int32")))
    function = relay.Function([x], steps)
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]


def rewritten(function: relay.Function) -> tvm.IRModule:
    with OWN:
        new = with_int8_products(function)
    return relay.transform.InferType()(tvm.IRModule.from_expr(new))


@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [
        (1, 100, 36),
        (2, 64, 64),
        (3, 48, 8),
        (7, 130, 36),
        (20, 8210, 16),
        (33, 48, 128),
        (2, 1024, 4096),
        (5, 2048, 2048),
    ],
)
def test_products_are_exact(rows: int, columns: int, depth: int) -> None:
    rng = np.random.default_rng(columns)
    weights = rng.integers(-128, 128, (columns, depth)).astype("int8")
    weights[0], weights[-1] = -128, 127
    data = rng.integers(0, 256, (rows, depth)).astype("uint8")
    data[0] = 255
    mod = rewritten(dense(rows, columns, depth, weights))
    assert relay.analysis.list_op_freqs(mod)[INT8_MATMUL.name] == 1
    expected = data.astype("int32") @ weights.T.astype("int32") + np.arange(columns)
    np.testing.assert_array_equal(om.run_tvm(mod, {}, {"x": data}, 3, OWN)[0], expected)


@pytest.mark.parametrize(("columns", "depth"), [(64, 63), (8, 64)])
def test_other_sizes_stay_with_tvm(columns: int, depth: int) -> None:
    function = dense(4, columns, depth, np.ones((columns, depth), "int8"))
    assert INT8_MATMUL.name not in relay.analysis.list_op_freqs(rewritten(function))


def test_panels_have_four_numbers_of_a_column_side_by_side() -> None:
    weights = np.arange(-64, 64).reshape(16, 8).astype("int8")
    with OWN:
        panels = INT8_MATMUL.panels(weights)
    assert panels.shape == (1, 2, 16, 4)
    for column in range(16):
        np.testing.assert_array_equal(panels[0, :, column].ravel(), weights[column])


def test_weights_of_two_products_lie_in_memory_once() -> None:
    x = relay.var("x", shape=(4, 64), dtype="uint8")
    weights = relay.const(np.ones((64, 64), "int8"))
    first = relay.nn.dense(x, weights, out_dtype="int32")
    second = relay.nn.dense(relay.add(x, relay.const(1, "uint8")), weights, out_dtype="int32")
    function = relay.Function([x], relay.add(first, second))
    typed = relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]
    constants: list[relay.Constant] = []
    relay.analysis.post_order_visit(
        rewritten(typed)["main"],
        lambda node: constants.append(node) if isinstance(node, relay.Constant) else None,
    )
    assert len([each for each in constants if len(each.data.shape) == 4]) == 1
