"""Weights of 4 or 8 bits in panels of words: how they are laid out, and read by ops for CPUs.

A word of 32 bits has n numbers of one column, 8 of 4 bits or 4 of 8, one place in depth after the
other. Each block of a column has a scale, and a zero point or a minimum:

    weight = (number - zero) * scale   or   number * scale + minimum
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import te, tir

from heteroplace.parts.kernels.cpu.int8_rows import depth_in_word, weight_in_word
from heteroplace.parts.kernels.cpu.packed_matmul_op import packed
from heteroplace.parts.kernels.cpu.product_tiles import shape_of
from heteroplace.parts.kernels.rewrites.narrow_weights import widened
from heteroplace.parts.kernels.rewrites.quantised_weights import Quantised
from heteroplace.relay.targets import has_int8_activations

WORD_BITS = 32
SUMS = "float32"


def in_words(weights: Quantised, target: tvm.target.Target) -> list[np.ndarray]:
    """Return words, scales and offsets in panels for a target, which is the current one.

    Scales and minimums are in half precision where that is exact. What is behind the last column is
    0. Offsets that are all the same are one number, [1, 1, 1].
    """
    columns, depth = weights.numbers.shape
    in_word = WORD_BITS // weights.bits
    words = np.zeros((columns, depth // in_word), np.uint32)
    is_rounded = has_int8_activations(target)
    for place in range(in_word):
        at = depth_in_word(place, weights.bits) if is_rounded else place
        words |= weights.numbers[:, at::in_word].astype(np.uint32) << (place * weights.bits)
    scales, offsets = weights.of_blocks(target)
    panels = [packed(each, SUMS) for each in (words, scales)]
    is_one = offsets.size == 1
    return [*panels, offsets[..., np.newaxis] if is_one else packed(offsets, SUMS)]


class PanelWeights(NamedTuple):
    """Operands of one call."""

    words: te.Tensor
    scales: te.Tensor
    offsets: te.Tensor
    """Zero points, uint8, or minimums."""
    depth: int
    is_rounded: bool
    """Whether words are in the order for numbers of 8 bits."""

    @property
    def in_word(self) -> int:
        """Numbers of a word."""
        return self.depth // shape_of(self.words)[1]

    @property
    def bits(self) -> int:
        """Of a number."""
        return WORD_BITS // self.in_word

    @property
    def block(self) -> int:
        """Numbers along the depth that have one scale."""
        return self.depth // shape_of(self.scales)[1]

    @property
    def has_minimums(self) -> bool:
        """Whether blocks have minimums instead of zero points."""
        return str(self.offsets.dtype) != "uint8"

    def offset(self, panel: Any, block: Any, x: Any) -> tir.PrimExpr:
        """Return the zero point of a block, uint8, or its minimum, float32."""
        is_one = shape_of(self.offsets)[2] == 1
        value = self.offsets[0, 0, 0] if is_one else self.offsets[panel, block, x]
        return widened(value, SUMS) if self.has_minimums else value

    def scale(self, panel: Any, block: Any, x: Any) -> tir.PrimExpr:
        """Return the scale of a block, float32."""
        return widened(self.scales[panel, block, x], SUMS)

    def number(self, panel: Any, at: Any, x: Any) -> tir.PrimExpr:
        """Return the number at a place in depth, int32."""
        word = self.words[panel, tir.indexdiv(at, self.in_word), x]
        place = tir.indexmod(at, self.in_word)
        if self.is_rounded:
            return weight_in_word(word, place, self.bits)
        mask = tir.const((1 << self.bits) - 1, "uint32")
        return ((word >> (place * self.bits).astype("uint32")) & mask).astype("int32")

    def weight(self, panel: Any, at: Any, x: Any) -> tir.PrimExpr:
        """Return the weight at a place in depth, float32."""
        number, where = self.number(panel, at, x), (panel, tir.indexdiv(at, self.block), x)
        if self.has_minimums:
            return number.astype(SUMS) * self.scale(*where) + self.offset(*where)
        return (number - self.offset(*where).astype("int32")).astype(SUMS) * self.scale(*where)

    def dequantised(self) -> te.Tensor:
        """Return the weights in float32, [panels, depth, width]."""
        panels, _, width = shape_of(self.words)
        return te.compute((panels, self.depth, width), self.weight, "dequantised")
