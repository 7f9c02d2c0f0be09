"""The function of a block of products by AMX: x86 machine code within LLVM's language.

    set the tiles of sums to 0
    for each step in depth:
        load tiles of the left and of the right matrix
        add their products to each tile of sums
    store the tiles of sums

A tile is a register of up to 16 rows of 64 bytes. LLVM 10 does not know the instructions of AMX, so
they are written as bytes.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, section 2.3 and the
pages of the instructions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from heteroplace.relay.targets import USES_AMX

MAX_ROWS, ROW_BYTES = 16, 64
"""Of a tile."""
MAX_SUM_TILES = 4
"""Of the eight tiles. The others hold what is multiplied."""
GROUP_BYTES = 4
"""Numbers of a row and of a column that are multiplied at once: two of 16 bits, or four of 8."""
_LEFT_TILE, _RIGHT_TILE = MAX_SUM_TILES, MAX_SUM_TILES + 2
"""First of two tiles each."""
_RAX, _RDX, _RSI, _RDI, _R8, _R9 = 0, 2, 6, 7, 8, 9
_PREFIX_66, _PREFIX_F3, _PREFIX_F2 = 1, 2, 3
_CONFIGURE = bytes((0xC4, 0xE2, 0x78, 0x49, _RAX))
_RELEASE = bytes((0xC4, 0xE2, 0x78, 0x49, 0xC0))
_NEW_LINE = "\\0A"
_MULTIPLY = {"uint16": (0x5C, _PREFIX_F3), "uint8": (0x5E, _PREFIX_66)}
"""By type of the left matrix: TDPBF16PS, and TDPBUSD, whose right matrix is of int8."""


class Part(NamedTuple):
    """A tile of a matrix: how far it is from the first one, in bytes."""

    matrix: int
    sums: int
    """From the first tile of sums."""


class BlockProduct(NamedTuple):
    """Products of some tiles. All distances are in bytes."""

    dtype: str
    """Of the left matrix: "uint16" for bfloat16, or "uint8"."""
    rows: int
    """Of each tile of the left matrix."""
    depth: int
    """Bytes of a row that a step multiplies."""
    lefts: tuple[Part, ...]
    rights: tuple[Part, ...]
    steps: tuple[tuple[int, int], ...]
    """Where each step of a turn of the loop begins, left and right."""
    turns: int
    turn: tuple[int, int]
    """From one turn of the loop to the next, left and right."""
    left_pitch: int
    """From one row to the next."""
    right_pitch: int
    """From one group of rows to the next."""
    sums_pitch: int
    """From one row to the next."""
    adds: bool = False
    """Whether it adds to what the sums are."""
    prefetched: int = 0
    """Lines of 64 bytes that are brought into the second cache meanwhile."""

    @property
    def right_bytes(self) -> int:
        """Of the right matrix that the block reads."""
        steps = len(self.steps) * self.turns * self.depth // GROUP_BYTES
        return len(self.rights) * steps * ROW_BYTES

    @property
    def name(self) -> str:
        """Of the function, by what it does."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()
        return f"{self._shape_name}_{digest[:16]}"

    @property
    def configure_name(self) -> str:
        """Of the function that makes the tiles."""
        return f"{self._shape_name}_configure"

    @property
    def release_name(self) -> str:
        """Of the function that gives them back."""
        return "heteroplace_amx_release"

    @property
    def _shape_name(self) -> str:
        return f"heteroplace_amx_{self.dtype}_{self.rows}x{self.depth}"

    def text(self) -> str:
        """Return three functions in LLVM's language, which return 0.

        One multiplies, of (sums, left, right, what to prefetch). Two have no arguments: one makes
        the tiles of all such blocks, and one gives them back.
        """
        shape = "".join(f"\\{each:02X}" for each in self._shape())
        changed = "={rsi},={rdi},={rcx},={r10}"
        read = "0,1,2,3,{rax},{rdx},{r8},{r9}"
        code = _NEW_LINE.join(self._lines())
        lines = (
            f"@{USES_AMX} = weak constant i8 1",
            f'@{self._shape_name} = weak_odr constant [{ROW_BYTES} x i8] c"{shape}"',
            f"define i32 @{self.name}(i8* %sums, i8* %left, i8* %right, i8* %ahead) {{",
            f'  %end = call {{i64, i64, i64, i64}} asm sideeffect "{code}", '
            f'"{changed},{read},~{{memory}},~{{dirflag}},~{{fpsr}},~{{flags}}"'
            f"(i8* %left, i8* %right, i64 {self.turns}, i8* %ahead, i64 {self.left_pitch}, "
            f"i64 {self.right_pitch}, i8* %sums, i64 {self.sums_pitch})",
            "  ret i32 0\n}",
            f"define i32 @{self.configure_name}() {{",
            f'  call void asm sideeffect "{_bytes(_CONFIGURE)}", "{{rax}},~{{memory}}"'
            f"([{ROW_BYTES} x i8]* @{self._shape_name})",
            "  ret i32 0\n}",
            f"define i32 @{self.release_name}() {{",
            f'  call void asm sideeffect "{_bytes(_RELEASE)}", "~{{memory}}"()',
            "  ret i32 0\n}",
        )
        return "\n".join(lines)

    def _shape(self) -> bytes:
        """What LDTILECFG reads: palette 1, then bytes of a row and rows of each tile."""
        groups = self.depth // GROUP_BYTES
        sums = [(ROW_BYTES, self.rows)] * MAX_SUM_TILES
        tiles = [*sums, *[(self.depth, self.rows)] * 2, *[(ROW_BYTES, groups)] * 2]
        columns = b"".join(each.to_bytes(2, "little") for each, _ in tiles)
        rows = bytes(each for _, each in tiles)
        return bytes((1, *[0] * 15)) + columns.ljust(32, b"\0") + rows.ljust(16, b"\0")

    def _lines(self) -> Iterator[str]:
        for tile, distance in enumerate(self._sums()):
            if self.adds:
                yield _moved(_PREFIX_F2, tile, _R8, _R9, distance)
            else:
                yield _bytes(_vex(0x49, _PREFIX_F2) + bytes((0xC0 | tile << 3,)))
        yield "1:"
        lines = -(-self.prefetched // self.turns)
        for number, step in enumerate(self.steps):
            yield from self._step(number, *step)
            share = range(
                number * lines // len(self.steps), (number + 1) * lines // len(self.steps)
            )
            yield from (f"prefetcht1 {ROW_BYTES * line}(%r10)" for line in share)
        if self.turns > 1:
            left, right = self.turn
            if lines:
                yield f"add $${ROW_BYTES * lines},%r10"
            yield from (f"add $${left},%rsi", f"add $${right},%rdi", "dec %rcx", "jnz 1b")
        for tile, distance in enumerate(self._sums()):
            yield _moved(_PREFIX_F3, tile, _R8, _R9, distance)

    def _sums(self) -> list[int]:
        """Where the tiles of sums are."""
        return [left.sums + right.sums for left in self.lefts for right in self.rights]

    def _step(self, number: int, left: int, right: int) -> Iterator[str]:
        """Two tiles take turns, so that the next one is loaded while the last is multiplied."""
        is_reused = len(self.rights) > 1
        for column, right_part in enumerate(self.rights):
            loaded = _RIGHT_TILE + (number * len(self.rights) + column) % 2
            yield _moved(_PREFIX_F2, loaded, _RDI, _RDX, right + right_part.matrix)
            for row, left_part in enumerate(self.lefts):
                factor = _LEFT_TILE + row % 2
                if column == 0 or not is_reused:
                    yield _moved(_PREFIX_F2, factor, _RSI, _RAX, left + left_part.matrix)
                sums = row * len(self.rights) + column
                yield self._multiplied(sums, factor, loaded)

    def _multiplied(self, sums: int, left: int, right: int) -> str:
        opcode, prefix = _MULTIPLY[self.dtype]
        return _bytes(_vex(opcode, prefix, third=right) + bytes((0xC0 | sums << 3 | left,)))


def can_block(lefts: int, rights: int) -> bool:
    """Say whether products of so many tiles have sums enough, and tiles to hold the left ones."""
    return lefts * rights <= MAX_SUM_TILES and (rights == 1 or lefts <= 2)


def _vex(opcode: int, prefix: int, index: int = 0, base: int = 0, third: int = 0) -> bytes:
    """Return prefix and opcode; `index` and `base` are registers of an address, `third` a tile."""
    first = 0x82 | (index < 8) << 6 | (base < 8) << 5
    return bytes((0xC4, first, (~third & 0xF) << 3 | prefix, opcode))


def _moved(prefix: int, tile: int, base: int, pitch: int, distance: int) -> str:
    """Return TILELOADD (_PREFIX_F2) or TILESTORED (_PREFIX_F3)."""
    address = bytes((0x84 | tile << 3, (pitch & 7) << 3 | base & 7))
    return _bytes(
        _vex(0x4B, prefix, pitch, base) + address + distance.to_bytes(4, "little", signed=True)
    )


def _bytes(code: bytes) -> str:
    return ".byte " + ",".join(map(str, code))
