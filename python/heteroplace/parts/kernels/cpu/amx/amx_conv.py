"""Convolutions in blocks of channels by AMX: of bfloat16 (`bfloat16_conv_op`) and of bytes.

A tile of AMX multiplies up to 16 neighbours of a row of the map. So the map is laid out with
padding, and a map of strides is split into its phases: rows y, y + stride, .. and columns likewise.
Neighbours of the result then read neighbours in memory:

    laid_out[phase, place, lane]                    places of a padded map, row after row
    for each some blocks of channels, some rows (in parallel):
        for each some neighbours:
            block[row, lane] += laid_out[.., place, ..] * filters[..]     (`amx_products`)
            what is fused behind, of these neighbours

Convolutions of one element without padding or strides read the map as it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tvm
from tvm import te, tir
from tvm.topi import tag

from heteroplace.parts.kernels.cpu.amx.amx_assembly import MAX_ROWS, MAX_SUM_TILES
from heteroplace.parts.kernels.cpu.amx.amx_loops import even_size, groups_of_step
from heteroplace.parts.kernels.cpu.amx.amx_products import mark_block
from heteroplace.parts.kernels.cpu.conv_tiles import row_parts
from heteroplace.parts.kernels.cpu.filter_window import FilterWindow
from heteroplace.parts.kernels.cpu.product_tiles import shape_of
from heteroplace.parts.kernels.rewrites.narrow_weights import BFLOAT16_BITS, widened
from heteroplace.relay.targets import multiplies_tiles

AMX_CONV = "heteroplace_amx_conv2d"
"""Tag of what is computed."""
_FEW_LANES = 16
"""With fewer, a step multiplies several columns of the filters."""
_LANES = 16
"""Of a block of the result."""
_LOAD_COST = 0.5
"""What it takes to load a tile, in products of two tiles, where it is in the second cache."""
_DIV, _MOD = tir.indexdiv, tir.indexmod


class _Tile(NamedTuple):
    """What is multiplied at once: so many rows and columns of the map, and blocks of channels."""

    rows: int
    columns: int
    blocks: int

    def places(self, pitch: int) -> int:
        """From the first to the last in the laid out map, by the places of its rows."""
        return (self.rows - 1) * pitch + self.columns


class MapLayout(NamedTuple):
    """How a map is laid out for filters that go over it."""

    height: int
    width: int
    """Of the result."""
    window: FilterWindow
    extent: tuple[int, int]
    """Of the filters."""
    is_as_it_lies: bool
    """Whether the map is read where it is."""
    has_wide_steps: bool
    """Whether a step multiplies all columns of the filters, as there are few lanes: the map has no
    phases then, and neighbours of the result are a stride apart."""

    @property
    def phases(self) -> tuple[int, int]:
        """Of rows and columns."""
        if self.has_wide_steps:
            return 1, 1
        rows, columns = (
            stride if extent > 1 else 1
            for stride, extent in zip(self.window.strides, self.extent, strict=True)
        )
        return rows, columns

    @property
    def units(self) -> tuple[int, ...]:
        """Rows and columns of the padded map from one of a phase to the next."""
        return (1, 1) if self.has_wide_steps else self.window.strides

    @property
    def steps(self) -> tuple[int, ...]:
        """Rows and columns of a phase from one of the result to the next."""
        return self.window.strides if self.has_wide_steps else (1, 1)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of a phase."""
        height, width = (
            (count - 1) * step + (extent - 1) * dilation // unit + 1
            for count, step, extent, dilation, unit in zip(
                (self.height, self.width),
                self.steps,
                self.extent,
                self.window.dilation,
                self.units,
                strict=True,
            )
        )
        return height, width

    def tile(self, blocks: int) -> _Tile:
        """Return the tile for so many blocks of channels of the result that takes least time."""
        _, pitch = self.size
        tiles = []
        for together in (2, 1) if blocks % 2 == 0 else (1,):
            most = MAX_ROWS * MAX_SUM_TILES // together
            tiles.append(_Tile(1, even_size(self.width, most), together))
            if self.width < most and self.steps == (1, 1):
                rows = (most - self.width) // pitch + 1
                tiles.append(_Tile(even_size(self.height, rows), self.width, together))
        return min(tiles, key=lambda tile: self._time(tile, blocks))

    def _time(self, tile: _Tile, blocks: int) -> float:
        """Of all tiles, in products of two tiles for each step in depth."""
        _, pitch = self.size
        lefts = -(-tile.places(pitch) // MAX_ROWS)
        count = -(-self.height // tile.rows) * -(-self.width // tile.columns)
        count *= blocks // tile.blocks
        return count * (lefts * tile.blocks + _LOAD_COST * (lefts + tile.blocks))


def amx_layout(
    data: Sequence[int], filters: Sequence[int], window: FilterWindow
) -> MapLayout | None:
    """Return the layout by which AMX computes a convolution; None: it does not on this target.

    Parameters
    ----------
    data
        [n, blocks, height, width, lanes].
    filters
        [blocks, blocks of data, height, width, groups, 16, numbers of a group].
    """
    if not multiplies_tiles(tvm.target.Target.current()):
        return None
    _, blocks, *size, lanes = data
    extent, group = (filters[2], filters[3]), filters[-1]
    is_wide = blocks == 1 and window.dilation[1] == 1 and lanes < _FEW_LANES
    together = extent[1] * lanes if is_wide else lanes
    if lanes % group or not _is_deep(together // group):
        return None
    result = window.result_size(size, extent)
    return MapLayout(
        *result,
        window,
        extent,
        is_as_it_lies=extent == (1, 1) and tuple(size) == result,
        has_wide_steps=is_wide,
    )


def int8_conv(data: te.Tensor, filters: te.Tensor, attrs: Any) -> te.Tensor | None:
    """Return a convolution of bytes; None: AMX does not compute it on this target.

    Parameters
    ----------
    data, filters
        Of shapes as in `amx_layout`.
    attrs
        Of the op.
    """
    shapes, window = (shape_of(data), shape_of(filters)), FilterWindow.of(attrs)
    is_one_group = shapes[0][1] == shapes[1][1] and int(attrs["groups"]) == 1
    is_whole = shapes[1][-2] == _LANES and len(window.padding) == 4
    if not is_one_group or not is_whole or data.dtype != "uint8":
        return None
    layout = amx_layout(*shapes, window)
    return None if layout is None else amx_conv2d(data, filters, layout)


def amx_conv2d(data: te.Tensor, filters: te.Tensor, layout: MapLayout) -> te.Tensor:
    """Return the convolution [n, blocks, height, width, 16].

    It is of float32 if data and filters are bits of bfloat16, and of int32 if they are bytes.
    """
    num, data_blocks, height, width, lanes = shape_of(data)
    blocks, _, *extent, groups, _, group_size = shape_of(filters)
    tile = layout.tile(blocks)
    rows, pitch = layout.size
    (unit_y, unit_x), (phases_y, phases_x) = layout.units, layout.phases
    (step_y, step_x), (dilation_y, dilation_x) = layout.steps, layout.window.dilation
    above, left, *_ = layout.window.padding

    def laid(n: Any, block: Any, phase: Any, place: Any, lane: Any) -> tir.PrimExpr:
        y = _DIV(place, pitch) * unit_y + _DIV(phase, phases_x) - above
        x = _MOD(place, pitch) * unit_x + _MOD(phase, phases_x) - left
        is_inside = tir.all(y >= 0, y < height, x >= 0, x < width)
        return tir.if_then_else(is_inside, data[n, block, y, x, lane], tir.const(0, data.dtype))

    if layout.is_as_it_lies:

        def element(n: Any, block: Any, _: Any, place: Any, lane: Any) -> tir.PrimExpr:
            return data[n, block, _DIV(place, width), _MOD(place, width), lane]

    else:
        laid_shape = num, data_blocks, phases_y * phases_x, rows * pitch, lanes
        element = te.compute(laid_shape, laid, "laid_out", tag=tag.INJECTIVE)

    extents = [("block", data_blocks), ("ky", extent[0]), ("kx", extent[1])]
    extents += [("group", groups), ("of_group", group_size)]
    axes = [te.reduce_axis((0, each), name) for name, each in extents]
    block, ky, kx, group, of_group = axes

    def wide(number: tir.PrimExpr) -> tir.PrimExpr:
        is_bits = number.dtype == BFLOAT16_BITS
        return widened(number, "float32") if is_bits else number.astype("int32")

    def first(number: Any, size: int, total: int) -> Any:
        return number * size if total % size == 0 else tir.min(number * size, total - size)

    def summed(n: Any, some: Any, ty: Any, tx: Any, c: Any, row: Any, lane: Any) -> tir.PrimExpr:
        seen_y, seen_x = ky * dilation_y, kx * dilation_x
        phase = _MOD(seen_y, unit_y) * phases_x + _MOD(seen_x, unit_x)
        y = first(ty, tile.rows, layout.height) * step_y + _DIV(seen_y, unit_y)
        x = first(tx, tile.columns, layout.width) * step_x + _DIV(seen_x, unit_x)
        place, of_lanes = y * pitch + x + row * step_x, group_size * group + of_group
        weight = filters[some * tile.blocks + c, block, ky, kx, group, lane, of_group]
        return te.sum(wide(element(n, block, phase, place, of_lanes)) * wide(weight), axis=axes)

    counts = -(-layout.height // tile.rows), -(-layout.width // tile.columns)
    shape = num, blocks // tile.blocks, *counts, tile.blocks, tile.places(pitch), _LANES
    attrs = {"tile": list(tile), "is_as_it_lies": layout.is_as_it_lies, "pitch": pitch}
    block_sums = te.compute(shape, summed, "block_sums", attrs=attrs)

    def stored(n: Any, c: Any, y: Any, x: Any, lane: Any) -> tir.PrimExpr:
        ty, tx = _DIV(y, tile.rows), _DIV(x, tile.columns)
        row = _MOD(y - first(ty, tile.rows, layout.height), tile.rows)
        column = _MOD(x - first(tx, tile.columns, layout.width), tile.columns)
        some, of_some = _DIV(c, tile.blocks), _MOD(c, tile.blocks)
        return block_sums[n, some, ty, tx, of_some, row * pitch + column, lane]

    result = num, blocks, layout.height, layout.width, _LANES
    return te.compute(result, stored, "convolution", tag=AMX_CONV)


def schedule_amx_conv(schedule: te.Schedule, conv: te.Tensor, result: te.Tensor) -> None:
    """Schedule the convolution and what is fused behind it."""
    (block_sums,) = conv.op.input_tensors
    data, filters = block_sums.op.input_tensors
    attrs = block_sums.op.attrs
    tile, is_as_it_lies = _Tile(*map(int, attrs["tile"])), bool(attrs["is_as_it_lies"])
    rows = shape_of(block_sums)[2]
    if conv != result:
        schedule[conv].compute_inline()
    whole = schedule[result]
    n, c, y, x, lane = whole.op.axis
    # Those that are stored may be several blocks of sums in one.
    together = shape_of(result)[-1] // shape_of(conv)[-1]
    group, ci = whole.split(c, max(1, tile.blocks // together))
    (yo, yi), (xo, xi) = whole.split(y, tile.rows), whole.split(x, tile.columns)
    half, yo = whole.split(yo, nparts=row_parts(rows, shape_of(data), shape_of(filters)))
    whole.reorder(n, half, group, yo, xo, ci, yi, xi, lane)
    whole.parallel(whole.fuse(n, half, group, yo))
    whole.vectorize(whole.split(lane, shape_of(conv)[-1])[1])
    stage = schedule[block_sums]
    stage.compute_at(whole, xo)
    mark_block(stage, stage.op.axis[4])
    if not is_as_it_lies:
        laid_out = schedule[data]
        n, block, phase, place, lane = laid_out.op.axis
        row, _ = laid_out.split(place, int(attrs["pitch"]))
        laid_out.parallel(laid_out.fuse(n, block, phase, row))
        laid_out.vectorize(lane)


def _is_deep(groups: int) -> bool:
    """Say whether a step multiplies so many neighbours, or at least half of what it could."""
    return groups <= MAX_ROWS or 2 * groups_of_step(groups) >= MAX_ROWS
