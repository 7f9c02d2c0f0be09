"""Convolutions in bfloat16 with float32 sums, in blocks of channels: an op of Relay for CPUs.

Tiles are those of `conv_tiles`; each instruction multiplies two channels of the data at once:

    for each some blocks of channels and rows (in parallel):
        for each tile of columns:
            for each block of input channels, element of the filter, two channels:
                sums[block, row, column, lane] += two products, in one instruction
            what is fused behind, of the tile
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relay, te, tir
from tvm.topi import tag

from heteroplace.parts.kernels.cpu.bfloat16 import LANES, PAIR, bfloat16_bits, pair_products
from heteroplace.parts.kernels.cpu.conv_tiles import conv_tile
from heteroplace.parts.kernels.cpu.fused_schedules import largest_divisor, schedule_by_tag
from heteroplace.parts.kernels.cpu.product_tiles import shape_of, vector_registers
from heteroplace.parts.kernels.rewrites.narrow_weights import widened
from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_relay_op

BFLOAT16_CONV_OP = "heteroplace_bfloat16_conv2d"
"""Of data [n, blocks, height, width, lanes] and filters [blocks, blocks of data, height, width,
lanes of data / 2, 16, 2], both of the bits of bfloat16. The result is of float32."""

_TAG = BFLOAT16_CONV_OP
_SUMS = "float32"
_MIN_PARTS = 8
"""Into which rows are cut that are padded at a time, for several cores."""
_MIN_ROWS = 5
"""Of such a part; those around it are padded for it too."""


class FilterWindow(NamedTuple):
    """How filters go over a map."""

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    """Above, left, below, right."""
    dilation: tuple[int, ...]


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


def _window(attrs: Any) -> FilterWindow:
    values = ([int(each) for each in attrs[name]] for name in FilterWindow._fields)
    strides, padding, dilation = map(tuple, values)
    return FilterWindow(strides, padding, dilation)


def _result_size(
    window: FilterWindow, size: Sequence[int], filter_size: Sequence[int]
) -> tuple[int, int]:
    """Height and width of the result."""
    height, width = (
        (size[axis] + window.padding[axis] + window.padding[axis + 2] - _seen(window, axis, extent))
        // window.strides[axis]
        + 1
        for axis, extent in enumerate(filter_size)
    )
    return height, width


def _seen(window: FilterWindow, axis: int, extent: int) -> int:
    """What a filter of some elements sees along an axis."""
    return (extent - 1) * window.dilation[axis] + 1


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    (num, _, *size, _), (blocks, _, *filter_size, _, lanes, _) = map(static_shape, arguments)
    shape = num, blocks, *_result_size(_window(attrs), size, filter_size), lanes
    return relay.TensorType(shape, _SUMS)


def _padded(data: te.Tensor, window: FilterWindow) -> te.Tensor:
    """The map with zeros around it."""
    if not any(window.padding):
        return data
    num, blocks, height, width, lanes = shape_of(data)
    above, left, below, right = window.padding

    def element(n: Any, c: Any, y: Any, x: Any, lane: Any) -> tir.PrimExpr:
        inside = (y >= above, y < height + above, x >= left, x < width + left)
        value = data[n, c, y - above, x - left, lane]
        return tir.if_then_else(tir.all(*inside), value, tir.const(0, data.dtype))

    shape = num, blocks, height + above + below, width + left + right, lanes
    return te.compute(shape, element, "padded", tag=f"{tag.INJECTIVE},pad")


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    data, filters = tensors
    window = _window(attrs)
    num, _, *size, _ = shape_of(data)
    blocks, data_blocks, *filter_size, pairs, lanes, _ = shape_of(filters)
    padded = _padded(data, window)
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

    shape = num, blocks, *_result_size(window, size, filter_size), lanes
    return [te.compute(shape, summed, "convolution", tag=_TAG)]


def schedule_bfloat16_conv(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    """Schedule the op and what is fused behind it."""
    return schedule_by_tag(outs, {_TAG: _schedule})


def _schedule(schedule: te.Schedule, conv: te.Tensor, result: te.Tensor) -> None:
    data, _ = conv.op.input_tensors
    _, blocks, height, width, _ = shape_of(conv)
    tile = conv_tile(blocks, height, width, vector_registers())
    is_padded = isinstance(data.op, te.ComputeOp)
    part_rows = largest_divisor(height, height // _MIN_PARTS) if is_padded else 0
    by_parts = part_rows >= _MIN_ROWS
    sums = schedule.cache_write(conv, "global")
    whole = schedule[result]
    n, c, y, x, lane = whole.op.axis
    co, ci = whole.split(c, tile.blocks)
    xo, xi = whole.split(x, tile.columns)
    if by_parts:
        part, y = whole.split(y, part_rows)
        whole.reorder(n, part, co, y, xo, ci, xi, lane)
        chunk, inner = whole.fuse(n, part), [ci, xi]
    else:
        yo, yi = whole.split(y, tile.rows)
        whole.reorder(n, co, yo, xo, ci, yi, xi, lane)
        chunk, inner = whole.fuse(n, co, yo), [ci, yi, xi]
    whole.parallel(chunk)
    whole.vectorize(lane)
    if conv == result:
        for axis in inner:
            whole.unroll(axis)
    else:
        schedule[conv].compute_at(whole, xo)
        _, *around, conv_lane = schedule[conv].op.axis
        for axis in around:
            schedule[conv].unroll(axis)
        schedule[conv].vectorize(conv_lane)
    schedule[sums].compute_at(whole, xo)
    _schedule_sums(schedule[sums])
    if is_padded:
        stage = schedule[data]
        if by_parts:
            stage.compute_at(whole, chunk)
        else:
            stage.parallel(stage.fuse(*stage.op.axis[:3]))
        stage.vectorize(stage.op.axis[-1])


def _schedule_sums(stage: te.Stage) -> None:
    _, c, y, x, lane = stage.op.axis
    block, ky, kx, pair, of_pair = stage.op.reduce_axis
    vectors, vector = stage.split(lane, factor=LANES)
    stage.reorder(block, ky, kx, pair, c, y, x, vectors, vector, of_pair)
    stage.tensorize(vector, pair_products())
    for axis in (c, y, x, vectors):
        stage.unroll(axis)
