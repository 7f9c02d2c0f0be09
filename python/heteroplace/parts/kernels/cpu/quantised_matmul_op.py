"""Products with weights in 4 or 8 bits, unpacked in registers or by panels: an op for CPUs.

    (a[rows, depth], words[panels, depth / n, width], scales, offsets) -> a @ weights

Two instructions, `and` and a conversion, turn a vector of words into a vector of floats. Only the
last number of a word is shifted down; for the others the left factor is divided by the place value.
Zero points or minimums come in once per block, by sums of the left row:

    sum over blocks of  scale * (sum of number * a  -  zero * sum of a)
    sum over blocks of  scale * sum of number * a  +  minimum * sum of a

With the precision "int8" the left rows are rounded to 8 bits before (`int8_rows.py`); many of them
are multiplied by tiles (`int8_matmul.py`). Where the processor has AMX, many rows are multiplied in
bfloat16 instead, and with the precision "bf16" too (`quantised_pairs.py`).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relay, te, tir
from tvm.topi import tag

from heteroplace.parts.kernels.cpu.fused_schedules import schedule_by_tag
from heteroplace.parts.kernels.cpu.int8_matmul import Int8Product, schedule_int8_product
from heteroplace.parts.kernels.cpu.int8_rows import (
    rounded_rows,
    row_block,
    weight_in_word,
    word_products,
)
from heteroplace.parts.kernels.cpu.product_tiles import (
    TiledProduct,
    shape_of,
    vector_bytes,
    vector_registers,
)
from heteroplace.parts.kernels.cpu.quantised_pairs import PairedProduct, schedule_paired_product
from heteroplace.parts.kernels.cpu.quantised_panels import SUMS, WORD_BITS, PanelWeights
from heteroplace.relay.expressions import static_shape
from heteroplace.relay.targets import has_int8_activations, rounds_for_tiles
from heteroplace.relay.vnni import LANES
from heteroplace.tvm_bridge import add_relay_op

QUANTISED_MATMUL_OP = "heteroplace_quantised_matmul"
"""Of a matrix [rows, depth], words [panels, depth / n, width], scales [panels, blocks, width] and
offsets of that shape, or one; attribute `columns` says how many of theirs are stored."""

_UNPACKED_ROWS = {32: 8}
"""How many rows unpack weights in registers, by the number of vector registers, else 4. For more
rows, weights are unpacked first, a panel at a time: to bytes for rounded rows, else to floats.
Eight rounded rows in registers take 0.7 to 0.85 of the time of tiles (Intel Xeon with AMX)."""
_UNPACKED, _NUMBERS, _TILED, _BYTES, _PAIRED = (
    f"{QUANTISED_MATMUL_OP}_{form}" for form in ("unpacked", "numbers", "tiled", "bytes", "paired")
)
"""Tags of the five forms."""
_LEFT, _PART = "left", "part"


def quantised_matmul(
    a: relay.Expr, words: relay.Expr, scales: relay.Expr, offsets: relay.Expr, columns: int
) -> relay.Call:
    """Return a call of the op; `words`, `scales` and `offsets` are what `in_words` makes."""
    add_relay_op(
        QUANTISED_MATMUL_OP,
        "The product of a matrix and of weights of a few bits in panels.",
        {
            "a": ("Tensor", "the left one"),
            "words": ("Tensor", "[panels, depth / n, width]"),
            "scales": ("Tensor", "[panels, blocks, width]"),
            "offsets": ("Tensor", "[panels, blocks, width] or [1, 1, 1]"),
        },
        _type_of,
        _compute,
        schedule_quantised_matmul,
        is_fusable=True,
    )
    target = tvm.target.Target.current()
    attrs = tvm.ir.make_node(
        "DictAttrs",
        columns=columns,
        is_rounded=int(has_int8_activations(target)),
        is_paired=int(rounds_for_tiles(target)),
    )
    return relay.Call(tvm.ir.Op.get(QUANTISED_MATMUL_OP), [a, words, scales, offsets], attrs)


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    rows, _ = static_shape(arguments[0])
    return relay.TensorType((rows, int(attrs["columns"])), SUMS)


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    a, words, scales, offsets = tensors
    rows, depth = shape_of(a)
    columns, is_rounded = int(attrs["columns"]), bool(attrs["is_rounded"])
    weights = PanelWeights(words, scales, offsets, depth, is_rounded)
    if rows <= _UNPACKED_ROWS.get(vector_registers(), 4):
        product = _by_numbers(a, weights) if is_rounded else _unpacked(a, weights)
        return [_stored(product, columns)]
    by_amx = PairedProduct(rows, columns, weights)
    if bool(attrs["is_paired"]) and by_amx.is_by_amx:
        return [by_amx.compute(a, _PAIRED)]
    by_bytes = Int8Product(rows, columns, weights)
    if is_rounded and by_bytes.can_multiply:
        return [by_bytes.compute(a, _BYTES)]
    dequantised = weights.dequantised()
    tiled = _tiled(a, dequantised, columns)
    return [tiled.compute(lambda y, at: a[y, at], lambda *where: dequantised[where], _TILED)]


def _tiled(a: te.Tensor, dequantised: te.Tensor, columns: int) -> TiledProduct:
    rows, depth = shape_of(a)
    width = shape_of(dequantised)[2]
    return TiledProduct((), rows, columns, depth, width, SUMS, SUMS, is_right_made=True)


def _by_numbers(a: te.Tensor, weights: PanelWeights) -> te.Tensor:
    """Products of rows that are rounded to 8 bits, [panels, rows, width]."""
    rows, depth = shape_of(a)
    panels, _, width = shape_of(weights.words)
    block, in_word = row_block(weights.block), weights.in_word
    numbers, steps, sums = rounded_rows(a, block)
    words_of_block = block // in_word
    word = te.reduce_axis((0, words_of_block), "word")
    place = te.reduce_axis((0, in_word), "place")

    def summed(panel: Any, y: Any, number: Any, x: Any) -> tir.PrimExpr:
        at = number * words_of_block + word
        weight = weight_in_word(weights.words[panel, at, x], place, weights.bits)
        return te.sum(weight * numbers[y, at * in_word + place].astype("int32"), axis=[word, place])

    part = te.compute((panels, rows, depth // block, width), summed, _PART)
    number = te.reduce_axis((0, depth // block), "block")

    def scaled(panel: Any, y: Any, x: Any) -> tir.PrimExpr:
        where = panel, tir.indexdiv(number * block, weights.block), x
        scale, offset = weights.scale(*where), weights.offset(*where)
        summed_up, total = part[panel, y, number, x], sums[y, number]
        if weights.has_minimums:
            of_block = scale * summed_up.astype(SUMS) + offset * total.astype(SUMS)
            return te.sum(of_block * steps[y, number], axis=number)
        centred = summed_up - offset.astype("int32") * total
        return te.sum(scale * (centred.astype(SUMS) * steps[y, number]), axis=number)

    return te.compute((panels, rows, width), scaled, "product", tag=_NUMBERS)


def _stored(product: te.Tensor, columns: int) -> te.Tensor:
    _, rows, width = shape_of(product)
    div, mod = tir.indexdiv, tir.indexmod
    return te.compute(
        (rows, columns),
        lambda y, x: product[div(x, width), y, mod(x, width)],
        "stored",
        tag=tag.INJECTIVE,
    )


def _unpacked(a: te.Tensor, weights: PanelWeights) -> te.Tensor:
    """Products of rows with weights that are unpacked in registers, [panels, rows, width]."""
    rows, depth = shape_of(a)
    panels, _, width = shape_of(weights.words)
    bits, in_word, block = weights.bits, weights.in_word, weights.block
    words_of_block, last = block // in_word, in_word - 1

    def at_place(y: Any, word: Any, place: Any) -> tir.PrimExpr:
        place_value = (tir.const(1, "int32") << (place * bits)).astype(SUMS)
        return a[y, word * in_word + place] / tir.Select(
            place >= last, tir.const(1, SUMS), place_value
        )

    left = te.compute((rows, depth // in_word, in_word), at_place, _LEFT)
    at = te.reduce_axis((0, block), "at")
    blocks = depth // block
    sums = te.compute(
        (rows, blocks), lambda y, number: te.sum(a[y, number * block + at], axis=at), "sums"
    )
    word = te.reduce_axis((0, words_of_block), "word")
    place = te.reduce_axis((0, in_word), "place")

    def summed(panel: Any, y: Any, number: Any, x: Any) -> tir.PrimExpr:
        packed_word = weights.words[panel, number * words_of_block + word, x]
        mask = tir.const((1 << bits) - 1, "uint32") << (place * bits).astype("uint32")
        shifted = packed_word >> tir.const(last * bits, "uint32")
        value = tir.Select(place >= last, shifted, packed_word & mask)
        factor = value.astype("int32").astype(SUMS)
        return te.sum(left[y, number * words_of_block + word, place] * factor, axis=[word, place])

    part = te.compute((panels, rows, blocks, width), summed, _PART)
    number = te.reduce_axis((0, blocks), "block")

    def scaled(panel: Any, y: Any, x: Any) -> tir.PrimExpr:
        where = panel, number, x
        scale, offset = weights.scale(*where), weights.offset(*where).astype(SUMS)
        summed_up, total = part[panel, y, number, x], sums[y, number]
        if weights.has_minimums:
            return te.sum(scale * summed_up + offset * total, axis=number)
        return te.sum(scale * (summed_up - offset * total), axis=number)

    return te.compute((panels, rows, width), scaled, "product", tag=_UNPACKED)


def schedule_quantised_matmul(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    """Schedule the op and what is fused behind it."""
    by_tag = {
        _UNPACKED: _schedule_unpacked,
        _NUMBERS: _schedule_numbers,
        _TILED: _schedule_tiled,
        _BYTES: schedule_int8_product,
        _PAIRED: schedule_paired_product,
    }
    return schedule_by_tag(outs, by_tag)


def _schedule_tiled(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    a, dequantised = product.op.input_tensors
    tiled = _tiled(a, dequantised, shape_of(result)[1])
    tiled.schedule(schedule, product, result, dequantised)


def _schedule_unpacked(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    part = _schedule_blocks(schedule, product, result)
    left = next(each for each in part.op.input_tensors if each.op.name == _LEFT)
    schedule[left].unroll(schedule[left].op.axis[2])
    by_word = schedule[part]
    panel, iy, _, ix = by_word.op.axis
    word, place = by_word.op.reduce_axis
    io, lane = by_word.split(ix, vector_bytes() // 4)
    by_word.reorder(panel, word, place, iy, io, lane)
    for axis in (place, iy, io):
        by_word.unroll(axis)
    by_word.vectorize(lane)


def _schedule_numbers(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    part = _schedule_blocks(schedule, product, result)
    by_word = schedule[part]
    panel, iy, _, ix = by_word.op.axis
    word, place = by_word.op.reduce_axis
    io, lane = by_word.split(ix, LANES)
    by_word.reorder(panel, word, iy, io, lane, place)
    for axis in (word, iy, io):
        by_word.unroll(axis)
    bits = WORD_BITS // int(place.dom.extent)
    by_word.tensorize(lane, word_products(bits))


def _schedule_blocks(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> te.Tensor:
    """Schedule sums over blocks; return what is summed up within one, whose axes are left."""
    part = next(each for each in product.op.input_tensors if each.op.name == _PART)
    width, lanes = shape_of(product)[2], vector_bytes() // 4
    whole = schedule[result]
    y, x = whole.op.axis
    xo, xi = whole.split(x, width)
    whole.reorder(xo, y, xi)
    whole.parallel(xo)
    whole.vectorize(whole.split(xi, lanes)[1])
    by_block = schedule[product]
    by_block.compute_at(whole, xo)
    panel, py, px = by_block.op.axis
    (number,) = by_block.op.reduce_axis
    po, lane = by_block.split(px, lanes)
    by_block.reorder(panel, number, py, po, lane)
    by_block.unroll(py)
    by_block.unroll(po)
    by_block.vectorize(lane)
    schedule[part].compute_at(by_block, number)
    return part
