"""Products of a few rows with weights in 4 or 8 bits, unpacked in registers: an op for CPUs.

    (a[rows, depth], words[panels, depth / n, width], scales, zeros) -> a @ weights

A word of 32 bits has n numbers of one column, 8 of 4 bits or 4 of 8, one place in depth after the
other. Two instructions, `and` and a conversion, turn a vector of words into a vector of floats.
Only the last number of a word is shifted down; for the others the left factor is divided by the
place value. Zero points are subtracted once per block, by sums of the left row:

    sum over blocks of  scale * (sum of number * a  -  zero * sum of a)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relay, te, tir
from tvm.topi import tag

from heteroplace.parts.kernels.cpu.fused_schedules import schedule_by_tag
from heteroplace.parts.kernels.cpu.packed_matmul_op import packed
from heteroplace.parts.kernels.cpu.product_tiles import (
    TiledProduct,
    shape_of,
    vector_bytes,
    vector_registers,
)
from heteroplace.parts.kernels.rewrites.narrow_weights import narrowed, widened
from heteroplace.parts.kernels.rewrites.quantised_weights import Quantised
from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_relay_op

QUANTISED_MATMUL_OP = "heteroplace_quantised_matmul"
"""Of a matrix [rows, depth], words [panels, depth / n, width], scales [panels, blocks, width] and
zero points of that shape, or one; attribute `columns` says how many of theirs are stored."""

_UNPACKED_ROWS = {32: 8}
"""How many rows unpack weights in registers, by the number of vector registers, else 4. For more
rows, weights are dequantised first, a panel at a time."""
_UNPACKED, _TILED = f"{QUANTISED_MATMUL_OP}_unpacked", f"{QUANTISED_MATMUL_OP}_tiled"
"""Tags of the two forms."""
_LEFT, _PART = "left", "part"
_WORD_BITS = 32
_SUMS = "float32"


def quantised_matmul(
    a: relay.Expr, words: relay.Expr, scales: relay.Expr, zeros: relay.Expr, columns: int
) -> relay.Call:
    """Return a call of the op; `words`, `scales` and `zeros` are what `in_words` makes."""
    add_relay_op(
        QUANTISED_MATMUL_OP,
        "The product of a matrix and of weights of a few bits in panels.",
        {
            "a": ("Tensor", "the left one"),
            "words": ("Tensor", "[panels, depth / n, width]"),
            "scales": ("Tensor", "[panels, blocks, width]"),
            "zeros": ("Tensor", "[panels, blocks, width] or [1, 1, 1]"),
        },
        _type_of,
        _compute,
        schedule_quantised_matmul,
        is_fusable=True,
    )
    attrs = tvm.ir.make_node("DictAttrs", columns=columns)
    return relay.Call(tvm.ir.Op.get(QUANTISED_MATMUL_OP), [a, words, scales, zeros], attrs)


def in_words(weights: Quantised, target: tvm.target.Target) -> list[np.ndarray]:
    """Return words, scales and zero points in panels for a target, which is the current one.

    Scales are in half precision where that is exact. What is behind the last column is 0. Zero
    points that are all the same are one number, [1, 1, 1].
    """
    columns, depth = weights.numbers.shape
    in_word = _WORD_BITS // weights.bits
    words = np.zeros((columns, depth // in_word), np.uint32)
    for place in range(in_word):
        words |= weights.numbers[:, place::in_word].astype(np.uint32) << (place * weights.bits)
    panels = [packed(each, _SUMS) for each in (words, narrowed(weights.scales, target))]
    if np.ptp(weights.zeros) == 0:
        return [*panels, weights.zeros[:1, :1, np.newaxis]]
    return [*panels, packed(weights.zeros, _SUMS)]


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    rows, _ = static_shape(arguments[0])
    return relay.TensorType((rows, int(attrs["columns"])), _SUMS)


class _Weights(NamedTuple):
    """Of one call, in panels."""

    words: te.Tensor
    scales: te.Tensor
    zeros: te.Tensor
    depth: int

    @property
    def in_word(self) -> int:
        """Numbers of a word."""
        return self.depth // shape_of(self.words)[1]

    @property
    def bits(self) -> int:
        """Of a number."""
        return _WORD_BITS // self.in_word

    @property
    def block(self) -> int:
        """Numbers along the depth that have one scale."""
        return self.depth // shape_of(self.scales)[1]

    def zero(self, panel: Any, block: Any, x: Any) -> tir.PrimExpr:
        """Return the zero point of a block, uint8."""
        return self.zeros[0, 0, 0] if shape_of(self.zeros)[2] == 1 else self.zeros[panel, block, x]

    def dequantised(self) -> te.Tensor:
        """Return the weights in float32, [panels, depth, width]."""
        div, mod = tir.indexdiv, tir.indexmod
        mask = tir.const((1 << self.bits) - 1, "uint32")

        def weight(panel: Any, at: Any, x: Any) -> tir.PrimExpr:
            shift = (mod(at, self.in_word) * self.bits).astype("uint32")
            number = (self.words[panel, div(at, self.in_word), x] >> shift) & mask
            where = panel, div(at, self.block), x
            steps = number.astype("int32") - self.zero(*where).astype("int32")
            return steps.astype(_SUMS) * widened(self.scales[where], _SUMS)

        panels, _, width = shape_of(self.words)
        return te.compute((panels, self.depth, width), weight, "dequantised")


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    a, words, scales, zeros = tensors
    rows, depth = shape_of(a)
    weights, columns = _Weights(words, scales, zeros, depth), int(attrs["columns"])
    if rows <= _UNPACKED_ROWS.get(vector_registers(), 4):
        return [_unpacked(a, weights, columns)]
    dequantised = weights.dequantised()
    tiled = _tiled(a, dequantised, columns)
    return [tiled.compute(lambda y, at: a[y, at], lambda *where: dequantised[where], _TILED)]


def _tiled(a: te.Tensor, dequantised: te.Tensor, columns: int) -> TiledProduct:
    rows, depth = shape_of(a)
    width = shape_of(dequantised)[2]
    return TiledProduct((), rows, columns, depth, width, _SUMS, _SUMS, is_right_made=True)


def _unpacked(a: te.Tensor, weights: _Weights, columns: int) -> te.Tensor:
    rows, depth = shape_of(a)
    panels, _, width = shape_of(weights.words)
    bits, in_word, block = weights.bits, weights.in_word, weights.block
    words_of_block, last = block // in_word, in_word - 1

    def at_place(y: Any, word: Any, place: Any) -> tir.PrimExpr:
        place_value = (tir.const(1, "int32") << (place * bits)).astype(_SUMS)
        return a[y, word * in_word + place] / tir.Select(
            place >= last, tir.const(1, _SUMS), place_value
        )

    left = te.compute((rows, depth // in_word, in_word), at_place, _LEFT)
    at = te.reduce_axis((0, block), "at")
    blocks = depth // block
    sums = te.compute(
        (rows, blocks), lambda y, number: te.sum(a[y, number * block + at], axis=at), "sums"
    )
    word = te.reduce_axis((0, words_of_block), "word")
    place = te.reduce_axis((0, in_word), "place")

    def summed(panel: Any, y: Any, number: Any, x: Any) -> tir.PrimExpr:
        packed_word = weights.words[panel, number * words_of_block + word, x]
        mask = tir.const((1 << bits) - 1, "uint32") << (place * bits).astype("uint32")
        shifted = packed_word >> tir.const(last * bits, "uint32")
        value = tir.Select(place >= last, shifted, packed_word & mask)
        factor = value.astype("int32").astype(_SUMS)
        return te.sum(left[y, number * words_of_block + word, place] * factor, axis=[word, place])

    part = te.compute((panels, rows, blocks, width), summed, _PART)
    number = te.reduce_axis((0, blocks), "block")

    def scaled(panel: Any, y: Any, x: Any) -> tir.PrimExpr:
        where = panel, number, x
        zero = weights.zero(*where).astype(_SUMS)
        centred = part[panel, y, number, x] - zero * sums[y, number]
        return te.sum(widened(weights.scales[where], _SUMS) * centred, axis=number)

    product = te.compute((panels, rows, width), scaled, "product", tag=_UNPACKED)
    div, mod = tir.indexdiv, tir.indexmod
    return te.compute(
        (rows, columns),
        lambda y, x: product[div(x, width), y, mod(x, width)],
        "stored",
        tag=tag.INJECTIVE,
    )


def schedule_quantised_matmul(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    """Schedule the op and what is fused behind it."""
    return schedule_by_tag(outs, {_UNPACKED: _schedule_unpacked, _TILED: _schedule_tiled})


def _schedule_tiled(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    a, dequantised = product.op.input_tensors
    _tiled(a, dequantised, shape_of(result)[1]).schedule(schedule, product, result)
    whole, stage = schedule[result], schedule[dequantised]
    stage.compute_at(whole, whole.leaf_iter_vars[0])
    stage.vectorize(stage.split(stage.op.axis[2], vector_bytes() // 4)[1])


def _schedule_unpacked(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    part = next(each for each in product.op.input_tensors if each.op.name == _PART)
    left = next(each for each in part.op.input_tensors if each.op.name == _LEFT)
    width, lanes = shape_of(product)[2], vector_bytes() // 4
    schedule[left].unroll(schedule[left].op.axis[2])
    whole = schedule[result]
    y, x = whole.op.axis
    xo, xi = whole.split(x, width)
    whole.reorder(xo, y, xi)
    whole.parallel(xo)
    whole.vectorize(whole.split(xi, lanes)[1])
    by_block = schedule[product]
    by_block.compute_at(whole, xo)
    panel, py, px = by_block.op.axis
    (number,) = by_block.op.reduce_axis
    po, lane = by_block.split(px, lanes)
    by_block.reorder(panel, number, py, po, lane)
    by_block.unroll(py)
    by_block.unroll(po)
    by_block.vectorize(lane)
    by_word = schedule[part]
    by_word.compute_at(by_block, number)
    panel, iy, _, ix = by_word.op.axis
    word, place = by_word.op.reduce_axis
    io, lane = by_word.split(ix, lanes)
    by_word.reorder(panel, word, place, iy, io, lane)
    for axis in (place, iy, io):
        by_word.unroll(axis)
    by_word.vectorize(lane)
