"""The kernel of `op.py`: a loop over the steps.

Weights are in panels. One panel, or two on processors with 32 vector registers, is multiplied by a
row of the state at a time, and all sums stay in registers. If the weights are large, cores share
the panels of each step. For weights of bytes, one instruction multiplies 64, or 16 with AVX2
(`relay/vnni.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import tvm
from tvm import te, tir

from heteroplace.errors import LoweringError
from heteroplace.relay.targets import float_lanes, multiplies_integers, multiplies_words
from heteroplace.relay.vnni import BYTES, LANES, SUMS, WORD_SUMS, WORDS, add_products, pair_sums

_FLOAT, _BYTE = "float32", "uint8"
_MAX_BYTE = 255.0
_COLUMNS_OF_PAIRS, _MAX_PAIR_SUMS = 4, 8
"""Columns whose products AVX2 sums up in one vector, and how many such vectors registers hold."""
_MIN_SHARED_BYTES = 2**18
"""Of weights whose panels cores share: for fewer, to wake the cores takes longer."""


def recurrent_kernel(
    kind: str,
    is_backward: bool,
    tensors: Sequence[te.Tensor],
    shapes: Sequence[tuple[int, ...]],
) -> list[te.Tensor]:
    """Return the states of all steps, and of an LSTM the last cell; see `op.py`.

    Raises
    ------
    LoweringError
        The current target is no CPU.
    """
    target = tvm.target.Target.current()
    if target is None or target.kind.name != "llvm":
        raise LoweringError(
            "a recurrent layer is one op, which has kernels for CPUs only; apply "
            "`heteroplace.relay.recurrent.unrolled:Unrolled()` to the module for other targets"
        )
    lanes = float_lanes(target)

    def body(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        loop = _Loop(kind, lanes, ins, outs)
        return loop.statement(target, is_backward=is_backward)

    types = [_FLOAT] * len(shapes)
    results = te.extern(list(shapes), list(tensors), body, name="recurrent", dtype=types)
    return [results] if isinstance(results, te.Tensor) else list(results)


class _Loop:
    """What makes the statement of one layer."""

    def __init__(
        self, kind: str, lanes: int, ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]
    ) -> None:
        self.builder = tir.ir_builder.create()
        self.kind, self.lanes, self.ins, self.outs = kind, lanes, ins, outs
        products, weights, _, hidden, _ = ins[:5]
        self.steps, self.batch, self.columns = (int(each) for each in products.shape)
        self.hidden = int(hidden.shape[1])
        self.panels, self.width = int(weights.shape[0]), int(weights.shape[2])
        self.state = self._buffer("state", (self.batch, self.hidden))
        self.gates = self._buffer("gates", (self.batch, self.columns))

    def statement(self, target: tvm.target.Target, *, is_backward: bool) -> tir.Stmt:
        """Return the statement, with the instructions that the target has."""
        _, weights, _, hidden, cell = self.ins[:5]
        self._copy(hidden, self.state)
        if self.kind == "lstm":
            self._copy(cell, self.outs[1])
        with self.builder.for_range(0, self.steps, name="step") as step:
            if weights.dtype == _FLOAT:
                self._multiply_floats()
            elif multiplies_integers(target):
                self._multiply_bytes()
            elif multiplies_words(target):
                self._multiply_words()
            else:
                self._multiply_bytes_plainly()
            self._update(self.steps - 1 - step if is_backward else step)
        return self.builder.get()

    def _buffer(
        self, name: str, shape: tuple[int, ...], dtype: str = _FLOAT, scope: str = "global"
    ) -> tir.Buffer:
        buffer = tir.decl_buffer(shape, dtype, name, scope=scope)
        self.builder.emit(
            lambda body: tir.Allocate(buffer.data, dtype, shape, tir.const(1, "bool"), body)
        )
        return buffer

    @contextmanager
    def _vectors(self) -> Iterator[tuple[Any, Any]]:
        """Loop over the state: give the row, and the first place of each vector."""
        with (
            self.builder.for_range(0, self.batch, name="row") as row,
            self.builder.for_range(0, self.hidden // self.lanes, name="vector") as vector,
        ):
            yield row, vector * self.lanes

    def _load(self, buffer: tir.Buffer, *at: Any) -> tir.PrimExpr:
        return buffer.vload(list(at), f"{_FLOAT}x{self.lanes}")

    def _all(self, value: tir.PrimExpr) -> tir.PrimExpr:
        return tir.Broadcast(value, self.lanes)

    def _copy(self, source: tir.Buffer, target: tir.Buffer) -> None:
        with self._vectors() as (row, at):
            self.builder.emit(target.vstore([row, at], self._load(source, row, at)))

    def _update(self, time: Any) -> None:
        """Make the state of a step from its gates."""
        products = self.ins[0]
        with self._vectors() as (row, at):

            def from_input(gate: int) -> tir.PrimExpr:
                return self._load(products, time, row, at + gate * self.hidden)

            def from_state(gate: int) -> tir.PrimExpr:
                return self._load(self.gates, row, at + gate * self.hidden)

            def total(gate: int) -> tir.PrimExpr:
                return from_input(gate) + from_state(gate)

            if self.kind == "lstm":
                new = self._lstm(row, at, [total(gate) for gate in range(4)])
            elif self.kind == "gru":
                update, reset = tir.sigmoid(total(0)), tir.sigmoid(total(1))
                fresh = self.builder.let("fresh", tir.tanh(from_input(2) + reset * from_state(2)))
                new = fresh + update * (self._load(self.state, row, at) - fresh)
            else:
                new = tir.tanh(total(0))
            value = self.builder.let("new_state", new)
            self.builder.emit(self.state.vstore([row, at], value))
            self.builder.emit(self.outs[0].vstore([time, row, at], value))

    def _lstm(self, row: Any, at: Any, gates: list[tir.PrimExpr]) -> tir.PrimExpr:
        write, show, keep = (tir.sigmoid(gate) for gate in gates[:3])
        cells = self.outs[1]
        cell = self.builder.let(
            "new_cell", keep * self._load(cells, row, at) + write * tir.tanh(gates[3])
        )
        self.builder.emit(cells.vstore([row, at], cell))
        return show * tir.tanh(cell)

    @contextmanager
    def _tiles(self, lanes: int) -> Iterator[tuple[Any, list[tuple[Any, int]]]]:
        """Loop over tiles, one or two panels and a row of the state: give the row, and of each
        vector of the tile its panel and its place in that."""
        weights = self.ins[1]
        num_bytes = math.prod(map(int, weights.shape)) * tvm.DataType(weights.dtype).bits // 8
        kind = "parallel" if num_bytes >= _MIN_SHARED_BYTES else "serial"
        count = self.panels // self._together
        with (
            self.builder.for_range(0, count, name="panels", kind=kind) as panels,
            self.builder.for_range(0, self.batch, name="row") as row,
        ):
            every = [panels * self._together + panel for panel in range(self._together)]
            yield row, [(panel, at) for panel in every for at in range(0, self.width, lanes)]

    @property
    def _together(self) -> int:
        """Panels that are multiplied at once."""
        return 2 if self.lanes >= LANES and self.panels % 2 == 0 else 1

    def _sums(self, dtype: str) -> tir.Buffer:
        """Registers for the sums of a tile."""
        return self._buffer("sums", (self._together * self.width,), dtype, "local")

    def _multiply_floats(self) -> None:
        weights, biases = self.ins[1:3]
        with self._tiles(self.lanes) as (row, places):
            sums = self._sums(_FLOAT)
            for number, (panel, at) in enumerate(places):
                start = self._load(biases, panel * self.width + at)
                self.builder.emit(sums.vstore([number * self.lanes], start))
            with self.builder.for_range(0, self.hidden, name="depth") as depth:
                left = self.builder.let("left", self._all(self.state.vload([row, depth])))
                for number, (panel, at) in enumerate(places):
                    right = self._load(weights, panel, depth, at)
                    total = self._load(sums, number * self.lanes) + left * right
                    self.builder.emit(sums.vstore([number * self.lanes], total))
            for number, (panel, at) in enumerate(places):
                total = self._load(sums, number * self.lanes)
                self.builder.emit(self.gates.vstore([row, panel * self.width + at], total))

    def _multiply_bytes(self) -> None:
        state, scale, zero = self._rounded_state(_BYTE)
        weights = self.ins[1]
        with self._tiles(LANES) as (row, places):
            sums = self._sums("int32")
            for number in range(len(places)):
                self.builder.emit(sums.vstore([number * LANES], tir.const(0, SUMS)))
            with self.builder.for_range(0, self.hidden // BYTES, name="word") as word:
                four = tir.reinterpret(
                    "int32", state.vload([row, word * BYTES], f"{_BYTE}x{BYTES}")
                )
                left = self.builder.let("left", tir.Broadcast(four, LANES))
                for number, (panel, at) in enumerate(places):
                    right = weights.vload([panel, word, at, 0], f"int8x{LANES * BYTES}")
                    total = sums.vload([number * LANES], SUMS)
                    total = add_products(total, left, tir.reinterpret(SUMS, right))
                    self.builder.emit(sums.vstore([number * LANES], total))
            for number, (panel, at) in enumerate(places):
                total = sums.vload([number * LANES], SUMS)
                self._store_gates(row, panel * self.width + at, total, scale, zero)

    def _multiply_words(self) -> None:
        """The same with AVX2: bytes are widened to words, and products are added up in pairs."""
        state, scale, zero = self._rounded_state("int16")
        with self._tiles(_COLUMNS_OF_PAIRS) as (row, places):
            for first in range(0, len(places), _MAX_PAIR_SUMS):
                self._sum_pairs(row, places[first : first + _MAX_PAIR_SUMS], state, scale, zero)

    def _sum_pairs(
        self,
        row: Any,
        places: Sequence[tuple[Any, int]],
        state: tir.Buffer,
        scale: tir.PrimExpr,
        zero: tir.PrimExpr,
    ) -> None:
        """Write the gates of some vectors of a tile, of four columns each."""
        weights, lanes = self.ins[1], 2 * _COLUMNS_OF_PAIRS
        sums = self._buffer("sums", (len(places) * lanes,), "int32", "local")
        for number in range(len(places)):
            self.builder.emit(sums.vstore([number * lanes], tir.const(0, WORD_SUMS)))
        with self.builder.for_range(0, self.hidden // BYTES, name="word") as word:
            four = tir.reinterpret("int64", state.vload([row, word * BYTES], f"int16x{BYTES}"))
            left = tir.reinterpret(WORDS, tir.Broadcast(four, _COLUMNS_OF_PAIRS))
            left = self.builder.let("left", left)
            for number, (panel, at) in enumerate(places):
                right = weights.vload([panel, word, at, 0], f"int8x{_COLUMNS_OF_PAIRS * BYTES}")
                total = sums.vload([number * lanes], WORD_SUMS) + pair_sums(
                    left, right.astype(WORDS)
                )
                self.builder.emit(sums.vstore([number * lanes], total))
        for number in range(0, len(places), 2):
            pairs = [sums.vload([each * lanes], WORD_SUMS) for each in (number, number + 1)]
            firsts, seconds = (
                tir.Shuffle(pairs, [tir.const(2 * lane + place, "int32") for lane in range(lanes)])
                for place in range(2)
            )
            panel, at = places[number]
            self._store_gates(row, panel * self.width + at, firsts + seconds, scale, zero)

    def _multiply_bytes_plainly(self) -> None:
        """The same for processors without these instructions, as a module may be built for any."""
        state, scale, zero = self._rounded_state(_BYTE)
        weights = self.ins[1]
        total = self._buffer("total", (1,), "int32")
        with (
            self.builder.for_range(0, self.batch, name="row") as row,
            self.builder.for_range(0, self.columns, name="column") as column,
        ):
            self.builder.emit(total.vstore([0], tir.const(0, "int32")))
            panel, at = tir.indexdiv(column, self.width), tir.indexmod(column, self.width)
            with self.builder.for_range(0, self.hidden, name="depth") as depth:
                word, byte = tir.indexdiv(depth, BYTES), tir.indexmod(depth, BYTES)
                right = weights.vload([panel, word, at, byte]).astype("int32")
                left = state.vload([row, depth]).astype("int32")
                self.builder.emit(total.vstore([0], total.vload([0]) + left * right))
            self._store_gates(row, column, total.vload([0]), scale, zero)

    def _store_gates(
        self,
        row: Any,
        column: Any,
        total: tir.PrimExpr,
        scale: tir.PrimExpr,
        zero: tir.PrimExpr,
    ) -> None:
        """Write what sums of bytes, one or a vector of them, give to the gates."""
        lanes = tvm.DataType(total.dtype).lanes
        floats, integers = (f"{kind}x{lanes}" if lanes > 1 else kind for kind in (_FLOAT, "int32"))

        def each(value: tir.PrimExpr) -> tir.PrimExpr:
            return tir.Broadcast(value, lanes) if lanes > 1 else value

        _, _, biases, _, _, scales, column_sums = self.ins
        centred = total - each(zero.astype("int32")) * column_sums.vload([column], integers)
        step = each(scale) * scales.vload([column], floats)
        value = biases.vload([column], floats) + step * centred.astype(floats)
        self.builder.emit(self.gates.vstore([row, column], value))

    def _rounded_state(self, dtype: str) -> tuple[tir.Buffer, tir.PrimExpr, tir.PrimExpr]:
        """Round the state to bytes: return these, and their scale and zero point, both float32.

        `dtype`: in which they are stored, as a wider type may be read sooner.
        """
        nothing, largest = tir.const(0, _FLOAT), tir.const(_MAX_BYTE, _FLOAT)
        state = self._buffer("bytes", (self.batch, self.hidden), dtype)
        folds = {
            tir.min: self._buffer("low", (self.lanes,)),
            tir.max: self._buffer("high", (self.lanes,)),
        }
        for lanes in folds.values():
            self.builder.emit(lanes.vstore([0], self._all(nothing)))
        with self._vectors() as (row, at):
            value = self.builder.let("value", self._load(self.state, row, at))
            for fold, lanes in folds.items():
                self.builder.emit(lanes.vstore([0], fold(self._load(lanes, 0), value)))
        low, high = (
            self.builder.let(
                "extreme", reduce(fold, [lanes.vload([lane]) for lane in range(self.lanes)])
            )
            for fold, lanes in folds.items()
        )
        span = self.builder.let("span", high - low)
        one = tir.const(1, _FLOAT)
        scale = self.builder.let("scale", tir.Select(span == nothing, one, span / largest))
        point = tir.nearbyint(nothing - low / scale)
        zero = self.builder.let("zero", tir.max(tir.min(point, largest), nothing))
        with self._vectors() as (row, at):
            whole = tir.nearbyint(self._load(self.state, row, at) / self._all(scale))
            byte = tir.min(whole + self._all(zero), self._all(largest))
            byte = tir.max(byte, self._all(nothing))
            value = byte.astype(f"int32x{self.lanes}").astype(f"{dtype}x{self.lanes}")
            self.builder.emit(state.vstore([row, at], value))
        return state, scale, zero
