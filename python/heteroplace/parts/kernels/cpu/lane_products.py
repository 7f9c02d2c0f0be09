"""Products of 8 bits lane by lane, added to sums of 32 bits, by one instruction of VNNI.

    sums[16] += data[16] * weights[16]            data of uint8, weights of int8

The instruction (`vpdpwssd`) adds two products of 16 bits to each sum. Data that is widened to 32
bits has zeros in the upper half, so that the second product is 0 and nothing is rounded or
saturated. A product of 32 bits, which LLVM makes of it otherwise, takes two instructions that wait
ten cycles, and a third one adds it.
"""

from __future__ import annotations

import tvm
from tvm import te, tir

LANES = 16
"""Sums of a vector."""
_INSTRUCTION = "llvm.x86.avx512.vpdpwssd.512"
_NUM_OPERANDS = tir.const(3, "uint32")


def lane_products() -> tvm.tir.TensorIntrin:
    """Return the intrinsic for an axis of LANES sums over which nothing is summed up."""
    data = te.placeholder((LANES,), "uint8", name="data")
    weights = te.placeholder((LANES,), "int8", name="weights")
    once = te.reduce_axis((0, 1), "once")
    sums = te.compute(
        (LANES,),
        lambda i: te.sum(data[i].astype("int32") * weights[i].astype("int32"), axis=once),
        name="sums",
    )
    buffers = {
        each: tir.decl_buffer(each.shape, each.dtype, name, offset_factor=1, strides=[1])
        for each, name in ((data, "data"), (weights, "weights"))
    }
    return te.decl_tensor_intrin(
        sums.op, _statements, binds=buffers, default_buffer_params={"offset_factor": 1}
    )


def _statements(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> tuple[tir.Stmt, ...]:
    """What computes the sums at once, sets them to 0, and adds to them."""
    (to,) = outs
    kind = f"int32x{LANES}"

    def store(value: tir.PrimExpr) -> tir.Stmt:
        builder = tir.ir_builder.create()
        builder.emit(to.vstore(0, value))
        return builder.get()

    def added(sums: tir.PrimExpr) -> tir.Stmt:
        wide = [each.vload(0, f"{each.dtype}x{LANES}").astype(kind) for each in ins]
        return store(tir.call_llvm_pure_intrin(kind, _INSTRUCTION, _NUM_OPERANDS, sums, *wide))

    zeros = tir.const(0, kind)
    return added(zeros), store(zeros), added(to.vload(0, kind))
