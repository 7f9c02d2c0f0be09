"""The function of a tile of rows in 8 bits by weights of 4 or 8: x86 assembly in LLVM's language.

for each block of the depth:
    for each four places of it:
        load their weights, a vector for each 16 columns
        for each row: copy its four numbers into all lanes, and add products to sums of 32 bits
    for each row: add  step of the row * scales of the columns * sums  to its totals

Sums and totals of all rows stay in registers. A block corrects its sums by one of `Correction`.

Sums start at the whole number whose bits are those of the float 3 * 2^22. Read as a float, a sum is
then 3 * 2^22 larger than it is, and one instruction scales it: its result is that of a conversion
and a product, for scales of at most 22 bits.

    scale * sum = scale * float + shift         shift = -3 * 2^22 * scale
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from tvm import te, tir

from heteroplace.parts.kernels.cpu.tile_assembly import LINE_BYTES
from heteroplace.relay.tasks.folded_steps import ROUNDING_SHIFT
from heteroplace.relay.vnni import BYTES, LANES

_SUMS, _REGISTERS = 12, 32
"""Vectors of sums of a tile: with as many totals they leave registers for weights and numbers."""
SHIFT_BITS = int(np.float32(ROUNDING_SHIFT).view(np.int32))
"""Those of the float 3 * 2^22. Sums must be below 2^22; those of 32 products of bytes with their
corrections are below 2^21."""
AHEAD = "ahead"
"""Name of the addresses to prefetch from."""
ADDRESS = "heteroplace_address"
"""Function that makes a whole number of an address."""
_NEW_LINE = "\\0A"
_PART = "heteroplace_part_of_block"


class Correction(Enum):
    """What a block adds, as a number of the row times one of the column."""

    START = "start"
    """The number of the row alone, int32, to each of its sums."""
    ZEROS = "zeros"
    """The product of two numbers of at most 15 bits, int32, to sums."""
    MINIMUMS = "minimums"
    """The product of two floats, to totals."""

    @property
    def dtype(self) -> str:
        """Of both numbers."""
        return "float32" if self is Correction.MINIMUMS else "int32"


def most_rows(width: int) -> int:
    """Return how many rows a tile of so many columns may have."""
    return max(1, _SUMS * LANES // width)


class Int8Tile(NamedTuple):
    """What a function computes."""

    rows: int
    width: int
    depth: int
    block: int
    """Places in depth that have one step, and one scale for each column."""
    correction: Correction
    has_shifts: bool
    """Whether sums start at `SHIFT_BITS`, and columns have shifts."""
    lines_ahead: tuple[int, ...]
    """Lines of memory that it prefetches from each of so many addresses, which it moves on."""

    @property
    def blocks(self) -> int:
        """Of the depth."""
        return self.depth // self.block

    def part(
        self, row: tuple[Any, ...], column: tuple[Any, ...], where: tuple[Any, Any, Any], ahead: Any
    ) -> tir.PrimExpr:
        """Return what stands for a part of an element: TVM sees in it what a tile reads.

        Parameters
        ----------
        row
            Reads numbers of a row at a place in depth; steps and corrections of it at a block.
        column
            Reads words of a column at four places in depth; scales and corrections at a block.
        where
            Block, four places of the block, and place of these.
        ahead
            Reads one of the addresses to prefetch from.
        """
        number, word, byte = where
        numbers, *of_row = row
        words, *of_column = column
        at = number * (self.block // BYTES) + word
        reads = [numbers(number * self.block + word * BYTES + byte), words(at)]
        reads += [each(number) for each in (*of_row, *of_column)]
        reads += [ahead(index) for index in range(len(self.lines_ahead))]
        return tir.call_pure_extern("float32", _PART, *reads)

    def axes(self) -> list[tir.IterVar]:
        """Return the axes that `part` is summed over."""
        extents = {"block": self.blocks, "word": self.block // BYTES, "byte": BYTES}
        return [te.reduce_axis((0, extent), name) for name, extent in extents.items()]

    def intrinsic(self) -> te.TensorIntrin:
        """Return what stands for a tile of the sum of parts, [rows, width]."""
        rows, width, blocks, dtype = self.rows, self.width, self.blocks, self.correction.dtype
        of_rows = [
            te.placeholder((rows, self.depth), "int8", "numbers"),
            te.placeholder((rows, blocks), "float32", "steps"),
            te.placeholder((rows, blocks), dtype, "row_corrections"),
        ]
        of_columns = [
            te.placeholder((self.depth // BYTES, width), "uint32", "words"),
            te.placeholder((blocks, width), "float32", "scales"),
            *[te.placeholder((blocks, width), "float32", "shifts")][: self.has_shifts],
            te.placeholder((blocks, width), dtype, "column_corrections"),
        ]
        ahead = te.placeholder((len(self.lines_ahead),), "int64", AHEAD)
        if self.correction is Correction.START:
            of_columns.pop()
        axes = self.axes()

        def element(y: Any, x: Any) -> tir.PrimExpr:
            row = tuple(lambda at, of=each: of[y, at] for each in of_rows)
            column = tuple(lambda at, of=each: of[at, x] for each in of_columns)
            number, word, byte = axes
            part = self.part(row, column, (number, word, byte), lambda index: ahead[index])
            return te.sum(part, axis=axes)

        tile = te.compute((rows, width), element, "tile")
        binds = {
            each: tir.decl_buffer(
                each.shape, each.dtype, each.op.name, strides=[*each.shape[1:], 1], offset_factor=1
            )
            for each in (*of_rows, *of_columns, ahead, tile)
        }
        return te.decl_tensor_intrin(tile.op, self._call, binds=binds)

    def _call(self, ins: Any, outs: Any) -> tir.Stmt:
        by_name = {str(each.name): each.access_ptr("r") for each in ins}
        of_rows = ("numbers", "steps", "row_corrections")
        order = (*of_rows, "words", "scales", "shifts", "column_corrections", AHEAD)
        pointers = [by_name[each] for each in order if each in by_name]
        ib = tir.ir_builder.create()
        ib.scope_attr(tir.const(0, "int32"), "pragma_import_llvm", tir.StringImm(self.text()))
        ib.emit(tir.call_extern("int32", self.name, outs[0].access_ptr("w"), *pointers))
        return ib.get()

    @property
    def name(self) -> str:
        """Of the function."""
        sizes = f"{self.rows}x{self.width}x{self.depth}x{self.block}"
        lines = "x".join(map(str, self.lines_ahead))
        shifted = "_shifted" if self.has_shifts else ""
        return f"heteroplace_int8_tile_{sizes}_{self.correction.value}_{lines}{shifted}"

    def text(self) -> str:
        """Return the function, (result, what `intrinsic` reads of rows and of columns) -> 0."""
        kind = "float" if self.correction is Correction.MINIMUMS else "i32"
        kinds = {"numbers": "i8", "steps": "float", "row": kind, "words": "i32", "scales": "float"}
        if self.has_shifts:
            kinds["shifts"] = "float"
        if self.correction is not Correction.START:
            kinds["column"] = kind
        pointers = [f"{each}* %{name}" for name, each in kinds.items()]
        types = ", ".join([*(f"{each}*" for each in kinds.values()), "i64"])
        count = len(pointers) + 1
        constraints = [
            *["=&r"] * count,
            *map(str, range(count)),
            *["r"] * 3,
            *(f"~{{zmm{index}}}" for index in range(_REGISTERS)),
            *("~{rax}", "~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"),
        ]
        read = ", ".join(pointers)
        lines = "".join(f"{_NEW_LINE}{each}" for each in self._instructions(tuple(kinds)))
        start = SHIFT_BITS if self.has_shifts else 0
        operands = ", ".join(
            [*pointers, f"i64 {self.blocks}", "float* %to", f"i32 {start}", "i64* %ahead"]
        )
        return "\n".join(
            [
                f"define linkonce_odr i64 @{ADDRESS}(i8* %of) {{",
                *("  %number = ptrtoint i8* %of to i64", "  ret i64 %number", "}"),
                f"define i32 @{self.name}(float* %to, {read}, i64* %ahead) noinline {{",
                f"  %end = call {{{types}}} asm sideeffect "
                f'"{lines}", "{",".join(constraints)}"({operands})',
                *("  ret i32 0", "}"),
            ]
        )

    def _instructions(self, pointers: tuple[str, ...]) -> list[str]:
        """Return assembly for operands: pointers, and blocks that are left; the same again, with
        their first values; the address of the result, what sums start at, and the address of those
        to prefetch from."""
        at = {name: f"${index}" for index, name in enumerate(pointers)}
        blocks = f"${len(pointers)}"
        result, start, ahead = (f"${2 * len(pointers) + 2 + index}" for index in range(3))
        vectors, words = self.width // LANES, self.block // BYTES
        places = [(row, vector) for row in range(self.rows) for vector in range(vectors)]
        weights = [f"%zmm{2 * len(places) + vector}" for vector in range(vectors)]
        first, *free = range(2 * len(places) + vectors, _REGISTERS)
        begun = f"%zmm{first}"

        def sums(row: int, vector: int) -> str:
            return f"%zmm{row * vectors + vector}"

        def totals(row: int, vector: int) -> str:
            return f"%zmm{len(places) + row * vectors + vector}"

        def loads(name: str, line: int = 0) -> list[str]:
            offsets = [64 * (line * vectors + vector) for vector in range(vectors)]
            return [f"vmovups {o}({at[name]}),{w}" for o, w in zip(offsets, weights, strict=True)]

        def each_row(name: str, instructions: tuple[str, ...], offset: int = 0) -> list[str]:
            """Instructions for all vectors, with a number of the row in lanes of a register."""
            stride, lines = (self.depth if name == "numbers" else 4 * self.blocks), []
            for row in range(self.rows):
                number = f"%zmm{free[row % len(free)]}"
                lines.append(f"vpbroadcastd {row * stride + offset}({at[name]}),{number}")
                for vector, weight in enumerate(weights):
                    operands = number, weight, sums(row, vector), totals(row, vector), 64 * vector
                    lines += [each.format(*operands) for each in instructions]
            return lines

        lines = [f"vpxord {totals(*each)},{totals(*each)},{totals(*each)}" for each in places]
        for index, count in enumerate(self.lines_ahead):
            lines.append(f"movq {8 * index}({ahead}),%rax")
            lines += [f"prefetcht1 {LINE_BYTES * line}(%rax)" for line in range(count)]
            lines.append(f"addq $${LINE_BYTES * count},{8 * index}({ahead})")
        lines += [f"vpbroadcastd {start},{begun}", "1:"]
        if self.correction is Correction.START:
            lines += each_row("row", ("vmovdqa64 {0},{2}",))
        else:
            lines += [f"vmovdqa64 {begun},{sums(*each)}" for each in places]
            is_sum = self.correction is Correction.ZEROS
            corrected = "vpdpwssd {0},{1},{2}" if is_sum else "vfmadd231ps {0},{1},{3}"
            lines += [*loads("column"), *each_row("row", (corrected,))]
        for word in range(words):
            lines += loads("words", word)
            lines += each_row("numbers", ("vpdpbusd {0},{1},{2}",), BYTES * word)
        lines += loads("scales")
        scaled = ["vcvtdq2ps {2},{2}", "vmulps {1},{2},{2}"]
        if self.has_shifts:
            scaled = [f"vfmadd213ps {{4}}({at['shifts']}),{{1}},{{2}}"]
        lines += each_row("steps", (*scaled, "vfmadd231ps {0},{2},{3}"))
        steps = {"numbers": self.block, "steps": 4, "row": 4, "words": 64 * vectors * words}
        lines += [f"add $${steps.get(name, 64 * vectors)},{at[name]}" for name in pointers]
        lines += [f"dec {blocks}", "jnz 1b"]
        lines += [
            f"vmovups {totals(*each)},{64 * index}({result})" for index, each in enumerate(places)
        ]
        return [*lines, "vzeroupper"]
