"""Queries, keys, values and the number of past tokens -> attention: the kernel for CPUs of `op.py`.

A call is cut into tasks, which cores share: some queries of all heads of a group, and a part of the
keys that they see. A task goes over blocks of keys. It transposes a block once, and multiplies it
by tiles of rows, a row being one query of one head. All sums of a tile are in registers:

    for each block of keys, for each tile of rows:
        scores = queries keys^T
        shares of the keys (`online_softmax.py`)
        total = total + shares values
    result = total / sum

Only keys that some query sees are read. Parts of keys are put together at the end.
Source: Dao et al., "FlashAttention" (arXiv:2205.14135); T. Dao et al., "Flash-Decoding".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

from tvm import tir

from heteroplace.relay.cache.online_softmax import (
    BLOCK_KEYS,
    AttentionOptions,
    KeyBlock,
    OnlineSoftmax,
)
from heteroplace.relay.llvm_text import tile_product_text, transpose_text

_FLOAT = "float32"
_LEAST_SUM = 1e-37
"""The sum of a row that sees keys is 1 or more."""
_VECTORS = {16: 4}
"""Of a row of a tile, by lanes, else 2: there are 32 registers of 16 lanes, and 16 of others."""
_MIN_TASKS = 16
_MIN_SHARED_ROWS = 64
"""Whose parts cores put together: for fewer, to wake them takes longer."""


class AttentionTask(NamedTuple):
    """What one task computes."""

    number: Any
    sequence: Any
    group: Any
    query: Any
    """The first one."""
    past: Any
    begin: Any
    end: Any
    """Of its keys."""


class MemoryRows(NamedTuple):
    """Rows of numbers in memory."""

    buffer: tir.Buffer
    offset: Any
    """Elements before the first one."""
    stride: int
    """Elements from a row to the next."""


class AttentionKernel(OnlineSoftmax):
    """Makes the statement of one call."""

    most_rows = 6
    """Of a tile: with `_VECTORS` of sums each, and what is multiplied, they fill the registers."""
    rows_of_task = 64
    """About as many rows of a task share what is transposed."""

    def __init__(
        self, buffers: Sequence[tir.Buffer], options: AttentionOptions, lanes: int
    ) -> None:
        super().__init__(lanes, math.gcd(int(buffers[0].shape[3]), lanes))
        self.queries, self.keys, self.values, self.past, self.result = buffers
        self.options = options
        self.batch, heads, self.length, self.size = map(int, self.queries.shape)
        _, self.groups, self.capacity, _ = map(int, self.keys.shape)
        self.heads, self.share = heads, heads // self.groups
        blocks = min(self.length, -(-self.length * self.share // self.rows_of_task))
        self.task_queries = -(-self.length // blocks)
        self.blocks = -(-self.length // self.task_queries)
        self.task_rows = self.task_queries * self.share
        self.tiles = -(-self.task_rows // self.most_rows)
        self.tile_rows = -(-self.task_rows // self.tiles)
        whole = self.batch * self.groups * self.blocks
        self.parts = max(1, min(-(-_MIN_TASKS // whole), self.capacity // BLOCK_KEYS))
        self.tasks = whole * self.parts
        self.vectors = _VECTORS.get(lanes, 2)
        self.rest_vectors = self.size // self.width % self.vectors

    def statement(self) -> tir.Stmt:
        """Return the statement."""
        for text in self._texts():
            value = tir.StringImm(text)
            self.builder.scope_attr(tir.const(0, "int32"), "pragma_import_llvm", value)
        if self.parts > 1:
            self.part_totals = self._buffer("part_totals", self.tasks, self.task_rows, self.size)
            self.part_most = self._buffer("part_most", self.tasks, self.task_rows)
            self.part_sums = self._buffer("part_sums", self.tasks, self.task_rows)
        with self.builder.for_range(0, self.tasks, "task", kind="parallel") as number:
            self._task(self._task_of(number))
        if self.parts > 1:
            self._join()
        return self.builder.get()

    def _texts(self) -> list[str]:
        """Functions that the kernel calls."""
        texts = [transpose_text(self._transpose_name, "float", self.lanes)]
        forms = {(count + 1, self.lanes) for count in range(self.vectors)}
        forms.add((self.vectors, self.width))
        for vectors, width in sorted(forms | {(self.rest_vectors or self.vectors, self.width)}):
            tile = self._product_name(vectors, width)
            texts.append(tile_product_text(tile, self.tile_rows, vectors, width))
        return texts

    @property
    def _transpose_name(self) -> str:
        return f"heteroplace_transpose_keys_{self.lanes}"

    def _task_of(self, number: Any) -> AttentionTask:
        let = self.builder.let
        whole, part = tir.indexdiv(number, self.parts), tir.indexmod(number, self.parts)
        group = tir.indexdiv(whole, self.blocks)
        sequence = let("sequence", tir.indexdiv(group, self.groups))
        query = let("query", tir.indexmod(whole, self.blocks) * self.task_queries)
        stored = self.past.vload([sequence])
        past = let("past", tir.max(tir.min(stored, self.capacity), -self.length))
        last = past + tir.min(query + self.task_queries, self.length)
        end = let("end", tir.max(tir.min(last, self.capacity), 0))
        first: Any = tir.const(0, "int32")
        if self.options.window >= 0:
            first = tir.min(tir.max(past + query - self.options.window + 1, 0), end)
        first = let("first", first)
        step = self.parts * self.lanes
        keys = tir.indexdiv(end - first + step - 1, step) * self.lanes
        keys = let("keys", tir.max(keys, BLOCK_KEYS))
        begin = let("begin", tir.min(first + part * keys, end))
        group = let("group", tir.indexmod(group, self.groups))
        return AttentionTask(
            number, sequence, group, query, past, begin, tir.min(begin + keys, end)
        )

    def _task(self, task: AttentionTask) -> None:
        rows, builder = self.tiles * self.tile_rows, self.builder
        self._begin_task(rows)
        self._begin(rows)
        with builder.for_range(0, rows, "row") as row:
            self._begin_row(task, row)
        num_blocks = tir.indexdiv(task.end - task.begin + BLOCK_KEYS - 1, BLOCK_KEYS)
        with builder.for_range(0, num_blocks, "block") as number:
            start = builder.let("start", task.begin + number * BLOCK_KEYS)
            block = KeyBlock(start, builder.let("count", tir.min(task.end - start, BLOCK_KEYS)))
            self._begin_block(task, block)
            with builder.for_range(0, self.tiles, "tile") as tile:
                self._scores(block, tile)
                self._soften(task.past + task.query, block, tile)
                self._add_values(task, block, tile)
        with builder.for_range(0, self.task_rows, "row") as row:
            self._end_row(task, row)

    def _begin_task(self, rows: int) -> None:
        """Make room for the queries of so many rows, and for what is made of a block."""
        depth = -(-self.size // self.lanes) * self.lanes
        self.scaled = self._buffer("scaled", rows, self.size)
        self.turned = self._buffer("turned", depth, BLOCK_KEYS)

    def _begin_row(self, task: AttentionTask, row: Any) -> None:
        """Scale the queries of a row."""
        with self.builder.for_range(0, self.size // self.width, "vector") as vector:
            at = vector * self.width
            self._store(self.scaled, self._scaled_query(task, row, at), row, at)

    def _scaled_query(self, task: AttentionTask, row: Any, at: Any) -> Any:
        """A vector of the query of a row."""
        query = tir.min(task.query + tir.indexdiv(row, self.share), self.length - 1)
        head = tir.min(task.group * self.share + tir.indexmod(row, self.share), self.heads - 1)
        scale = self._all(tir.const(self.options.scale, _FLOAT), self.width)
        return self._load(self.queries, task.sequence, head, query, at) * scale

    def _begin_block(self, task: AttentionTask, block: KeyBlock) -> None:
        """Transpose the keys of a block."""
        row = (task.sequence * self.groups + task.group) * self.capacity + block.start
        self._transpose(MemoryRows(self.keys, row * self.size, self.size), block.count)

    def _transpose(self, rows: MemoryRows, count: Any) -> None:
        lanes = self.lanes
        with (
            self.builder.for_range(0, tir.indexdiv(count + lanes - 1, lanes), "square") as square,
            self.builder.for_range(0, -(-rows.stride // lanes), "slice") as part,
        ):
            offset = rows.offset + square * lanes * rows.stride + part * lanes
            self.builder.emit(
                tir.call_extern(
                    "int32",
                    self._transpose_name,
                    self.turned.access_ptr("w", offset=part * lanes * BLOCK_KEYS + square * lanes),
                    tir.const(BLOCK_KEYS, "int64"),
                    rows.buffer.access_ptr("r", offset=offset),
                    tir.const(rows.stride, "int64"),
                    tir.min(count - square * lanes, lanes),
                    tir.min(rows.stride - part * lanes, lanes),
                )
            )

    def _scores(self, block: KeyBlock, tile: Any) -> None:
        """Multiply the rows of a tile by a block of keys: by whole vectors of them."""
        zero = self._all(tir.const(0, _FLOAT), self.lanes)
        with (
            self.builder.for_range(0, self.tile_rows, "row") as row,
            self.builder.for_range(0, BLOCK_KEYS // self.lanes, "vector") as vector,
        ):
            self._store(self.shares, zero, row, vector * self.lanes)
        left = MemoryRows(self.scaled, tile * self.tile_rows * self.size, self.size)
        depth = tir.const(self.size, "int64")

        def multiply(at: Any, vectors: int) -> None:
            sums = MemoryRows(self.shares, at, BLOCK_KEYS)
            right = MemoryRows(self.turned, at, BLOCK_KEYS)
            self._multiply(sums, left, right, depth, vectors, self.lanes)

        wide = self.vectors * self.lanes
        vectors = tir.indexdiv(block.count + self.lanes - 1, self.lanes)
        whole = self.builder.let("whole", tir.indexdiv(vectors, self.vectors))
        rest = self.builder.let("rest", tir.indexmod(vectors, self.vectors))
        with self.builder.for_range(0, whole, "some") as some:
            multiply(some * wide, self.vectors)
        for count in range(1, self.vectors):
            with self.builder.if_scope(rest == count):
                multiply(whole * wide, count)

    def _multiply(
        self,
        sums: MemoryRows,
        left: MemoryRows,
        right: MemoryRows,
        depth: Any,
        vectors: int,
        lanes: int,
    ) -> None:
        """Add products of the rows of a tile to their sums."""
        operands: list[Any] = []
        for each, mode in ((sums, "rw"), (left, "r"), (right, "r")):
            stride = tir.const(each.stride, "int64")
            operands += [each.buffer.access_ptr(mode, offset=each.offset), stride]
        name = self._product_name(vectors, lanes)
        self.builder.emit(tir.call_extern("int32", name, *operands, depth))

    def _product_name(self, vectors: int, lanes: int) -> str:
        return f"heteroplace_tile_{self.tile_rows}x{vectors}x{lanes}"

    def _add_values(self, task: AttentionTask, block: KeyBlock, tile: Any) -> None:
        """Add the values of a block, times their shares, to the totals of a tile."""
        wide = self.vectors * self.width
        row = (task.sequence * self.groups + task.group) * self.capacity + block.start

        def add_columns(at: Any, vectors: int) -> None:
            sums = MemoryRows(self.totals, tile * self.tile_rows * self.size + at, self.size)
            left = MemoryRows(self.shares, 0, BLOCK_KEYS)
            right = MemoryRows(self.values, row * self.size + at, self.size)
            self._multiply(sums, left, right, block.count.astype("int64"), vectors, self.width)

        with self.builder.for_range(0, self.size // wide, "some") as some:
            add_columns(some * wide, self.vectors)
        if self.rest_vectors:
            add_columns(self.size // wide * wide, self.rest_vectors)

    def _end_row(self, task: AttentionTask, row: Any) -> None:
        """Store the result of a row, or its part of it."""
        query = task.query + tir.indexdiv(row, self.share)
        head = task.group * self.share + tir.indexmod(row, self.share)
        total = self._across(self._load(self.sums, row, 0, lanes=self.lanes), self._sum)
        if self.parts > 1:
            self._store(self.part_sums, total, task.number, row)
            self._store(self.part_most, self.most.vload([row]), task.number, row)
        quotient = self._held(tir.const(1, _FLOAT) / tir.max(total, _LEAST_SUM))
        with (
            self.builder.if_scope(query < self.length),
            self.builder.for_range(0, self.size // self.width, "vector") as vector,
        ):
            at = vector * self.width
            value = self._load(self.totals, row, at)
            if self.parts > 1:
                self._store(self.part_totals, value, task.number, row, at)
            else:
                self._store(
                    self.result,
                    value * self._all(quotient, self.width),
                    task.sequence,
                    head,
                    query,
                    at,
                )

    def _join(self) -> None:
        """Put the parts of the keys together."""
        builder = self.builder
        is_shared = self.heads * self.length >= _MIN_SHARED_ROWS
        with (
            builder.for_range(
                0, self.batch * self.heads, "head", kind="parallel" if is_shared else "serial"
            ) as row_of_heads,
            builder.for_range(0, self.length, "query") as query,
        ):
            sequence = tir.indexdiv(row_of_heads, self.heads)
            head = tir.indexmod(row_of_heads, self.heads)
            whole = sequence * self.groups + tir.indexdiv(head, self.share)
            whole = whole * self.blocks + tir.indexdiv(query, self.task_queries)
            inside = tir.indexmod(query, self.task_queries)
            row = inside * self.share + tir.indexmod(head, self.share)
            tasks = [whole * self.parts + part for part in range(self.parts)]
            mosts = [self._held(self.part_most.vload([task, row])) for task in tasks]
            most = reduce(self._larger, mosts)
            factors = [self._held(tir.exp(each - most)) for each in mosts]
            sums = [self.part_sums.vload([task, row]) for task in tasks]
            total = reduce(add, [f * s for f, s in zip(factors, sums, strict=True)])
            quotient = self._held(tir.const(1, _FLOAT) / tir.max(total, _LEAST_SUM))
            with builder.for_range(0, self.size // self.width, "vector") as vector:
                at = vector * self.width
                terms = [
                    self._load(self.part_totals, task, row, at) * self._all(factor, self.width)
                    for task, factor in zip(tasks, factors, strict=True)
                ]
                value = reduce(add, terms) * self._all(quotient, self.width)
                self._store(self.result, value, sequence, head, query, at)
