"""Scores of rows, for one block of keys after the other -> shares of the keys.

most' = max(most, scores)       shares = exp(scores - most')
f = exp(most - most')           sum = f sum + shares            total = f total
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tvm import tir

from heteroplace.relay.cache.vector_builder import VectorBuilder

_FLOAT = "float32"
LOWEST = float(np.finfo(_FLOAT).min)
"""The score of a key that a query does not see."""
BLOCK_KEYS = 64
"""Keys that are transposed at once: with 128 numbers each, 32 KiB."""


class AttentionOptions(NamedTuple):
    """Attributes of the op."""

    scale: float
    """Of products of queries and keys."""
    window: int = -1
    """How many of the last keys a query sees; -1: all."""
    softcap: float = 0.0
    """Scores are within it, by tanh; 0: they are as they are."""


class KeyBlock(NamedTuple):
    """Keys of a task."""

    start: Any
    count: Any


class OnlineSoftmax(VectorBuilder):
    """Adds statements that make shares of scores, for tiles of rows; a row is a query of a head."""

    options: AttentionOptions
    size: int
    """Numbers of a head."""
    share: int
    """Rows of each query: they follow one another."""
    tile_rows: int

    def _begin(self, rows: int) -> None:
        """Make room for so many rows, which have seen no keys."""
        self.totals = self._buffer("totals", rows, self.size)
        self.sums = self._buffer("sums", rows, self.lanes)
        self.shares = self._buffer("shares", self.tile_rows, BLOCK_KEYS)
        # Of a tile they are read in whole vectors.
        room = self._tile_vectors * self.lanes
        self.most = self._buffer("most", rows + room)
        self.larger = self._buffer("larger", room)
        self.factors = self._buffer("factors", room)
        zero = tir.const(0, _FLOAT)
        with self.builder.for_range(0, rows, "row") as row:
            with self.builder.for_range(0, self.size // self.width, "vector") as vector:
                self._store(self.totals, self._all(zero, self.width), row, vector * self.width)
            self._store(self.sums, self._all(zero, self.lanes), row, 0)
            self._store(self.most, tir.const(LOWEST, _FLOAT), row)
        for vector in range(self._tile_vectors):
            at = vector * self.lanes
            self._store(self.most, self._all(tir.const(LOWEST, _FLOAT), self.lanes), rows + at)
            self._store(self.larger, self._all(zero, self.lanes), at)

    @property
    def _tile_vectors(self) -> int:
        """Vectors with a number for each row of a tile."""
        return -(-self.tile_rows // self.lanes)

    def _soften(self, first: Any, block: KeyBlock, tile: Any) -> None:
        """Make shares of the scores of a tile, and scale its totals down where scores are larger.

        Parameters
        ----------
        first
            The last key that the first query of all tiles sees.
        """
        builder, lanes, row = self.builder, self.lanes, tile * self.tile_rows
        with builder.for_range(0, self.tile_rows, "row") as m:
            own = first + tir.indexdiv(row + m, self.share)
            self._find_most(row, m, self._seen(block, own))
        for vector in range(self._tile_vectors):
            at = vector * lanes
            before = self._load(self.most, row + at, lanes=lanes)
            most = self._load(self.larger, at, lanes=lanes)
            self._store(self.factors, tir.exp(before - most), at)
        with builder.for_range(0, self.tile_rows, "row") as m:
            self._soften_row(row, m)

    def _seen(self, block: KeyBlock, own: Any) -> Callable[[Any], Any]:
        """Return what tells which of some keys are seen by the query at a place."""
        lanes = self.lanes
        last = tir.min(own, block.start + block.count - 1)
        last = self.builder.let("last", self._all(last, lanes))

        def is_seen(at: Any) -> Any:
            places = tir.Ramp(block.start + at, 1, lanes)
            if self.options.window < 0:
                return places <= last
            first = self._all(own - self.options.window, lanes)
            return tir.And(places <= last, places > first)

        return is_seen

    def _find_most(self, row: Any, m: Any, is_seen: Callable[[Any], Any]) -> None:
        """Note the largest score of a row; those of keys that it does not see become the lowest."""
        lanes, options = self.lanes, self.options
        highest = self._held(self._all(tir.const(LOWEST, _FLOAT), lanes), lanes)
        with self.builder.for_range(0, BLOCK_KEYS // lanes, "vector") as vector:
            at = vector * lanes
            score = self._load(self.shares, m, at, lanes=lanes)
            if options.softcap:
                cap = self._all(tir.const(options.softcap, _FLOAT), lanes)
                score = tir.tanh(score / cap) * cap
            lowest = self._all(tir.const(LOWEST, _FLOAT), lanes)
            score = self._held(tir.Select(is_seen(at), score, lowest), lanes)
            self._store(self.shares, score, m, at)
            self._store(highest.buffer, tir.Select(score > highest, score, highest), 0)
        before = self._held(self.most.vload([row + m]))
        # A row that sees no key so far: its shares are to be 0, and not exp(lowest - lowest).
        highest = self._larger(before, self._across(highest, self._larger))
        self._store(self.larger, self._larger(highest, tir.const(LOWEST / 2, _FLOAT)), m)

    def _soften_row(self, row: Any, m: Any) -> None:
        """Make shares of the scores of a row, of which the largest is noted."""
        builder, lanes = self.builder, self.lanes
        most = self._held(self.larger.vload([m]))
        factor = self._held(self.factors.vload([m]))
        self._store(self.most, most, row + m)
        with builder.for_range(0, self.size // self.width, "vector") as vector:
            at = vector * self.width
            value = self._load(self.totals, row + m, at) * self._all(factor, self.width)
            self._store(self.totals, value, row + m, at)
        total = self._held(
            self._load(self.sums, row + m, 0, lanes=lanes) * self._all(factor, lanes), lanes
        )
        with builder.for_range(0, BLOCK_KEYS // lanes, "vector") as vector:
            at = vector * lanes
            score = self._load(self.shares, m, at, lanes=lanes)
            share = self._held(tir.exp(score - self._all(most, lanes)), lanes)
            self._store(self.shares, share, m, at)
            self._store(total.buffer, total + share, 0)
        self._store(self.sums, total, row + m, 0)
