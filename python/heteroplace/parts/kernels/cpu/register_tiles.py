"""Sums of a tile of products, all in registers -> a function in x86 assembly, for TVM to call.

LLVM brings every element of a column of the left matrix into a register before it uses one, so
half of the registers are left for sums, and moves those about. Here each is in the register of the
one before:

    for each place in depth:
        the vectors of the panel into registers, and what comes later into the caches
        for each row: its element into all lanes of a register, times the vectors, onto its sums

Weights in half precision (`narrow_weights`) are widened as they are loaded. If several tiles of
rows read a panel, the first one stores the widened weights while it multiplies, and the others load
these. Widening in each tile would take a quarter of the time.

Weights that no cache holds come in pages, which the processor does not look beyond. So tiles that
read a part of a panel ask memory for the next part, each for its share of it, in several places at
once: the processor goes on with each of these pages by itself, and memory is never idle, as it
would be while all tiles but the first read from a cache.
Source: Heinecke et al., "LIBXSMM" (doi:10.1109/SC.2016.83), section II.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import te, tir
from tvm.target.codegen import target_has_features

from heteroplace.errors import LoweringError
from heteroplace.parts.kernels.rewrites.narrow_weights import BFLOAT16_BITS, widened

PAIRS = "uint16x2"
"""Type of a right matrix of pairs of bfloat16, [depth, columns, 2]; the left one is of such
numbers, [rows, 2 depth]."""

_DTYPE, _ITEM_BYTES = "float32", 4
_REGISTERS = {64: ("zmm", 32), 32: ("ymm", 16)}
"""By bytes of a vector, their name and how many there are."""
_GROUP = 3
"""Rows whose addresses are one, and it with one and with two strides."""
_AHEAD = 16
"""Places in depth by which the second cache is asked before use."""
_PAGES, _FEW_TILES = 4, 4
"""In how many memory is asked at once, each of which the processor goes on with by itself: of 2, 3,
4 and 6 the best, or as good, for 1 to 4 tiles (Intel Xeon, family 6, model 167). More tiles compute
for longer than memory takes: they ask in one."""
_LINE_BYTES = 64
_LOADS = {
    "float32": (4, "float", ("vmovups {0},{1}",)),
    "float16": (2, "half", ("vcvtph2ps {0},{1}",)),
    "uint16": (2, "i16", ("vpmovzxwd {0},{1}", "vpslld $$16,{1},{1}")),
    PAIRS: (4, "i16", ("vmovups {0},{1}",)),
}
"""By type of the right matrix, bytes of an element or pair, LLVM's type, and what brings some of
them into a register."""
_WIDENED_FROM = "heteroplace_widened_from"
_NEW_LINE = "\\0A"


def has_register_tiles(dtype: str, vector_bytes: int) -> bool:
    """Tell whether the current target has them for this type and size of vectors."""
    return dtype == _DTYPE and vector_bytes in _REGISTERS and bool(target_has_features(["fma"]))


def most_rows(vectors: int, vector_bytes: int) -> int:
    """Return how many rows a tile of so many vectors may have.

    Examples
    --------
    >>> most_rows(3, 64), most_rows(2, 64), most_rows(2, 32)
    (9, 14, 6)
    """
    _, registers = _REGISTERS[vector_bytes]
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
    panel = te.compute(shape, lambda at, x: widened(source[at, x], _DTYPE), "panel")
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
        Of the right matrix: float32, that of weights in half precision, or PAIRS: the depth is
        one of pairs then.
    is_left_transposed
        Whether the left matrix is [depth, rows].
    tiles_of_panel
        How many tiles, with rows one after the other, read so many places of a panel before what
        lies behind these is read: of a left matrix that is [rows, depth]. 0: panels are in a cache.
    source_dtype
        Of weights in half precision that the first tile widens into the right matrix
        (`widened_from`), and for which tiles ask; "": the right matrix is there.

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
    kind = "" if right_dtype == _DTYPE else f"_{right_dtype}"
    place_bytes = columns * _LOADS[source_dtype or right_dtype][0]
    asking = _Asking.of(tiles_of_panel, place_bytes, depth)
    name = f"heteroplace_tile_{rows}x{columns}x{lanes}{'t' * is_left_transposed}{kind}"
    name += "_adds" * is_part
    name += f"_asks{asking.pages}x{asking.bytes_}x{depth}" * (asking.pages > 0)
    name += f"_of_{source_dtype}" * bool(source_dtype)
    vectors = columns // lanes
    tile = _Tile(name, rows, vectors, lanes, right_dtype, source_dtype, is_left_transposed, is_part)

    def body(ins: Any, outs: Any) -> tir.Stmt:
        return _call(tile, asking, ins, outs, max(1, tiles_of_panel))

    def parts(ins: Any, outs: Any) -> Any:
        # All of it at once, what is done before the first part, and what a part does.
        return (None, _zeros(tile, outs[0]), body(ins, outs)) if is_part else body(ins, outs)

    def bound(tensor: te.Tensor, stride: Any) -> tir.Buffer:
        strides = [stride, *([2, 1] if len(tensor.shape) > 2 else [1])]
        return tir.decl_buffer(
            tensor.shape, tensor.dtype, tensor.op.name, strides=strides, offset_factor=1
        )

    left, right, *source, result = tensors
    binds = {each: bound(each, te.var(f"{each.op.name}_stride")) for each in (left, right)}
    binds |= {each: bound(each, columns) for each in (*source, result)}
    return te.decl_tensor_intrin(result.op, parts, binds=binds)


def _call(tile: _Tile, asking: _Asking, ins: Any, outs: Any, tiles_of_panel: int) -> tir.Stmt:
    """What computes a tile: a call of its function, or of that which widens weights too."""
    first = tile._replace(name=f"{tile.name}_widens", widens=True)
    functions = (tile, first) if tile.source_dtype else (tile,)
    text = "\n".join(_text(each, asking) for each in functions)
    left, right, *source = ins
    # Of the tiles that read the same places of a panel. The last one may begin further back.
    row = tir.indexdiv(left.elem_offset, left.strides[0])
    number = tir.indexmod(tir.indexdiv(row + tile.rows - 1, tile.rows), tiles_of_panel)
    depth, columns = (int(extent) for extent in right.shape[:2])
    # Bytes from the panel, or its source, to what the tile asks memory for first.
    read_bytes = depth * columns * _LOADS[tile.source_dtype or tile.right_dtype][0]
    arguments = [
        outs[0].access_ptr("rw" if tile.adds else "w"),
        left.access_ptr("r"),
        right.access_ptr("rw" if source else "r"),
        *(each.access_ptr("r") for each in source),
        *(tir.Cast("int64", each.strides[0]) for each in (left, right)),
        tir.const(depth, "int64"),
        tir.Cast("int64", read_bytes + number * asking.share),
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
    if right_dtype == PAIRS:
        return _pair_product(rows, columns, depth)
    left_shape = (depth, rows) if is_left_transposed else (rows, depth)
    left = te.placeholder(left_shape, _DTYPE, "left")
    right = te.placeholder((depth, columns), right_dtype, "right")
    sources = [te.placeholder((depth, columns), source_dtype, "source")] if source_dtype else []
    at = te.reduce_axis((0, depth), "depth")

    def element(y: Any, x: Any) -> Any:
        factor = left[at, y] if is_left_transposed else left[y, at]
        weight = widened(right[at, x], _DTYPE)
        for source in sources:
            weight = widened_from(weight, source[at, x])
        return te.sum(factor * weight, axis=at)

    return left, right, *sources, te.compute((rows, columns), element, "tile")


def _pair_product(rows: int, columns: int, depth: int) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    left = te.placeholder((rows, 2 * depth), BFLOAT16_BITS, "left")
    right = te.placeholder((depth, columns, 2), BFLOAT16_BITS, "right")
    at, of_pair = te.reduce_axis((0, depth), "depth"), te.reduce_axis((0, 2), "of_pair")

    def element(y: Any, x: Any) -> Any:
        factors = left[y, 2 * at + of_pair], right[at, x, of_pair]
        first, second = (widened(each, _DTYPE) for each in factors)
        return te.sum(first * second, axis=[at, of_pair])

    return left, right, te.compute((rows, columns), element, "tile")


class _Tile(NamedTuple):
    """What a function computes."""

    name: str
    rows: int
    vectors: int
    lanes: int
    right_dtype: str
    source_dtype: str
    is_left_transposed: bool
    adds: bool
    """To what the result is before."""
    widens: bool = False
    """Whether it fills the right matrix from its source."""

    @property
    def num_lefts(self) -> int:
        """Registers with addresses of the left matrix."""
        return 1 if self.is_left_transposed else -(-self.rows // _GROUP)

    @property
    def is_of_pairs(self) -> bool:
        """Whether it multiplies pairs of bfloat16."""
        return self.right_dtype == PAIRS


class _Asking(NamedTuple):
    """What it asks memory for."""

    pages: int
    bytes_: int
    """In each of the pages, with each place in depth; 0: nothing."""
    between_pages: int
    """Bytes."""

    @classmethod
    def of(cls, tiles: int, place_bytes: int, depth: int) -> _Asking:
        """Of one of so many tiles, with so many bytes of a panel for each place; 0: of none."""
        if not tiles:
            return cls(0, 0, 0)
        pages = _PAGES if tiles <= _FEW_TILES else 1
        num_asked = -(-place_bytes // (tiles * pages))
        return cls(pages, num_asked, depth * num_asked)

    @property
    def share(self) -> int:
        """Bytes that a tile asks for in all."""
        return self.pages * self.between_pages


def _zeros(tile: _Tile, result: tir.Buffer) -> tir.Stmt:
    """What a tile's sums are before the first part."""
    ib = tir.ir_builder.create()
    with ib.for_range(0, tile.rows, "row") as row:
        for vector in range(tile.vectors):
            zeros = tir.Broadcast(tir.const(0, _DTYPE), tile.lanes)
            ib.emit(result.vstore([row, vector * tile.lanes], zeros))
    return ib.get()


def _text(tile: _Tile, asking: _Asking) -> str:
    """Return a function in LLVM's language: (result, left, right, its source if there is one,
    strides of left and right in elements, depth, bytes from right or source to the first prefetch)
    -> 0."""
    register, num_registers = _REGISTERS[tile.lanes * _ITEM_BYTES]
    right_bytes, right_type, _ = _LOADS[tile.right_dtype]
    numbers = 2 if tile.is_of_pairs else 1
    left_type = right_type if tile.is_of_pairs else "float"
    source_type = _LOADS[tile.source_dtype][1] if tile.source_dtype else ""
    weights = f"{source_type}* %weights, " if source_type else ""
    lefts = tile.num_lefts
    changed = [*(f"%left{index}" for index in range(lefts)), "%right", "%depth", "%asked"]
    changed += ["%source"] * tile.widens
    constraints = [
        *["=&r"] * len(changed),
        *map(str, range(len(changed))),
        *["r"] * 3,
        *(f"~{{{register}{index}}}" for index in range(num_registers)),
        *("~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"),
    ]
    given = ", ".join(f"i64 {each}" for each in (*changed, "%result", "%row", "%line"))
    lines = "".join(f"{_NEW_LINE}{each}" for each in _instructions(tile, asking))
    text = [
        f"define i32 @{tile.name}(float* %to, {left_type}* %from, {right_type}* %panel, "
        f"{weights}i64 %left_stride, i64 %right_stride, i64 %depth, i64 %ahead) noinline {{",
        "  %result = ptrtoint float* %to to i64",
        f"  %left = ptrtoint {left_type}* %from to i64",
        f"  %right = ptrtoint {right_type}* %panel to i64",
        f"  %row = mul i64 %left_stride, {_ITEM_BYTES // numbers}",
        f"  %line = mul i64 %right_stride, {right_bytes // numbers}",
        *[f"  %source = ptrtoint {source_type}* %weights to i64"][: bool(source_type)],
        f"  %asked = add i64 %{'source' if source_type else 'right'}, %ahead",
    ]
    for index in range(lefts):
        text.append(f"  %offset{index} = mul i64 %row, {index * _GROUP}")
        text.append(f"  %left{index} = add i64 %left, %offset{index}")
    kinds = ", ".join(["i64"] * len(changed))
    text.append(
        f'  %end = call {{{kinds}}} asm sideeffect "{lines}", "{",".join(constraints)}"({given})'
    )
    return "\n".join([*text, "  ret i32 0", "}"])


def _instructions(tile: _Tile, asking: _Asking) -> list[str]:
    """Return assembly for these operands: addresses of the left matrix and of the right one, the
    depth, the address of the next prefetch, and the address of the source if it is widened; the
    same again, with their first values; the address of the result, and both strides in bytes."""
    rows, vectors, lanes, num_lefts = tile.rows, tile.vectors, tile.lanes, tile.num_lefts
    vector_bytes = lanes * _ITEM_BYTES
    register, num_registers = _REGISTERS[vector_bytes]
    sums = rows * vectors
    lefts = [f"${index}" for index in range(num_lefts)]
    right, count, asked_place, source = (f"${num_lefts + index}" for index in range(4))
    changed = num_lefts + 3 + tile.widens
    result, left_stride, right_stride = (f"${2 * changed + index}" for index in range(3))
    loaded, loaded_dtype = (source, tile.source_dtype) if tile.widens else (right, tile.right_dtype)
    loaded_bytes, _, loads = _LOADS[loaded_dtype]

    def held(index: int) -> str:
        return f"%{register}{index}"

    def element(row: int) -> str:
        if tile.is_left_transposed:
            return f"{_ITEM_BYTES * row}({lefts[0]})"
        group, place = divmod(row, _GROUP)
        return f"({lefts[group]}{('', f',{left_stride}', f',{left_stride},2')[place]})"

    if tile.adds:
        lines = [f"vmovups {vector_bytes * each}({result}),{held(each)}" for each in range(sums)]
    else:
        lines = [f"vxorps %xmm{each},%xmm{each},%xmm{each}" for each in range(min(sums, 16))]
        lines += [f"vpxord {held(each)},{held(each)},{held(each)}" for each in range(16, sums)]
    lines.append("1:")
    for vector in range(vectors):
        address = f"{lanes * loaded_bytes * vector}({loaded})"
        lines += [each.format(address, held(sums + vector)) for each in loads]
        if tile.widens:
            lines.append(f"vmovups {held(sums + vector)},{vector_bytes * vector}({right})")
    place_bytes = vectors * lanes * loaded_bytes
    for offset in range(0, place_bytes, _LINE_BYTES):
        lines.append(f"prefetcht0 {_AHEAD * place_bytes + offset}({loaded})")
    for page in range(asking.pages):
        for offset in range(0, asking.bytes_, _LINE_BYTES):
            lines.append(f"prefetcht1 {page * asking.between_pages + offset}({asked_place})")
    free = num_registers - sums - vectors
    spread, multiplied = "vbroadcastss", "vfmadd231ps"
    if tile.is_of_pairs:
        spread, multiplied = "vpbroadcastd", "vdpbf16ps"
    for row in range(rows):
        factor = held(sums + vectors + row % free)
        lines.append(f"{spread} {element(row)},{factor}")
        for vector in range(vectors):
            total = held(row * vectors + vector)
            lines.append(f"{multiplied} {factor},{held(sums + vector)},{total}")
    step = left_stride if tile.is_left_transposed else f"$${_ITEM_BYTES}"
    lines += [f"add {step},{left}" for left in lefts]
    lines += [f"add $${asking.bytes_},{asked_place}"] * (asking.bytes_ > 0)
    lines += [f"add $${place_bytes},{source}"] * tile.widens
    lines += [f"add {right_stride},{right}", f"dec {count}", "jnz 1b"]
    lines += [f"vmovups {held(each)},{vector_bytes * each}({result})" for each in range(sums)]
    return [*lines, "vzeroupper"]
