"""A vector of floats in TIR -> the same rounded to bfloat16, by the instruction of AVX512-BF16."""

from __future__ import annotations

from tvm import tir

BFLOAT16_LANES = 16
"""Numbers that it rounds."""
_INSTRUCTION = "llvm.x86.avx512bf16.cvtneps2bf16.512"
_NUM_OPERANDS = tir.const(1, "uint32")


def rounded_vector(value: tir.PrimExpr) -> tir.PrimExpr:
    """Return the bits of a vector of float32, rounded, ties to even: uint16x16.

    A NaN stays one. Denormal numbers become 0.
    """
    kind = f"uint16x{BFLOAT16_LANES}"
    return tir.call_llvm_pure_intrin(kind, _INSTRUCTION, _NUM_OPERANDS, value)
