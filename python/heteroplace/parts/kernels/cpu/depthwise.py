"""Schedule of depthwise convolutions in blocks of channels, for CPUs.

TVM pads the whole map in memory before it starts, and sums up a whole row in a buffer that may be
too large for the stack, so that sums are in memory. Here some rows are padded at a time, which stay
in the cache, and as many sums as there are registers for are made at once:

    for each block of channels, rows (in parallel):
        padded = those rows of the map, and what the filter sees around them
        for each tile of columns:
            sums[column, lane] += padded[..] * filter[..], unrolled
            what is fused behind, of the tile
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te
from tvm.topi.utils import get_const_tuple

from heteroplace.parts.kernels.cpu.fused_schedules import largest_divisor, schedule_by_tag
from heteroplace.parts.kernels.cpu.lane_products import LANES, lane_products
from heteroplace.parts.kernels.cpu.product_tiles import vector_registers
from heteroplace.relay.legalize import multiplies_integers

_TAG = "depthwise_conv2d_NCHWc"
_MAX_COLUMNS = {32: 15, 16: 12}
"""Sums of one vector each, by registers: they are in these, and the buffer of them is on the stack.
Of 16, 14 sums took 1.4 times as long as 7 (AMD EPYC, family 25, model 1)."""
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
    data, _ = conv.op.input_tensors
    is_padded = isinstance(data.op, te.ComputeOp) and "pad" in data.op.tag
    batch, blocks, _, width, _ = get_const_tuple(conv.shape)
    columns = largest_divisor(width, _MAX_COLUMNS[vector_registers()])
    rows = _rows_at_once(conv, data, batch * blocks) if is_padded else 1
    sums = schedule.cache_write(conv, "global") if conv == result else conv
    whole = schedule[result]
    n, c, y, x, lane = whole.op.axis
    yo, yi = whole.split(y, rows)
    xo, xi = whole.split(x, columns)
    whole.reorder(n, c, yo, yi, xo, xi, lane)
    part = whole.fuse(n, c, yo)
    whole.parallel(part)
    whole.vectorize(lane)
    if conv == result:
        whole.unroll(xi)
    schedule[sums].compute_at(whole, xo)
    *_, sx, sl = schedule[sums].op.axis
    ky, kx = schedule[sums].op.reduce_axis
    schedule[sums].reorder(ky, kx, sx, sl)
    schedule[sums].unroll(kx)
    if int(ky.dom.extent) * int(kx.dom.extent) <= _MAX_UNROLLED:
        schedule[sums].unroll(ky)
    schedule[sums].unroll(sx)
    if _multiplies_lanes(conv):
        schedule[sums].tensorize(sl, lane_products())
    else:
        schedule[sums].vectorize(sl)
    if is_padded:
        schedule[data].compute_at(whole, part)
        schedule[data].vectorize(schedule[data].op.axis[-1])


def _multiplies_lanes(conv: te.Tensor) -> bool:
    """Tell whether products are of 8 bits, and the target has an instruction for a vector."""
    dtypes = [str(each.dtype) for each in conv.op.input_tensors]
    is_whole = int(conv.shape[-1]) == LANES and str(conv.dtype) == "int32"
    target = tvm.target.Target.current()
    return is_whole and dtypes == ["uint8", "int8"] and multiplies_integers(target)


def _rows_at_once(conv: te.Tensor, padded: te.Tensor, planes: int) -> int:
    height = int(conv.shape[2])
    _, _, padded_height, padded_width, lanes = get_const_tuple(padded.shape)
    stride = max(1, (padded_height - int(conv.op.reduce_axis[0].dom.extent)) // max(1, height - 1))
    row_bytes = padded_width * lanes * tvm.DataType(padded.dtype).bits // 8 * stride
    fitting = max(1, _PADDED_BYTES // row_bytes)
    return largest_divisor(height, min(fitting, max(1, height * planes // _MIN_PARTS)))
