"""Schedule of convolutions of 8 bits in blocks of channels, for CPUs with VNNI.

TVM sums up a whole row of a map in a buffer that every step reads and writes. Here the sums of some
columns are in registers while all of a filter is added to them:

    for each block of channels and row (in parallel):
        for each tile of columns:
            for each block of input channels, element of the filter, four channels:
                sums[column, lane] += four products, in one instruction
            what is fused behind, of the tile
"""

from __future__ import annotations

from typing import Any

from tvm import te
from tvm.topi.x86.tensor_intrin import dot_16x1x16_uint8_int8_int32

from heteroplace.codegen.fused_schedules import largest_divisor, schedule_by_tag

_TAG = "conv2d_NCHWc_int8"
_LANES = 16
"""Sums of a vector."""
_MAX_COLUMNS = 15
"""One vector of sums each: they are in registers, and the buffer of them is on the stack."""


def schedule_int8_conv(outs: Any) -> te.Schedule:
    """Schedule the convolution and what is fused behind it."""
    return schedule_by_tag(outs, {_TAG: _schedule})


def _schedule(schedule: te.Schedule, conv: te.Tensor, result: te.Tensor) -> None:
    data, _ = conv.op.input_tensors
    columns = largest_divisor(int(conv.shape[3]), _MAX_COLUMNS)
    sums = schedule.cache_write(conv, "global")
    whole = schedule[result]
    n, c, y, x, lane = whole.op.axis
    xo, xi = whole.split(x, columns)
    whole.reorder(n, c, y, xo, xi, lane)
    whole.parallel(whole.fuse(n, c, y))
    whole.vectorize(lane)
    if conv == result:
        whole.unroll(xi)
    else:
        schedule[conv].compute_at(whole, xo)
        *_, cx, cl = schedule[conv].op.axis
        schedule[conv].unroll(cx)
        schedule[conv].vectorize(cl)
    schedule[sums].compute_at(whole, xo)
    *_, sx, sl = schedule[sums].op.axis
    ky, kx, block, fours, four = schedule[sums].op.reduce_axis
    vectors, vector = schedule[sums].split(sl, factor=_LANES)
    schedule[sums].reorder(block, ky, kx, fours, sx, vectors, vector, four)
    schedule[sums].tensorize(vector, dot_16x1x16_uint8_int8_int32())
    schedule[sums].unroll(sx)
    schedule[sums].unroll(vectors)
    if isinstance(data.op, te.ComputeOp) and "pad" in data.op.tag:
        n, c, y, _, lane = schedule[data].op.axis
        schedule[data].parallel(schedule[data].fuse(n, c, y))
        schedule[data].vectorize(lane)
