"""Convolutions of 3 x 3 by Winograd's algorithm, in blocks of channels: an op of Relay for CPUs.

    for each block of channels of the map, row of tiles:                    (in parallel)
        padded = the rows that it sees
        for each tile: spread[point, .., tile, channel] = B^T padded B
    for each some blocks of channels of the result, some rows of tiles:     (in parallel)
        for each point, and some of the tiles:
            products[tile, point] += spread[point, .., tile, channel] * filter[point, .., channel],
                                     all of these sums in registers
        for each tile:
            A^T products A, and what is fused behind it

Where `spread` of the whole map would not stay in the cache, it is made for some rows of tiles, by
the thread that reads it. What is summed up for an element is in one order, whatever the batch, the
tiles and the threads.

`winograd_forms` has the transforms and their sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relay, te, tir
from tvm.topi import tag

from heteroplace.parts.kernels.cpu.conv_tiles import Tile, conv_tile, order_in_tile
from heteroplace.parts.kernels.cpu.fused_schedules import largest_divisor, schedule_by_tag
from heteroplace.parts.kernels.cpu.product_tiles import shape_of, vector_registers
from heteroplace.parts.kernels.cpu.winograd_forms import FILTER, FORMS, WINOGRAD_OP, Form, Values
from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_relay_op

_TAG = "heteroplace_winograd"
_SPREAD_BYTES = 5 * 2**18
"""Of a map: if it is no more when spread, that is done before anything is multiplied."""
_ROWS_BYTES = 2**19, 2**20
"""Of rows of tiles that are spread at a time: where filters stay in the cache, and where not."""
_FILTER_BYTES = 2**20
"""Filters of no more stay in the second cache."""
_PRODUCT_BYTES = 2**18
"""Of products that are made before they are gathered."""
_MIN_CHUNKS = 4
"""That several cores can share."""
_EVEN_CHUNKS = 8
"""Of which one more or less for a core is little."""
_MAX_ADDED = 4
"""Tiles that a row may have more than are stored, for tiles whose sums fill the registers."""
_ENOUGH_SUMS, _TILE_SUMS = 8, 2
"""How many a tile takes the time of at least, and beside its own."""
_ITEM_BYTES = 4


def winograd(
    data: relay.Expr, filters: relay.Expr, tile: int, padding: Sequence[int]
) -> relay.Call:
    """Return a call of the op; `filters` are what `spread_filters` makes."""
    add_relay_op(
        WINOGRAD_OP,
        "A convolution of 3 x 3 by Winograd's algorithm.",
        {
            "data": ("Tensor", "[n, blocks, height, width, lanes]"),
            "filters": ("Tensor", "see `spread_filters`"),
        },
        _type_of,
        _compute,
        schedule_winograd,
        is_fusable=True,
    )
    attrs = tvm.ir.make_node("DictAttrs", tile=tile, padding=list(padding))
    return relay.Call(tvm.ir.Op.get(WINOGRAD_OP), [data, filters], attrs)


def spread_filters(filters: np.ndarray, tile: int, height: int, width: int) -> np.ndarray:
    """Return filters at the points, in the order in which the current target reads them.

    Parameters
    ----------
    filters
        [blocks, blocks of data, 3, 3, lanes of data, lanes].
    height, width
        Of the result.

    Returns
    -------
    array
        [parts, point, point, blocks of data, lanes of data, blocks of a part, lanes].
    """
    form, (blocks, data_blocks, _, _, data_lanes, lanes) = FORMS[tile], filters.shape
    tiles = _tiles(form, blocks, height, width)
    together = _chunks(form, data_blocks * data_lanes, _Blocks(blocks, lanes), tiles).tile.blocks
    wide = form.filters(np.moveaxis(filters, (2, 3), (0, 1)))
    shape = form.seen, form.seen, blocks // together, together, data_blocks, data_lanes, lanes
    return np.ascontiguousarray(wide.reshape(shape).transpose(2, 0, 1, 4, 5, 3, 6))


class _Sizes(NamedTuple):
    """Of a convolution."""

    form: Form
    num: int
    blocks: int
    """Of channels of the result."""
    height: int
    width: int

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of them."""
        return _tiles(self.form, self.blocks, self.height, self.width)


def _sizes(attrs: Any, data: Sequence[int], filters: Sequence[int]) -> _Sizes:
    above, left, below, right = (int(each) for each in attrs["padding"])
    num, _, height, width, _ = data
    size = FILTER - 1
    return _Sizes(
        FORMS[int(attrs["tile"])],
        num,
        filters[0] * filters[5],
        height + above + below - size,
        width + left + right - size,
    )


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    data, filters = map(static_shape, arguments)
    sizes = _sizes(attrs, data, filters)
    shape = sizes.num, sizes.blocks, sizes.height, sizes.width, filters[6]
    return relay.TensorType(shape, arguments[0].dtype)


def _at(place: Any, values: Values) -> Any:
    """The value at a place, which is known when loops are unrolled."""
    *others, chosen = values
    for index in reversed(range(len(others))):
        chosen = tir.if_then_else(place == index, others[index], chosen)
    return chosen


def _padded(data: te.Tensor, sizes: _Sizes, attrs: Any) -> te.Tensor:
    """The map with what is around it, as far as tiles see it."""
    num, blocks, height, width, lanes = shape_of(data)
    above, left = (int(each) for each in list(attrs["padding"])[:2])
    size = FILTER - 1

    def element(n: Any, c: Any, y: Any, x: Any, lane: Any) -> tir.PrimExpr:
        inside = (y >= above, y < height + above, x >= left, x < width + left)
        value = data[n, c, y - above, x - left, lane]
        return tir.if_then_else(tir.all(*inside), value, tir.const(0, data.dtype))

    tile = sizes.form.tile
    rows, columns = sizes.tiles
    shape = num, blocks, rows * tile + size, columns * tile + size, lanes
    return te.compute(shape, element, "padded")


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    data, filters = tensors
    sizes = _sizes(attrs, shape_of(data), shape_of(filters))
    form, num, blocks = sizes.form, sizes.num, sizes.blocks
    seen, tile = range(form.seen), form.tile
    _, _, _, data_blocks, data_lanes, together, lanes = shape_of(filters)
    div, mod = tir.indexdiv, tir.indexmod
    padded = _padded(data, sizes, attrs)
    tiles = sizes.tiles
    by_columns = te.compute(
        (num, data_blocks, *tiles, form.seen, form.seen, data_lanes),
        lambda n, c, ty, tx, q, y, lane: _at(
            q, form.spread([padded[n, c, ty * tile + y, tx * tile + x, lane] for x in seen])
        ),
        "by_columns",
    )
    spread = te.compute(
        (num, form.seen, form.seen, data_blocks, *tiles, data_lanes),
        lambda n, p, q, c, ty, tx, lane: _at(
            p, form.spread([by_columns[n, c, ty, tx, q, y, lane] for y in seen])
        ),
        "spread",
    )
    block, channel = te.reduce_axis((0, data_blocks), "block"), te.reduce_axis((0, data_lanes), "c")
    products = te.compute(
        (num, blocks, *tiles, form.seen, form.seen, lanes),
        lambda n, k, ty, tx, p, q, lane: te.sum(
            spread[n, p, q, block, ty, tx, channel]
            * filters[div(k, together), p, q, block, channel, mod(k, together), lane],
            axis=[block, channel],
        ),
        "products",
    )
    in_columns = te.compute(
        (num, blocks, *tiles, tile, form.seen, lanes),
        lambda n, k, ty, tx, x, p, lane: _at(
            x, form.gathered([products[n, k, ty, tx, p, q, lane] for q in seen])
        ),
        "in_columns",
    )
    whole = te.compute(
        (num, blocks, tiles[0] * tile, tiles[1] * tile, lanes),
        lambda n, k, y, x, lane: _at(
            mod(y, tile),
            form.gathered(
                [in_columns[n, k, div(y, tile), div(x, tile), mod(x, tile), p, lane] for p in seen]
            ),
        ),
        "whole",
        tag=_TAG,
    )
    shape = num, blocks, sizes.height, sizes.width, lanes
    return [te.compute(shape, lambda *at: whole[at], "stored", tag=tag.INJECTIVE)]


def schedule_winograd(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    """Schedule the op and what is fused behind it."""
    return schedule_by_tag(outs, {_TAG: _schedule})


class _Blocks(NamedTuple):
    """Of channels."""

    blocks: int
    lanes: int


class _Chunks(NamedTuple):
    """How the work is cut."""

    spreads_before: bool
    """All of the map is spread before anything is multiplied."""
    tile_rows: int
    """That are multiplied at a time."""
    tile: Tile
    """Of tiles, whose products are summed up in registers."""


def _chunks(form: Form, data_channels: int, channels: _Blocks, tiles: tuple[int, int]) -> _Chunks:
    rows, columns = tiles
    tile = conv_tile(channels.blocks, rows, columns, vector_registers())
    groups = channels.blocks // tile.blocks
    place_bytes = form.seen**2 * _ITEM_BYTES
    row_bytes = place_bytes * columns * data_channels
    filter_bytes = place_bytes * data_channels * channels.blocks * channels.lanes
    most_of_products = _PRODUCT_BYTES // (place_bytes * columns * tile.blocks * channels.lanes)
    spreads_before = row_bytes * rows <= _SPREAD_BYTES
    if filter_bytes <= _FILTER_BYTES:
        most = min(rows // _EVEN_CHUNKS, _ROWS_BYTES[0] // row_bytes)
    else:
        most = min(most_of_products, _ROWS_BYTES[1] // row_bytes)
        # Either is read from further away: the map for each group, or the filters for each chunk.
        num_chunks = rows // largest_divisor(rows, most)
        spreads_before |= row_bytes * rows * groups <= filter_bytes * num_chunks
    if spreads_before:
        most = min(most_of_products, rows // max(1, _MIN_CHUNKS // groups))
    tile_rows = largest_divisor(rows, most)
    tile = tile._replace(rows=largest_divisor(tile_rows, tile.rows))
    return _Chunks(spreads_before, tile_rows, tile)


def _tiles(form: Form, blocks: int, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of tiles: with some more columns if these divide better."""
    rows, columns = -(-height // form.tile), -(-width // form.tile)
    registers = vector_registers()

    def work(number: int) -> float:
        sums = conv_tile(blocks, rows, number, registers).sums
        return number * (max(sums, _ENOUGH_SUMS) + _TILE_SUMS) / sums

    return rows, min(range(columns, columns + _MAX_ADDED), key=work)


def _schedule(schedule: te.Schedule, whole: te.Tensor, result: te.Tensor) -> None:
    (in_columns,) = whole.op.input_tensors
    (products,) = in_columns.op.input_tensors
    spread, _ = products.op.input_tensors
    _, seen, _, data_blocks, rows, columns, data_lanes = shape_of(spread)
    form = FORMS[seen - FILTER + 1]
    channels = _Blocks(shape_of(products)[1], shape_of(products)[-1])
    chunks = _chunks(form, data_blocks * data_lanes, channels, (rows, columns))
    stage = schedule[result]
    n, c, y, x, lane = stage.op.axis
    co, ci = stage.split(c, chunks.tile.blocks)
    ty, yi = stage.split(y, form.tile)
    tx, xi = stage.split(x, form.tile)
    tb, ty = stage.split(ty, chunks.tile_rows)
    # Products are of whole tiles; what is behind the last column is not stored.
    to, tx = stage.split(tx, chunks.tile.columns)
    if chunks.spreads_before:
        stage.reorder(n, co, tb, ty, to, tx, ci, xi, yi, lane)
        at = chunk = stage.fuse(n, co, tb)
    else:
        stage.reorder(n, tb, co, ty, to, tx, ci, xi, yi, lane)
        chunk, at = stage.fuse(n, tb), co
    stage.parallel(chunk)
    stage.unroll(yi)
    stage.vectorize(lane)
    _schedule_gathering(schedule, (in_columns, whole), stage, (ci, xi))
    schedule[products].compute_at(stage, at)
    _schedule_products(schedule[products], chunks.tile)
    if not chunks.spreads_before:
        schedule[spread].compute_at(stage, chunk)
    _schedule_spreading(schedule, spread, is_parallel=chunks.spreads_before)


def _schedule_gathering(
    schedule: te.Schedule, tensors: Sequence[te.Tensor], result: te.Stage, at: Sequence[Any]
) -> None:
    in_columns, whole = (schedule[tensor] for tensor in tensors)
    *around, x, p, lane = in_columns.op.axis
    in_columns.reorder(*around, p, x, lane)
    in_columns.unroll(x)
    in_columns.vectorize(lane)
    in_columns.compute_at(result, at[0])
    *_, y, _, lane = whole.op.axis
    whole.unroll(y)
    whole.vectorize(lane)
    whole.compute_at(result, at[1])


def _schedule_products(stage: te.Stage, tile: Tile) -> None:
    n, k, ty, tx, p, q, lane = stage.op.axis
    to, ti = stage.split(ty, tile.rows)
    so, si = stage.split(tx, tile.columns)
    sums = order_in_tile(tile, vector_registers(), k, (ti, si))
    stage.reorder(n, p, q, to, so, *stage.op.reduce_axis, *sums, lane)
    for axis in (k, ti, si):
        stage.unroll(axis)
    stage.vectorize(lane)


def _schedule_spreading(schedule: te.Schedule, spread: te.Tensor, *, is_parallel: bool) -> None:
    stage = schedule[spread]
    n, p, q, c, ty, tx, lane = stage.op.axis
    stage.reorder(n, c, ty, tx, q, p, lane)
    if is_parallel:
        stage.parallel(stage.fuse(n, c))
    stage.unroll(p)
    stage.vectorize(lane)
    (by_columns,) = spread.op.input_tensors
    (padded,) = by_columns.op.input_tensors
    inner = schedule[by_columns]
    *around, q, y, lane = inner.op.axis
    inner.reorder(*around, y, q, lane)
    inner.unroll(q)
    inner.vectorize(lane)
    inner.compute_at(stage, tx)
    schedule[padded].vectorize(schedule[padded].op.axis[-1])
    schedule[padded].compute_at(stage, ty)
