"""Weights in panels: products of any number of rows, each row the same in all of them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm.contrib.graph_executor
from relay_models import var
from tvm import relay

from heteroplace.codegen.packed_matmul_op import (
    PACKED_MATMUL_OP,
    packed,
    packed_matmul,
    tile_rows,
)
from heteroplace.codegen.targets import STOCK_KERNELS
from heteroplace.codegen.unpacked import ReadWeightsInPlace

TARGET = tvm.target.Target("llvm -mcpu=haswell")


def product(rows: np.ndarray, weights: np.ndarray, is_fused: bool) -> np.ndarray:
    """Of the rows and the transposed weights, by the op; `is_fused`: a relu behind it."""
    with TARGET, tvm.transform.PassContext(opt_level=3):
        panels = packed(weights)
        assert panels is not None
        y = packed_matmul(var("x", rows.shape), relay.const(panels))
        body = relay.nn.relu(y) if is_fused else y
        mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))
        library = relay.build(mod, target=TARGET)
    module = tvm.contrib.graph_executor.GraphModule(library["default"](tvm.cpu()))
    module.run(x=rows)
    return module.get_output(0).numpy()


@pytest.mark.costly
@pytest.mark.parametrize(("depth", "is_fused"), [(24, True), (1024, False)])
def test_a_row_is_the_same_in_products_of_any_number_of_rows(depth: int, is_fused: bool) -> None:
    random = np.random.default_rng(depth)
    rows = random.standard_normal((17, depth)).astype("float32")
    weights = random.standard_normal((48, depth)).astype("float32")
    whole = product(rows, weights, is_fused)
    expected = rows.astype("float64") @ weights.T
    if is_fused:
        expected = np.maximum(expected, 0)
    np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    for count in (5, 13):
        np.testing.assert_array_equal(product(rows[:count], weights, is_fused), whole[:count])


@pytest.mark.parametrize("keys", ["cpu", f"{STOCK_KERNELS},cpu"])
def test_only_dense_layers_of_branches_are_packed_and_none_where_kernels_are_tvms(
    keys: str,
) -> None:
    target = tvm.target.Target(f"llvm -mcpu=haswell -keys={keys}")
    y = relay.nn.dense(var("x", (3, 8)), relay.const(np.ones((16, 8), "float32")))
    mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y))
    mod = relay.transform.InferType()(mod)
    with target:
        plain = ReadWeightsInPlace(target)(mod)["main"].body.op.name
        branch = ReadWeightsInPlace(target, {})(mod)["main"].body.op.name
    assert plain == "nn.dense"
    assert branch == ("nn.dense" if STOCK_KERNELS in keys else PACKED_MATMUL_OP)


def test_tiles_hold_all_rows_with_few_more() -> None:
    for rows in range(1, 200):
        for most in (4, 6, 9):
            tile = tile_rows(rows, most)
            assert 1 <= tile <= min(rows, most)
            extra = -(-rows // tile) * tile - rows
            assert extra <= max(1, rows // 5)


def test_weights_of_no_whole_panels_stay_as_they_are() -> None:
    with TARGET:
        assert packed(np.zeros((12, 4), "float32")) is None
        panels = packed(np.arange(24 * 3, dtype="float32").reshape(24, 3))
    assert panels is not None
    assert panels.shape == (3, 3, 8)
    np.testing.assert_array_equal(panels[1, 2], np.arange(8, 16) * 3 + 2)
