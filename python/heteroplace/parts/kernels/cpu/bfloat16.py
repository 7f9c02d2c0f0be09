"""Numbers in bfloat16 on CPUs: an op that rounds, and the instruction that multiplies.

A bfloat16 is the upper half of a float32, and LLVM 10 has no type for it: tensors hold its bits.
The instruction `vdpbf16ps` multiplies two pairs in each lane and adds both products to a float32.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relay, te, tir
from tvm.topi import tag

from heteroplace.parts.kernels.rewrites.narrow_weights import BFLOAT16_BITS, widened
from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_relay_op

ROUND_OP = "heteroplace_bfloat16"
"""Rounds float32 numbers to the nearest bfloat16, ties to even. The result has its bits."""
PAIR = 2
"""Numbers that the instruction multiplies in each lane."""
LANES = 16
"""Sums of a vector."""
_INSTRUCTION = "llvm.x86.avx512bf16.dpbf16ps.512"
_NUM_OPERANDS = tir.const(3, "uint32")
_HALF = 0x7FFF
_QUIET_NAN = 0x7FC0
_INFINITY = 0x7F800000
_MAGNITUDE = 0x7FFFFFFF


def rounded(value: relay.Expr, together: int = 1) -> relay.Call:
    """Return a call of the op ROUND_OP.

    `together`: how many blocks of channels of a map [n, blocks, height, width, lanes] become one.
    """
    add_relay_op(
        ROUND_OP,
        "Float32 numbers, rounded to the bits of bfloat16.",
        {"value": ("Tensor", "of float32")},
        _type_of,
        _compute,
        is_elementwise=True,
    )
    attrs = tvm.ir.make_node("DictAttrs", together=together)
    return relay.Call(tvm.ir.Op.get(ROUND_OP), [value], attrs)


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    (value,) = arguments
    if not isinstance(value, relay.TensorType):
        return None
    shape, together = static_shape(value), int(attrs["together"])
    if together > 1:
        num, blocks, height, width, lanes = shape
        shape = num, blocks // together, height, width, lanes * together
    return relay.TensorType(shape, BFLOAT16_BITS)


def _compute(attrs: Any, tensors: Any, result: Any) -> list[te.Tensor]:
    (value,) = tensors
    together = int(attrs["together"])
    if together == 1:
        return [te.compute(value.shape, lambda *at: _rounded(value(*at)), "bits", tag=tag.ELEMWISE)]
    lanes = value.shape[-1]

    def bits(n: Any, block: Any, y: Any, x: Any, lane: Any) -> tir.PrimExpr:
        of_value = block * together + tir.indexdiv(lane, lanes)
        return _rounded(value[n, of_value, y, x, tir.indexmod(lane, lanes)])

    return [te.compute(static_shape(result), bits, "bits", tag=tag.INJECTIVE)]


def _rounded(number: tir.PrimExpr) -> tir.PrimExpr:
    def const(value: int) -> tir.PrimExpr:
        return tir.const(value, "uint32")

    bits = tir.reinterpret("uint32", number)
    nearest = (bits + const(_HALF) + ((bits >> const(16)) & const(1))) >> const(16)
    is_nan = (bits & const(_MAGNITUDE)) > const(_INFINITY)
    return tir.Select(is_nan, const(_QUIET_NAN), nearest).astype(BFLOAT16_BITS)


def pair_products() -> tvm.tir.TensorIntrin:
    """Return the intrinsic for LANES sums, to each of which the products of a pair are added.

    The pair of the left operand is the same for all lanes.
    """
    data = te.placeholder((PAIR,), BFLOAT16_BITS, name="data")
    weights = te.placeholder((LANES, PAIR), BFLOAT16_BITS, name="weights")
    of_pair = te.reduce_axis((0, PAIR), "of_pair")
    sums = te.compute(
        (LANES,),
        lambda lane: te.sum(
            widened(data[of_pair], "float32") * widened(weights[lane, of_pair], "float32"),
            axis=of_pair,
        ),
        name="sums",
    )
    buffers = {
        data: tir.decl_buffer(data.shape, data.dtype, "data", offset_factor=1, strides=[1]),
        weights: tir.decl_buffer(
            weights.shape, weights.dtype, "weights", offset_factor=1, strides=[PAIR, 1]
        ),
    }
    return te.decl_tensor_intrin(
        sums.op, _statements, binds=buffers, default_buffer_params={"offset_factor": 1}
    )


def _statements(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> tuple[tir.Stmt, ...]:
    """Return the statements that compute the sums, set them to 0, and add to them."""
    data, weights = ins
    (to,) = outs
    sums_type, pairs_type = f"float32x{LANES}", f"int32x{LANES}"

    def store(value: tir.PrimExpr) -> tir.Stmt:
        builder = tir.ir_builder.create()
        builder.emit(to.vstore(0, value))
        return builder.get()

    def added(sums: tir.PrimExpr) -> tir.Stmt:
        pair = tir.reinterpret("int32", data.vload(0, f"{BFLOAT16_BITS}x{PAIR}"))
        pairs = weights.vload([0, 0], f"{BFLOAT16_BITS}x{LANES * PAIR}")
        operands = tir.Broadcast(pair, LANES), tir.reinterpret(pairs_type, pairs)
        return store(
            tir.call_llvm_pure_intrin(sums_type, _INSTRUCTION, _NUM_OPERANDS, sums, *operands)
        )

    zeros = tir.const(0, sums_type)
    return added(zeros), store(zeros), added(to.vload(0, sums_type))
