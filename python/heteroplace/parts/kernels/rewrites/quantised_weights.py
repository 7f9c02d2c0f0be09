"""Weights that are whole multiples of a scale in each block -> stored in 4 or 8 bits.

Constant folding dequantises a model with weights of a few bits, so that they take eight or four
times their bytes. Here such weights are recognised by their values. It does not matter where they
came from: MatMulNBits, DequantizeLinear, or an export that had dequantised them itself.

    const [2048, 2048] float32, in each block of 32 along the depth   ==>  numbers of 4 bits,
        each the product of one scale and an integer from -8 to 7          and a scale a block
    ... or a minimum and the product of a scale and 0 to 15           ==>  and a minimum a block

Numbers of 4 bits with a minimum are those of llama.cpp's `Q4_1`, and of floating zero points. The
numbers stand for exactly the weights that there were.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tvm

from heteroplace.parts.kernels.native.core_quantise import quantise, quantise_with_minimums
from heteroplace.parts.kernels.rewrites.narrow_weights import MIN_QUANTISED, narrowed

_FORMS = ((4, False), (4, True), (8, False))
"""Bits, and whether blocks have minimums instead of zero points, fewer bytes first."""
_BLOCKS = (256, 128, 64, 32, 16)
"""Sizes of a block that are tried after whole rows, larger ones first: they need fewer scales."""


class Quantised(NamedTuple):
    """Weights [columns, depth] as (numbers - offsets) * scales, or numbers * scales + offsets."""

    bits: int
    """Of a number: 4 or 8."""
    numbers: np.ndarray
    """[columns, depth], uint8."""
    scales: np.ndarray
    """[columns, blocks], float32, some of them negative; the blocks of a column have one size."""
    offsets: np.ndarray
    """[columns, blocks]: zero points, uint8; or minimums, float32."""

    def of_blocks(self, target: tvm.target.Target) -> list[np.ndarray]:
        """Return scales and offsets as they are held, of floats in half precision if that is exact.

        Offsets that are all the same are one number, [1, 1].
        """
        offsets = narrowed(self.offsets, target) if np.ptp(self.offsets) else self.offsets[:1, :1]
        return [narrowed(self.scales, target), offsets]

    def held_bytes(self, target: tvm.target.Target) -> int:
        """Return what they take, without what fills the last panel."""
        of_blocks = sum(int(each.nbytes) for each in self.of_blocks(target))
        return self.numbers.size * self.bits // 8 + of_blocks


def quantised(matrix: np.ndarray) -> Quantised | None:
    """Return float32 weights [columns, depth] in a few bits if that is exact, else None.

    The depth must be a multiple of 16, and the matrix have at least `MIN_QUANTISED` weights.

    Examples
    --------
    >>> steps = np.arange(2**16, dtype="float32").reshape(256, 256) * 7 % 16 - 8
    >>> weights = quantised(steps * np.float32(0.1))
    >>> weights.bits, weights.scales.shape, np.unique(weights.offsets).tolist()
    (4, (256, 1), [8])
    >>> quantised(steps * np.float32(0.5) + np.float32(3.3)).offsets[0].round(3).tolist()
    [-0.699999988079071]
    """
    if matrix.dtype != np.float32 or matrix.size < MIN_QUANTISED:
        return None
    matrix = np.ascontiguousarray(matrix)
    columns, depth = matrix.shape
    # Of whole rows first: they have the fewest scales.
    blocks = [each for each in (depth, *_BLOCKS) if depth % each == 0 and each % _BLOCKS[-1] == 0]
    for bits, has_minimums in _FORMS:
        for block in dict.fromkeys(blocks):
            # The first row rules out most matrices quickly.
            weights = _in_blocks(matrix[:1], bits, block, has_minimums=has_minimums)
            if weights is not None and columns > 1:
                weights = _in_blocks(matrix, bits, block, has_minimums=has_minimums)
            if weights is not None:
                return weights
    return None


def _in_blocks(
    matrix: np.ndarray, bits: int, block: int, *, has_minimums: bool
) -> Quantised | None:
    blocks = len(matrix), matrix.shape[1] // block
    numbers, scales = np.empty(matrix.shape, np.uint8), np.empty(blocks, np.float32)
    offsets = np.empty(blocks, np.float32 if has_minimums else np.uint8)
    if has_minimums:
        is_exact = quantise_with_minimums(matrix, numbers, scales, offsets)
    else:
        is_exact = quantise(matrix, bits, numbers, scales, offsets)
    return Quantised(bits, numbers, scales, offsets) if is_exact else None
