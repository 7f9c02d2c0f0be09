"""Schedule of convolutions of 8 bits in blocks of channels, for CPUs with VNNI.

TVM sums up a whole row of a map in a buffer that every step reads and writes, and of a filter of
one element some columns of one block of channels. Here the sums of some columns of several blocks
are in registers while all of a filter is added to them (`conv_tiles.py`), so that four channels
that were read serve each of the blocks:

    for each half of the rows, some blocks of channels, row (in parallel):
        for each tile of columns:
            for each block of input channels, element of the filter, four channels:
                sums[block, row, column, lane] += four products, in one instruction
            what is fused behind, of the tile
"""

from __future__ import annotations

from typing import Any

from tvm import te
from tvm.topi.x86.tensor_intrin import dot_16x1x16_uint8_int8_int32

from heteroplace.parts.kernels.cpu.amx.amx_conv import AMX_CONV, schedule_amx_conv
from heteroplace.parts.kernels.cpu.conv_tiles import conv_tile, row_parts
from heteroplace.parts.kernels.cpu.fused_schedules import schedule_by_tag
from heteroplace.parts.kernels.cpu.product_tiles import shape_of, vector_registers

_TAG = "conv2d_NCHWc_int8"
_LANES = 16
"""Sums of a vector."""


def schedule_int8_conv(outs: Any) -> te.Schedule:
    """Schedule the convolution and what is fused behind it."""
    return schedule_by_tag(outs, {_TAG: _schedule, AMX_CONV: schedule_amx_conv})


def _schedule(schedule: te.Schedule, conv: te.Tensor, result: te.Tensor) -> None:
    data, filters = conv.op.input_tensors
    _, blocks, height, width, _ = shape_of(conv)
    tile = conv_tile(blocks, height, width, vector_registers())
    sums = schedule.cache_write(conv, "global")
    whole = schedule[result]
    n, c, y, x, lane = whole.op.axis
    co, ci = whole.split(c, tile.blocks)
    yo, yi = whole.split(y, tile.rows)
    xo, xi = whole.split(x, tile.columns)
    parts = row_parts(height // tile.rows, shape_of(data), shape_of(filters))
    half, yo = whole.split(yo, nparts=parts)
    whole.reorder(n, half, co, yo, xo, ci, yi, xi, lane)
    whole.parallel(whole.fuse(n, half, co, yo))
    whole.vectorize(lane)
    for axis in (ci, yi, xi):
        whole.unroll(axis)
    if conv != result:
        schedule[conv].compute_at(whole, xo)
        _, *inner, cl = schedule[conv].op.axis
        for axis in inner:
            schedule[conv].unroll(axis)
        schedule[conv].vectorize(cl)
    schedule[sums].compute_at(whole, xo)
    _, *inner, sl = schedule[sums].op.axis
    ky, kx, block, fours, four = schedule[sums].op.reduce_axis
    vectors, vector = schedule[sums].split(sl, factor=_LANES)
    schedule[sums].reorder(block, ky, kx, fours, *inner, vectors, vector, four)
    schedule[sums].tensorize(vector, dot_16x1x16_uint8_int8_int32())
    for axis in (*inner, vectors):
        schedule[sums].unroll(axis)
    if isinstance(data.op, te.ComputeOp) and "pad" in data.op.tag:
        n, c, y, _, lane = schedule[data].op.axis
        schedule[data].parallel(schedule[data].fuse(n, c, y))
        schedule[data].vectorize(lane)
