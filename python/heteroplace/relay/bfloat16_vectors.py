"""Floats in TIR -> bfloat16 by the instruction of AVX512-BF16, and words of two such numbers."""

from __future__ import annotations

from tvm import tir

BFLOAT16_LANES = 16
"""Numbers that it rounds."""
WORD, IN_WORD = "uint32", 2
"""Type of a word, and the numbers that it holds."""
_NUMBER_BITS = 16
_INSTRUCTION = "llvm.x86.avx512bf16.cvtneps2bf16.512"
_NUM_OPERANDS = tir.const(1, "uint32")


def rounded_vector(value: tir.PrimExpr) -> tir.PrimExpr:
    """Return the bits of a vector of float32, rounded, ties to even: uint16x16.

    A NaN stays one. Denormal numbers become 0.
    """
    kind = f"uint16x{BFLOAT16_LANES}"
    return tir.call_llvm_pure_intrin(kind, _INSTRUCTION, _NUM_OPERANDS, value)


def number_in_word(word: tir.PrimExpr, place: tir.PrimExpr) -> tir.PrimExpr:
    """Return a number of a word as a float32."""
    number = word >> (place * _NUMBER_BITS).astype(WORD)
    return tir.reinterpret("float32", number << tir.const(_NUMBER_BITS, WORD))


def joined_vectors(low: tir.PrimExpr, high: tir.PrimExpr) -> tir.PrimExpr:
    """Return two vectors of float32, rounded, as one of words."""
    lower, upper = (rounded_vector(each).astype(f"{WORD}x{BFLOAT16_LANES}") for each in (low, high))
    return lower | (upper << tir.Broadcast(tir.const(_NUMBER_BITS, WORD), BFLOAT16_LANES))
