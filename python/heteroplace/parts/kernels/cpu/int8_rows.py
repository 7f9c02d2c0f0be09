"""Rows rounded to 8 bits, and products of a few of them with weights of 4 or 8 bits, by VNNI.

In each block of 32 places in depth a row is a step times whole numbers from -127 to 127. llama.cpp
(`Q8_0`) and onnxruntime (`accuracy_level=4`) round so too. Sums of products of whole numbers are
exact:

    sum over blocks of  step * scale * (sum of weight * number  -  zero * sum of number)

One instruction multiplies 64 weights (`relay/vnni.py`). With weights of 4 bits, a vector of words
holds two such vectors: in the lower and in the upper halves of its bytes.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tir

from heteroplace.parts.kernels.cpu.rounded_blocks import rounding_text
from heteroplace.relay.vnni import BYTES, LANES, SUMS, add_products

_BLOCK = 32
"""Places that have one step; 16 if the blocks of the weights are no multiples of 32."""


def row_block(weights_block: int) -> int:
    """Return how many places of a row have one step."""
    return _BLOCK if weights_block % _BLOCK == 0 else _BLOCK // 2


def rounded_rows(a: te.Tensor, block: int, *, is_parallel: bool = False) -> list[te.Tensor]:
    """Return numbers int8 [rows, depth], steps float32 and sums of numbers int32 [rows, blocks].

    The step of a block that has a NaN or an infinity is NaN.
    """
    rows, depth = (int(extent) for extent in a.shape)
    blocks = depth // block
    groups = rows * blocks // LANES
    names = {count: f"heteroplace_rounded_{count}x{block}" for count in (1, LANES)}

    def body(ins: Any, outs: Any) -> tir.Stmt:
        (values,), (numbers, steps, sums) = ins, outs
        builder = tir.ir_builder.create()
        for count, name in names.items():
            value = tir.StringImm(rounding_text(name, count, block))
            builder.scope_attr(tir.const(0, "int32"), "pragma_import_llvm", value)

        def call(count: int, number: Any) -> None:
            row, inside = tir.indexdiv(number, blocks), tir.indexmod(number, blocks)
            places = [(values, inside * block), (numbers, inside * block)]
            places += [(steps, inside), (sums, inside)]
            pointers = [tir.address_of(tir.BufferLoad(each, [row, at])) for each, at in places]
            builder.emit(tir.call_extern("int32", names[count], *pointers))

        kind = "parallel" if is_parallel else "serial"
        with builder.for_range(0, groups, "group", kind=kind) as group:
            call(LANES, group * LANES)
        with builder.for_range(0, rows * blocks - groups * LANES, "block") as number:
            call(1, groups * LANES + number)
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
