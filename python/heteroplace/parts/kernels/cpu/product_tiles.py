"""Products by tiles of rows and columns whose sums are in registers, for ops of Relay on CPUs.

A tile is some rows of the left matrix times a panel: some vectors of columns of the right one, that
lie one after the other for each place in depth. Tiles have any number of rows, and those behind the
last row compute rows before it again; columns behind the last are computed, and not stored.

Tiles are in blocks of rows: for each a panel is read once and stays in the cache for its tiles.
Long panels are read in parts: all tiles of a block sum up one before the next. What is summed up
for an element is in the order of `depth`, whatever the tile. Elementwise ops are fused behind.
Where the processor has the instructions, a tile is a function of `register_tiles`.
Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(doi:10.1145/1356052.1356053).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tvm
from tvm import te
from tvm.target.x86 import get_simd_32bit_lanes
from tvm.topi import tag

from heteroplace.entries import load_entry
from heteroplace.parts.kernels.cpu.register_tiles import (
    has_register_tiles,
    most_rows,
    tile_intrinsic,
    unwritten_panel,
    widened_from,
)
from heteroplace.parts.kernels.cpu.tile_assembly import QUADS, numbers_of
from heteroplace.relay.targets import multiplies_tiles

_AMX = "heteroplace.parts.kernels.cpu.amx.amx_panels"
"""Loaded for targets that have it."""
MIN_CHUNKS = 16
"""Parts that several cores can share."""
_VECTORS = {3: 1.0, 2: 1.05, 1: 1.2}
"""Of a panel's width, and what each takes: with few, loads of the left matrix hold up the sums."""
_VECTORS_BY_LLVM = {2: 1.0, 3: 1.0, 1: 1.1}
_REGISTERS_BY_LLVM = {64: 18}
"""For sums, by bytes of a vector, else 8: LLVM has one for each row of the left matrix beside."""
_PAGE_BYTES = 4096
_WAYS = 9
"""Rows that lie a multiple of 4 KiB apart share a set of the first cache, which holds 8 or 12
lines: those of so many rows, and of a panel."""
_TILE_COST = 1.0
"""What a tile takes beside its rows, in rows."""
_CACHED_BYTES = 2**20
"""If the right matrix has no more, it stays in the second cache, and blocks may be small: what they
read and write stays in the first one."""
_SMALL_BLOCK_BYTES, _BLOCK_BYTES = 2**15, 2**22
"""Of the left matrix, in a block: where the right one stays in the cache, and where it does not."""
_ASKED_BYTES = 2**18
"""A right matrix of no more is in the second cache before it would come by being asked for."""
_MAX_PLACES = {1: 384, 2: 768, 5: 1536}
"""In depth, of a panel's part that is read before tiles ask for more, by least tiles of a block:
what is asked for too early takes turns with what is read in the second cache."""
_MAX_TOGETHER, _MIN_GROUPS = 4, 8
"""Of panels that few rows read side by side: one alone has fewer sums than an addition takes
cycles, and its memory comes a page at a time. Groups of them are what several cores share."""
_SUMS_TOGETHER = {64: 18}
"""Of these panels, by bytes of a vector, else 12: what LLVM holds in registers."""
_TRANSPOSED = "is_left_transposed"
_MIN_STORED = 4
"""Elements of the vectors that are stored; where there would be fewer, LLVM makes them."""


def shape_of(tensor: te.Tensor) -> tuple[int, ...]:
    """Return the extents of a tensor."""
    return tuple(int(extent) for extent in tensor.shape)


def item_bytes_of(tensor: te.Tensor) -> int:
    """Return the size of an element in memory, whole bytes."""
    return -(-int(tvm.DataType(tensor.dtype).bits) // 8)


def vector_bytes() -> int:
    """Return the size of a vector of the current target."""
    return 4 * int(get_simd_32bit_lanes())


def vector_registers() -> int:
    """Return how many vectors the current target holds in registers.

    64-bit Arm and AVX-512 have 32; x86 before that has 16, and a target that is not known is taken
    for one of these.
    """
    is_arm = str(tvm.target.Target.current().attrs.get("mtriple", "")).startswith("aarch64")
    return 32 if is_arm or vector_bytes() == 64 else 16


def _has_amx(group: str) -> bool:
    """Say whether the current target multiplies such groups of numbers by AMX."""
    return bool(group) and multiplies_tiles(tvm.target.Target.current())


def panel_width(columns: int, dtype: str, group: str = "") -> int:
    """Return the columns of a panel: as many as some vectors of the current target hold.

    `group`: PAIRS or QUADS, if weights are in such groups.
    """
    lanes = 8 * vector_bytes() // int(tvm.DataType(dtype).bits)
    if _has_amx(group):
        return lanes * min(2, -(-columns // lanes))
    vectors = -(-columns // lanes)
    costs = _VECTORS if has_register_tiles(dtype, vector_bytes()) else _VECTORS_BY_LLVM
    return lanes * min(costs, key=lambda each: -(-vectors // each) * each * costs[each])


class Tiling(NamedTuple):
    """How rows are cut: in blocks of tiles of rows."""

    rows: int
    """Of a tile."""
    tiles: int
    """Of a block."""
    blocks: int


def tiling(rows: int, most: int, block_rows: int) -> Tiling:
    """Return tiles of at most `most` rows, so that all of them together are least work.

    Parameters
    ----------
    block_rows
        About how many rows a block may have.

    Examples
    --------
    >>> [tiling(rows, 9, 100).rows for rows in (1, 5, 12, 17, 61, 63, 64)]
    [1, 5, 6, 9, 9, 9, 8]
    >>> tiling(197, 9, 100)
    Tiling(rows=9, tiles=11, blocks=2)
    """
    blocks = -(-rows // block_rows)

    def cut(tile: int) -> Tiling:
        return Tiling(tile, -(-rows // (tile * blocks)), blocks)

    def work(each: Tiling) -> float:
        return each.tiles * each.blocks * (each.rows + _TILE_COST)

    return min((cut(tile) for tile in range(min(rows, most), 0, -1)), key=work)


class TiledProduct(NamedTuple):
    """Products [rows, depth] x [depth, columns], one for each place in what is around them."""

    around: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    width: int
    """Of a panel."""
    dtype: str
    right_dtype: str
    """Of the right matrix, where that is read: it may be narrower. PAIRS, QUADS: both matrices are
    of such numbers, and the depth is one of these groups."""
    is_right_made: bool = False
    """Whether the kernel makes the right matrix, a panel at a time."""
    source_dtype: str = ""
    """Of narrow weights, in panels of the same shape, that it widens for that; "": it
    makes that of others."""

    @property
    def item_bytes(self) -> int:
        """Of an element."""
        return int(tvm.DataType(self.dtype).bits) // 8

    @property
    def right_bytes(self) -> int:
        """Of a right matrix in panels."""
        dtype = tvm.DataType(self.right_dtype)
        item_bytes = int(dtype.bits * dtype.lanes) // 8
        return self.panels * self.width * self.depth * item_bytes

    @property
    def group(self) -> str:
        """PAIRS or QUADS, if its numbers are in such groups; else ""."""
        return self.right_dtype if numbers_of(self.right_dtype) > 1 else ""

    @property
    def is_by_amx(self) -> bool:
        """Whether its tiles are those of AMX."""
        return _has_amx(self.group) and bool(load_entry(f"{_AMX}:is_for_amx")(self))

    @property
    def is_by_registers(self) -> bool:
        """Whether its tiles are functions of `register_tiles`: TVM matches no axes of one element,
        and cuts a single panel to its columns; and they are of one panel."""
        has_tiles = has_register_tiles(self.dtype, self.lanes * self.item_bytes)
        is_matched = self.columns >= self.width and min(self.rows, self.depth) > 1
        return has_tiles and is_matched and self.panels_together == 1 and not self.is_by_amx

    @property
    def panels(self) -> int:
        """How many hold the columns."""
        return -(-self.columns // self.width)

    @property
    def lanes(self) -> int:
        """Of a vector."""
        return min(self.width, vector_bytes() // self.item_bytes)

    def tiling(self) -> Tiling:
        """How rows are cut, with the sums of a tile in registers."""
        vectors = self.width // self.lanes
        if self.is_by_amx:
            most = load_entry(f"{_AMX}:most_rows")(vectors)
        elif self.is_by_registers:
            most = most_rows(vectors, self.lanes * self.item_bytes)
        else:
            most = _REGISTERS_BY_LLVM.get(vector_bytes(), 8) // vectors
        row_bytes = self.depth * self.item_bytes
        if row_bytes % _PAGE_BYTES == 0 and not self.is_by_amx:
            most = min(most, _WAYS)
        is_cached = self.right_bytes <= _CACHED_BYTES and not self.is_right_made
        block_rows = (_SMALL_BLOCK_BYTES if is_cached else _BLOCK_BYTES) // row_bytes
        shared = self.rows * self.panels * math.prod(self.around) // MIN_CHUNKS
        return tiling(self.rows, most, max(most, min(block_rows, shared)))

    @property
    def is_asked_for(self) -> bool:
        """Whether tiles ask memory for the right matrix, or for what it is made of."""
        return self.is_by_registers and self._is_from_memory

    @property
    def _is_from_memory(self) -> bool:
        """Whether the right matrix comes from there."""
        if self.source_dtype:
            return True
        is_made = bool(self.around) or self.is_right_made
        return not is_made and self.right_bytes > _ASKED_BYTES

    @property
    def has_few_panels(self) -> bool:
        """Whether cores share tiles, as there are too few panels of blocks."""
        return math.prod(self.around) * self.tiling().blocks * self.panels < MIN_CHUNKS

    def places(self) -> int:
        """Return how many places in depth a tile sums up before the next tile does."""
        if self.is_by_amx:
            return int(load_entry(f"{_AMX}:places")(self))
        if not self.is_asked_for or self.has_few_panels:
            return self.depth
        tiles = self.tiling().tiles
        most = max(most for least, most in _MAX_PLACES.items() if least <= tiles)
        divisor = max(each for each in range(1, most + 1) if self.depth % each == 0)
        return divisor if 3 * divisor >= most else self.depth

    @property
    def panels_together(self) -> int:
        """How many are summed up at once.

        Tiles of two or three rows that ask memory for what comes later take 1.3 times as long as
        memory (AMD EPYC, Zen 4). Of several panels the processor goes on with each by itself.
        """
        is_cached = self.rows > 1 and not self._is_from_memory
        if is_cached or self.right_dtype == QUADS or self.is_by_amx:
            return 1
        most = _SUMS_TOGETHER.get(vector_bytes(), 12) // (self.rows * self.width // self.lanes)
        return max(1, min(_MAX_TOGETHER, most, -(-self.panels // _MIN_GROUPS)))

    def compute(
        self,
        left: Callable[..., tvm.tir.PrimExpr],
        right: Callable[..., tvm.tir.PrimExpr],
        tag_: str,
        *,
        is_left_transposed: bool = False,
        source: Callable[..., tvm.tir.PrimExpr] | None = None,
    ) -> te.Tensor:
        """Return the products.

        Parameters
        ----------
        left
            Of (*around, row, place in depth); of groups, this has the place in a group behind.
        right
            Of (*around, panel, place in depth, column of the panel); likewise.
        tag_
            Of the op that `schedule` is for.
        is_left_transposed
            Whether rows of the left matrix are beside one another in memory.
        source
            As `right`, of the weights that the kernel widens (`source_dtype`).
        """
        tile, tiles, blocks = self.tiling()
        num_tiles = tiles * blocks
        is_whole = num_tiles * tile == self.rows
        axes = [te.reduce_axis((0, self.depth), "depth")]
        if numbers_of(self.right_dtype) > 1:
            axes.append(te.reduce_axis((0, numbers_of(self.right_dtype)), "of_group"))
        div, mod = tvm.tir.indexdiv, tvm.tir.indexmod

        def first(t: Any) -> Any:
            return t * tile if is_whole else tvm.tir.min(t * tile, self.rows - tile)

        def summed(*where: Any) -> tvm.tir.PrimExpr:
            *around, t, panel, y, x = where
            at, *of_group = axes
            first_factor = left(*around, first(t) + y, at, *of_group)
            second_factor = right(*around, panel, at, x, *of_group)
            if source is not None and self.is_asked_for:
                second_factor = widened_from(second_factor, source(*around, panel, at, x))
            return te.sum(first_factor * second_factor, axis=axes)

        tiles_shape = (*self.around, num_tiles, self.panels, tile, self.width)
        attrs = {_TRANSPOSED: is_left_transposed}
        product = te.compute(tiles_shape, summed, "product", tag=tag_, attrs=attrs)

        def stored(*where: Any) -> tvm.tir.PrimExpr:
            *around, y, x = where
            # By `mod` also where the last tile begins further back: TVM knows then what is read.
            row = mod(y if is_whole else y - first(div(y, tile)), tile)
            place = (*around, div(y, tile), div(x, self.width), row, mod(x, self.width))
            return product[place]

        shape = (*self.around, self.rows, self.columns)
        return te.compute(shape, stored, "stored", tag=tag.INJECTIVE)

    def schedule(
        self,
        schedule: te.Schedule,
        product: te.Tensor,
        result: te.Tensor,
        right: te.Tensor | None = None,
    ) -> None:
        """Schedule `product` of `compute`, and what is fused behind it.

        `right`: the right matrix [panels, depth, width], where the kernel makes it.
        """
        tile, tiles, _ = self.tiling()
        lanes = self.lanes
        whole = schedule[result]
        *around, y, x = whole.op.axis
        xo, xi = whole.split(x, self.width)
        yo, yi = whole.split(y, tile)
        yb, yo = whole.split(yo, tiles)
        xo, xg = whole.split(xo, self.panels_together)
        whole.reorder(*around, yb, xo, yo, xg, yi, xi)
        places = self.places()
        if self.has_few_panels:
            yo = whole.fuse(*around, yb, xo, yo)
            whole.parallel(yo)
        else:
            xo = whole.fuse(*around, yb, xo)
            whole.parallel(xo)
        # Vectors that are stored whole or not at all, or else by `whole_vectors`.
        in_vector = math.gcd(self.columns, lanes)
        whole.vectorize(whole.split(xi, in_vector if in_vector >= _MIN_STORED else lanes)[1])
        stage = schedule[product]
        stage.compute_at(whole, xo if places < self.depth else yo)
        maker, made_at = whole, whole.leaf_iter_vars[0]
        *_, t, panel, ty, tx = stage.op.axis
        depth, *of_group = stage.op.reduce_axis
        if self.is_by_registers:
            if places < self.depth:
                part, depth = stage.split(depth, places)
                stage.reorder(part, t, panel, ty, tx, depth, *of_group)
                maker, made_at = stage, part
            intrinsic = tile_intrinsic(
                (tile, self.width, places),
                lanes,
                self.right_dtype,
                is_left_transposed=bool(product.op.attrs[_TRANSPOSED]),
                is_part=places < self.depth,
                tiles_of_panel=tiles if self.is_asked_for else 0,
                source_dtype=self.source_dtype if self.is_asked_for else "",
            )
            stage.tensorize(ty, intrinsic)
        elif self.is_by_amx:
            load_entry(f"{_AMX}:mark_tiles")(stage, places)
        else:
            self._sum_by_llvm(stage)
        if right is not None:
            making = schedule[right]
            making.compute_at(maker, made_at)
            if self.source_dtype and self.is_asked_for:
                panel = unwritten_panel((places, self.width), self.source_dtype)
                making.tensorize(making.op.axis[1], panel)
            else:
                making.vectorize(making.split(making.op.axis[2], lanes)[1])

    def _sum_by_llvm(self, stage: te.Stage) -> None:
        *_, panel, ty, tx = stage.op.axis
        depth, *_ = stage.op.reduce_axis
        # In memory, but summed up in registers, by LLVM. To take them out of these by another copy
        # holds up the next tile until all that is stored has arrived.
        tx, lane = stage.split(tx, self.lanes)
        stage.reorder(depth, panel, ty, tx, lane)
        stage.unroll(panel)
        stage.unroll(ty)
        stage.unroll(tx)
        stage.vectorize(lane)
