"""Products of matrices that are read as they lie: an op of Relay for CPUs, computed and scheduled.

TVM's dense layers for x86 read weights in blocks, into which those that are known ahead are brought
once. What is computed, or is state that a step of training replaces, would be rewritten for each
call, into a buffer of its own. Here a vector runs along an axis that is contiguous in memory:

    (a, b) -> a @ b, or a.T @ b       along the columns of b and of the result; where many rows read
                                      the same columns of b, they are laid side by side before
    (a, b) -> a @ b.T, or a.T @ b.T   along the axis that is summed up, of which each lane of a
                                      vector sums a part; lanes are added last

What is summed up at once stays in registers. Elementwise ops are fused behind it.
Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(doi:10.1145/1356052.1356053), for the tiles and for the side-by-side copy of a panel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tvm
from tvm import relay, te

from heteroplace.parts.kernels.cpu.fused_schedules import largest_divisor, schedule_by_tag
from heteroplace.parts.kernels.cpu.product_tiles import (
    MIN_CHUNKS,
    item_bytes_of,
    shape_of,
    vector_bytes,
)
from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_relay_op

MATMUL_OP = "heteroplace_matmul"
"""Of two matrices; attributes `transpose_a` and `transpose_b` say how they lie."""

_COLUMNS, _LANES = "heteroplace_matmul_columns", "heteroplace_matmul_lanes"
"""Tags of the two forms."""
_PANELS = "panels"
_MAX_SUM_BYTES = 1023
"""Larger buffers do not lie on the stack, and so never in registers (`kMaxStackAlloca` of TVM)."""
_MIN_USES_OF_PANEL = 4
"""Tiles of rows that read the same columns of b, for these to be laid side by side."""
_CACHED_BYTES = 2**17
"""If all of b has no more, rows of the result are made one after the other, and written so."""


def matmul(
    a: relay.Expr, b: relay.Expr, *, transpose_a: bool = False, transpose_b: bool = False
) -> relay.Call:
    """Return a call of the op: the product of `a`, or its transpose, and `b`, or its transpose."""
    add_relay_op(
        MATMUL_OP,
        "The product of two matrices, read as they lie.",
        {"a": ("Tensor", "the left one"), "b": ("Tensor", "the right one")},
        _type_of,
        _compute,
        schedule_matmul,
        is_fusable=True,
    )
    attrs = tvm.ir.make_node("DictAttrs", transpose_a=transpose_a, transpose_b=transpose_b)
    return relay.Call(tvm.ir.Op.get(MATMUL_OP), [a, b], attrs)


class _Sizes(NamedTuple):
    """Of a product: [rows, depth] times [depth, columns]."""

    rows: int
    columns: int
    depth: int


def _sizes(attrs: Any, a: tuple[int, ...], b: tuple[int, ...]) -> _Sizes:
    depth, rows = a if attrs["transpose_a"] else a[::-1]
    columns = b[0] if attrs["transpose_b"] else b[1]
    return _Sizes(rows, columns, depth)


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    a, b = arguments
    sizes = _sizes(attrs, static_shape(a), static_shape(b))
    return relay.TensorType((sizes.rows, sizes.columns), a.dtype)


class _Tile(NamedTuple):
    """What is summed up at once: [rows, columns] of the result, in vectors of so many lanes."""

    rows: int
    columns: int
    lanes: int = 1


def _simd() -> tuple[int, int]:
    """Bytes of a vector of the current target, and how many may be summed up in registers."""
    num_bytes = vector_bytes()
    return num_bytes, 14 if num_bytes == 64 else 12


def _columns_tile(sizes: _Sizes, item_bytes: int) -> _Tile:
    """Of as many columns as two vectors hold, if that divides their number."""
    vector_bytes, registers = _simd()
    lanes = vector_bytes // item_bytes
    is_whole = sizes.columns % lanes == 0
    limit = lanes if is_whole and sizes.columns % (2 * lanes) else 2 * lanes
    columns = largest_divisor(sizes.columns, limit)
    vectors = -(-columns // lanes)
    most = min(registers // vectors, _MAX_SUM_BYTES // (columns * item_bytes))
    return _Tile(largest_divisor(sizes.rows, most), columns)


def _lanes_tile(sizes: _Sizes, item_bytes: int) -> _Tile:
    """Of half a vector where that is long: more sums are in registers then."""
    vector_bytes, registers = _simd()
    lanes = min(vector_bytes, 32) // item_bytes
    while sizes.depth % lanes:
        lanes //= 2
    side = 4 if registers == 14 else 3
    columns = largest_divisor(sizes.columns, 4)
    return _Tile(largest_divisor(sizes.rows, side), columns, lanes)


def _element(matrix: te.Tensor, is_transposed: bool) -> Callable[[Any, Any], Any]:
    """By (row, column) of what a matrix stands for."""
    if is_transposed:
        return lambda row, column: matrix[column, row]
    return lambda row, column: matrix[row, column]


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    a, b = tensors
    sizes = _sizes(attrs, shape_of(a), shape_of(b))
    left = _element(a, attrs["transpose_a"])
    if not attrs["transpose_b"]:
        return [_by_columns(sizes, left, b)]
    tile = _lanes_tile(sizes, item_bytes_of(b))
    part = te.reduce_axis((0, sizes.depth // tile.lanes), "part")
    sums = te.compute(
        (sizes.rows, sizes.columns, tile.lanes),
        lambda y, x, lane: te.sum(
            left(y, part * tile.lanes + lane) * b[x, part * tile.lanes + lane], axis=part
        ),
        name="sums",
    )
    lane = te.reduce_axis((0, tile.lanes), "lane")
    shape = (sizes.rows, sizes.columns)
    return [
        te.compute(shape, lambda y, x: te.sum(sums[y, x, lane], axis=lane), "product", tag=_LANES)
    ]


def _by_columns(sizes: _Sizes, left: Callable[[Any, Any], Any], b: te.Tensor) -> te.Tensor:
    tile = _columns_tile(sizes, item_bytes_of(b))
    width = tile.columns
    panels: te.Tensor | None = None
    is_reused = sizes.rows // tile.rows >= _MIN_USES_OF_PANEL and sizes.columns > width
    if is_reused and not _is_cached(sizes, item_bytes_of(b)):
        panels = te.compute(
            (sizes.columns // width, sizes.depth, width),
            lambda panel, depth, x: b[depth, panel * width + x],
            name=_PANELS,
        )

    def read(depth: Any, x: Any) -> Any:
        if panels is None:
            return b[depth, x]
        return panels[tvm.tir.indexdiv(x, width), depth, tvm.tir.indexmod(x, width)]

    depth = te.reduce_axis((0, sizes.depth), "depth")
    return te.compute(
        (sizes.rows, sizes.columns),
        lambda y, x: te.sum(left(y, depth) * read(depth, x), axis=depth),
        "product",
        tag=_COLUMNS,
    )


def _is_cached(sizes: _Sizes, item_bytes: int) -> bool:
    return sizes.depth * sizes.columns * item_bytes <= _CACHED_BYTES


def schedule_matmul(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    """Schedule the op and what is fused behind it."""
    return schedule_by_tag(outs, {_COLUMNS: _schedule_columns, _LANES: _schedule_lanes})


def _schedule_columns(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    panels = next((each for each in product.op.input_tensors if each.op.name == _PANELS), None)
    rows, columns = shape_of(product)
    sizes = _Sizes(rows, columns, int(product.op.reduce_axis[0].dom.extent))
    tile = _columns_tile(sizes, item_bytes_of(product))
    is_output = product.op in schedule.outputs
    sums = schedule.cache_write(product, "global")
    whole = schedule[result]
    y, x = whole.op.axis
    xo, xi = whole.split(x, tile.columns)
    yo, yi = whole.split(y, tile.rows)
    if panels is None:
        outer = (yo, xo) if _is_cached(sizes, item_bytes_of(product)) else (xo, yo)
        whole.reorder(*outer, yi, xi)
        at = chunk = whole.fuse(*outer)
    else:
        num_tiles, num_panels = rows // tile.rows, columns // tile.columns
        parts = -(-MIN_CHUNKS // num_panels)
        yc, at = whole.split(
            yo, nparts=largest_divisor(num_tiles, min(parts, num_tiles // _MIN_USES_OF_PANEL))
        )
        whole.reorder(yc, xo, at, yi, xi)
        chunk = whole.fuse(yc, xo)
        schedule[panels].compute_at(whole, chunk)
        schedule[panels].vectorize(schedule[panels].op.axis[2])
    whole.parallel(chunk)
    whole.vectorize(xi)
    _schedule_product(schedule, product, whole, at, yi, is_output)
    schedule[sums].compute_at(whole, at)
    sy, sx = schedule[sums].op.axis
    (depth,) = schedule[sums].op.reduce_axis
    schedule[sums].reorder(depth, sy, sx)
    schedule[sums].unroll(sy)
    schedule[sums].vectorize(sx)


def _schedule_product(
    schedule: te.Schedule, product: te.Tensor, whole: te.Stage, at: Any, yi: Any, is_output: bool
) -> None:
    """Take the sums out of registers, which only constant indices can name.

    What is fused behind goes over the tile in loops then: with one statement that stores, so that
    it can be proven to run in place (`in_place`).
    """
    if is_output:
        whole.unroll(yi)
        return
    schedule[product].compute_at(whole, at)
    py, px = schedule[product].op.axis
    schedule[product].unroll(py)
    schedule[product].vectorize(px)


def _schedule_lanes(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    (sums,) = product.op.input_tensors
    rows, columns, lanes = shape_of(sums)
    (part,) = sums.op.reduce_axis
    depth = int(part.dom.extent) * lanes
    tile = _lanes_tile(_Sizes(rows, columns, depth), item_bytes_of(product))
    whole = schedule[result]
    y, x = whole.op.axis
    xo, xi = whole.split(x, tile.columns)
    yo, yi = whole.split(y, tile.rows)
    whole.reorder(xo, yo, yi, xi)
    at = whole.fuse(xo, yo)
    whole.parallel(at)
    if product.op not in schedule.outputs:
        schedule[product].compute_at(whole, at)
        whole.vectorize(xi)
        yi, xi = schedule[product].op.axis
    (lane,) = schedule[product].op.reduce_axis
    for axis in (yi, xi, lane):
        schedule[product].unroll(axis)
    schedule[sums].compute_at(whole, at)
    sy, sx, sl = schedule[sums].op.axis
    (part,) = schedule[sums].op.reduce_axis
    schedule[sums].reorder(part, sy, sx, sl)
    schedule[sums].unroll(sy)
    schedule[sums].unroll(sx)
    schedule[sums].vectorize(sl)
