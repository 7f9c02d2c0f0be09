"""The instruction of AVX512-VNNI that multiplies bytes (`vpdpbusd`).

    sums[lane] += sum over 4 bytes of  unsigned[lane, byte] * signed[lane, byte]

The sums have 32 bits and are exact: nothing saturates.
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


def add_products(sums: tir.PrimExpr, unsigned: tir.PrimExpr, signed: tir.PrimExpr) -> tir.PrimExpr:
    """Return the sums with the products of unsigned and signed bytes; all are of type SUMS."""
    return tir.call_llvm_pure_intrin(SUMS, INSTRUCTION, _NUM_OPERANDS, sums, unsigned, signed)
