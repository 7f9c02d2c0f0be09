"""Sums of a row of a depthwise filter of 8 bits, by VNNI.

    sums[column, lane] += data[column * stride + tap, lane] * weights[tap, lane]    for each tap

One instruction adds four products of bytes to each sum (`relay/vnni.py`). Four columns of a block
of 16 channels follow one another in memory, 64 bytes. Two shuffles bring the four columns of each
channel side by side:

    c0 c1 .. c15 | c0 c1 .. c15 | c0 .. | c0 ..   ==>   c0 c0 c0 c0 | c1 c1 c1 c1 | ..

These bytes serve each sum that reads one of the columns: its weights stand at the places of the
columns that it reads, with zeros beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tvm
from tvm import te, tir

from heteroplace.relay.vnni import BYTES, LANES, SUMS, add_products

_BY_CHANNEL = "heteroplace_by_channel"
_SHUFFLES = 2


class RowTile(NamedTuple):
    """Neighbouring sums of a row that are made from the same columns."""

    columns: int
    """Sums for each channel."""
    stride: int
    """Columns between what two neighbouring sums read."""
    taps: int
    """Columns that a sum reads."""

    @property
    def reads(self) -> int:
        """Columns that are read, the last of which may be beyond those that are needed."""
        return BYTES * len(self.chunks)

    @property
    def chunks(self) -> range:
        """The first column of each four that are read at once."""
        return range(0, (self.columns - 1) * self.stride + self.taps, BYTES)

    def products(self, column: int) -> Sequence[tuple[int, int]]:
        """Of each instruction for a sum: which chunk it reads, and the tap of its first column."""
        taps = [(n, first - column * self.stride) for n, first in enumerate(self.chunks)]
        return [(n, tap) for n, tap in taps if -BYTES < tap < self.taps]

    @property
    def instructions(self) -> float:
        """For each sum."""
        products = sum(len(self.products(column)) for column in range(self.columns))
        return (_SHUFFLES * len(self.chunks) + products) / self.columns


def row_tile(width: int, stride: int, taps: int) -> RowTile:
    """Return the tile of a row of `width` sums that takes fewest instructions.

    Examples
    --------
    >>> [tuple(row_tile(112, *each)) for each in ((1, 3), (2, 3), (1, 5))]
    [(2, 1, 3), (1, 2, 3), (4, 1, 5)]
    """
    fitting = [each for each in range(1, BYTES + 1) if width % each == 0]
    tiles = [RowTile(columns, stride, taps) for columns in fitting]
    return min(tiles, key=lambda each: each.instructions)


def row_products(tile: RowTile) -> tvm.tir.TensorIntrin:
    """Return the intrinsic for [columns, LANES] sums, to be called at the axis of the columns.

    It reads `tile.reads` columns. What is beyond the needed ones must be memory of any content.
    """
    columns, stride, taps = tile
    data = te.placeholder(((columns - 1) * stride + taps, LANES), "uint8", name="data")
    weights = te.placeholder((taps, 1, LANES), "int8", name="weights")
    tap = te.reduce_axis((0, taps), "tap")
    sums = te.compute(
        (columns, LANES),
        lambda x, lane: te.sum(
            data[x * stride + tap, lane].astype("int32") * weights[tap, 0, lane].astype("int32"),
            axis=tap,
        ),
        name="sums",
    )
    buffers = {
        each: tir.decl_buffer(
            each.shape, each.dtype, name, offset_factor=1, strides=[LANES, LANES, 1][-ndim:]
        )
        for each, name, ndim in ((data, "data", 2), (weights, "weights", 3))
    }
    return te.decl_tensor_intrin(
        sums.op,
        lambda ins, outs: _statements(tile, *ins, *outs),
        binds=buffers,
        default_buffer_params={"offset_factor": 1, "strides": [LANES, 1]},
    )


def _statements(
    tile: RowTile, data: tir.Buffer, weights: tir.Buffer, sums: tir.Buffer
) -> tuple[tir.Stmt, ...]:
    """What computes the sums at once, sets them to 0, and adds to them."""
    zeros = tir.const(0, SUMS)

    def added(is_first: bool) -> tir.Stmt:
        builder = tir.ir_builder.create()
        builder.scope_attr(tir.const(0, "int32"), "pragma_import_llvm", tir.StringImm(_TEXT))
        chunks = [
            builder.let(f"columns_{first}", _by_channel(data.vload([first, 0], "uint8x64")))
            for first in tile.chunks
        ]
        for column in range(tile.columns):
            value = zeros if is_first else sums.vload([column, 0], SUMS)
            for chunk, tap in tile.products(column):
                value = add_products(value, chunks[chunk], _packed(weights, tile.taps, tap))
            builder.emit(sums.vstore([column, 0], value))
        return builder.get()

    reset = [sums.vstore([column, 0], zeros) for column in range(tile.columns)]
    return added(is_first=True), tir.stmt_seq(*reset), added(is_first=False)


def _by_channel(columns: tir.PrimExpr) -> tir.PrimExpr:
    """Four columns of LANES channels -> the four columns of each channel."""
    return tir.call_pure_extern(SUMS, _BY_CHANNEL, tir.reinterpret(SUMS, columns))


def _packed(weights: tir.Buffer, taps: int, first: int) -> tir.PrimExpr:
    """Four taps of each channel in a lane, zeros for those that the filter does not have."""
    value = None
    for place in range(max(0, -first), min(BYTES, taps - first)):
        tap = tir.reinterpret(f"uint8x{LANES}", weights.vload([first + place, 0, 0], "int8x16"))
        byte = tap.astype(SUMS) << tir.Broadcast(tir.const(8 * place, "int32"), LANES)
        value = byte if value is None else value | byte
    return value


def _vector(values: Sequence[int]) -> str:
    return "<" + ", ".join(f"i32 {value}" for value in values) + ">"


# LLVM would join two shuffles by constants into one, for which it has many instructions.
_WORDS = _vector([lane % BYTES * BYTES + lane // BYTES for lane in range(LANES)])
_WITHIN = _vector([0x0C080400 + lane % BYTES * 0x01010101 for lane in range(LANES)])
_TEXT = f"""
define linkonce_odr <16 x i32> @{_BY_CHANNEL}(<16 x i32> %x) alwaysinline nounwind readnone {{
  %words = call <16 x i32> asm "vpermd $2, $1, $0", "=v,v,v"
    (<16 x i32> {_WORDS}, <16 x i32> %x) nounwind readnone
  %bytes = call <16 x i32> asm "vpshufb $2, $1, $0", "=v,v,v"
    (<16 x i32> %words, <16 x i32> {_WITHIN}) nounwind readnone
  ret <16 x i32> %bytes
}}
"""
