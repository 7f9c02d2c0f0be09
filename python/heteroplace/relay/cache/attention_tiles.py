"""Attention of many queries over a cache in bfloat16: what `attention_kernel.py` does, by AMX.

A word holds two numbers in bfloat16 that are multiplied at once. They are half a row of `n` numbers
apart, so that words are made of whole vectors:

    word[i] = x[i], x[i + n / 2]

A row of queries and keys is a head, and one of shares is a block of keys. Loops that multiply are
marked, and the provider of kernels replaces them by machine code. Shares are computed, and summed
up, in float32.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tir

from heteroplace.relay.bfloat16_vectors import (
    BFLOAT16_LANES,
    IN_WORD,
    WORD,
    joined_vectors,
    number_in_word,
)
from heteroplace.relay.cache.attention_kernel import AttentionKernel, AttentionTask, MemoryRows
from heteroplace.relay.cache.online_softmax import BLOCK_KEYS, KeyBlock
from heteroplace.relay.llvm_text import transpose_text
from heteroplace.relay.targets import AMX_LOOPS, rounds_for_tiles

_HALF_BLOCK = BLOCK_KEYS // IN_WORD
_LEAST_ROWS = 48
"""Fewer queries of the heads of a group fill no tiles."""
_WIDTHS = (64, 48, 32)
"""Columns that AMX has tiles for at once."""


def is_for_tiles(queries: tuple[int, ...], groups: int) -> bool:
    """Say whether the current target computes such an attention by AMX.

    Parameters
    ----------
    queries
        [batch, heads, length, size].
    groups
        Of heads that share their keys.
    """
    target = tvm.target.Target.current()
    _, heads, length, size = queries
    is_whole = size % (IN_WORD * BFLOAT16_LANES) == 0 and length * heads // groups >= _LEAST_ROWS
    return rounds_for_tiles(target) and is_whole


class TiledAttention(AttentionKernel):
    """Makes the statement of one call."""

    most_rows = 16
    """Of a tile of AMX."""
    rows_of_task = 128

    def _texts(self) -> list[str]:
        return [transpose_text(self._transpose_name, "i32", self.lanes)]

    @property
    def _transpose_name(self) -> str:
        return f"heteroplace_transpose_words_{self.lanes}"

    def _begin_task(self, rows: int) -> None:
        half = self.size // IN_WORD
        self.scaled = self._words("scaled", rows, half)
        self.key_words = self._words("key_words", BLOCK_KEYS, half)
        self.turned = self._words("turned", half, BLOCK_KEYS)
        self.value_words = self._words("value_words", _HALF_BLOCK, self.size)
        self.share_words = self._words("share_words", self.tile_rows, _HALF_BLOCK)

    def _words(self, name: str, *shape: int) -> tir.Buffer:
        return self._buffer(name, *shape, dtype=WORD)

    def _begin_row(self, task: AttentionTask, row: Any) -> None:
        half = self.size // IN_WORD
        with self.builder.for_range(0, half // self.lanes, "vector") as vector:
            at = vector * self.lanes
            parts = (self._scaled_query(task, row, each) for each in (at, at + half))
            self._store(self.scaled, joined_vectors(*parts), row, at)

    def _begin_block(self, task: AttentionTask, block: KeyBlock) -> None:
        """Make words of keys, transposed, and of values: of those behind the last one, zeros."""
        half, lanes = self.size // IN_WORD, self.lanes
        with (
            self.builder.for_range(0, block.count, "key") as key,
            self.builder.for_range(0, half // lanes, "vector") as vector,
        ):
            where = task.sequence, task.group, block.start + key
            parts = (
                self._load(self.keys, *where, vector * lanes + each, lanes=lanes)
                for each in (0, half)
            )
            self._store(self.key_words, joined_vectors(*parts), key, vector * lanes)
        self._transpose(MemoryRows(self.key_words, 0, half), block.count)
        zeros = self._all(tir.const(0, "float32"), lanes)
        with (
            self.builder.for_range(0, _HALF_BLOCK, "key") as key,
            self.builder.for_range(0, self.size // lanes, "vector") as vector,
        ):
            values = []
            for place in (key, key + _HALF_BLOCK):
                row = block.start + tir.min(place, block.count - 1)
                at = task.sequence, task.group, row, vector * lanes
                value = self._load(self.values, *at, lanes=lanes)
                values.append(tir.if_then_else(place < block.count, value, zeros))
            self._store(self.value_words, joined_vectors(*values), key, vector * lanes)

    def _scores(self, block: KeyBlock, tile: Any) -> None:
        self._multiply_words(self.shares, 0, self.scaled, tile * self.tile_rows, self.turned)

    def _add_values(self, task: AttentionTask, block: KeyBlock, tile: Any) -> None:
        row = tile * self.tile_rows
        with (
            self.builder.for_range(0, self.tile_rows, "row") as m,
            self.builder.for_range(0, _HALF_BLOCK // self.lanes, "vector") as vector,
        ):
            at = vector * self.lanes
            parts = (
                self._load(self.shares, m, each, lanes=self.lanes)
                for each in (at, at + _HALF_BLOCK)
            )
            self._store(self.share_words, joined_vectors(*parts), m, at)
        self._multiply_words(self.totals, row, self.share_words, 0, self.value_words, adds=True)

    def _multiply_words(
        self,
        sums: tir.Buffer,
        sums_row: Any,
        left: tir.Buffer,
        left_row: Any,
        right: tir.Buffer,
        *,
        adds: bool = False,
    ) -> None:
        """Multiply rows of a tile by a matrix of words; `adds`: to what the sums are."""
        depth, columns = map(int, right.shape)
        width = next(each for each in _WIDTHS if columns % each == 0)
        builder = self.builder
        with builder.for_range(0, columns // width, "part") as part, builder.new_scope():
            builder.scope_attr(tir.StringImm(AMX_LOOPS), AMX_LOOPS, 1)
            with (
                builder.for_range(0, self.tile_rows, "row") as m,
                builder.for_range(0, width, "column") as column,
            ):
                x = part * width + column
                if not adds:
                    self._store(sums, tir.const(0, "float32"), sums_row + m, x)
                with (
                    builder.for_range(0, depth, "depth") as at,
                    builder.for_range(0, IN_WORD, "place") as place,
                ):
                    one = number_in_word(left.vload([left_row + m, at]), place)
                    other = number_in_word(right.vload([at, x]), place)
                    total = sums.vload([sums_row + m, x]) + one * other
                    self._store(sums, total, sums_row + m, x)
