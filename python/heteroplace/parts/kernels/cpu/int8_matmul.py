"""Products of many rows, rounded to 8 bits, with weights of 4 or 8 bits, by tiles of VNNI.

    for each panel of columns:
        unpack its words to bytes, and its scales and zero points or minimums
        for each tile of rows:
            prefetch a share of the next panel
            sums and totals in registers (`int8_tiles.py`)

With these prefetches products of 64 rows take 0.94 of the time, and of 256 rows 0.98, that they
take with those of `words_ahead.py` alone, which come all at once (Intel Xeon, family 6, model 207).

The numbers of a row, and what is summed up, are those of products of a few rows (`int8_rows.py`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tvm
from tvm import te, tir
from tvm.topi import tag

from heteroplace.parts.kernels.cpu.int8_rows import rounded_rows, row_block
from heteroplace.parts.kernels.cpu.int8_tiles import (
    ADDRESS,
    AHEAD,
    SHIFT_BITS,
    Correction,
    Int8Tile,
    most_rows,
)
from heteroplace.parts.kernels.cpu.product_tiles import Tiling, shape_of, tiling
from heteroplace.parts.kernels.cpu.quantised_panels import PanelWeights
from heteroplace.parts.kernels.cpu.tile_assembly import LINE_BYTES
from heteroplace.relay.tasks.folded_steps import ROUNDING_SHIFT
from heteroplace.relay.vnni import BYTES, LANES

_MIN_CHUNKS = 8
"""Parts that several cores can share."""
_BLOCK_BYTES = 2**20
"""Of the rounded rows that one unpacked panel is multiplied with."""
_WORDS = "unpacked"
_OF_PANEL = (_WORDS, "scales", "shifts", "column_corrections", AHEAD)
"""Stages that are computed for each panel."""
_TILES, _CORRECTION, _LINES = "tiles", "correction", "lines"
"""Attributes of the products."""


class Int8Product(NamedTuple):
    """A product of so many rows with weights."""

    rows: int
    columns: int
    weights: PanelWeights

    @property
    def can_multiply(self) -> bool:
        """Whether it has tiles: TVM cuts a single panel to its columns, and matches no axes of
        one element."""
        is_whole = self.columns >= self._width and self._width % LANES == 0
        return is_whole and self.weights.depth > self._block

    @property
    def _width(self) -> int:
        return shape_of(self.weights.words)[2]

    @property
    def _block(self) -> int:
        return row_block(self.weights.block)

    @property
    def _tiling(self) -> Tiling:
        panels = shape_of(self.weights.words)[0]
        most = most_rows(self._width)
        block_rows = min(_BLOCK_BYTES // self.weights.depth, self.rows * panels // _MIN_CHUNKS)
        return tiling(self.rows, most, max(most, block_rows))

    @property
    def _has_shifts(self) -> bool:
        """Whether scales have few enough bits: those of 16 do."""
        return str(self.weights.scales.dtype) != "float32"

    @property
    def _tile(self) -> Int8Tile:
        correction = Correction.ZEROS
        if self.weights.has_minimums:
            correction = Correction.MINIMUMS
        elif shape_of(self.weights.offsets)[2] == 1:
            correction = Correction.START
        sizes = self._tiling.rows, self._width, self.weights.depth, self._block
        lines = tuple(map(self._lines_ahead, self._streams))
        return Int8Tile(*sizes, correction, self._has_shifts, lines)

    def _lines_ahead(self, stream: te.Tensor) -> int:
        """Return the share of a tile of the lines that the next panel has in a stream."""
        item_bytes = int(tvm.DataType(stream.dtype).bits) // 8
        panel_bytes = math.prod(shape_of(stream)[1:]) * item_bytes
        return -(-panel_bytes // (LINE_BYTES * self._tiling.tiles))

    @property
    def _streams(self) -> list[te.Tensor]:
        """What each panel has a part of in memory."""
        words, scales, offsets = self.weights[:3]
        return [words, scales, *[offsets][: shape_of(offsets)[2] > 1]]

    def compute(self, a: te.Tensor, tag_: str) -> te.Tensor:
        """Return the products, [rows, columns]."""
        tile, (rows, tiles, blocks) = self._tile, self._tiling
        num_tiles = tiles * blocks
        panels = shape_of(self.weights.words)[0]
        of_rows, of_columns, ahead = self._of_rows(a), self._of_columns(), self._ahead()
        axes = tile.axes()
        div, mod = tir.indexdiv, tir.indexmod
        is_whole = num_tiles * rows == self.rows

        def first(t: Any) -> Any:
            return t * rows if is_whole else tir.min(t * rows, self.rows - rows)

        def summed(t: Any, panel: Any, y: Any, x: Any) -> tir.PrimExpr:
            row = tuple(lambda at, of=each: of[first(t) + y, at] for each in of_rows)
            column = tuple(lambda at, of=each: of[panel, at, x] for each in of_columns)
            number, word, byte = axes
            where = number, word, byte
            part = tile.part(row, column, where, lambda index: ahead[panel, index])
            return te.sum(part, axis=axes)

        shape = (num_tiles, panels, rows, self._width)
        attrs = {_TILES: tiles, _CORRECTION: tile.correction.value, _LINES: tile.lines_ahead}
        product = te.compute(shape, summed, "product", tag=tag_, attrs=attrs)

        def stored(y: Any, x: Any) -> tir.PrimExpr:
            row = mod(y if is_whole else y - first(div(y, rows)), rows)
            return product[div(y, rows), div(x, self._width), row, mod(x, self._width)]

        return te.compute((self.rows, self.columns), stored, "stored", tag=tag.INJECTIVE)

    def _ahead(self) -> te.Tensor:
        """Return where the next panel is in memory, [panels, streams]; of the last one, itself."""
        panels = shape_of(self.weights.words)[0]
        streams = self._streams

        def address(panel: Any, index: Any) -> tir.PrimExpr:
            after = tir.min(panel + 1, panels - 1)
            addresses = [
                tir.call_pure_extern("int64", ADDRESS, tir.address_of(each[after, 0, 0]))
                for each in streams
            ]
            chosen = addresses[-1]
            for number, each in enumerate(addresses[:-1]):
                chosen = tir.Select(index == number, each, chosen)
            return chosen

        return te.compute((panels, len(streams)), address, AHEAD)

    def _of_rows(self, a: te.Tensor) -> list[te.Tensor]:
        """Return numbers, steps and corrections."""
        numbers, steps, sums = rounded_rows(a, self._block, is_parallel=True)
        correction = self._tile.correction
        start = SHIFT_BITS if self._has_shifts else 0

        def corrected(y: Any, block: Any) -> tir.PrimExpr:
            if correction is Correction.MINIMUMS:
                return sums[y, block].astype("float32") * steps[y, block]
            if correction is Correction.START:
                zero = self.weights.offset(0, 0, 0).astype("int32")
                return start - zero * sums[y, block]
            return -sums[y, block]

        return [numbers, steps, te.compute(shape_of(sums), corrected, "row_corrections")]

    def _of_columns(self) -> list[te.Tensor]:
        """Return words of four bytes, scales, shifts, and corrections where columns differ."""
        weights, tile, div = self.weights, self._tile, tir.indexdiv
        panels, _, width = shape_of(weights.words)
        halves = 8 // weights.bits
        of_block = (panels, tile.blocks, width)

        def unpacked(panel: Any, at: Any, x: Any) -> tir.PrimExpr:
            shift = (tir.indexmod(at, halves) * weights.bits).astype("uint32")
            mask = tir.const(0x0F0F0F0F, "uint32")
            return (weights.words[panel, div(at, halves), x] >> shift) & mask

        def at_block(read: Any) -> Any:
            return lambda panel, at, x: read(panel, div(at * tile.block, weights.block), x)

        words = weights.words
        if halves > 1:
            words = te.compute((panels, weights.depth // BYTES, width), unpacked, _WORDS)
        read = [words, te.compute(of_block, at_block(weights.scale), "scales")]
        if tile.has_shifts:
            scales = read[-1]
            read.append(
                te.compute(
                    of_block,
                    lambda *at: scales[at] * tir.const(-ROUNDING_SHIFT, "float32"),
                    "shifts",
                )
            )
        if tile.correction is not Correction.START:
            dtype = tile.correction.dtype
            read.append(
                te.compute(
                    of_block,
                    at_block(lambda *where: weights.offset(*where).astype(dtype)),
                    "column_corrections",
                )
            )
        return read


def schedule_int8_product(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    """Schedule the products of `Int8Product.compute`, and what is fused behind them."""
    _, _, rows, width = shape_of(product)
    by_name = {str(each.op.name): each for each in product.op.input_tensors}
    whole = schedule[result]
    y, x = whole.op.axis
    xo, xi = whole.split(x, width)
    yo, yi = whole.split(y, rows)
    yb, yo = whole.split(yo, int(product.op.attrs[_TILES]))
    whole.reorder(yb, xo, yo, yi, xi)
    panel = whole.fuse(yb, xo)
    whole.parallel(panel)
    whole.vectorize(whole.split(xi, LANES)[1])
    numbers, steps = (each for each in product.op.input_tensors if each.op.name == "rounded")
    depth = shape_of(numbers)[1]
    correction = Correction(str(product.op.attrs[_CORRECTION]))
    sizes = rows, width, depth, depth // shape_of(steps)[1]
    lines = tuple(int(each) for each in product.op.attrs[_LINES])
    tile = Int8Tile(*sizes, correction, "shifts" in by_name, lines)
    stage = schedule[product]
    stage.compute_at(whole, yo)
    stage.tensorize(stage.op.axis[2], tile.intrinsic())
    for name in _OF_PANEL:
        if name not in by_name:
            continue
        making = schedule[by_name[name]]
        making.compute_at(whole, panel)
        if name == AHEAD:
            making.unroll(making.op.axis[1])
            continue
        _, at, column = making.op.axis
        if name == _WORDS:
            making.unroll(making.split(at, 2)[1])
        making.vectorize(making.split(column, LANES)[1])
