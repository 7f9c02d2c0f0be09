"""Instructions of x86 that multiply integers: `vpdpbusd` of AVX512-VNNI, and `vpmaddwd` of AVX2.

    vpdpbusd  sums[lane] += sum over 4 bytes of  unsigned[lane, byte] * signed[lane, byte]
    vpmaddwd  pairs[lane] = sum over 2 words of  left[lane, word] * right[lane, word]

The sums have 32 bits and are exact: nothing saturates. AVX2's instruction for bytes is not used, as
its sums saturate at 16 bits.
"""

from __future__ import annotations

from tvm import tir

LANES = 16
"""Sums of a vector."""
BYTES = 4
"""Products that are added to each sum."""
SUMS = f"int32x{LANES}"
"""Type of the vectors, also of those of bytes."""
INSTRUCTION = "llvm.x86.avx512.vpdpbusd.512"
"""In LLVM's language."""
_NUM_OPERANDS = tir.const(3, "uint32")
WORDS = "int16x16"
"""Type of the vectors that `vpmaddwd` multiplies."""
WORD_SUMS = "int32x8"
"""Type of its sums, of two products each."""
_PAIR_INSTRUCTION, _NUM_FACTORS = "llvm.x86.avx2.pmadd.wd", tir.const(2, "uint32")


def add_products(sums: tir.PrimExpr, unsigned: tir.PrimExpr, signed: tir.PrimExpr) -> tir.PrimExpr:
    """Return the sums with the products of unsigned and signed bytes; all are of type SUMS."""
    return tir.call_llvm_pure_intrin(SUMS, INSTRUCTION, _NUM_OPERANDS, sums, unsigned, signed)


def pair_sums(left: tir.PrimExpr, right: tir.PrimExpr) -> tir.PrimExpr:
    """Return sums of two products each, of type WORD_SUMS; both factors are of type WORDS."""
    return tir.call_llvm_pure_intrin(WORD_SUMS, _PAIR_INSTRUCTION, _NUM_FACTORS, left, right)
