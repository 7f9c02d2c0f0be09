"""Sums of a tile of products, all in registers -> a function in x86 assembly, for TVM to call.

LLVM brings every element of a column of the left matrix into a register before it uses one, so
half of the registers are left for sums, and moves those about. Here each is in the register of the
one before:

    for each place in depth:
        the vectors of the panel into registers, and what comes some places later into the cache
        for each row: its element into all lanes of a register, times the vectors, onto its sums

Memory is asked ahead of use, as weights that no cache holds come in pages, which the processor
does not look beyond.
Source: Heinecke et al., "LIBXSMM" (doi:10.1109/SC.2016.83), section II.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tir
from tvm.target.codegen import target_has_features

_DTYPE, _ITEM_BYTES = "float32", 4
_REGISTERS = {64: ("zmm", 32), 32: ("ymm", 16)}
"""By bytes of a vector, their name and how many there are."""
_GROUP = 3
"""Rows whose addresses are one, and it with one and with two strides."""
_AHEAD = 16
"""Places in depth by which memory is asked before use."""
_LINE_BYTES = 64
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


def tile_intrinsic(
    shape: tuple[int, int, int], lanes: int, *, is_left_transposed: bool
) -> te.TensorIntrin:
    """Return what stands for a tile of products, its sums from 0.

    Parameters
    ----------
    shape
        Rows, columns and depth; `lanes` divides the columns.
    is_left_transposed
        Whether the left matrix is [depth, rows].
    """
    rows, columns, depth = shape
    left_shape = (depth, rows) if is_left_transposed else (rows, depth)
    left = te.placeholder(left_shape, _DTYPE, "left")
    right = te.placeholder((depth, columns), _DTYPE, "right")
    at = te.reduce_axis((0, depth), "depth")

    def products(y: Any, x: Any) -> Any:
        factor = left[at, y] if is_left_transposed else left[y, at]
        return te.sum(factor * right[at, x], axis=at)

    result = te.compute((rows, columns), products, "tile")
    name = f"heteroplace_tile_{rows}x{columns}x{lanes}{'t' * is_left_transposed}"
    text = _text(name, (rows, columns // lanes), lanes, is_left_transposed)

    def body(ins: Any, outs: Any) -> tir.Stmt:
        ib = tir.ir_builder.create()
        ib.scope_attr(tir.const(0, "int32"), "pragma_import_llvm", tir.StringImm(text))
        strides = [tir.Cast("int64", each.strides[0]) for each in ins]
        pointers = [outs[0].access_ptr("w"), *(each.access_ptr("r") for each in ins)]
        count = tir.const(depth, "int64")
        ib.emit(tir.call_extern("int32", name, *pointers, *strides, count))
        return ib.get()

    def bound(tensor: te.Tensor, stride: Any) -> tir.Buffer:
        return tir.decl_buffer(
            tensor.shape, _DTYPE, tensor.op.name, strides=[stride, 1], offset_factor=1
        )

    binds = {
        left: bound(left, te.var("left_stride")),
        right: bound(right, te.var("right_stride")),
        result: bound(result, columns),
    }
    return te.decl_tensor_intrin(result.op, body, binds=binds)


def _text(name: str, tile: tuple[int, int], lanes: int, is_left_transposed: bool) -> str:
    """(result, left, right, strides of both in elements, depth) -> 0, in LLVM's language."""
    register, num_registers = _REGISTERS[lanes * _ITEM_BYTES]
    lefts = 1 if is_left_transposed else -(-tile[0] // _GROUP)
    changed = [*(f"%left{index}" for index in range(lefts)), "%right", "%depth"]
    constraints = [
        *["=&r"] * len(changed),
        *map(str, range(len(changed))),
        *["r"] * 3,
        *(f"~{{{register}{index}}}" for index in range(num_registers)),
        *("~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"),
    ]
    given = ", ".join(f"i64 {each}" for each in (*changed, "%result", "%row", "%line"))
    lines = "".join(
        f"{_NEW_LINE}{each}" for each in _instructions(tile, lanes, lefts, is_left_transposed)
    )
    text = [
        f"define i32 @{name}(float* %to, float* %from, float* %panel, i64 %left_stride, "
        "i64 %right_stride, i64 %depth) noinline {",
        "  %result = ptrtoint float* %to to i64",
        "  %left = ptrtoint float* %from to i64",
        "  %right = ptrtoint float* %panel to i64",
        f"  %row = mul i64 %left_stride, {_ITEM_BYTES}",
        f"  %line = mul i64 %right_stride, {_ITEM_BYTES}",
    ]
    for index in range(lefts):
        text.append(f"  %offset{index} = mul i64 %row, {index * _GROUP}")
        text.append(f"  %left{index} = add i64 %left, %offset{index}")
    kinds = ", ".join(["i64"] * len(changed))
    text.append(
        f'  %end = call {{{kinds}}} asm sideeffect "{lines}", "{",".join(constraints)}"({given})'
    )
    return "\n".join([*text, "  ret i32 0", "}"])


def _instructions(
    tile: tuple[int, int], lanes: int, num_lefts: int, is_left_transposed: bool
) -> list[str]:
    """Of operands: addresses of the left matrix, of the right one, the depth; the same again, as
    they are at first; the address of the result, strides of both in bytes."""
    rows, vectors = tile
    vector_bytes = lanes * _ITEM_BYTES
    register, num_registers = _REGISTERS[vector_bytes]
    sums = rows * vectors
    lefts = [f"${index}" for index in range(num_lefts)]
    right, count = f"${num_lefts}", f"${num_lefts + 1}"
    result, left_stride, right_stride = (f"${2 * num_lefts + 4 + index}" for index in range(3))

    def held(index: int) -> str:
        return f"%{register}{index}"

    def element(row: int) -> str:
        if is_left_transposed:
            return f"{_ITEM_BYTES * row}({lefts[0]})"
        group, place = divmod(row, _GROUP)
        return f"({lefts[group]}{('', f',{left_stride}', f',{left_stride},2')[place]})"

    lines = [f"vxorps %xmm{each},%xmm{each},%xmm{each}" for each in range(min(sums, 16))]
    lines += [f"vpxord {held(each)},{held(each)},{held(each)}" for each in range(16, sums)]
    lines.append("1:")
    for vector in range(vectors):
        lines.append(f"vmovups {vector_bytes * vector}({right}),{held(sums + vector)}")
    for offset in range(0, vectors * vector_bytes, _LINE_BYTES):
        lines.append(f"prefetcht0 {_AHEAD * vectors * vector_bytes + offset}({right})")
    free = num_registers - sums - vectors
    for row in range(rows):
        factor = held(sums + vectors + row % free)
        lines.append(f"vbroadcastss {element(row)},{factor}")
        for vector in range(vectors):
            total = held(row * vectors + vector)
            lines.append(f"vfmadd231ps {factor},{held(sums + vector)},{total}")
    step = left_stride if is_left_transposed else f"$${_ITEM_BYTES}"
    lines += [f"add {step},{left}" for left in lefts]
    lines += [f"add {right_stride},{right}", f"dec {count}", "jnz 1b"]
    lines += [f"vmovups {held(each)},{vector_bytes * each}({result})" for each in range(sums)]
    return [*lines, "vzeroupper"]
