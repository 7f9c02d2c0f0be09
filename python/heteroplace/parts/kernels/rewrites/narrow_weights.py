"""Weights that fewer bits hold exactly -> stored in these, and widened in registers by kernels.

A model in float16 or bfloat16 is computed in float32 (sums would lose half of their digits), and
what is known ahead is widened while it is optimised: the weights then have twice their bytes. Here
they are found again by what they are, whatever was made of them on the way:

    const [768, 3072] float32, each the value of a float16   ==>  const [..] float16
    ... or of a bfloat16, whose lower half is 0              ==>  const [..] uint16, the upper half
    ... or of an int8, as in products of bytes by floats     ==>  const [..] int8

What is read is the same to the bit, and so is what is computed of it. LLVM 10 widens a vector by
one instruction or two (`vcvtph2ps`, `vpermt2w`); bfloat16 has no type there, hence its bits.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import tvm
from tvm import relay, tir
from tvm.target.codegen import target_has_features

from heteroplace.relay.expressions import spanned

BFLOAT16_BITS = "uint16"
"""Element type of weights in bfloat16."""
_WIDE = "float32"
MIN_NARROWED = 4096
"""Fewer take less than a page or two: they stay as they are. So many are looked at before all."""
MIN_QUANTISED = 2**16
"""Matrices of fewer weights are in a cache, and stay out of `quantised_weights`."""
_CHUNK = 2**20
"""Elements that are looked at together."""


def narrowed(array: np.ndarray, target: tvm.target.Target) -> np.ndarray:
    """Return the array in fewer bits if that is exact and a target widens it by instructions.

    Returns
    -------
    The values in int8 or float16, or the bits of bfloat16 as BFLOAT16_BITS; else the array itself.

    Examples
    --------
    >>> target = tvm.target.Target("llvm -mcpu=haswell")
    >>> [str(narrowed(np.full(5000, each, "float32"), target).dtype) for each in (1, 1.5, 0.1)]
    ['int8', 'uint16', 'float32']
    >>> narrowed(np.full(5000, 0.1, "float16").astype("float32"), target).dtype
    dtype('float16')
    """
    if array.dtype != _WIDE or array.size < MIN_NARROWED or target.kind.name != "llvm":
        return array
    bits = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    if bool(target_has_features("avx2", target)) and _are_all_held(bits, np.int8):
        return array.astype(np.int8)
    if all(not np.any(part & 0xFFFF) for part in _parts(bits)):
        return (bits >> 16).astype(BFLOAT16_BITS).reshape(array.shape)
    if not bool(target_has_features("f16c", target)):
        return array
    if _are_all_held(bits, np.float16):
        return array.astype(np.float16)
    return array


def _parts(bits: np.ndarray) -> list[np.ndarray]:
    """The first elements, which tell of most arrays that they are not narrow, and all others."""
    starts = [0, *range(MIN_NARROWED, bits.size, _CHUNK), bits.size]
    return [bits[start:end] for start, end in pairwise(starts)]


def _are_all_held(bits: np.ndarray, dtype: type[np.generic]) -> bool:
    """Whether a type holds the numbers with these bits. Of a zero it has to hold the sign."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large becomes another value
        return all(
            np.array_equal(
                part.view(np.float32).astype(dtype).astype(np.float32).view(np.uint32), part
            )
            for part in _parts(bits)
        )


def is_narrow(weights_dtype: str, dtype: str) -> bool:
    """Tell whether weights of a type are to be widened where they meet values of another."""
    return dtype == _WIDE and weights_dtype in ("int8", "float16", BFLOAT16_BITS)


def widened(element: tir.PrimExpr, dtype: str) -> tir.PrimExpr:
    """Return an element of weights as what it stands for among values of `dtype`, in TIR."""
    if not is_narrow(element.dtype, dtype):
        return element
    if element.dtype == BFLOAT16_BITS:
        bits = element.astype("uint32") << tir.const(16, "uint32")
        return tir.reinterpret(dtype, bits)
    return element.astype(dtype)


def widened_value(narrow: relay.Expr, dtype: str, span: Any) -> relay.Expr:
    """Return a value that was read from narrow weights of type `dtype` in float32, in Relay."""
    if dtype != BFLOAT16_BITS:
        return spanned(relay.cast(narrow, _WIDE), span)
    bits = spanned(relay.cast(narrow, "uint32"), span)
    shifted = spanned(relay.left_shift(bits, relay.const(16, "uint32")), span)
    return spanned(relay.reinterpret(shifted, _WIDE), span)
