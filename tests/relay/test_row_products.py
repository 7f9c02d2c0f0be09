"""Sums of rows of depthwise filters of 8 bits: the code, and sums that nothing rounds."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from heteroplace.parts.kernels.cpu.row_products import LANES, RowTile, row_products, row_tile
from heteroplace.relay.targets import multiplies_integers
from heteroplace.tvm_bridge import llvm_cpu_target

pytestmark = pytest.mark.relay

WITH_VNNI = "llvm -mcpu=cascadelake"
ROWS, TILES = 70, 2
"""Rows of the filter that are added to each sum, and tiles beside each other."""
FORMS = [(1, 1, 1), (4, 1, 1), (1, 2, 1), (2, 1, 3), (1, 2, 3), (2, 2, 3), (4, 1, 5), (3, 1, 7)]


def kernel(target: str, tile: RowTile) -> tvm.runtime.Module:
    """Sums over ROWS rows of data [rows, columns, LANES] by weights [rows, taps, 1, LANES]."""
    width = tile.columns * TILES
    read = (width - tile.columns) * tile.stride + tile.reads
    data = te.placeholder((ROWS, read, LANES), "uint8", "data")
    weights = te.placeholder((ROWS, tile.taps, 1, LANES), "int8", "weights")
    row, tap = te.reduce_axis((0, ROWS), "row"), te.reduce_axis((0, tile.taps), "tap")
    sums = te.compute(
        (width, LANES),
        lambda x, lane: te.sum(
            data[row, x * tile.stride + tap, lane].astype("int32")
            * weights[row, tap, 0, lane].astype("int32"),
            axis=[row, tap],
        ),
        name="sums",
    )
    schedule = te.create_schedule(sums.op)
    x, lane = sums.op.axis
    outer, inner = schedule[sums].split(x, tile.columns)
    schedule[sums].reorder(outer, row, inner, lane, tap)
    schedule[sums].tensorize(inner, row_products(tile))
    return tvm.build(schedule, [data, weights, sums], target)


def test_four_products_are_one_instruction() -> None:
    code = kernel(WITH_VNNI, RowTile(2, 1, 3)).get_source("asm")
    assert "vpdpbusd" in code and "vpdpbusds" not in code  # which saturates
    assert "vpmulld" not in code
    assert code.count("vpermd") == code.count("vpshufb")


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("taps", [1, 2, 3, 5, 7])
def test_the_tile_takes_fewest_instructions(stride: int, taps: int) -> None:
    fitting = [RowTile(columns, stride, taps) for columns in (1, 2, 3, 4)]
    best = row_tile(12, stride, taps)
    assert best.instructions == min(each.instructions for each in fitting)
    assert row_tile(13, stride, taps).columns == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("values", ["random", "positive", "negative"])
def test_sums_are_exact_up_to_the_largest_products(form: tuple[int, int, int], values: str) -> None:
    target = llvm_cpu_target()
    if not multiplies_integers(tvm.target.Target(target)):
        pytest.skip("this CPU has no VNNI")
    tile = RowTile(*form)
    width = tile.columns * TILES
    read = (width - tile.columns) * tile.stride + tile.reads
    random = np.random.default_rng(3)
    data = random.integers(0, 256, (ROWS, read, LANES)).astype("uint8")
    weights = random.integers(-128, 128, (ROWS, tile.taps, 1, LANES)).astype("int8")
    if values != "random":
        data[:], weights[:] = 255, 127 if values == "positive" else -128
    sums = tvm.nd.array(np.full((width, LANES), 7, "int32"))
    kernel(target, tile)(tvm.nd.array(data), tvm.nd.array(weights), sums)
    columns = np.arange(width)[:, None] * tile.stride + np.arange(tile.taps)
    products = data[:, columns].astype("int32") * weights[:, None, :, 0].astype("int32")
    np.testing.assert_array_equal(sums.numpy(), products.sum(axis=(0, 2)))
