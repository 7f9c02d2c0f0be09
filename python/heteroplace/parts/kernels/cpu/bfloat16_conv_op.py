"""Convolutions in bfloat16 with float32 sums, in blocks of channels: an op of Relay for CPUs.

Tiles are those of `conv_tiles`; each instruction multiplies two channels of the data at once:

    for each some blocks of channels and rows (in parallel):
        for each tile of columns:
            for each block of input channels, element of the filter, two channels:
                sums[block, row, column, lane] += two products, in one instruction
            what is fused behind, of the tile
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relay, te, tir, topi

from heteroplace.bfloat16_bits import bfloat16_bits
from heteroplace.parts.kernels.cpu.amx.amx_conv import (
    AMX_CONV,
    amx_conv2d,
    amx_layout,
    schedule_amx_conv,
)
from heteroplace.parts.kernels.cpu.bfloat16 import LANES, PAIR, pair_products
from heteroplace.parts.kernels.cpu.conv_tiles import schedule_result
from heteroplace.parts.kernels.cpu.filter_window import FilterWindow
from heteroplace.parts.kernels.cpu.fused_schedules import schedule_by_tag
from heteroplace.parts.kernels.cpu.product_tiles import shape_of
from heteroplace.parts.kernels.rewrites.narrow_weights import widened
from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_relay_op

BFLOAT16_CONV_OP = "heteroplace_bfloat16_conv2d"
"""Of data [n, blocks, height, width, lanes] and filters [blocks, blocks of data, height, width,
lanes of data / 2, 16, 2], both of the bits of bfloat16. The result is of float32."""

_TAG = BFLOAT16_CONV_OP
_SUMS = "float32"


def bfloat16_conv2d(data: relay.Expr, filters: relay.Expr, window: FilterWindow) -> relay.Call:
    """Return a call of the op; `filters` are what `paired_filters` makes."""
    add_relay_op(
        BFLOAT16_CONV_OP,
        "A convolution in blocks of channels, in bfloat16.",
        {
            "data": ("Tensor", "[n, blocks, height, width, lanes]"),
            "filters": ("Tensor", "see `paired_filters`"),
        },
        _type_of,
        _compute,
        schedule_bfloat16_conv,
        is_fusable=True,
    )
    attrs = tvm.ir.make_node("DictAttrs", **{key: list(v) for key, v in window._asdict().items()})
    return relay.Call(tvm.ir.Op.get(BFLOAT16_CONV_OP), [data, filters], attrs)


def paired_filters(filters: np.ndarray) -> np.ndarray:
    """Return filters of float32 in pairs of bfloat16.

    Parameters
    ----------
    filters
        [blocks, blocks of data, height, width, lanes of data, 16].

    Returns
    -------
    array
        [blocks, blocks of data, height, width, lanes of data / 2, 16, 2] of BFLOAT16_BITS.
    """
    *around, data_lanes, lanes = filters.shape
    pairs = bfloat16_bits(filters).reshape(*around, data_lanes // PAIR, PAIR, lanes)
    return np.ascontiguousarray(pairs.swapaxes(-1, -2))


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    (num, _, *size, _), (blocks, _, *filter_size, _, lanes, _) = map(static_shape, arguments)
    shape = num, blocks, *FilterWindow.of(attrs).result_size(size, filter_size), lanes
    return relay.TensorType(shape, _SUMS)


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    data, filters = tensors
    window = FilterWindow.of(attrs)
    num, _, *size, _ = shape_of(data)
    blocks, data_blocks, *filter_size, pairs, lanes, _ = shape_of(filters)
    layout = amx_layout(shape_of(data), shape_of(filters), window)
    if layout is not None:
        return [amx_conv2d(data, filters, layout)]
    padded = data
    if any(window.padding):
        above, left, below, right = window.padding
        padded = topi.nn.pad(data, (0, 0, above, left, 0), (0, 0, below, right, 0))
    extents = [("block", data_blocks), ("ky", filter_size[0]), ("kx", filter_size[1])]
    extents += [("pair", pairs), ("of_pair", PAIR)]
    axes = [te.reduce_axis((0, extent), name) for name, extent in extents]
    block, ky, kx, pair, of_pair = axes
    (stride_y, stride_x), (step_y, step_x) = window.strides, window.dilation

    def summed(n: Any, c: Any, y: Any, x: Any, lane: Any) -> tir.PrimExpr:
        row, column = y * stride_y + ky * step_y, x * stride_x + kx * step_x
        value = padded[n, block, row, column, PAIR * pair + of_pair]
        weight = filters[c, block, ky, kx, pair, lane, of_pair]
        return te.sum(widened(value, _SUMS) * widened(weight, _SUMS), axis=axes)

    shape = num, blocks, *window.result_size(size, filter_size), lanes
    return [te.compute(shape, summed, "convolution", tag=_TAG)]


def schedule_bfloat16_conv(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    """Schedule the op and what is fused behind it."""
    return schedule_by_tag(outs, {_TAG: _schedule, AMX_CONV: schedule_amx_conv})


def _schedule(schedule: te.Schedule, conv: te.Tensor, result: te.Tensor) -> None:
    sums = schedule.cache_write(conv, "global")
    tiled = schedule_result(schedule, conv, result)
    axes = tiled.inner
    if conv != result:
        stage = schedule[conv]
        stage.compute_at(tiled.stage, tiled.at)
        _, *axes, lane = stage.op.axis
        stage.vectorize(lane)
    for axis in axes:
        schedule[conv].unroll(axis)
    schedule[sums].compute_at(tiled.stage, tiled.at)
    _schedule_sums(schedule[sums])


def _schedule_sums(stage: te.Stage) -> None:
    _, c, y, x, lane = stage.op.axis
    block, ky, kx, pair, of_pair = stage.op.reduce_axis
    vectors, vector = stage.split(lane, factor=LANES)
    stage.reorder(block, ky, kx, pair, c, y, x, vectors, vector, of_pair)
    stage.tensorize(vector, pair_products())
    for axis in (c, y, x, vectors):
        stage.unroll(axis)
