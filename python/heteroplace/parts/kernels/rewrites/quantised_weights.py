"""Weights that are whole multiples of a scale in each block -> stored in 4 or 8 bits.

Constant folding dequantises a model with weights of a few bits, so that they take eight or four
times their bytes. Here such weights are recognised by their values. It does not matter where they
came from: MatMulNBits, DequantizeLinear, or an export that had dequantised them itself.

    const [2048, 2048] float32, in each block of 32 along the depth   ==>  numbers of 4 bits,
        each the product of one scale and an integer from -8 to 7          and a scale a block

The numbers stand for exactly the weights that there were.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tvm

from heteroplace.parts.kernels.native.core_quantise import quantise
from heteroplace.parts.kernels.rewrites.narrow_weights import MIN_QUANTISED, narrowed

_BITS = (4, 8)
_BLOCKS = (256, 128, 64, 32, 16)
"""Sizes of a block that are tried after whole rows, larger ones first: they need fewer scales."""


class Quantised(NamedTuple):
    """Weights [columns, depth] as (numbers - zeros) * scales."""

    bits: int
    """Of a number: 4 or 8."""
    numbers: np.ndarray
    """[columns, depth], uint8."""
    scales: np.ndarray
    """[columns, blocks], float32, some of them negative; the blocks of a column have one size."""
    zeros: np.ndarray
    """[columns, blocks], uint8."""

    def held_bytes(self, target: tvm.target.Target) -> int:
        """Return what they take, without what fills the last panel."""
        zeros = self.zeros.nbytes if np.ptp(self.zeros) else 1
        scales = narrowed(self.scales, target)
        return self.numbers.size * self.bits // 8 + int(scales.nbytes) + zeros


def quantised(matrix: np.ndarray) -> Quantised | None:
    """Return float32 weights [columns, depth] in a few bits if that is exact, else None.

    The depth must be a multiple of 16, and the matrix have at least `MIN_QUANTISED` weights.

    Examples
    --------
    >>> steps = np.arange(2**16, dtype="float32").reshape(256, 256) * 7 % 16 - 8
    >>> weights = quantised(steps * np.float32(0.1))
    >>> weights.bits, weights.scales.shape, np.unique(weights.zeros).tolist()
    (4, (256, 1), [8])
    """
    if matrix.dtype != np.float32 or matrix.size < MIN_QUANTISED:
        return None
    matrix = np.ascontiguousarray(matrix)
    columns, depth = matrix.shape
    # Of whole rows first: they have the fewest scales.
    blocks = [each for each in (depth, *_BLOCKS) if depth % each == 0 and each % _BLOCKS[-1] == 0]
    for bits in _BITS:
        for block in dict.fromkeys(blocks):
            weights = _in_blocks(matrix[:1], bits, block)  # rules out most matrices quickly
            if weights is not None and columns > 1:
                weights = _in_blocks(matrix, bits, block)
            if weights is not None:
                return weights
    return None


def _in_blocks(matrix: np.ndarray, bits: int, block: int) -> Quantised | None:
    blocks = len(matrix), matrix.shape[1] // block
    numbers, zeros = np.empty(matrix.shape, np.uint8), np.empty(blocks, np.uint8)
    scales = np.empty(blocks, np.float32)
    is_exact = quantise(matrix, bits, numbers, scales, zeros)
    return Quantised(bits, numbers, scales, zeros) if is_exact else None
