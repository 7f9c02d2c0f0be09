"""Schedule of depthwise convolutions in blocks of channels, for CPUs.

TVM pads the whole map in memory before it starts, and sums up a whole row in a buffer that may be
too large for the stack, so that sums are in memory. Here some rows are padded at a time, which stay
in the cache, and as many sums as there are registers for are made at once:

    for each block of channels, rows (in parallel):
        padded = those rows of the map, and what the filter sees around them
        for each tile of columns:
            sums[column, lane] += padded[..] * filter[..], unrolled
            what is fused behind, of the tile

Of 8 bits a row of the filter is added at once (`row_products.py`), and rows come before channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tvm
from tvm import te, tir

from heteroplace.parts.kernels.cpu.conv_tiles import row_parts
from heteroplace.parts.kernels.cpu.fused_schedules import largest_divisor, schedule_by_tag
from heteroplace.parts.kernels.cpu.product_tiles import shape_of, vector_registers
from heteroplace.parts.kernels.cpu.row_products import RowTile, row_products, row_tile
from heteroplace.relay.targets import multiplies_integers
from heteroplace.relay.vnni import LANES

_TAG = "depthwise_conv2d_NCHWc"
_MAX_COLUMNS = {32: 15, 16: 8}
"""Sums of one vector each, by registers: they are in these, and the buffer of them is on the stack.
Of 16, 12 and 14 sums took up to 1.4 times as long as 7 (AMD EPYC, family 25, model 1)."""
_PADDED_BYTES = 2**15
"""Of the rows that are padded at a time; they stay in the first cache."""
_MAX_UNROLLED = 9
"""Elements of a filter that are unrolled; of larger ones a row: compiling takes a third then."""
_MIN_PARTS = 8
"""Into which the rows of all blocks are cut, for several cores."""


def schedule_depthwise(outs: Any) -> te.Schedule:
    """Schedule the convolution and what is fused behind it."""
    return schedule_by_tag(outs, {_TAG: _schedule})


def _schedule(schedule: te.Schedule, conv: te.Tensor, result: te.Tensor) -> None:
    data, filters = conv.op.input_tensors
    is_padded = isinstance(data.op, te.ComputeOp) and "pad" in data.op.tag
    batch, blocks, height, width, _ = shape_of(conv)
    by_bytes = _byte_tile(conv, data) if _multiplies_bytes(conv) else None
    tile = by_bytes and by_bytes.tile
    together, most = tile.columns if tile else 1, _MAX_COLUMNS[vector_registers()]
    columns = together * largest_divisor(width // together, most // together)
    if tile and not is_padded:  # a tile reads behind the last column
        data = schedule.cache_read(data, "global", [conv])
    is_copied = is_padded or tile is not None
    rows = _rows_at_once(conv, data, batch * blocks) if is_copied else 1
    if tile:
        parts = row_parts(height, shape_of(data), shape_of(filters))
        rows = largest_divisor(height // parts, rows)
    sums = schedule.cache_write(conv, "global") if conv == result else conv
    whole = schedule[result]
    n, c, y, x, lane = whole.op.axis
    yo, yi = whole.split(y, rows)
    xo, xi = whole.split(x, columns)
    outer = (yo, c) if tile else (c, yo)
    whole.reorder(n, *outer, yi, xo, xi, lane)
    part = whole.fuse(n, *outer)
    whole.parallel(part)
    whole.vectorize(lane)
    whole.unroll(xi)
    schedule[sums].compute_at(whole, xo)
    if tile:
        _schedule_bytes(schedule[sums], tile)
    else:
        _schedule_lanes(schedule[sums])
    if is_copied:
        stage = schedule[data]
        *_, row, _, copied = stage.op.axis
        stage.compute_at(whole, part)
        stage.vectorize(copied)
    if by_bytes:
        stage.storage_align(row, max(by_bytes.width, shape_of(data)[3]) * LANES, 0)


class _ByteTile(NamedTuple):
    """How sums of bytes are made."""

    tile: RowTile
    """Of a dilated filter, by one element of it."""
    width: int
    """Columns that are read of each row of the map."""


def _byte_tile(conv: te.Tensor, data: te.Tensor) -> _ByteTile:
    columns: list[tir.PrimExpr] = []

    def visit(node: object) -> None:
        if isinstance(node, tir.ProducerLoad) and node.producer == data:
            columns.append(node.indices[3])

    (total,) = conv.op.body
    tir.stmt_functor.post_order_visit(total.source[0], visit)
    variables = [conv.op.axis[3].var, conv.op.reduce_axis[1].var]
    steps = tvm.arith.detect_linear_equation(columns[0], variables)
    stride, dilation = int(steps[0]), int(steps[1])
    width, taps = int(conv.shape[3]), int(conv.op.reduce_axis[1].dom.extent)
    tile = row_tile(width, stride, taps if dilation == 1 else 1)
    last = (width - tile.columns) * stride + (taps - tile.taps) * dilation
    return _ByteTile(tile, last + tile.reads)


def _schedule_lanes(stage: te.Stage) -> None:
    """Add up the products of one element of the filter after the other."""
    *_, x, lane = stage.op.axis
    ky, kx = stage.op.reduce_axis
    stage.reorder(ky, kx, x, lane)
    stage.unroll(kx)
    if int(ky.dom.extent) * int(kx.dom.extent) <= _MAX_UNROLLED:
        stage.unroll(ky)
    stage.unroll(x)
    stage.vectorize(lane)


def _schedule_bytes(stage: te.Stage, tile: RowTile) -> None:
    """Add up the products of a row of the filter, or of an element of a dilated one, at once."""
    *_, x, lane = stage.op.axis
    ky, kx = stage.op.reduce_axis
    outer, taps = stage.split(kx, tile.taps)
    tiles, inner = stage.split(x, tile.columns)
    stage.reorder(ky, outer, tiles, inner, lane, taps)
    for axis in (ky, outer, tiles):
        stage.unroll(axis)
    stage.tensorize(inner, row_products(tile))


def _multiplies_bytes(conv: te.Tensor) -> bool:
    """Tell whether products are of 8 bits, and the target has an instruction for a vector."""
    dtypes = [str(each.dtype) for each in conv.op.input_tensors]
    is_whole = int(conv.shape[-1]) == LANES and str(conv.dtype) == "int32"
    target = tvm.target.Target.current()
    return is_whole and dtypes == ["uint8", "int8"] and multiplies_integers(target)


def _rows_at_once(conv: te.Tensor, padded: te.Tensor, planes: int) -> int:
    height = int(conv.shape[2])
    _, _, padded_height, padded_width, lanes = shape_of(padded)
    stride = max(1, (padded_height - int(conv.op.reduce_axis[0].dom.extent)) // max(1, height - 1))
    row_bytes = padded_width * lanes * tvm.DataType(padded.dtype).bits // 8 * stride
    fitting = max(1, _PADDED_BYTES // row_bytes)
    return largest_divisor(height, min(fitting, max(1, height * planes // _MIN_PARTS)))
