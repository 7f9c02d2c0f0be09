"""Products of any number of rows with weights in panels: an op of Relay for CPUs.

TVM's dense layers for x86 read weights in panels of some columns, one after the other, which is as
fast as memory is; but they go over rows in tiles of a power of two that divides their number: 17
rows read the weights 17 times. So here tiles have any number of rows (`product_tiles`), and panels
zeros behind the last column:

    (a[17, depth], b[panels, depth, width]) -> a @ b    two tiles of 9 rows, of which 17 are stored

A row is the same in products of any number of rows. Weights may be narrow
(`narrow_weights`). Few rows widen them in registers, which costs nothing while memory delivers
them. For several tiles of rows, a panel is widened once, into the cache: in registers it would be
widened for each tile, at a quarter of the time of the sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relay, te

from heteroplace.parts.kernels.cpu.fused_schedules import schedule_by_tag
from heteroplace.parts.kernels.cpu.product_tiles import (
    TiledProduct,
    panel_width,
    shape_of,
)
from heteroplace.parts.kernels.rewrites.narrow_weights import is_narrow, widened
from heteroplace.tvm_bridge import add_relay_op

PACKED_MATMUL_OP = "heteroplace_packed_matmul"
"""Of a matrix [rows, depth] and weights [panels, depth, width]; attribute `columns` says how many
of theirs are stored."""

_TAG = "heteroplace_packed_matmul"
_WIDENED = "widened"
_MIN_TILES = 2
"""Of a block of rows, for which a panel of narrow weights is widened before they are summed up."""


def packed_matmul(a: relay.Expr, b: relay.Expr, columns: int) -> relay.Call:
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
    attrs = tvm.ir.make_node("DictAttrs", columns=columns)
    return relay.Call(tvm.ir.Op.get(PACKED_MATMUL_OP), [a, b], attrs)


def packed(matrix: np.ndarray, dtype: str, group: str = "") -> np.ndarray:
    """Return weights [columns, depth] in panels for the current target, and products in `dtype`.

    The panels are as wide as some vectors, or for few columns as a part of one; columns behind the
    last are zeros. `group`: as of `panel_width`.
    """
    columns, depth = matrix.shape
    width = min(panel_width(columns, dtype, group), 1 << (columns - 1).bit_length())
    panels = -(-columns // width)
    padded = np.zeros((panels * width, depth), matrix.dtype)
    padded[:columns] = matrix
    return np.ascontiguousarray(padded.reshape(panels, width, depth).transpose(0, 2, 1))


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    a, _ = arguments
    return relay.TensorType((a.shape[0], attrs["columns"]), a.dtype)


def _tiled(a: te.Tensor, b: te.Tensor, columns: int) -> TiledProduct:
    """How the product is done; `is_right_made` says that panels are widened first."""
    rows, depth = shape_of(a)
    in_registers = TiledProduct((), rows, columns, depth, shape_of(b)[2], a.dtype, b.dtype)
    if not is_narrow(b.dtype, a.dtype):
        return in_registers
    widened_first = in_registers._replace(
        right_dtype=a.dtype, is_right_made=True, source_dtype=b.dtype
    )
    has_tiles = widened_first.tiling().tiles >= _MIN_TILES and not widened_first.has_few_panels
    return widened_first if has_tiles else in_registers


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    a, b = tensors
    tiled = _tiled(a, b, int(attrs["columns"]))

    def right(panel: Any, at: Any, x: Any) -> Any:
        return widened(b[panel, at, x], a.dtype)

    if tiled.is_right_made:
        panels = te.compute(b.shape, right, _WIDENED)
        return [
            tiled.compute(
                lambda y, at: a[y, at],
                lambda *where: panels[where],
                _TAG,
                source=lambda *where: b[where],
            )
        ]
    return [tiled.compute(lambda y, at: a[y, at], right, _TAG)]


def schedule_packed_matmul(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    """Schedule the op and what is fused behind it."""
    return schedule_by_tag(outs, {_TAG: _schedule})


def _schedule(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    a, right = product.op.input_tensors[:2]
    is_made = right.op.name == _WIDENED
    weights = right.op.input_tensors[0] if is_made else right
    tiled = _tiled(a, weights, shape_of(result)[1])
    tiled.schedule(schedule, product, result, right if is_made else None)
