"""A cache, rows and their places -> the cache with the rows: the kernel for CPUs of `op.py`.

All of the cache is copied, and then the rows are written. The copy is marked by `KEPT_ROWS`: where
the result is in the bytes of the cache, it is left out (`lower/rows_in_place.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tir

from heteroplace.relay.targets import float_lanes

KEPT_ROWS = "heteroplace_kept_rows"
"""Attribute around what copies an operand to its own place in the result."""
_MIN_SHARED = 2**16
"""Elements of the rows that cores share: for fewer, to wake the cores takes longer."""


def write_rows_kernel(cache: te.Tensor, rows: te.Tensor, start: te.Tensor) -> te.Tensor:
    """Return the cache with the rows, [batch, heads, capacity, size]."""
    lanes = math.gcd(float_lanes(tvm.target.Target.current()), int(cache.shape[3]))

    def body(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        (target,) = outs
        return _statement(ins, target, lanes)

    return te.extern(
        [cache.shape], [cache, rows, start], body, name="write_rows", dtype=cache.dtype
    )


def _statement(operands: Sequence[tir.Buffer], result: tir.Buffer, lanes: int) -> tir.Stmt:
    cache, rows, start = operands
    builder = tir.ir_builder.create()
    batch, heads, capacity, size = map(int, cache.shape)
    length = int(rows.shape[2])
    kind = f"{cache.dtype}x{lanes}" if lanes > 1 else cache.dtype

    def copy(source: tir.Buffer, row: Sequence[Any], target_row: Sequence[Any]) -> None:
        with builder.for_range(0, size // lanes, "vector") as vector:
            value = source.vload([*row, vector * lanes], kind)
            builder.emit(result.vstore([*target_row, vector * lanes], value))

    with builder.new_scope():
        builder.scope_attr(tir.StringImm(KEPT_ROWS), KEPT_ROWS, 1)
        with (
            builder.for_range(0, batch * heads, "head", kind="parallel") as head,
            builder.for_range(0, capacity, "row") as row,
        ):
            at = tir.indexdiv(head, heads), tir.indexmod(head, heads), row
            copy(cache, at, at)
    is_shared = batch * heads * length * size >= _MIN_SHARED
    with (
        builder.for_range(
            0, batch * heads, "head", kind="parallel" if is_shared else "serial"
        ) as head,
        builder.for_range(0, length, "row") as row,
    ):
        sequence, own = tir.indexdiv(head, heads), tir.indexmod(head, heads)
        place = builder.let("place", start.vload([sequence]) + row)
        with builder.if_scope(tir.all(place >= 0, place < capacity)):
            copy(rows, (sequence, own, row), (sequence, own, place))
    return builder.get()
