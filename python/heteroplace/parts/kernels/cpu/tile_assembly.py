"""The function of a tile of products: x86 assembly within LLVM's language (`register_tiles`).

for each place in depth:
    load the vectors of the panel into registers, and prefetch what comes later
    for each row:
        copy its element into all lanes of a register
        add its products with the vectors to the sums of the row
"""

from __future__ import annotations

from typing import NamedTuple

import tvm

PAIRS = "uint16x2"
"""Type of a right matrix of pairs of bfloat16, [depth, columns, 2]; the left one has the same
numbers, [rows, 2 depth]."""
QUADS = "int8x4"
"""Type of a right matrix of four signed bytes, [depth, columns, 4]; the left one has unsigned
bytes, [rows, 4 depth], and the sums have 32 bits."""
DTYPE, ITEM_BYTES = "float32", 4
REGISTERS = {64: ("zmm", 32), 32: ("ymm", 16)}
"""By bytes of a vector, their name and how many there are."""
_GROUP = 3
"""Rows that share a register with an address: they are 0, 1 and 2 strides from it."""
_AHEAD = 16
"""Places in depth between a place that is read and the one that is prefetched meanwhile."""
_PAGES, _FEW_TILES = 4, 4
"""Pages from which lines are prefetched at once, and the most tiles for which that is done. The
processor prefetches the rest of each page by itself. Of 2, 3, 4 and 6 pages, 4 were best or as good
for 1 to 4 tiles (Intel Xeon, family 6, model 167). More tiles compute for longer than memory takes,
so they prefetch from one page."""
LINE_BYTES = 64
"""Of memory, that are prefetched at once."""
LOADS = {
    "float32": (4, "float", ("vmovups {0},{1}",)),
    "float16": (2, "half", ("vcvtph2ps {0},{1}",)),
    "int8": (1, "i8", ("vpmovsxbd {0},{1}", "vcvtdq2ps {1},{1}")),
    "uint16": (2, "i16", ("vpmovzxwd {0},{1}", "vpslld $$16,{1},{1}")),
    PAIRS: (4, "i16", ("vmovups {0},{1}",)),
    QUADS: (4, "i8", ("vmovups {0},{1}",)),
}
"""By type of the right matrix: bytes of an element or group, LLVM's type, and the instructions that
load a vector of them."""
MULTIPLIED = {PAIRS: "vdpbf16ps {0},{1},{2}", QUADS: "vpdpbusd {1},{0},{2}"}
"""By type of a group: the instruction, with registers of the left factor, right factor and sum."""
_NEW_LINE = "\\0A"


def numbers_of(right_dtype: str) -> int:
    """Return how many numbers of a row are multiplied at once: of a pair 2, of a quad 4, else 1."""
    return int(tvm.DataType(right_dtype).lanes)


class RegisterTile(NamedTuple):
    """What a function computes."""

    name: str
    rows: int
    vectors: int
    lanes: int
    right_dtype: str
    source_dtype: str
    is_left_transposed: bool
    adds: bool
    """Whether it adds to what the result holds."""
    widens: bool = False
    """Whether it fills the right matrix from its source."""

    @property
    def num_lefts(self) -> int:
        """Registers with addresses of the left matrix."""
        return 1 if self.is_left_transposed else -(-self.rows // _GROUP)

    @property
    def sums_type(self) -> str:
        """Of the result."""
        return "int32" if self.right_dtype == QUADS else DTYPE


class Prefetching(NamedTuple):
    """What a tile prefetches from memory."""

    pages: int
    bytes_: int
    """From each of the pages, for each place in depth; 0: nothing is prefetched."""
    between_pages: int
    """Bytes."""

    @classmethod
    def of(cls, tiles: int, place_bytes: int, depth: int) -> Prefetching:
        """Return the share of one of so many tiles; of no tiles, nothing.

        `place_bytes`: of a panel, for each place in depth.
        """
        if not tiles:
            return cls(0, 0, 0)
        pages = _PAGES if tiles <= _FEW_TILES else 1
        num_bytes = -(-place_bytes // (tiles * pages))
        return cls(pages, num_bytes, depth * num_bytes)

    @property
    def share(self) -> int:
        """Bytes that a tile prefetches in all."""
        return self.pages * self.between_pages


def tile_text(tile: RegisterTile, prefetching: Prefetching) -> str:
    """Return a function in LLVM's language: (result, left, right, its source if there is one,
    strides of left and right in elements, depth, bytes from right or source to the first prefetch)
    -> 0."""
    register, num_registers = REGISTERS[tile.lanes * ITEM_BYTES]
    right_bytes, right_type, _ = LOADS[tile.right_dtype]
    numbers = numbers_of(tile.right_dtype)
    left_type = right_type if numbers > 1 else "float"
    result_type = "float" if tile.sums_type == DTYPE else "i32"
    source_type = LOADS[tile.source_dtype][1] if tile.source_dtype else ""
    weights = f"{source_type}* %weights, " if source_type else ""
    lefts = tile.num_lefts
    changed = [*(f"%left{index}" for index in range(lefts)), "%right", "%depth", "%prefetched"]
    changed += ["%source"] * tile.widens
    constraints = [
        *["=&r"] * len(changed),
        *map(str, range(len(changed))),
        *["r"] * 3,
        *(f"~{{{register}{index}}}" for index in range(num_registers)),
        *("~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"),
    ]
    operands = ", ".join(f"i64 {each}" for each in (*changed, "%result", "%row", "%line"))
    lines = "".join(f"{_NEW_LINE}{each}" for each in _instructions(tile, prefetching))
    text = [
        f"define i32 @{tile.name}({result_type}* %to, {left_type}* %from, {right_type}* %panel, "
        f"{weights}i64 %left_stride, i64 %right_stride, i64 %depth, i64 %ahead) noinline {{",
        f"  %result = ptrtoint {result_type}* %to to i64",
        f"  %left = ptrtoint {left_type}* %from to i64",
        f"  %right = ptrtoint {right_type}* %panel to i64",
        f"  %row = mul i64 %left_stride, {ITEM_BYTES // numbers}",
        f"  %line = mul i64 %right_stride, {right_bytes // numbers}",
        *[f"  %source = ptrtoint {source_type}* %weights to i64"][: bool(source_type)],
        f"  %prefetched = add i64 %{'source' if source_type else 'right'}, %ahead",
    ]
    for index in range(lefts):
        text.append(f"  %offset{index} = mul i64 %row, {index * _GROUP}")
        text.append(f"  %left{index} = add i64 %left, %offset{index}")
    kinds = ", ".join(["i64"] * len(changed))
    text.append(
        f'  %end = call {{{kinds}}} asm sideeffect "{lines}", "{",".join(constraints)}"({operands})'
    )
    return "\n".join([*text, "  ret i32 0", "}"])


def _instructions(tile: RegisterTile, prefetching: Prefetching) -> list[str]:
    """Return assembly for these operands: addresses of the left matrix and of the right one, the
    depth, the address of the next prefetch, and the address of the source if it is widened; the
    same again, with their first values; the address of the result, and both strides in bytes."""
    rows, vectors, lanes, num_lefts = tile.rows, tile.vectors, tile.lanes, tile.num_lefts
    vector_bytes = lanes * ITEM_BYTES
    register, num_registers = REGISTERS[vector_bytes]
    sums = rows * vectors
    lefts = [f"${index}" for index in range(num_lefts)]
    right, count, prefetched, source = (f"${num_lefts + index}" for index in range(4))
    changed = num_lefts + 3 + tile.widens
    result, left_stride, right_stride = (f"${2 * changed + index}" for index in range(3))
    loaded, loaded_dtype = (source, tile.source_dtype) if tile.widens else (right, tile.right_dtype)
    loaded_bytes, _, loads = LOADS[loaded_dtype]

    def held(index: int) -> str:
        return f"%{register}{index}"

    def element(row: int) -> str:
        if tile.is_left_transposed:
            return f"{ITEM_BYTES * row}({lefts[0]})"
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
    for offset in range(0, place_bytes, LINE_BYTES):
        lines.append(f"prefetcht0 {_AHEAD * place_bytes + offset}({loaded})")
    for page in range(prefetching.pages):
        for offset in range(0, prefetching.bytes_, LINE_BYTES):
            lines.append(f"prefetcht1 {page * prefetching.between_pages + offset}({prefetched})")
    free = num_registers - sums - vectors
    spread = "vpbroadcastd" if tile.right_dtype in MULTIPLIED else "vbroadcastss"
    multiplied = MULTIPLIED.get(tile.right_dtype, "vfmadd231ps {0},{1},{2}")
    for row in range(rows):
        factor = held(sums + vectors + row % free)
        lines.append(f"{spread} {element(row)},{factor}")
        for vector in range(vectors):
            total = held(row * vectors + vector)
            lines.append(multiplied.format(factor, held(sums + vector), total))
    step = left_stride if tile.is_left_transposed else f"$${ITEM_BYTES}"
    lines += [f"add {step},{left}" for left in lefts]
    lines += [f"add $${prefetching.bytes_},{prefetched}"] * (prefetching.bytes_ > 0)
    lines += [f"add $${place_bytes},{source}"] * tile.widens
    lines += [f"add {right_stride},{right}", f"dec {count}", "jnz 1b"]
    lines += [f"vmovups {held(each)},{vector_bytes * each}({result})" for each in range(sums)]
    return [*lines, "vzeroupper"]
