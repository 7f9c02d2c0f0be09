"""Sums of a tile of products, all in registers -> a function in x86 assembly, for TVM to call.

LLVM loads every element of a column of the left matrix into a register before it uses one. That
leaves half of the registers for sums, and moves sums about. Here each element takes the register of
the one before (`tile_assembly`).

Narrow weights (`narrow_weights`) are widened as they are loaded. If several tiles of
rows read a panel, the first one stores the widened weights while it multiplies, and the others load
these. Widening in each tile would take a quarter of the time.

If weights are in no cache, tiles that read a part of a panel prefetch the next part, a share each.
They prefetch from several pages at once, because the processor itself prefetches within a page
only. Otherwise memory would be idle while all tiles but the first read from a cache.
Source: Heinecke et al., "LIBXSMM" (doi:10.1109/SC.2016.83), section II.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tir
from tvm.target.codegen import target_has_features

from heteroplace.errors import LoweringError
from heteroplace.parts.kernels.cpu.tile_assembly import (
    DTYPE,
    LOADS,
    MULTIPLIED,
    PAIRS,
    REGISTERS,
    Prefetching,
    RegisterTile,
    numbers_of,
    tile_text,
)
from heteroplace.parts.kernels.rewrites.narrow_weights import BFLOAT16_BITS, widened

_WIDENED_FROM = "heteroplace_widened_from"


def has_register_tiles(dtype: str, vector_bytes: int) -> bool:
    """Tell whether the current target has them for this type and size of vectors."""
    if dtype == "int32":
        return vector_bytes == 64 and bool(target_has_features(["avx512vnni"]))
    return dtype == DTYPE and vector_bytes in REGISTERS and bool(target_has_features(["fma"]))


def most_rows(vectors: int, vector_bytes: int) -> int:
    """Return how many rows a tile of so many vectors may have.

    Examples
    --------
    >>> most_rows(3, 64), most_rows(2, 64), most_rows(2, 32)
    (9, 14, 6)
    """
    _, registers = REGISTERS[vector_bytes]
    # One holds an element of the left matrix; with a second one, the next does not wait for it.
    return min((registers - vectors - 1) // vectors, 14)


def widened_from(element: tir.PrimExpr, source: tir.PrimExpr) -> tir.PrimExpr:
    """Return an element of a panel that tiles widen, and the weight that it is made of.

    It tells TVM where both are. The function of a tile replaces it, so that no kernel calls it.
    """
    return tir.call_pure_extern(element.dtype, _WIDENED_FROM, element, source)


def unwritten_panel(shape: tuple[int, int], dtype: str) -> te.TensorIntrin:
    """Return what stands for the widening of a panel [depth, columns] that tiles do: nothing."""
    source = te.placeholder(shape, dtype, "source")
    panel = te.compute(shape, lambda at, x: widened(source[at, x], DTYPE), "panel")
    binds = {
        each: tir.decl_buffer(
            shape, each.dtype, each.op.name, strides=[shape[1], 1], offset_factor=1
        )
        for each in (source, panel)
    }
    return te.decl_tensor_intrin(panel.op, lambda *_: tir.Evaluate(0), binds=binds)


def tile_intrinsic(
    shape: tuple[int, int, int],
    lanes: int,
    right_dtype: str,
    *,
    is_left_transposed: bool,
    is_part: bool = False,
    tiles_of_panel: int = 0,
    source_dtype: str = "",
) -> te.TensorIntrin:
    """Return what stands for a tile of products.

    Parameters
    ----------
    shape
        Rows, columns and depth; `lanes` divides the columns.
    is_part
        Whether the depth is one of several parts, whose products are added up in the result.
    right_dtype
        Of the right matrix: float32, that of narrow weights, or PAIRS: the depth is
        one of pairs then.
    is_left_transposed
        Whether the left matrix is [depth, rows].
    tiles_of_panel
        How many tiles, with rows one after the other, read so many places of a panel before what
        lies behind these is read: of a left matrix that is [rows, depth]. 0: panels are in a cache.
    source_dtype
        Of narrow weights that the first tile widens into the right matrix
        (`widened_from`), and that tiles prefetch; "": the right matrix is there.

    Raises
    ------
    LoweringError
        `lanes` does not divide the columns: the last ones would be missing.
    """
    rows, columns, depth = shape
    if columns % lanes:
        raise LoweringError(
            f"a tile of {columns} columns is not one of whole vectors of {lanes} numbers, as if "
            f"its panels were made for another target; report this as a bug"
        )
    tensors = _product(shape, right_dtype, is_left_transposed, source_dtype)
    kind = "" if right_dtype == DTYPE else f"_{right_dtype}"
    place_bytes = columns * LOADS[source_dtype or right_dtype][0]
    prefetching = Prefetching.of(tiles_of_panel, place_bytes, depth)
    name = f"heteroplace_tile_{rows}x{columns}x{lanes}{'t' * is_left_transposed}{kind}"
    name += "_adds" * is_part
    name += f"_prefetches{prefetching.pages}x{prefetching.bytes_}x{depth}" * (prefetching.pages > 0)
    name += f"_of_{source_dtype}" * bool(source_dtype)
    vectors = columns // lanes
    tile = RegisterTile(
        name, rows, vectors, lanes, right_dtype, source_dtype, is_left_transposed, is_part
    )

    def body(ins: Any, outs: Any) -> tir.Stmt:
        return _call(tile, prefetching, ins, outs, max(1, tiles_of_panel))

    def parts(ins: Any, outs: Any) -> Any:
        # All of it at once, what is done before the first part, and what a part does.
        return (None, _zeros(tile, outs[0]), body(ins, outs)) if is_part else body(ins, outs)

    def bound(tensor: te.Tensor, stride: Any) -> tir.Buffer:
        strides = [stride, *([tensor.shape[2], 1] if len(tensor.shape) > 2 else [1])]
        return tir.decl_buffer(
            tensor.shape, tensor.dtype, tensor.op.name, strides=strides, offset_factor=1
        )

    left, right, *source, result = tensors
    binds = {each: bound(each, te.var(f"{each.op.name}_stride")) for each in (left, right)}
    binds |= {each: bound(each, columns) for each in (*source, result)}
    return te.decl_tensor_intrin(result.op, parts, binds=binds)


def _call(
    tile: RegisterTile, prefetching: Prefetching, ins: Any, outs: Any, tiles_of_panel: int
) -> tir.Stmt:
    """What computes a tile: a call of its function, or of that which widens weights too."""
    first = tile._replace(name=f"{tile.name}_widens", widens=True)
    functions = (tile, first) if tile.source_dtype else (tile,)
    text = "\n".join(tile_text(each, prefetching) for each in functions)
    left, right, *source = ins
    # Of the tiles that read the same places of a panel. The last one may begin further back.
    row = tir.indexdiv(left.elem_offset, left.strides[0])
    number = tir.indexmod(tir.indexdiv(row + tile.rows - 1, tile.rows), tiles_of_panel)
    depth, columns = (int(extent) for extent in right.shape[:2])
    # Bytes from the panel, or its source, to what the tile prefetches first.
    read_bytes = depth * columns * LOADS[tile.source_dtype or tile.right_dtype][0]
    arguments = [
        outs[0].access_ptr("rw" if tile.adds else "w"),
        left.access_ptr("r"),
        right.access_ptr("rw" if source else "r"),
        *(each.access_ptr("r") for each in source),
        *(tir.Cast("int64", each.strides[0]) for each in (left, right)),
        tir.const(depth, "int64"),
        tir.Cast("int64", read_bytes + number * prefetching.share),
    ]
    ib = tir.ir_builder.create()
    ib.scope_attr(tir.const(0, "int32"), "pragma_import_llvm", tir.StringImm(text))
    if source:
        with ib.if_scope(number == 0):
            ib.emit(tir.call_extern("int32", first.name, *arguments))
        with ib.else_scope():
            ib.emit(tir.call_extern("int32", tile.name, *arguments))
    else:
        ib.emit(tir.call_extern("int32", tile.name, *arguments))
    return ib.get()


def _product(
    shape: tuple[int, int, int], right_dtype: str, is_left_transposed: bool, source_dtype: str
) -> tuple[te.Tensor, ...]:
    """Left matrix, right matrix, its source if there is one, and what TVM looks for in its place:
    the product."""
    rows, columns, depth = shape
    if right_dtype in MULTIPLIED:
        return _group_product(rows, columns, depth, right_dtype)
    left_shape = (depth, rows) if is_left_transposed else (rows, depth)
    left = te.placeholder(left_shape, DTYPE, "left")
    right = te.placeholder((depth, columns), right_dtype, "right")
    sources = [te.placeholder((depth, columns), source_dtype, "source")] if source_dtype else []
    at = te.reduce_axis((0, depth), "depth")

    def element(y: Any, x: Any) -> Any:
        factor = left[at, y] if is_left_transposed else left[y, at]
        weight = widened(right[at, x], DTYPE)
        for source in sources:
            weight = widened_from(weight, source[at, x])
        return te.sum(factor * weight, axis=at)

    return left, right, *sources, te.compute((rows, columns), element, "tile")


def _group_product(
    rows: int, columns: int, depth: int, right_dtype: str
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    count, is_pair = numbers_of(right_dtype), right_dtype == PAIRS
    left_type, right_type = (BFLOAT16_BITS, BFLOAT16_BITS) if is_pair else ("uint8", "int8")
    left = te.placeholder((rows, count * depth), left_type, "left")
    right = te.placeholder((depth, columns, count), right_type, "right")
    at, of_group = te.reduce_axis((0, depth), "depth"), te.reduce_axis((0, count), "of_group")

    def element(y: Any, x: Any) -> Any:
        factors = left[y, count * at + of_group], right[at, x, of_group]
        first, second = (
            widened(each, DTYPE) if is_pair else each.astype("int32") for each in factors
        )
        return te.sum(first * second, axis=[at, of_group])

    return left, right, te.compute((rows, columns), element, "tile")


def _zeros(tile: RegisterTile, result: tir.Buffer) -> tir.Stmt:
    """What a tile's sums are before the first part."""
    ib = tir.ir_builder.create()
    with ib.for_range(0, tile.rows, "row") as row:
        for vector in range(tile.vectors):
            zeros = tir.Broadcast(tir.const(0, tile.sums_type), tile.lanes)
            ib.emit(result.vstore([row, vector * tile.lanes], zeros))
    return ib.get()
