"""Products of many rows with weights, in bfloat16 with float32 sums: an op of Relay for CPUs.

    (a[rows, depth], b[panels, depth / 2, width, 2]) -> a @ b     a and b: bits of bfloat16

Weights lie in panels of pairs, as `vdpbf16ps` reads them. Tiles, blocks and parts are those of
`product_tiles`, for half of the depth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relay, te

from heteroplace.bfloat16_bits import bfloat16_bits
from heteroplace.parts.kernels.cpu.bfloat16 import PAIR
from heteroplace.parts.kernels.cpu.fused_schedules import schedule_by_tag
from heteroplace.parts.kernels.cpu.packed_matmul_op import packed
from heteroplace.parts.kernels.cpu.product_tiles import TiledProduct, panel_width, shape_of
from heteroplace.parts.kernels.cpu.tile_assembly import PAIRS
from heteroplace.parts.kernels.rewrites.narrow_weights import widened
from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_relay_op

BFLOAT16_MATMUL_OP = "heteroplace_bfloat16_matmul"
"""Of a matrix [rows, depth] and weights [panels, depth / 2, width, 2], both of bfloat16's bits;
attribute `columns` says how many of the weights' columns are stored. The result is of float32."""

_TAG = BFLOAT16_MATMUL_OP
_SUMS = "float32"


def bfloat16_matmul(a: relay.Expr, b: relay.Expr, columns: int) -> relay.Call:
    """Return a call of the op; `b` is what `paired_panels` makes."""
    add_relay_op(
        BFLOAT16_MATMUL_OP,
        "The product of a matrix and of weights in panels, in bfloat16.",
        {"a": ("Tensor", "the left one"), "b": ("Tensor", "[panels, depth / 2, width, 2]")},
        _type_of,
        _compute,
        schedule_bfloat16_matmul,
        is_fusable=True,
    )
    attrs = tvm.ir.make_node("DictAttrs", columns=columns)
    return relay.Call(tvm.ir.Op.get(BFLOAT16_MATMUL_OP), [a, b], attrs)


def can_multiply(rows: int, columns: int, depth: int) -> bool:
    """Say whether the op is for products of these sizes on the current target.

    Of few rows with much to read, memory takes the time: weights in bfloat16 are all that helps.
    """
    if depth % PAIR:
        return False
    return _tiled(rows, columns, depth // PAIR, panel_width(columns, _SUMS)).is_by_registers


def paired_panels(matrix: np.ndarray) -> np.ndarray:
    """Return weights [columns, depth] of float32 in panels of pairs of bfloat16.

    The panels are those of `packed`.
    """
    panels = packed(bfloat16_bits(matrix), _SUMS)
    count, depth, width = panels.shape
    pairs = panels.reshape(count, depth // PAIR, PAIR, width)
    return np.ascontiguousarray(pairs.swapaxes(2, 3))


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    rows, _ = static_shape(arguments[0])
    return relay.TensorType((rows, int(attrs["columns"])), _SUMS)


def _tiled(rows: int, columns: int, pairs: int, width: int) -> TiledProduct:
    return TiledProduct((), rows, columns, pairs, width, _SUMS, PAIRS)


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    a, b = tensors
    rows, _ = shape_of(a)
    _, pairs, width, _ = shape_of(b)
    tiled = _tiled(rows, int(attrs["columns"]), pairs, width)

    def left(y: Any, at: Any, of_pair: Any) -> Any:
        return widened(a[y, PAIR * at + of_pair], _SUMS)

    def right(panel: Any, at: Any, x: Any, of_pair: Any) -> Any:
        return widened(b[panel, at, x, of_pair], _SUMS)

    return [tiled.compute(left, right, _TAG)]


def schedule_bfloat16_matmul(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    """Schedule the op and what is fused behind it."""
    return schedule_by_tag(outs, {_TAG: _schedule})


def _schedule(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    _, weights = product.op.input_tensors
    _, pairs, width, _ = shape_of(weights)
    rows, columns = shape_of(result)
    _tiled(rows, columns, pairs, width).schedule(schedule, product, result)
