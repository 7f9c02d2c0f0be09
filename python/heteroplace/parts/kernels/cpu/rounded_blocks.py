"""Floats -> whole numbers of 8 bits, steps and sums of blocks: a function in LLVM's language.

    step = largest magnitude / 127       number = round(float * 127 / largest magnitude)

The largest magnitudes of 16 blocks are made at once, and so are their steps and sums: each block
has a lane. Pairs of vectors become one, until each block has one lane.
"""

from __future__ import annotations

from collections.abc import Callable

from heteroplace.relay.vnni import BYTES, INSTRUCTION, LANES

_LARGEST = 127.0
_TINY = 0x04000000
"""Bits of 2^-119. Blocks whose magnitudes are smaller are 0: their reciprocal may be infinite."""
_INFINITE, _NOT_A_NUMBER = 0x7F800000, "0x7FF8000000000000"
_FLOATS, _INTEGERS, _BYTES = f"<{LANES} x float>", f"<{LANES} x i32>", f"<{LANES * BYTES} x i8>"
_HALVES = f"<{2 * LANES} x i16>"
_CONVERT, _NARROW, _NARROWER, _MULTIPLY = (
    "@llvm.x86.avx512.mask.cvtps2dq.512",
    "@llvm.x86.avx512.packssdw.512",
    "@llvm.x86.avx512.packsswb.512",
    f"@{INSTRUCTION}",
)
_DECLARATIONS = (
    f"declare {_INTEGERS} {_CONVERT}({_FLOATS}, {_INTEGERS}, i16, i32)",
    f"declare {_HALVES} {_NARROW}({_INTEGERS}, {_INTEGERS})",
    f"declare {_BYTES} {_NARROWER}({_HALVES}, {_HALVES})",
    f"declare {_INTEGERS} {_MULTIPLY}({_INTEGERS}, {_INTEGERS}, {_INTEGERS})",
)


def rounding_text(name: str, count: int, block: int) -> str:
    """Return a function of blocks in a row: (floats, numbers, steps, sums) -> 0.

    Parameters
    ----------
    count
        Blocks: 1 or 16.
    block
        Floats of a block: 16 or 32.
    """
    return "\n".join(
        [
            *_DECLARATIONS,
            f"define linkonce_odr i32 @{name}(float* %a, i8* %n, float* %s, i32* %t) nounwind {{",
            *_Rounding(count, block).lines,
            "  ret i32 0",
            "}",
        ]
    )


class _Rounding:
    """What makes the instructions of a function."""

    def __init__(self, count: int, block: int) -> None:
        self.lines: list[str] = []
        vectors = block // LANES
        floats = [self._load(at) for at in range(count * vectors)]
        magnitudes = [self._magnitude(each) for each in floats]
        largest = list(map(self._larger, magnitudes[::vectors], magnitudes[vectors - 1 :: vectors]))
        steps, scales = self._steps(self._gathered(largest, LANES, self._larger))
        numbers = []
        for at, value in enumerate(floats):
            scale = self._splat_lane(scales, at // vectors)
            numbers.append(self._number(self._add(f"fmul {_FLOATS} {value}, {scale}")))
        quads = [self._bytes(numbers[at : at + BYTES]) for at in range(0, len(numbers), BYTES)]
        sums = [self._sums(each) for each in quads]
        total = self._gathered(sums, BYTES * vectors, self._sum)
        for at, quad in enumerate(quads):
            self._store("%n", "i8", at * LANES * BYTES, quad, min(block * count, LANES * BYTES))
        self._store("%s", "float", 0, steps, count)
        self._store("%t", "i32", 0, total, count)

    def _add(self, instruction: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def _load(self, at: int) -> str:
        item = self._add(f"getelementptr float, float* %a, i64 {at * LANES}")
        pointer = self._add(f"bitcast float* {item} to {_FLOATS}*")
        return self._add(f"load {_FLOATS}, {_FLOATS}* {pointer}, align 4")

    def _store(self, to: str, kind: str, at: int, vector: str, count: int) -> None:
        """Store the first elements of a vector."""
        lanes = LANES * BYTES if kind == "i8" else LANES
        some, whole = f"<{count} x {kind}>", f"<{lanes} x {kind}>"
        taken = self._shuffled(whole, vector, vector, list(range(count)))
        item = self._add(f"getelementptr {kind}, {kind}* {to}, i64 {at}")
        pointer = self._add(f"bitcast {kind}* {item} to {some}*")
        self.lines.append(f"  store {some} {taken}, {some}* {pointer}, align 1")

    def _shuffled(self, kind: str, left: str, right: str, lanes: list[int]) -> str:
        places = ", ".join(f"i32 {lane}" for lane in lanes)
        return self._add(
            f"shufflevector {kind} {left}, {kind} {right}, <{len(lanes)} x i32> <{places}>"
        )

    def _splat_lane(self, vector: str, lane: int) -> str:
        return self._shuffled(_FLOATS, vector, "undef", [lane] * LANES)

    def _magnitude(self, floats: str) -> str:
        """Floats without their signs, as whole numbers: these are ordered as the floats are, and
        those of infinities and NaNs are the largest."""
        bits = self._add(f"bitcast {_FLOATS} {floats} to {_INTEGERS}")
        return self._add(f"and {_INTEGERS} {bits}, {_splat('i32', 0x7FFFFFFF)}")

    def _larger(self, left: str, right: str) -> str:
        is_larger = self._add(f"icmp ugt {_INTEGERS} {left}, {right}")
        return self._add(
            f"select <{LANES} x i1> {is_larger}, {_INTEGERS} {left}, {_INTEGERS} {right}"
        )

    def _sum(self, left: str, right: str) -> str:
        return self._add(f"add {_INTEGERS} {left}, {right}")

    def _gathered(self, vectors: list[str], width: int, fold: Callable[[str, str], str]) -> str:
        """Fold the lanes of each block to one.

        Parameters
        ----------
        vectors
            The blocks have `width` lanes each, one block behind the other. A vector of fewer
            blocks than it has room for is folded with itself.
        """
        while width > 1:
            half = width // 2
            lows = [
                start + at
                for start in range(0, 2 * LANES, width)  # of both vectors of a pair
                for at in range(half)
            ]
            highs = [lane + half for lane in lows]
            pairs = zip(vectors[::2], vectors[1::2] or vectors, strict=True)
            vectors = [
                fold(*(self._shuffled(_INTEGERS, *pair, lanes) for lanes in (lows, highs)))
                for pair in pairs
            ]
            width = half
        return vectors[0]

    def _steps(self, most: str) -> tuple[str, str]:
        """Steps of the largest magnitudes, and what floats are multiplied by."""
        largest = self._add(f"bitcast {_INTEGERS} {most} to {_FLOATS}")
        ratio = self._add(f"fdiv {_FLOATS} {largest}, {_splat('float', _LARGEST)}")
        inverse = self._add(f"fdiv {_FLOATS} {_splat('float', _LARGEST)}, {largest}")
        steps = self._below(most, _INFINITE, ratio, _splat("float", _NOT_A_NUMBER))
        return steps, self._below(most, _TINY, _splat("float", 0.0), inverse)

    def _below(self, most: str, limit: int, left: str, right: str) -> str:
        """`left` where whole numbers are below a limit, else `right`."""
        is_below = self._add(f"icmp ult {_INTEGERS} {most}, {_splat('i32', limit)}")
        return self._add(f"select <{LANES} x i1> {is_below}, {_FLOATS} {left}, {_FLOATS} {right}")

    def _number(self, floats: str) -> str:
        """Whole numbers of floats; ties become even."""
        nothing = f"{_INTEGERS} zeroinitializer, i16 -1, i32 4"
        return self._add(f"call {_INTEGERS} {_CONVERT}({_FLOATS} {floats}, {nothing})")

    def _bytes(self, numbers: list[str]) -> str:
        """The bytes of four vectors, one behind the other; fewer vectors are repeated."""
        first, second, third, fourth = (numbers * BYTES)[:BYTES]
        halves = [
            self._add(f"call {_HALVES} {_NARROW}({_INTEGERS} {left}, {_INTEGERS} {right})")
            for left, right in ((first, second), (third, fourth))
        ]
        quarters = self._add(
            f"call {_BYTES} {_NARROWER}({_HALVES} {halves[0]}, {_HALVES} {halves[1]})"
        )
        # Each quarter of the vector has four numbers of each of the vectors.
        words = self._add(f"bitcast {_BYTES} {quarters} to {_INTEGERS}")
        order = [BYTES * (lane % BYTES) + lane // BYTES for lane in range(LANES)]
        ordered = self._shuffled(_INTEGERS, words, words, order)
        return self._add(f"bitcast {_INTEGERS} {ordered} to {_BYTES}")

    def _sums(self, quad: str) -> str:
        """The sum of four bytes in each lane."""
        words = self._add(f"bitcast {_BYTES} {quad} to {_INTEGERS}")
        ones = _splat("i32", 0x01010101)
        return self._add(
            f"call {_INTEGERS} {_MULTIPLY}({_INTEGERS} zeroinitializer, {_INTEGERS} {ones}, "
            f"{_INTEGERS} {words})"
        )


def _splat(kind: str, value: object) -> str:
    return "<" + ", ".join([f"{kind} {value}"] * LANES) + ">"
