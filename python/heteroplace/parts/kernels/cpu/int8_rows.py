"""Rows rounded to 8 bits, and products of a few of them with weights of 4 or 8 bits, by VNNI.

In each block of 32 places in depth a row is a step times whole numbers from -127 to 127. llama.cpp
(`Q8_0`) and onnxruntime (`accuracy_level=4`) round so too. Sums of products of whole numbers are
exact:

    sum over blocks of  step * scale * (sum of weight * number  -  zero * sum of number)

One instruction multiplies 64 weights (`relay/vnni.py`). With weights of 4 bits, a vector of words
holds two such vectors: in the lower and in the upper halves of its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tir

from heteroplace.relay.tasks.folded_steps import ROUNDING_SHIFT
from heteroplace.relay.vnni import BYTES, LANES, SUMS, add_products

_BLOCK = 32
"""Places that have one step; 16 if the blocks of the weights are no multiples of 32."""
_LARGEST = 127.0


def row_block(weights_block: int) -> int:
    """Return how many places of a row have one step."""
    return _BLOCK if weights_block % _BLOCK == 0 else _BLOCK // 2


def rounded_rows(a: te.Tensor, block: int, *, is_parallel: bool = False) -> list[te.Tensor]:
    """Return numbers int8 [rows, depth], steps float32 and sums of numbers int32 [rows, blocks].

    The step of a block that has a NaN or an infinity is NaN.
    """
    rows, depth = (int(extent) for extent in a.shape)
    blocks = depth // block
    name = f"heteroplace_rounded_{block}"
    text = tir.StringImm(_rounding(name, block))

    def body(ins: Any, outs: Any) -> tir.Stmt:
        (values,), (numbers, steps, sums) = ins, outs
        builder = tir.ir_builder.create()
        builder.scope_attr(tir.const(0, "int32"), "pragma_import_llvm", text)
        with (
            builder.for_range(0, rows, "row", kind="parallel" if is_parallel else "serial") as row,
            builder.for_range(0, blocks, name="block") as number,
        ):
            places = [(values, number * block), (numbers, number * block)]
            places += [(steps, number), (sums, number)]
            pointers = [tir.address_of(tir.BufferLoad(each, [row, at])) for each, at in places]
            builder.emit(tir.call_extern("int32", name, *pointers))
        return builder.get()

    shapes = [(rows, depth), (rows, blocks), (rows, blocks)]
    tensors: list[te.Tensor] = te.extern(
        shapes, [a], body, name="rounded", dtype=["int8", "float32", "int32"]
    )
    return tensors


def depth_in_word(place: int, bits: int) -> int:
    """Return the place in depth of the number at a place of a word.

    >>> [depth_in_word(place, 4) for place in range(8)], [depth_in_word(n, 8) for n in range(4)]
    ([0, 4, 1, 5, 2, 6, 3, 7], [0, 1, 2, 3])
    """
    halves = 8 // bits
    return place // halves + place % halves * BYTES


def word_products(bits: int) -> tvm.tir.TensorIntrin:
    """Return the intrinsic that adds the products of LANES words with the numbers of one word."""
    in_word = 32 // bits
    numbers = te.placeholder((in_word,), "int8", name="numbers")
    words = te.placeholder((LANES,), "uint32", name="words")
    at = te.reduce_axis((0, in_word), "at")
    sums = te.compute(
        (LANES,),
        lambda x: te.sum(weight_in_word(words[x], at, bits) * numbers[at].astype("int32"), axis=at),
        name="sums",
    )
    buffers = {
        each: tir.decl_buffer(each.shape, each.dtype, name, offset_factor=1, strides=[1])
        for each, name in ((numbers, "numbers"), (words, "words"))
    }

    def statements(ins: Any, outs: Any) -> tuple[tir.Stmt, ...]:
        (packed, digits), (to,) = ins, outs
        zeros = tir.const(0, SUMS)

        def added(value: tir.PrimExpr) -> tir.Stmt:
            word = packed.vload(0, f"uint32x{LANES}")
            for part in range(8 // bits):
                operand = word
                if bits < 8:
                    shift = tir.Broadcast(tir.const(part * bits, "uint32"), LANES)
                    mask = tir.Broadcast(tir.const(0x0F0F0F0F, "uint32"), LANES)
                    operand = (word >> shift if part else word) & mask
                four = tir.reinterpret("int32", digits.vload(part * BYTES, f"int8x{BYTES}"))
                weights = tir.reinterpret(SUMS, operand)
                value = add_products(value, weights, tir.Broadcast(four, LANES))
            builder = tir.ir_builder.create()
            builder.emit(to.vstore(0, value))
            return builder.get()

        builder = tir.ir_builder.create()
        builder.emit(to.vstore(0, zeros))
        return added(zeros), builder.get(), added(to.vload(0, SUMS))

    return te.decl_tensor_intrin(
        sums.op, statements, binds=buffers, default_buffer_params={"offset_factor": 1}
    )


def weight_in_word(word: tir.PrimExpr, at: tir.PrimExpr, bits: int) -> tir.PrimExpr:
    """Return the number of a word that belongs to a place in depth, as int32."""
    byte, half = tir.indexmod(at, BYTES), tir.indexdiv(at, BYTES)
    shift = (byte * 8 + half * bits).astype("uint32")
    return ((word >> shift) & tir.const((1 << bits) - 1, "uint32")).astype("int32")


def _rounding(name: str, block: int) -> str:
    """LLVM's text of a function that rounds a block of floats."""
    parts = range(block // LANES)
    return "\n".join(
        [
            f"define linkonce_odr i32 @{name}(float* %a, i8* %n, float* %s, i32* %t) nounwind {{",
            "  %from = bitcast float* %a to <16 x float>*",
            "  %to = bitcast i8* %n to <16 x i8>*",
            *(line for part in parts for line in _magnitudes(part)),
            *_folded("most", [f"%m{part}" for part in parts], _LARGER),
            *_STEP,
            *(line for part in parts for line in _numbers(part)),
            *_folded("sum", [f"%e{part}" for part in parts], _SUM),
            "  store i32 %sum, i32* %t, align 4",
            "  ret i32 0",
            "}",
        ]
    )


def _splat(kind: str, value: object) -> str:
    return "<" + ", ".join([f"{kind} {value}"] * LANES) + ">"


def _magnitudes(part: int) -> list[str]:
    """Floats without their signs, as whole numbers: these are ordered as the floats are, and those
    of infinities and NaNs are the largest."""
    return [
        f"  %p{part} = getelementptr <16 x float>, <16 x float>* %from, i64 {part}",
        f"  %x{part} = load <16 x float>, <16 x float>* %p{part}, align 4",
        f"  %b{part} = bitcast <16 x float> %x{part} to <16 x i32>",
        f"  %m{part} = and <16 x i32> %b{part}, {_splat('i32', 0x7FFFFFFF)}",
    ]


def _numbers(part: int) -> list[str]:
    """Whole numbers of a step. A sum with 3 * 2^22 has them in its last bits."""
    return [
        f"  %y{part} = fmul <16 x float> %x{part}, %scales",
        f"  %z{part} = fadd <16 x float> %y{part}, {_splat('float', float(ROUNDING_SHIFT))}",
        f"  %i{part} = bitcast <16 x float> %z{part} to <16 x i32>",
        f"  %k{part} = trunc <16 x i32> %i{part} to <16 x i8>",
        f"  %q{part} = getelementptr <16 x i8>, <16 x i8>* %to, i64 {part}",
        f"  store <16 x i8> %k{part}, <16 x i8>* %q{part}, align 1",
        f"  %e{part} = sext <16 x i8> %k{part} to <16 x i32>",
    ]


def _folded(result: str, vectors: Sequence[str], fold: Sequence[str]) -> list[str]:
    """Fold vectors, and then the lanes of what is left, to one number."""
    total, lines = vectors[0], []
    for number, vector in enumerate(vectors[1:]):
        lines += [each.format(to=f"%{result}_v{number}", a=vector, b=total) for each in fold]
        total = f"%{result}_v{number}"
    for width in (8, 4, 2, 1):
        order = ", ".join(f"i32 {(lane + width) % LANES}" for lane in range(LANES))
        turned, to = f"%{result}_t{width}", f"%{result}_l{width}"
        lines.append(
            f"  {turned} = shufflevector <16 x i32> {total}, <16 x i32> undef, <16 x i32> <{order}>"
        )
        lines += [each.format(to=to, a=turned, b=total) for each in fold]
        total = to
    return [*lines, f"  %{result} = extractelement <16 x i32> {total}, i32 0"]


_SUM = ("  {to} = add <16 x i32> {a}, {b}",)
_LARGER = (
    "  {to}_is = icmp ugt <16 x i32> {a}, {b}",
    "  {to} = select <16 x i1> {to}_is, <16 x i32> {a}, <16 x i32> {b}",
)
_STEP = (
    "  %largest = bitcast i32 %most to float",
    f"  %ratio = fdiv float %largest, {_LARGEST}",
    f"  %finite = icmp ult i32 %most, {0x7F800000}",
    "  %step = select i1 %finite, float %ratio, float 0x7FF8000000000000",
    "  store float %step, float* %s, align 4",
    # Blocks below 2^-119 are 0: reciprocals of smaller steps may be infinite.
    f"  %tiny = icmp ult i32 %most, {0x04000000}",
    f"  %inverse = fdiv float {_LARGEST}, %largest",
    "  %scale = select i1 %tiny, float 0.0, float %inverse",
    "  %scale_0 = insertelement <16 x float> undef, float %scale, i32 0",
    "  %scales = shufflevector <16 x float> %scale_0, <16 x float> undef,"
    " <16 x i32> zeroinitializer",
)
"""The step of a block, and what its floats are multiplied by."""
