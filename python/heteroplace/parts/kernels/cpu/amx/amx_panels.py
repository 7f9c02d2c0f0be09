"""Products of a matrix with panels of pairs by AMX: how `product_tiles` cuts them."""

from __future__ import annotations

from tvm import te

from heteroplace.parts.kernels.cpu.amx.amx_assembly import MAX_ROWS, MAX_SUM_TILES
from heteroplace.parts.kernels.cpu.amx.amx_loops import groups_of_step
from heteroplace.parts.kernels.cpu.amx.amx_products import mark_block
from heteroplace.parts.kernels.cpu.product_tiles import TiledProduct

_MAX_PLACES = 192
"""In depth, of a panel's part. It stays in the first cache while several tiles read it: products of
197 rows took 0.9 of the time (Intel Xeon, family 6, model 167)."""
_MIN_TILES = 3
"""Of a block of rows, for which a panel is read in parts."""


def is_for_amx(product: TiledProduct) -> bool:
    """Say whether AMX computes a product: its panels are whole vectors, and a step multiplies at
    least half of the depth that it could."""
    is_deep = 2 * groups_of_step(product.depth) >= MAX_ROWS
    is_whole = product.columns >= product.width and product.width % product.lanes == 0
    return is_deep and is_whole


def most_rows(vectors: int) -> int:
    """Return how many rows a tile of so many vectors may have.

    >>> most_rows(1), most_rows(2), most_rows(3)
    (64, 32, 16)
    """
    return MAX_ROWS * (MAX_SUM_TILES // vectors)


def places(product: TiledProduct) -> int:
    """Return how many places in depth a tile sums up before the next tile does."""
    if product.has_few_panels or product.tiling().tiles < _MIN_TILES:
        return product.depth
    step = groups_of_step(product.depth)
    parts = (part for part in range(_MAX_PLACES, 0, -1) if part % step == 0)
    return next((part for part in parts if product.depth % part == 0), product.depth)


def mark_tiles(stage: te.Stage, places: int) -> None:
    """Mark the tiles of a product, which sum up so many places in depth at a time."""
    *_, t, panel, ty, tx = stage.op.axis
    depth, *of_group = stage.op.reduce_axis
    if places < int(depth.dom.extent):
        part, depth = stage.split(depth, places)
        stage.reorder(part, t, panel, ty, tx, depth, *of_group)
    mark_block(stage, ty)
