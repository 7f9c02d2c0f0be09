"""The kernel of `op.py`: the steps one after another, each with all of its vectors in registers.

Weights are in panels. A panel, or two of them where a processor has 32 registers, is multiplied by
the state without a sum that leaves the registers. With bytes, an instruction multiplies 64 of them
(`relay/vnni.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tir

from heteroplace.errors import LoweringError
from heteroplace.relay.targets import float_lanes, multiplies_integers
from heteroplace.relay.vnni import BYTES, LANES, SUMS, add_products

_FLOAT, _BYTE = "float32", "uint8"
_MAX_BYTE = 255.0
_Places = Callable[[Any], list[tuple[Any, int]]]
"""(first panels of a tile) -> the panel of each vector, and its place within that."""


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
        loop = _Loop(kind, is_backward, lanes, list(ins), list(outs))
        return loop.statement(multiplies_integers(target))

    types = [_FLOAT] * len(shapes)
    results = te.extern(list(shapes), list(tensors), body, name="recurrent", dtype=types)
    return [results] if isinstance(results, te.Tensor) else list(results)


@dataclass
class _Loop:
    """The statement of one layer."""

    kind: str
    is_backward: bool
    lanes: int
    ins: list[tir.Buffer]
    outs: list[tir.Buffer]

    def statement(self, has_vnni: bool) -> tir.Stmt:
        """Return it."""
        self.builder = tir.ir_builder.create()
        products, weights, _, hidden, cell = self.ins[:5]
        self.steps, self.batch, self.columns = (int(each) for each in products.shape)
        self.hidden = int(hidden.shape[1])
        self.panels, self.width = int(weights.shape[0]), int(weights.shape[2])
        self.state = self._buffer("state", (self.batch, self.hidden))
        self.gates = self._buffer("gates", (self.batch, self.columns))
        self._copied(hidden, self.state)
        if self.kind == "lstm":
            self._copied(cell, self.outs[1])
        multiply = self._float_products
        if weights.dtype == "int8":
            self.bytes = self._buffer("bytes", (self.batch, self.hidden), _BYTE)
            self.scratch = self._buffer("scratch", (4 * self.lanes,))
            multiply = self._byte_products if has_vnni else self._plain_byte_products
        with self.builder.for_range(0, self.steps, name="step") as step:
            multiply()
            self._step(self.steps - 1 - step if self.is_backward else step)
        return self.builder.get()

    def _buffer(
        self, name: str, shape: tuple[int, ...], dtype: str = _FLOAT, scope: str = "global"
    ) -> tir.Buffer:
        buffer = tir.decl_buffer(shape, dtype, name, scope=scope)
        self.builder.emit(
            lambda body: tir.Allocate(buffer.data, dtype, shape, tir.const(1, "bool"), body)
        )
        return buffer

    def _vectors(self, extent: int, visit: Callable[[Any, Any], None]) -> None:
        """Call `visit` with each row of the batch and the first place of each vector."""
        with (
            self.builder.for_range(0, self.batch, name="row") as row,
            self.builder.for_range(0, extent // self.lanes, name="vector") as vector,
        ):
            visit(row, vector * self.lanes)

    def _load(self, buffer: tir.Buffer, *at: Any) -> tir.PrimExpr:
        return buffer.vload(list(at), f"{_FLOAT}x{self.lanes}")

    def _all(self, value: tir.PrimExpr | float) -> tir.PrimExpr:
        if isinstance(value, float):
            value = tir.const(value, _FLOAT)
        return tir.Broadcast(value, self.lanes)

    def _copied(self, source: tir.Buffer, target: tir.Buffer) -> None:
        self._vectors(
            self.hidden,
            lambda row, at: self.builder.emit(
                target.vstore([row, at], self._load(source, row, at))
            ),
        )

    def _step(self, time: Any) -> None:
        products = self.ins[0]

        def visit(row: Any, at: Any) -> None:
            def given(gate: int) -> tir.PrimExpr:
                return self._load(products, time, row, at + gate * self.hidden)

            def from_state(gate: int) -> tir.PrimExpr:
                return self._load(self.gates, row, at + gate * self.hidden)

            old = self._load(self.state, row, at)
            if self.kind == "lstm":
                new = self._lstm(row, at, [given(gate) + from_state(gate) for gate in range(4)])
            elif self.kind == "gru":
                update = tir.sigmoid(given(0) + from_state(0))
                reset = tir.sigmoid(given(1) + from_state(1))
                fresh = self.builder.let("fresh", tir.tanh(given(2) + reset * from_state(2)))
                new = fresh + update * (old - fresh)
            else:
                new = tir.tanh(given(0) + from_state(0))
            value = self.builder.let("new_state", new)
            self.builder.emit(self.state.vstore([row, at], value))
            self.builder.emit(self.outs[0].vstore([time, row, at], value))

        self._vectors(self.hidden, visit)

    def _lstm(self, row: Any, at: Any, gates: list[tir.PrimExpr]) -> tir.PrimExpr:
        write, show, keep = (tir.sigmoid(gate) for gate in gates[:3])
        cells = self.outs[1]
        cell = self.builder.let(
            "new_cell", keep * self._load(cells, row, at) + write * tir.tanh(gates[3])
        )
        self.builder.emit(cells.vstore([row, at], cell))
        return show * tir.tanh(cell)

    def _float_products(self) -> None:
        weights, biases = self.ins[1:3]
        sums, places = self._sums(_FLOAT, self.lanes)
        with self._tiles() as (panels, row):
            for number, (panel, at) in enumerate(places(panels)):
                start = self._load(biases, panel * self.width + at)
                self.builder.emit(sums.vstore([number * self.lanes], start))
            with self.builder.for_range(0, self.hidden, name="depth") as depth:
                left = self.builder.let("left", self._all(self.state.vload([row, depth])))
                for number, (panel, at) in enumerate(places(panels)):
                    right = self._load(weights, panel, depth, at)
                    total = self._load(sums, number * self.lanes) + left * right
                    self.builder.emit(sums.vstore([number * self.lanes], total))
            for number, (panel, at) in enumerate(places(panels)):
                total = self._load(sums, number * self.lanes)
                self.builder.emit(self.gates.vstore([row, panel * self.width + at], total))

    def _byte_products(self) -> None:
        scale, zero = self._rounded_state()
        weights = self.ins[1]
        sums, places = self._sums("int32", LANES)
        with self._tiles() as (panels, row):
            for number in range(len(places(panels))):
                self.builder.emit(sums.vstore([number * LANES], tir.const(0, SUMS)))
            with self.builder.for_range(0, self.hidden // BYTES, name="word") as word:
                state = self.bytes.vload([row, word * BYTES], f"{_BYTE}x{BYTES}")
                left = self.builder.let(
                    "left", tir.Broadcast(tir.reinterpret("int32", state), LANES)
                )
                for number, (panel, at) in enumerate(places(panels)):
                    right = weights.vload([panel, word, at, 0], f"int8x{LANES * BYTES}")
                    total = sums.vload([number * LANES], SUMS)
                    total = add_products(total, left, tir.reinterpret(SUMS, right))
                    self.builder.emit(sums.vstore([number * LANES], total))
            for number, (panel, at) in enumerate(places(panels)):
                total = sums.vload([number * LANES], SUMS)
                self._store_gates(row, panel * self.width + at, total, scale, zero)

    def _plain_byte_products(self) -> None:
        """The same for processors without that instruction, as a module may be built for any."""
        scale, zero = self._rounded_state()
        weights = self.ins[1]
        sums = self._buffer("sums", (1,), "int32")
        with (
            self.builder.for_range(0, self.batch, name="row") as row,
            self.builder.for_range(0, self.columns, name="column") as column,
        ):
            self.builder.emit(sums.vstore([0], tir.const(0, "int32")))
            panel, at = tir.indexdiv(column, self.width), tir.indexmod(column, self.width)
            with self.builder.for_range(0, self.hidden, name="depth") as depth:
                word, byte = tir.indexdiv(depth, BYTES), tir.indexmod(depth, BYTES)
                right = weights.vload([panel, word, at, byte]).astype("int32")
                left = self.bytes.vload([row, depth]).astype("int32")
                self.builder.emit(sums.vstore([0], sums.vload([0]) + left * right))
            self._store_gates(row, column, sums.vload([0]), scale, zero)

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

    @contextmanager
    def _tiles(self) -> Iterator[tuple[Any, Any]]:
        """A loop over panels, one or two at once, and rows of the batch."""
        with (
            self.builder.for_range(0, self.panels // self._together(), name="panels") as panels,
            self.builder.for_range(0, self.batch, name="row") as row,
        ):
            yield panels, row

    def _together(self) -> int:
        """Panels that are multiplied at once."""
        return 2 if self.lanes >= LANES and self.panels % 2 == 0 else 1

    def _sums(self, dtype: str, lanes: int) -> tuple[tir.Buffer, _Places]:
        """Return registers for the sums of a tile, and what says for each vector its place."""
        together, vectors = self._together(), range(0, self.width, lanes)
        shape = (together * self.width,)

        def places(panels: Any) -> list[tuple[Any, int]]:
            every = [panels * together + panel for panel in range(together)]
            return [(panel, at) for panel in every for at in vectors]

        return self._buffer("sums", shape, dtype, "local"), places

    def _rounded_state(self) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """Write the state as bytes; return their scale and zero point, both float32."""
        least, most = 0, self.lanes
        for at in (least, most):
            self.builder.emit(self.scratch.vstore([at], self._all(0.0)))

        def widen(row: Any, at: Any) -> None:
            value = self.builder.let("value", self._load(self.state, row, at))
            low = tir.min(self._load(self.scratch, least), value)
            self.builder.emit(self.scratch.vstore([least], low))
            high = tir.max(self._load(self.scratch, most), value)
            self.builder.emit(self.scratch.vstore([most], high))

        self._vectors(self.hidden, widen)
        low, high = (self._folded(at, fold) for at, fold in ((least, tir.min), (most, tir.max)))
        span = self.builder.let("span", high - low)
        one = tir.const(1, _FLOAT)
        scale = self.builder.let(
            "scale", tir.Select(span == tir.const(0, _FLOAT), one, span / tir.const(255, _FLOAT))
        )
        point = tir.nearbyint(tir.const(0, _FLOAT) - low / scale)
        zero = self.builder.let(
            "zero", tir.max(tir.min(point, tir.const(_MAX_BYTE, _FLOAT)), tir.const(0, _FLOAT))
        )

        def round_vector(row: Any, at: Any) -> None:
            steps = self._load(self.state, row, at) / self._all(scale)
            whole = tir.nearbyint(steps) + self._all(zero)
            whole = tir.max(tir.min(whole, self._all(_MAX_BYTE)), self._all(0.0))
            value = whole.astype(f"int32x{self.lanes}").astype(f"{_BYTE}x{self.lanes}")
            self.builder.emit(self.bytes.vstore([row, at], value))

        self._vectors(self.hidden, round_vector)
        return scale, zero

    def _folded(self, at: int, fold: Callable[[Any, Any], tir.PrimExpr]) -> tir.PrimExpr:
        value = self.scratch.vload([at])
        for lane in range(1, self.lanes):
            value = fold(value, self.scratch.vload([at + lane]))
        return self.builder.let("folded", value)
