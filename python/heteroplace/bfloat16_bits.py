"""Float32 numbers -> the bits of the nearest bfloat16, which is the upper half of a float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_HALF = 0x7FFF
_QUIET_NAN = 0x7FC0


def bfloat16_bits(array: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Return floating point numbers rounded to bfloat16, ties to even, as their bits.

    Examples
    --------
    >>> [hex(bits) for bits in bfloat16_bits(np.array([1, 1.01, np.inf, np.nan], "float32"))]
    ['0x3f80', '0x3f81', '0x7f80', '0x7fc0']
    """
    bits = np.asarray(array, np.float32, order="C").view(np.uint32)
    nearest = (bits + (_HALF + ((bits >> 16) & 1))) >> 16
    # The sum makes another number of a NaN.
    return np.where(np.isnan(array), _QUIET_NAN, nearest).astype(np.uint16)


def rounded_to_bfloat16(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return floating point numbers rounded to bfloat16, ties to even, in float32."""
    return (bfloat16_bits(array).astype(np.uint32) << 16).view(np.float32)
