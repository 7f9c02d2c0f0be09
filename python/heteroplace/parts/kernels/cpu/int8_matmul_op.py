"""Products of bytes with weights of 8 bits, exact in 32 bits: an op of Relay for CPUs with VNNI.

    (a[rows, depth] of uint8, b[panels, depth / 4, width, 4] of int8) -> a @ b of int32

Weights lie in panels of four numbers of a column, as `vpdpbusd` reads them. Tiles, blocks and parts
are those of `product_tiles`, for a quarter of the depth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relay, te

from heteroplace.parts.kernels.cpu.fused_schedules import schedule_by_tag
from heteroplace.parts.kernels.cpu.packed_matmul_op import packed
from heteroplace.parts.kernels.cpu.product_tiles import TiledProduct, panel_width, shape_of
from heteroplace.parts.kernels.cpu.tile_assembly import QUADS
from heteroplace.relay.expressions import static_shape
from heteroplace.relay.vnni import BYTES
from heteroplace.tvm_bridge import add_relay_op

INT8_MATMUL_OP = "heteroplace_int8_matmul"
"""Of a matrix [rows, depth] and weights [panels, depth / 4, width, 4]; attribute `columns` says how
many of the weights' columns are stored."""

_TAG = INT8_MATMUL_OP
_SUMS = "int32"


def int8_matmul(a: relay.Expr, b: relay.Expr, columns: int) -> relay.Call:
    """Return a call of the op; `b` is what `quad_panels` makes."""
    add_relay_op(
        INT8_MATMUL_OP,
        "The product of a matrix of bytes and of weights of 8 bits in panels.",
        {"a": ("Tensor", "the left one"), "b": ("Tensor", "[panels, depth / 4, width, 4]")},
        _type_of,
        _compute,
        schedule_int8_matmul,
        is_fusable=True,
    )
    attrs = tvm.ir.make_node("DictAttrs", columns=columns)
    return relay.Call(tvm.ir.Op.get(INT8_MATMUL_OP), [a, b], attrs)


def can_multiply(rows: int, columns: int, depth: int) -> bool:
    """Say whether the op is for products of these sizes on the current target."""
    if depth % BYTES:
        return False
    return _tiled(rows, columns, depth // BYTES, panel_width(columns, _SUMS)).is_by_registers


def quad_panels(matrix: np.ndarray) -> np.ndarray:
    """Return weights int8 [columns, depth] in panels of four numbers of a column.

    The panels are those of `packed`.
    """
    panels = packed(matrix, _SUMS)
    count, depth, width = panels.shape
    quads = panels.reshape(count, depth // BYTES, BYTES, width)
    return np.ascontiguousarray(quads.swapaxes(2, 3))


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    rows, _ = static_shape(arguments[0])
    return relay.TensorType((rows, int(attrs["columns"])), _SUMS)


def _tiled(rows: int, columns: int, quads: int, width: int) -> TiledProduct:
    return TiledProduct((), rows, columns, quads, width, _SUMS, QUADS)


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    a, b = tensors
    rows, _ = shape_of(a)
    _, quads, width, _ = shape_of(b)
    tiled = _tiled(rows, int(attrs["columns"]), quads, width)

    def left(y: Any, at: Any, of_quad: Any) -> Any:
        return a[y, BYTES * at + of_quad].astype(_SUMS)

    def right(panel: Any, at: Any, x: Any, of_quad: Any) -> Any:
        return b[panel, at, x, of_quad].astype(_SUMS)

    return [tiled.compute(left, right, _TAG)]


def schedule_int8_matmul(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    """Schedule the op and what is fused behind it."""
    return schedule_by_tag(outs, {_TAG: _schedule})


def _schedule(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    _, weights = product.op.input_tensors
    _, quads, width, _ = shape_of(weights)
    rows, columns = shape_of(result)
    _tiled(rows, columns, quads, width).schedule(schedule, product, result)
