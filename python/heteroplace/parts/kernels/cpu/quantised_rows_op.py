"""Rows of a table in 4 or 8 bits, dequantised as they are looked up: an op for CPUs.

The table lies in panels, as the weights of `quantised_matmul_op.py` do: a decoder's head and its
embedding are often one matrix, which is stored once.

    (indices[..], words[panels, depth / n, width], scales, offsets) -> rows [.., depth]
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relay, te, tir
from tvm.topi import tag

from heteroplace.parts.kernels.cpu.product_tiles import shape_of
from heteroplace.parts.kernels.cpu.quantised_panels import SUMS, PanelWeights
from heteroplace.relay.targets import has_int8_activations
from heteroplace.tvm_bridge import add_relay_op

QUANTISED_ROWS_OP = "heteroplace_quantised_rows"
"""Attributes: `rows` of the table, to which indices are clipped, and its `depth`."""


def quantised_rows(
    indices: relay.Expr,
    words: relay.Expr,
    scales: relay.Expr,
    offsets: relay.Expr,
    shape: tuple[int, int],
) -> relay.Call:
    """Return a call of the op; `words`, `scales` and `offsets` are what `in_words` makes.

    Parameters
    ----------
    shape
        Of the table: rows and depth.
    """
    add_relay_op(
        QUANTISED_ROWS_OP,
        "Rows of a table of a few bits in panels.",
        {
            "indices": ("Tensor", "of the rows"),
            "words": ("Tensor", "[panels, depth / n, width]"),
            "scales": ("Tensor", "[panels, blocks, width]"),
            "offsets": ("Tensor", "[panels, blocks, width] or [1, 1, 1]"),
        },
        _type_of,
        _compute,
        is_fusable=True,
    )
    is_rounded = has_int8_activations(tvm.target.Target.current())
    rows, depth = shape
    attrs = tvm.ir.make_node("DictAttrs", rows=rows, depth=depth, is_rounded=int(is_rounded))
    return relay.Call(tvm.ir.Op.get(QUANTISED_ROWS_OP), [indices, words, scales, offsets], attrs)


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    return relay.TensorType((*arguments[0].shape, int(attrs["depth"])), SUMS)


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    indices, words, scales, offsets = tensors
    rows, depth = int(attrs["rows"]), int(attrs["depth"])
    weights = PanelWeights(words, scales, offsets, depth, bool(attrs["is_rounded"]))
    width = shape_of(words)[2]

    def element(*where: Any) -> tir.PrimExpr:
        *at, place = where
        index = indices[tuple(at)]
        last = tir.const(rows - 1, index.dtype)
        row = tir.min(tir.max(index, tir.const(0, index.dtype)), last).astype("int32")
        return weights.weight(tir.indexdiv(row, width), place, tir.indexmod(row, width))

    return [te.compute((*indices.shape, depth), element, "rows", tag=tag.INJECTIVE)]
