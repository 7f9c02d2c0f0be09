"""Weights in panels: products of any number of rows, each row the same in all of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
import tvm.contrib.graph_executor
from hypothesis import given
from hypothesis import strategies as st
from relay_models import run_by_tvm, var
from tvm import relay, te

from heteroplace.errors import LoweringError
from heteroplace.parts.kernels.cpu.packed_matmul_op import (
    PACKED_MATMUL_OP,
    packed,
    packed_matmul,
)
from heteroplace.parts.kernels.cpu.product_tiles import TiledProduct, tiling
from heteroplace.parts.kernels.cpu.register_tiles import tile_intrinsic
from heteroplace.parts.kernels.rewrites.unpacked import Panels, ReadWeightsInPlace
from heteroplace.relay.targets import STOCK_KERNELS
from tests.strategies import exact_cases

TARGET = tvm.target.Target("llvm -mcpu=haswell")


def product(rows: np.ndarray, weights: np.ndarray, is_fused: bool) -> np.ndarray:
    """Of the rows and the transposed weights, by the op; `is_fused`: a relu behind it."""
    with TARGET, tvm.transform.PassContext(opt_level=3):
        panels = relay.const(packed(weights, str(weights.dtype)), str(weights.dtype))
        y = packed_matmul(var("x", rows.shape, str(rows.dtype)), panels, len(weights))
        body = relay.nn.relu(y) if is_fused else y
        return run_by_tvm(body, TARGET, x=rows)


def check_product(whole: np.ndarray, rows: np.ndarray, weights: np.ndarray, is_fused: bool) -> None:
    """Compare with the same in 64 bits."""
    expected = rows.astype("float64") @ weights.astype("float64").T
    if is_fused:
        expected = np.maximum(expected, 0)
    bound = 1e-5 if rows.dtype == "float32" else 1e-14
    np.testing.assert_allclose(whole, expected, rtol=0, atol=bound * np.abs(expected).max())


@pytest.mark.costly
@pytest.mark.parametrize(("depth", "is_fused"), [(24, True), (1024, False)])
def test_a_row_is_the_same_in_products_of_any_number_of_rows(depth: int, is_fused: bool) -> None:
    random = np.random.default_rng(depth)
    rows = random.standard_normal((17, depth)).astype("float32")
    weights = random.standard_normal((48, depth)).astype("float32")
    whole = product(rows, weights, is_fused)
    check_product(whole, rows, weights, is_fused)
    for count in (5, 13):
        np.testing.assert_array_equal(product(rows[:count], weights, is_fused), whole[:count])


@pytest.mark.costly
@given(
    rows=st.integers(1, 40),
    depth=st.sampled_from([1, 3, 16, 1024]),
    columns=st.integers(1, 70),
    dtype=st.sampled_from(["float32", "float64"]),
    is_fused=st.booleans(),
)
@exact_cases(6)
def test_products_of_any_shape_are_those_of_numpy(
    rows: int, depth: int, columns: int, dtype: str, is_fused: bool
) -> None:
    random = np.random.default_rng(rows * columns)
    left = random.standard_normal((rows, depth)).astype(dtype)
    weights = random.standard_normal((columns, depth)).astype(dtype)
    check_product(product(left, weights, is_fused), left, weights, is_fused)


@pytest.mark.parametrize(
    ("keys", "opt_level", "is_packed"),
    [("cpu", 3, True), ("cpu", 2, False), (f"{STOCK_KERNELS},cpu", 3, False)],
)
def test_dense_layers_are_packed_where_layouts_change_and_kernels_are_ours(
    keys: str, opt_level: int, is_packed: bool
) -> None:
    target = tvm.target.Target(f"llvm -mcpu=haswell -keys={keys}")
    y = relay.nn.dense(var("x", (3, 8)), relay.const(np.ones((17, 8), "float32")))
    mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y))
    mod = relay.transform.InferType()(mod)
    with tvm.transform.PassContext(opt_level=opt_level):
        made = relay.transform.InferType()(ReadWeightsInPlace(target)(mod))["main"].body
    assert made.op.name == (PACKED_MATMUL_OP if is_packed else "nn.dense")
    assert [int(extent) for extent in made.checked_type.shape] == [3, 17]


@pytest.mark.parametrize("is_transposed", [True, False])
def test_constants_of_products_are_packed_as_they_are_meant(is_transposed: bool) -> None:
    matrix = (np.arange(24) / 7).reshape((6, 4) if is_transposed else (4, 6))
    x = var("x", (3, 4), "float64")
    y = relay.nn.matmul(x, relay.const(matrix, "float64"), transpose_b=is_transposed)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x], y)))
    with tvm.transform.PassContext(opt_level=3):
        made = ReadWeightsInPlace(TARGET)(mod)["main"].body
    assert made.op.name == PACKED_MATMUL_OP
    with TARGET:
        expected = packed(matrix if is_transposed else matrix.T, "float64")
    np.testing.assert_array_equal(made.args[1].data.numpy(), expected)


def test_tiles_hold_all_rows_with_few_more() -> None:
    for rows in range(1, 200):
        for most in (4, 6, 9):
            for block_rows in (most, 64, 4096):
                tile, tiles, blocks = tiling(rows, most, block_rows)
                assert 1 <= tile <= min(rows, most)
                assert rows <= tile * tiles * blocks
                if block_rows == 4096:
                    # No other tile is less work, of rows that count, and one more for each tile.
                    sizes = range(1, min(rows, most) + 1)
                    works = [-(-rows // size) * (size + 1) for size in sizes]
                    assert tiles * (tile + 1) == min(works)
                    if most > 4:
                        assert tile * tiles - rows <= max(1, rows // 5)


def asked(rows: int, depth: int, columns: int) -> tuple[int, int, list[int]]:
    """Places in depth of a part of a panel of 48 columns, bytes for which a tile asks memory with
    each of them, and how far behind the part each tile of a block begins to."""
    target = tvm.target.Target("llvm -mcpu=skylake-avx512")
    with target, tvm.transform.PassContext(config={"tir.disable_cse_tir": True}):
        left = te.placeholder((rows, depth), "float32", "left")
        right = te.placeholder((columns // 48, depth, 48), "float32", "right")
        tiled = TiledProduct((), rows, columns, depth, 48, "float32", "float32")
        stored = tiled.compute(
            lambda y, at: left[y, at], lambda panel, at, x: right[panel, at, x], "product"
        )
        schedule = te.create_schedule(stored.op)
        tiled.schedule(schedule, stored.op.input_tensors[0], stored)
        lowered = tvm.lower(schedule, [left, right, stored])["main"]
        tiles = tiled.tiling().tiles
    calls, loops = [], []

    def visit(node: tvm.runtime.Object) -> None:
        if isinstance(node, tvm.tir.For):
            loops.append(node)
        if isinstance(node, tvm.tir.Call) and node.op.name == "tir.call_extern":
            calls.append(node)

    tvm.tir.stmt_functor.post_order_visit(lowered.body, visit)
    (call,) = calls
    match = re.search(r"_prefetches(\d+)x(\d+)x(\d+)", call.args[0].value)
    if match is None:
        return depth, 0, []
    pages, num_bytes, places = map(int, match.groups())

    def begin(tile: int) -> int:
        at = {loop.loop_var: tile if int(loop.extent) == tiles else 0 for loop in loops}
        given = {loop: tvm.tir.const(number, loop.dtype) for loop, number in at.items()}
        made = tvm.tir.stmt_functor.substitute(call.args[-1], given)
        return int(tvm.arith.Analyzer().simplify(made))

    return places, pages * num_bytes, [begin(tile) for tile in range(tiles)]


@pytest.mark.parametrize(
    ("rows", "depth", "tiles", "places"),
    [
        (9, 768, 1, 384),
        (19, 768, 3, 768),
        (19, 3072, 3, 768),
        (45, 3072, 5, 1536),
        (45, 768, 5, 768),
    ],
)
def test_tiles_share_in_asking_for_what_lies_behind_what_they_read(
    rows: int, depth: int, tiles: int, places: int
) -> None:
    found, tile_bytes, begins = asked(rows, depth, 48 * 64)
    assert (found, len(begins)) == (places, tiles)
    assert 48 * 4 <= tile_bytes * tiles < 1.1 * 48 * 4
    assert begins == [places * (48 * 4 + number * tile_bytes) for number in range(tiles)]


def test_small_matrices_and_panels_without_equal_parts_are_read_whole() -> None:
    assert asked(33, 64, 48 * 16) == (64, 0, [])
    assert asked(9, 769, 48 * 64)[0] == 769


def test_columns_behind_the_last_are_zeros() -> None:
    with TARGET:
        panels = packed(np.arange(1, 1 + 20 * 3, dtype="float32").reshape(20, 3), "float32")
        few = packed(np.ones((3, 5), "float32"), "float32")
    assert panels.shape == (1, 3, 24)
    np.testing.assert_array_equal(panels[0, 2, :20], np.arange(20) * 3 + 3)
    assert not panels[:, :, 20:].any()
    assert few.shape == (1, 5, 4)


def test_each_target_has_panels_of_its_own() -> None:
    weights = relay.const(np.ones((120, 24), "float32"))
    x = var("x", (4, 24))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.nn.dense(x, weights)))
    mod = relay.transform.InferType()(mod)
    shared: Panels = {}
    shapes = []
    with tvm.transform.PassContext(opt_level=3):
        for target in ("llvm -mcpu=core2", "llvm -mcpu=haswell", "llvm -mcpu=skylake-avx512"):
            made, alone = (
                ReadWeightsInPlace(tvm.target.Target(target), panels)(mod)["main"]
                for panels in (shared, {})
            )
            tvm.ir.assert_structural_equal(made, alone)
            shapes.append(made.body.args[1].data.shape)
    assert len(set(shapes)) > 1


def test_a_tile_of_parts_of_vectors_is_refused() -> None:
    with pytest.raises(LoweringError, match="24 columns is not one of whole vectors of 16"):
        tile_intrinsic((4, 24, 8), 16, "float32", is_left_transposed=False)
