"""Arithmetic on vectors of floats -> a function in LLVM's text, to be put into its callers.

    f = LlvmFunction("twice", 16)
    f.returning(f.sum(f.argument, f.argument))
        define <16 x float> @twice(<16 x float> %x) { %v0 = fadd <16 x float> %x, %x ... }

Which sums of products are rounded once, where the processor can, is said by `fma`.
"""

from __future__ import annotations

import struct

Name = str
"""A value: of an instruction, or a constant."""
_ITEM_BITS = {"float": 32, "double": 64, "i32": 32}


class LlvmFunction:
    """A function of one vector of floats with one vector of floats as its result.

    Parameters
    ----------
    name
        Unique for its lanes and its content.
    lanes
        Elements of the vectors; 1: they are no vectors.
    """

    def __init__(self, name: str, lanes: int) -> None:
        self._name, self._lanes = name, lanes
        self._floats, self._integers = self._vector("float"), self._vector("i32")
        self._suffix = "f32" if lanes == 1 else f"v{lanes}f32"
        self._lines: list[str] = []
        self.argument: Name = "%x"

    def returning(self, value: Name) -> str:
        """Return the text of the function with this result, and what it needs declared."""
        kind, suffix = self._floats, self._suffix
        return "\n".join(
            [
                f"declare {kind} @llvm.fmuladd.{suffix}({kind}, {kind}, {kind})",
                f"define {kind} @{self._name}({kind} {self.argument}) {{",
                *self._lines,
                f"  ret {kind} {value}",
                "}",
            ]
        )

    def number(self, value: float) -> Name:
        """A constant, rounded to 32 bits; LLVM writes it as 64."""
        (rounded,) = struct.unpack("f", struct.pack("f", value))
        return self._splat("float", f"0x{struct.pack('>d', rounded).hex().upper()}")

    def sum(self, left: Name, right: Name) -> Name:
        """left + right."""
        return self._add(f"fadd {self._floats} {left}, {right}")

    def product(self, left: Name, right: Name) -> Name:
        """left * right."""
        return self._add(f"fmul {self._floats} {left}, {right}")

    def quotient(self, left: Name, right: Name) -> Name:
        """left / right."""
        return self._add(f"fdiv {self._floats} {left}, {right}")

    def negative(self, value: Name) -> Name:
        """-value."""
        return self._add(f"fneg {self._floats} {value}")

    def fma(self, left: Name, right: Name, addend: Name) -> Name:
        """left * right + addend."""
        return self._call("fmuladd", left, right, addend)

    def difference(self, left: Name, right: Name) -> Name:
        """left - right."""
        return self._add(f"fsub {self._floats} {left}, {right}")

    def compare(self, predicate: str, left: Name, right: Name) -> Name:
        """By an ordered predicate, which never holds of NaN: "olt", "ogt"."""
        return self._add(f"fcmp {predicate} {self._floats} {left}, {right}")

    def integer_below(self, left: Name, right: int) -> Name:
        """Compare integers without a sign."""
        return self._add(f"icmp ult {self._integers} {left}, {self._splat('i32', str(right))}")

    def select(self, condition: Name, left: Name, right: Name) -> Name:
        """`left` where a comparison holds, else `right`."""
        kind = self._floats
        return self._add(f"select {self._vector('i1')} {condition}, {kind} {left}, {kind} {right}")

    def bits(self, value: Name) -> Name:
        """The bits of floats, as integers."""
        return self._add(f"bitcast {self._floats} {value} to {self._integers}")

    def of_bits(self, value: Name) -> Name:
        """The floats that have these bits."""
        return self._add(f"bitcast {self._integers} {value} to {self._floats}")

    def integers(self, instruction: str, left: Name, right: Name | int) -> Name:
        """An instruction of two vectors of integers, or one and a constant."""
        second = self._splat("i32", str(right)) if isinstance(right, int) else right
        return self._add(f"{instruction} {self._integers} {left}, {second}")

    def _call(self, name: str, *arguments: Name) -> Name:
        given = ", ".join(f"{self._floats} {each}" for each in arguments)
        return self._add(f"call {self._floats} @llvm.{name}.{self._suffix}({given})")

    def _add(self, instruction: str) -> Name:
        name = f"%v{len(self._lines)}"
        self._lines.append(f"  {name} = {instruction}")
        return name

    def _vector(self, kind: str) -> str:
        return kind if self._lanes == 1 else f"<{self._lanes} x {kind}>"

    def _splat(self, kind: str, text: str) -> Name:
        if self._lanes == 1:
            return text
        return f"<{', '.join([f'{kind} {text}'] * self._lanes)}>"


def transpose_text(name: str, kind: str, lanes: int) -> str:
    """Return a function that transposes a square of so many lanes each way, in registers.

    (to, width, from, stride, rows, columns) -> 0: what it reads has `rows` rows, `stride` elements
    apart, of `columns` elements; there are at least one and at most `lanes` of each. All lanes of
    all rows, `width` apart, are written: rows behind the last are the last one again, and columns
    zeros. In each stage pairs of vectors exchange half of their lanes.

    Parameters
    ----------
    kind
        Of an element, as LLVM calls it: one of `_ITEM_BITS`.
    """
    vector = f"<{lanes} x {kind}>"
    mask = f"<{lanes} x i1>"
    bits = _ITEM_BITS[kind]
    suffix = f"v{lanes}{'i' if kind == f'i{bits}' else 'f'}{bits}"
    item_bytes = bits // 8
    masked_load = f"@llvm.masked.load.{suffix}.p0{suffix}"
    numbers = ", ".join(f"i32 {lane}" for lane in range(lanes))
    zeros = ", ".join(["i32 0"] * lanes)
    lines = [
        f"  %count0 = insertelement <{lanes} x i32> undef, i32 %columns, i32 0",
        f"  %count = shufflevector <{lanes} x i32> %count0, <{lanes} x i32> undef, "
        f"<{lanes} x i32> <{zeros}>",
        f"  %mask = icmp sgt <{lanes} x i32> %count, <{numbers}>",
        "  %last = sub i32 %rows, 1",
    ]
    held = []
    for row in range(lanes):
        lines += [
            f"  %is{row} = icmp slt i32 {row}, %rows",
            f"  %row{row} = select i1 %is{row}, i32 {row}, i32 %last",
            f"  %at{row} = sext i32 %row{row} to i64",
            f"  %offset{row} = mul i64 %at{row}, %stride",
            f"  %item{row} = getelementptr {kind}, {kind}* %from, i64 %offset{row}",
            f"  %pointer{row} = bitcast {kind}* %item{row} to {vector}*",
            f"  %load{row} = call {vector} {masked_load}({vector}* %pointer{row}, "
            f"i32 {item_bytes}, {mask} %mask, {vector} zeroinitializer)",
        ]
        held.append(f"%load{row}")
    lines += _exchanges(held, vector)
    for row in range(lanes):
        lines += [
            f"  %place{row} = mul i64 {row}, %width",
            f"  %out{row} = getelementptr {kind}, {kind}* %to, i64 %place{row}",
            f"  %target{row} = bitcast {kind}* %out{row} to {vector}*",
            f"  store {vector} {held[row]}, {vector}* %target{row}, align {item_bytes}",
        ]
    return "\n".join(
        [
            f"declare {vector} {masked_load}({vector}*, i32, {mask}, {vector})",
            f"define i32 @{name}({kind}* %to, i64 %width, {kind}* %from, i64 %stride, "
            f"i32 %rows, i32 %columns) {{",
            *lines,
            "  ret i32 0",
            "}",
        ]
    )


def _exchanges(held: list[str], vector: str) -> list[str]:
    """Transpose the rows that are held, in place: pairs exchange half of their lanes."""
    lanes, lines = len(held), []
    distance = 1
    while distance < lanes:
        for low in range(lanes):
            if low & distance:
                continue
            pair = f"{vector} {held[low]}, {vector} {held[low + distance]}"
            for part, row in enumerate((low, low + distance)):
                # Of the first vector lanes are numbered from 0, of the second from `lanes`.
                taken = (
                    lane + part * distance
                    if not lane & distance
                    else lanes + lane - (1 - part) * distance
                    for lane in range(lanes)
                )
                places = ", ".join(f"i32 {lane}" for lane in taken)
                held[row] = f"%swap{distance}.{row}"
                lines.append(f"  {held[row]} = shufflevector {pair}, <{lanes} x i32> <{places}>")
        distance *= 2
    return lines


def tile_product_text(name: str, rows: int, vectors: int, lanes: int) -> str:
    """Return a function that adds products of rows and a matrix to sums, which stay in registers.

    (sums, sums stride, left, left stride, right, right stride, depth) -> 0, of floats, with strides
    in elements and a depth of at least 1:

        sums[m, x] += left[m, at] * right[at, x]    for each `at`, m < rows, x < vectors * lanes

    It is not put into its callers: their own constants would take its registers.
    """
    vector = "float" if lanes == 1 else f"<{lanes} x float>"
    fma = "@llvm.fmuladd." + ("f32" if lanes == 1 else f"v{lanes}f32")
    places = [(m, v) for m in range(rows) for v in range(vectors)]

    def pointer(to: str, base: str, offset: str) -> list[str]:
        return [
            f"  %item.{to} = getelementptr float, float* {base}, i64 {offset}",
            f"  %at.{to} = bitcast float* %item.{to} to {vector}*",
        ]

    before, start, loop, after = [], [], [], []
    for m in range(rows):
        before += [f"  %{to}{m} = mul i64 {m}, %{to}_stride" for to in ("sums", "left")]
        before.append(f"  %row{m} = getelementptr float, float* %left, i64 %left{m}")
        loop += [
            f"  %from{m} = getelementptr float, float* %row{m}, i64 %depth_at",
            f"  %number{m} = load float, float* %from{m}, align 4",
        ]
    for v in range(vectors):
        loop.append(f"  %column{v} = add i64 %right_row, {v * lanes}")
        loop += pointer(f"right{v}", "%right", f"%column{v}")
        loop.append(f"  %right{v} = load {vector}, {vector}* %at.right{v}, align 4")
    for m in range(rows):
        loop += _splat(f"left_vector{m}", f"%number{m}", lanes)
    for m, v in places:
        before.append(f"  %place{m}.{v} = add i64 %sums{m}, {v * lanes}")
        before += pointer(f"sum{m}.{v}", "%sums", f"%place{m}.{v}")
        before.append(f"  %first{m}.{v} = load {vector}, {vector}* %at.sum{m}.{v}, align 4")
        start.append(
            f"  %sum{m}.{v} = phi {vector} [ %first{m}.{v}, %entry ], [ %next{m}.{v}, %loop ]"
        )
        loop.append(
            f"  %next{m}.{v} = call {vector} {fma}({vector} %left_vector{m}, {vector} %right{v}, "
            f"{vector} %sum{m}.{v})"
        )
        after.append(f"  store {vector} %next{m}.{v}, {vector}* %at.sum{m}.{v}, align 4")
    return "\n".join(
        [
            f"declare {vector} {fma}({vector}, {vector}, {vector})",
            f"define linkonce_odr i32 @{name}(float* noalias %sums, i64 %sums_stride, "
            f"float* noalias %left, i64 %left_stride, float* noalias %right, i64 %right_stride, "
            f"i64 %depth) noinline nounwind {{",
            *("entry:", *before, "  br label %loop", "loop:"),
            "  %depth_at = phi i64 [ 0, %entry ], [ %depth_next, %loop ]",
            *start,
            "  %right_row = mul i64 %depth_at, %right_stride",
            *loop,
            "  %depth_next = add i64 %depth_at, 1",
            "  %is_more = icmp slt i64 %depth_next, %depth",
            *("  br i1 %is_more, label %loop, label %exit", "exit:", *after, "  ret i32 0", "}"),
        ]
    )


def _splat(name: str, number: str, lanes: int) -> list[str]:
    """Lines that make a vector of equal numbers."""
    if lanes == 1:
        return [f"  %{name} = fadd float {number}, -0.0"]
    kind = f"<{lanes} x float>"
    zeros = ", ".join(["i32 0"] * lanes)
    return [
        f"  %{name}.one = insertelement {kind} undef, float {number}, i32 0",
        f"  %{name} = shufflevector {kind} %{name}.one, {kind} undef, <{lanes} x i32> <{zeros}>",
    ]
