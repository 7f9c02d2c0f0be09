"""Products of many rows with weights in bfloat16 or 8 bits: two ops of Relay for CPUs.

    (a[rows, depth], b[panels, depth / n, width, n]) -> a @ b

An instruction multiplies n neighbours of a row by those of a column and adds the products to one
sum: `vdpbf16ps` pairs of bfloat16, with float32 sums, and `vpdpbusd` four bytes, with exact sums of
32 bits. Weights lie in panels of such groups. Tiles, blocks and parts are those of `product_tiles`,
for a depth of so many groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relay, te, tir

from heteroplace.bfloat16_bits import bfloat16_bits
from heteroplace.parts.kernels.cpu.fused_schedules import schedule_by_tag
from heteroplace.parts.kernels.cpu.packed_matmul_op import packed
from heteroplace.parts.kernels.cpu.product_tiles import TiledProduct, panel_width, shape_of
from heteroplace.parts.kernels.cpu.tile_assembly import PAIRS, QUADS, numbers_of
from heteroplace.parts.kernels.rewrites.narrow_weights import widened
from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_relay_op


class GroupedMatmul(NamedTuple):
    """An op, of a matrix [rows, depth] and weights that `panels` makes. Its attribute `columns`
    says how many columns of the weights are stored."""

    name: str
    """Of the op, and tag of its products."""
    group: str
    """PAIRS or QUADS."""
    sums: str
    """Type of the result."""
    stored: Callable[[np.ndarray], np.ndarray]
    """Weights -> the same as the kernel reads them."""
    widened: Callable[[tir.PrimExpr], tir.PrimExpr]
    """A number of either matrix -> the same in the type of the sums."""

    def __call__(self, a: relay.Expr, b: relay.Expr, columns: int) -> relay.Call:
        """Return a call of the op."""
        add_relay_op(
            self.name,
            "The product of a matrix and of weights in panels of groups.",
            {
                "a": ("Tensor", "the left one"),
                "b": ("Tensor", "[panels, depth / n, width, n]"),
            },
            self._type_of,
            self.compute,
            self.schedule_grouped_matmul,
            is_fusable=True,
        )
        attrs = tvm.ir.make_node("DictAttrs", columns=columns)
        return relay.Call(tvm.ir.Op.get(self.name), [a, b], attrs)

    def can_multiply(self, rows: int, columns: int, depth: int) -> bool:
        """Say whether the op is for products of these sizes on the current target.

        A product of few rows in bfloat16 waits for its weights, so that kernels which read these in
        half precision are as fast.
        """
        groups, rest = divmod(depth, numbers_of(self.group))
        tiled = self._tiled(rows, columns, groups, panel_width(columns, self.sums, self.group))
        return not rest and rows > 1 and (tiled.is_by_amx or tiled.is_by_registers)

    def panels(self, matrix: np.ndarray) -> np.ndarray:
        """Return weights [columns, depth] in the panels of `packed`, in groups of a column."""
        panels = packed(self.stored(matrix), self.sums, self.group)
        count, depth, width = panels.shape
        number = numbers_of(self.group)
        groups = panels.reshape(count, depth // number, number, width)
        return np.ascontiguousarray(groups.swapaxes(2, 3))

    def compute(self, attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
        """Compute the op, as TVM asks for it."""
        a, b = tensors
        rows, _ = shape_of(a)
        _, groups, width, number = shape_of(b)
        tiled = self._tiled(rows, int(attrs["columns"]), groups, width)

        def left(y: Any, at: Any, of_group: Any) -> Any:
            return self.widened(a[y, number * at + of_group])

        def right(panel: Any, at: Any, x: Any, of_group: Any) -> Any:
            return self.widened(b[panel, at, x, of_group])

        return [tiled.compute(left, right, self.name)]

    def schedule_grouped_matmul(self, _attrs: Any, outs: Any, _target: Any) -> te.Schedule:
        """Schedule the op and what is fused behind it, as TVM asks for it."""
        return schedule_by_tag(outs, {self.name: self._schedule})

    def _type_of(self, arguments: Any, attrs: Any) -> tvm.ir.Type | None:
        if not all(isinstance(each, relay.TensorType) for each in arguments):
            return None
        rows, _ = static_shape(arguments[0])
        return relay.TensorType((rows, int(attrs["columns"])), self.sums)

    def _tiled(self, rows: int, columns: int, groups: int, width: int) -> TiledProduct:
        return TiledProduct((), rows, columns, groups, width, self.sums, self.group)

    def _schedule(self, schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
        _, weights = product.op.input_tensors
        _, groups, width, _ = shape_of(weights)
        rows, columns = shape_of(result)
        self._tiled(rows, columns, groups, width).schedule(schedule, product, result)


BFLOAT16_MATMUL = GroupedMatmul(
    "heteroplace_bfloat16_matmul",
    PAIRS,
    "float32",
    bfloat16_bits,
    lambda bits: widened(bits, "float32"),
)
"""Of two matrices of bfloat16, as their bits."""
INT8_MATMUL = GroupedMatmul(
    "heteroplace_int8_matmul",
    QUADS,
    "int32",
    lambda weights: weights,
    lambda byte: byte.astype("int32"),
)
"""Of a matrix of uint8 and weights of int8."""
