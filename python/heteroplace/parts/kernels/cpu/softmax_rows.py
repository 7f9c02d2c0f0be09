"""Softmax of rows on vectors, for CPUs: the largest, what exp makes, its sum and the quotients.

TVM finds the largest and the sum one element after the other, each waiting for the one before. Here
each lane of a vector has its own, and these are put together at the end. The last vector of a row
begins where it ends at the row's end: lanes that the vector before has are not added once more.

A NaN in a row makes all of it NaN, as the sum is then.
"""

from __future__ import annotations

from functools import reduce
from math import prod
from operator import add
from typing import Any

from tvm import te, tir, topi

from heteroplace.parts.kernels.cpu.product_tiles import shape_of, vector_bytes

_DTYPE, _ITEM_BYTES = "float32", 4


def can_be_on_vectors(shape: tuple[int, ...], dtype: str, axis: int) -> bool:
    """Tell whether rows are whole in memory and fill a vector of the current target."""
    is_row = axis % len(shape) == len(shape) - 1
    return is_row and dtype == _DTYPE and shape[-1] >= vector_bytes() // _ITEM_BYTES


def softmax_rows(x: te.Tensor) -> te.Tensor:
    """Return the softmax along the last axis of what `can_be_on_vectors`."""

    def body(ins: Any, outs: Any) -> tir.Stmt:
        return _body(ins[0], outs[0])

    return te.extern([x.shape], [x], body, "softmax", dtype=_DTYPE)


def schedule_softmax_rows(outs: Any) -> te.Schedule:
    """Schedule it, and what is elementwise behind it."""
    schedule = te.create_schedule([each.op for each in outs])
    if isinstance(outs[0].op, te.ComputeOp):
        te.schedule.AutoInlineInjective(schedule)
        topi.x86.injective.schedule_injective_from_existing(schedule, outs[0])
    return schedule


def _body(source: tir.Buffer, target: tir.Buffer) -> tir.Stmt:
    *outer, columns = shape_of(source)
    lanes = vector_bytes() // _ITEM_BYTES
    vectors, rest = divmod(columns, lanes)
    kind = f"{_DTYPE}x{lanes}"
    ib = tir.ir_builder.create()
    x, y = ib.buffer_ptr(source), ib.buffer_ptr(target)

    def splat(value: Any) -> tir.PrimExpr:
        return tir.Broadcast(value, lanes)

    def larger(one: Any, other: Any) -> Any:
        return tir.Select(one > other, one, other)

    with ib.for_range(0, prod(outer), "row", kind="parallel") as row:
        place: list[Any] = []
        left = row
        for extent in reversed(outer):
            place.insert(0, tir.indexmod(left, extent))
            left = tir.indexdiv(left, extent)

        def at(first: Any) -> tuple[Any, ...]:
            return (*place, tir.Ramp(tir.const(0, "int32") + first, 1, lanes))

        held = ib.allocate(_DTYPE, (lanes,), "held", scope="local")
        end = ib.allocate(_DTYPE, (lanes,), "end", scope="local")
        most = ib.allocate(_DTYPE, (1,), "most", scope="local")
        whole = tir.Ramp(tir.const(0, "int32"), 1, lanes)
        last = at(columns - lanes)
        held[whole] = x[last]
        with ib.for_range(0, vectors, "vector") as vector:
            held[whole] = larger(x[at(vector * lanes)], held[whole])
        most[0] = held[0]
        for lane in range(1, lanes):
            most[0] = larger(held[lane], most[0])
        held[whole] = splat(tir.const(0, _DTYPE))
        with ib.for_range(0, vectors, "vector") as vector:
            here = at(vector * lanes)
            y[here] = tir.exp(x[here] - splat(most[0]))
            held[whole] = held[whole] + y[here]
        if rest:
            end[whole] = tir.exp(x[last] - splat(most[0]))
            is_new = tir.Ramp(0, 1, lanes) >= splat(tir.const(lanes - rest, "int32"))
            held[whole] = held[whole] + tir.Select(is_new, end[whole], tir.const(0, kind))
        most[0] = reduce(add, [held[lane] for lane in range(lanes)])
        with ib.for_range(0, vectors, "vector") as vector:
            here = at(vector * lanes)
            y[here] = y[here] / splat(most[0])
        if rest:
            y[last] = end[whole] / splat(most[0])
    return ib.get()
