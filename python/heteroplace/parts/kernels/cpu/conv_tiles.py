"""Schedule of convolutions in blocks of channels, for CPUs: sums of several blocks in registers.

TVM sums up some columns of one block of channels at once: each product reads an element of the map
of its own, and a row of the result goes through a buffer; a map is padded as a whole before. Here
an element that was read serves two or three blocks, what is fused behind takes the sums from where
they are, and of large maps some rows are padded at a time, which stay in the cache:

    for each part of the rows (in parallel):        for each half of the rows, some blocks,
        padded = those rows, and what is around     row (in parallel; small maps are padded before):
        for each some blocks, row:
            for each tile of columns:
                sums[block, row, column, lane] += map[..] * filter[.., block, lane], unrolled
                what is fused behind, of the tile

The last tile of a row may have fewer columns. What is summed up for an element is in TVM's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tvm import te
from tvm.topi.utils import traverse_inline

from heteroplace.parts.kernels.cpu.fused_schedules import largest_divisor, schedule_by_tag
from heteroplace.parts.kernels.cpu.product_tiles import shape_of, vector_registers

_TAG = "conv2d_NCHWc"
_POSITIONS = {32: {2: 10, 3: 7, 1: 16}, 16: {4: 3, 3: 3, 2: 5, 5: 2, 1: 12}}
"""By registers of the target, then by blocks of channels in a tile, best first: for how many
elements of a map sums are in registers. Beside the sums these hold the elements, or a vector of the
filter for each block, whichever are fewer, and of 16 one of the others at a time. Sums for which
there is no register are in memory, and the tile takes twice as long."""
_MAX_POSITIONS = {32: 28, 16: 12}
"""Of one block, where no fewer divide the columns; of 16 registers more are not held."""
_ENOUGH_SUMS = {32: 14, 16: 8}
"""An addition takes four cycles, and two begin in each; what is more saves little."""
_LOAD_SUMS, _FILTER_SUMS = {32: 0.0, 16: 1.1}, {32: 0.0, 16: 2.3}
"""How many sums take as long as a load from the first cache, and as a vector of the filter from the
second one. A step loads an element for each column, and a vector for each block (AMD EPYC, family
25, model 1). With 32 registers these were not measured."""
_MIN_UNEVEN_GAIN = 1.12
"""Of tiles that do not divide the columns: code is made for the last tile of a row, too."""
_MIN_PARTS = 8
"""Into which rows are cut that are padded at a time, for several cores."""
_MIN_ROWS = 5
"""Of such a part; those around it are padded for it too."""
_MAX_FILTER_SHARE = 2
"""Size of the filters over that of the map, up to which a map is made in halves."""


class Tile(NamedTuple):
    """What is summed up at once."""

    blocks: int
    rows: int
    columns: int

    @property
    def sums(self) -> int:
        """Vectors of them."""
        return self.blocks * self.rows * self.columns


def conv_tile(
    blocks: int, height: int, width: int, registers: int, *, divides: bool = True
) -> Tile:
    """Return the tile for so many blocks of channels of a result of that size.

    Parameters
    ----------
    registers
        Of vectors: 32 or 16.
    divides
        Whether the columns must be whole tiles. Without that, the last tile of a row may have fewer
        columns, if this takes less time.

    Examples
    --------
    >>> [tuple(conv_tile(12, size, size, 32)) for size in (1, 4, 7, 14, 17, 56, 128)]
    [(3, 1, 1), (2, 2, 4), (2, 1, 7), (2, 1, 7), (1, 1, 17), (2, 1, 8), (2, 1, 8)]
    >>> tuple(conv_tile(9, 56, 56, 32)), tuple(conv_tile(1, 128, 128, 32))
    ((3, 1, 7), (1, 1, 16))
    >>> [tuple(conv_tile(12, size, size, 16)) for size in (1, 4, 7, 14, 17, 56)]
    [(4, 1, 1), (2, 1, 4), (1, 1, 7), (4, 1, 2), (4, 1, 1), (2, 1, 4)]
    >>> [tuple(conv_tile(12, size, size, 16, divides=False)) for size in (7, 14, 17, 56)]
    [(1, 1, 7), (2, 1, 5), (4, 1, 3), (2, 1, 4)]
    """
    positions = _POSITIONS[registers]
    together = [number for number in positions if blocks % number == 0]
    tiles = []
    for number in together:
        columns = largest_divisor(width, positions[number])
        rows = largest_divisor(height, positions[number] // width) if columns == width else 1
        tiles.append(Tile(number, rows, columns))
    if tiles[-1].sums * 2 <= positions[1]:
        tiles.append(Tile(1, 1, largest_divisor(width, _MAX_POSITIONS[registers])))
    even = min(tiles, key=lambda each: _time(each, width, registers))
    if divides:
        return even
    tiles = [
        Tile(number, 1, columns)
        for number in together
        for columns in range(positions[number], 0, -1)
    ]
    uneven = min(tiles, key=lambda each: _time(each, width, registers))
    gain = _time(even, width, registers) / _time(uneven, width, registers)
    return uneven if gain >= _MIN_UNEVEN_GAIN else even


def _time(tile: Tile, width: int, registers: int) -> float:
    """Return the time of a step for each of the results: 1 if nothing but sums is waited for."""
    whole, rest = divmod(width, tile.columns)
    total = whole * _step_time(tile, registers)
    if rest:
        total += _step_time(tile._replace(columns=rest), registers)
    return total / (tile.blocks * tile.rows * width)


def _step_time(tile: Tile, registers: int) -> float:
    """Return how many sums could be made while a product is added to each sum of a tile."""
    loads = tile.blocks + tile.rows * tile.columns
    return max(
        tile.sums,
        _ENOUGH_SUMS[registers],
        _LOAD_SUMS[registers] * loads,
        _FILTER_SUMS[registers] * tile.blocks,
    )


def order_in_tile(tile: Tile, registers: int, block: Any, places: Sequence[Any]) -> list[Any]:
    """Return the axes of a tile in an order in which the registers hold all sums.

    The compiler holds what the inner axes read: an element for each place, or a vector of the
    filter for each block. Tiles of 2 blocks x 5 columns took up to 1.6 times as long in the other
    order (AMD EPYC, family 25, model 1).
    """
    if registers == 16 and tile.blocks < tile.rows * tile.columns:
        return [*places, block]
    return [block, *places]


def row_parts(rows: int, data: Sequence[int], filters: Sequence[int]) -> int:
    """Return into how many parts the rows of a map are divided, 1 or 2.

    Each of two cores computes one half, for all channels. The next layer then finds its data mostly
    in the core's own cache: ResNet-50 ran 1.08x faster, and `mobilenet_int8` 1.1x (Intel Xeons,
    family 6, models 167 and 207). Each core reads all filters. Where these are much larger than the
    map, the cores divide the channels instead. An even batch is divided before its maps are.

    Parameters
    ----------
    rows
        Of the result, or of tiles of it.
    data, filters
        The shapes of what is read.

    Examples
    --------
    >>> row_parts(14, (1, 16, 14, 14, 16), (16, 16, 1, 1, 16, 16))
    2
    >>> row_parts(7, (1, 16, 7, 7, 16), (2, 16, 1, 1, 16, 16))
    1
    >>> row_parts(4, (1, 32, 4, 4, 16), (32, 32, 3, 3, 16, 16))
    1
    """
    batch, *of_map = data
    is_small = prod(filters) <= _MAX_FILTER_SHARE * prod(of_map)
    return 2 if is_small and rows % 2 == 0 and batch % 2 == 1 else 1


def can_schedule_conv(outs: Any) -> bool:
    """Tell whether the result is in the blocks in which a convolution of one group is made."""
    outs = [outs] if isinstance(outs, te.Tensor) else outs
    convolutions: list[te.Tensor] = []

    def visit(op: te.Operation) -> None:
        if op.tag == _TAG:
            convolutions.append(op.output(0))

    te_schedule = te.create_schedule([each.op for each in outs])
    traverse_inline(te_schedule, outs[0].op, visit)
    if len(convolutions) != 1 or len(outs) != 1:
        return False
    (conv,) = convolutions
    data, weights = conv.op.input_tensors
    channels, read = shape_of(data), shape_of(weights)
    is_of_one_group = channels[1] * channels[4] == read[1] * read[4]
    return bool(is_of_one_group and shape_of(outs[0]) == shape_of(conv))


def schedule_conv(outs: Any) -> te.Schedule:
    """Schedule the convolution and what is fused behind it."""
    return schedule_by_tag([outs] if isinstance(outs, te.Tensor) else outs, {_TAG: _schedule})


class TiledResult(NamedTuple):
    """The stage of what a kernel stores, cut into tiles."""

    stage: te.Stage
    at: Any
    """The axis of the tiles: what a tile needs is computed there."""
    inner: list[Any]
    """The axes within a tile, but for its lanes."""
    tile: Tile


def schedule_result(
    schedule: te.Schedule, conv: te.Tensor, result: te.Tensor, *, divides: bool = True
) -> TiledResult:
    """Cut what a convolution in blocks stores into tiles, and schedule the padding of its data.

    `divides`: as of `conv_tile`.
    """
    data, filters = conv.op.input_tensors
    is_padded = isinstance(data.op, te.ComputeOp) and "pad" in data.op.tag
    _, blocks, height, width, _ = shape_of(conv)
    tile = conv_tile(blocks, height, width, vector_registers(), divides=divides)
    part_rows = largest_divisor(height, height // _MIN_PARTS) if is_padded else 0
    by_parts = part_rows >= _MIN_ROWS
    whole = schedule[result]
    n, c, y, x, lane = whole.op.axis
    co, ci = whole.split(c, tile.blocks)
    xo, xi = whole.split(x, tile.columns)
    if by_parts:
        part, y = whole.split(y, part_rows)
        whole.reorder(n, part, co, y, xo, ci, xi, lane)
        chunk, inner = whole.fuse(n, part), [ci, xi]
    else:
        yo, yi = whole.split(y, tile.rows)
        parts = row_parts(height // tile.rows, shape_of(data), shape_of(filters))
        half, yo = whole.split(yo, nparts=parts)
        whole.reorder(n, half, co, yo, xo, ci, yi, xi, lane)
        chunk, inner = whole.fuse(n, half, co, yo), [ci, yi, xi]
    whole.parallel(chunk)
    whole.vectorize(lane)
    if is_padded:
        stage = schedule[data]
        if by_parts:
            stage.compute_at(whole, chunk)
        else:
            stage.parallel(stage.fuse(*stage.op.axis[:3]))
        stage.vectorize(stage.op.axis[-1])
    return TiledResult(whole, xo, inner, tile)


def _schedule(schedule: te.Schedule, conv: te.Tensor, result: te.Tensor) -> None:
    data, _ = conv.op.input_tensors
    sums = schedule.cache_write(conv, "global") if conv == result else conv
    tiled = schedule_result(schedule, conv, result, divides=False)
    for axis in tiled.inner:
        tiled.stage.unroll(axis)
    stage = schedule[sums]
    _, c, y, x, lane = stage.op.axis
    channel, ky, kx = stage.op.reduce_axis
    outer, inner = stage.split(channel, shape_of(data)[-1])
    in_tile = order_in_tile(tiled.tile, vector_registers(), c, (y, x))
    stage.reorder(outer, ky, kx, inner, *in_tile, lane)
    for axis in (c, y, x):
        stage.unroll(axis)
    stage.vectorize(lane)
    stage.compute_at(tiled.stage, tiled.at)
