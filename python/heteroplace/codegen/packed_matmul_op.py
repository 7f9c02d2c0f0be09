"""Products of any number of rows with weights in panels: an op of Relay for CPUs.

TVM's dense layers for x86 read weights in panels of some columns, one after the other, which is as
fast as memory is; but they go over rows in tiles of a power of two that divides their number: 17
rows read the weights 17 times. Branches of a router have whatever capacity their loads ask for. So
here tiles have any number of rows, and those behind the last row compute it again, in registers:

    (a[17, depth], b[panels, depth, width]) -> a @ b    two tiles of 9 rows, of which 17 are stored

A panel is read from memory once and stays in the cache for the tiles that follow. What is summed up
for an element is in the order of `depth`, whatever the tile. Elementwise ops are fused behind it.
Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(doi:10.1145/1356052.1356053), for the tiles and the panels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relay, te
from tvm.target.x86 import get_simd_32bit_lanes
from tvm.topi import tag
from tvm.topi.utils import traverse_inline

from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_relay_op

PACKED_MATMUL_OP = "heteroplace_packed_matmul"
"""Of a matrix [rows, depth] and weights [panels, depth, width]."""

_TAG = "heteroplace_packed_matmul"
_VECTORS = 2
"""Of a panel's width: with fewer, loads of the left matrix hold up the sums."""
_PAGE_BYTES = 4096
_WAYS = 6
"""Rows that lie a multiple of 4 KiB apart share a set of the first cache, which holds at least 8
lines: those of so many rows, and of a panel."""
_TILE_COST = 0.5
"""What a tile takes beside its rows, in rows."""


def packed_matmul(a: relay.Expr, b: relay.Expr) -> relay.Call:
    """Return a call of the op: the product of `a` and of what is in the panels of `b`."""
    add_relay_op(
        PACKED_MATMUL_OP,
        "The product of a matrix and of weights in panels.",
        {"a": ("Tensor", "the left one"), "b": ("Tensor", "[panels, depth, width]")},
        _type_of,
        _compute,
        schedule_packed_matmul,
        is_fusable=True,
    )
    return relay.Call(tvm.ir.Op.get(PACKED_MATMUL_OP), [a, b], tvm.ir.make_node("DictAttrs"))


def packed(matrix: np.ndarray) -> np.ndarray | None:
    """Return weights [columns, depth] in panels for the current target; None: they do not fit.

    The panels are as wide as two vectors, or one.
    """
    columns, depth = matrix.shape
    lanes = _lanes(matrix.dtype.itemsize)
    width = next((each for each in (_VECTORS * lanes, lanes) if columns % each == 0), None)
    if width is None:
        return None
    panels = matrix.reshape(columns // width, width, depth).transpose(0, 2, 1)
    return np.ascontiguousarray(panels)


def tile_rows(rows: int, most: int) -> int:
    """Return how many rows a tile has: at most `most`, so that all tiles together are least work.

    >>> [tile_rows(rows, 9) for rows in (1, 5, 12, 17, 61, 63, 64)]
    [1, 5, 6, 9, 9, 9, 8]
    """

    def work(tile: int) -> float:
        return -(-rows // tile) * (tile + _TILE_COST)

    return min(range(min(rows, most), 0, -1), key=work)


def _lanes(item_bytes: int) -> int:
    return 4 * int(get_simd_32bit_lanes()) // item_bytes


def _tile_of(a: te.Tensor, b: te.Tensor) -> int:
    """Rows of a tile whose sums are in registers, beside one of the left matrix for each row, which
    LLVM loads before it uses any."""
    (rows, depth), width, item_bytes = _shape(a), _shape(b)[2], _item_bytes(b)
    registers = 18 if get_simd_32bit_lanes() == 16 else 8
    most = max(1, registers * _lanes(item_bytes) // width)
    return tile_rows(rows, min(most, _WAYS) if depth * item_bytes % _PAGE_BYTES == 0 else most)


def _type_of(arguments: Any, _attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    a, b = arguments
    panels, _, width = static_shape(b)
    return relay.TensorType((static_shape(a)[0], panels * width), a.dtype)


def _compute(_attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    a, b = tensors
    rows, depth = _shape(a)
    panels, _, width = _shape(b)
    tile = _tile_of(a, b)
    computed = -(-rows // tile) * tile
    at = te.reduce_axis((0, depth), "depth")

    def row(y: Any) -> Any:
        return y if computed == rows else tvm.tir.min(y, rows - 1)

    product = te.compute(
        (computed, panels * width),
        lambda y, x: te.sum(
            a[row(y), at] * b[tvm.tir.indexdiv(x, width), at, tvm.tir.indexmod(x, width)], axis=at
        ),
        "product",
        tag=_TAG,
    )
    if computed == rows:
        return [product]
    shape = (rows, panels * width)
    return [te.compute(shape, lambda y, x: product[y, x], "stored", tag=tag.INJECTIVE)]


def _shape(tensor: te.Tensor) -> tuple[int, ...]:
    return tuple(int(extent) for extent in tensor.shape)


def _item_bytes(tensor: te.Tensor) -> int:
    return int(tvm.DataType(tensor.dtype).bits) // 8


def schedule_packed_matmul(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    """Schedule the op and what is fused behind it."""
    result = outs[0]
    schedule = te.create_schedule([each.op for each in outs])

    def visit(op: te.Operation) -> None:
        if op.tag == _TAG:
            _schedule(schedule, op.output(0), result)

    traverse_inline(schedule, result.op, visit)
    return schedule


def _schedule(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    a, b = product.op.input_tensors
    width, tile = _shape(b)[2], _tile_of(a, b)
    is_output = product.op in schedule.outputs
    sums = schedule.cache_write(product, "global")
    whole = schedule[result]
    y, x = whole.op.axis
    xo, xi = whole.split(x, width)
    yo, yi = whole.split(y, tile)
    whole.reorder(xo, yo, yi, xi)
    at = whole.fuse(xo, yo)
    whole.parallel(at)
    whole.vectorize(xi)
    if is_output:
        whole.unroll(yi)
    else:
        schedule[product].compute_at(whole, at)
        py, px = schedule[product].op.axis
        schedule[product].unroll(py)
        schedule[product].vectorize(px)
    schedule[sums].compute_at(whole, at)
    sy, sx = schedule[sums].op.axis
    (depth,) = schedule[sums].op.reduce_axis
    schedule[sums].reorder(depth, sy, sx)
    schedule[sums].unroll(sy)
    schedule[sums].vectorize(sx)
