"""Schedule of a concatenation and all that is fused with it: each vector is of one operand.

TVM has two ways. One copies operands, and stores whatever is fused before or behind first. The
other asks for each number which operand it comes from: rotary positions of 256 x 9 x 64 numbers
took 318 us. Here no vector is across a boundary between operands, so one question is asked for all
of it, and they take 11 us (two cores of an Intel Xeon, family 6, model 207).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

from tvm import te

from heteroplace.parts.kernels.cpu.fused_schedules import largest_divisor
from heteroplace.parts.kernels.cpu.product_tiles import shape_of

_MAX_WIDTH, _MIN_WIDTH = 16, 4
"""Numbers of a vector."""
_MIN_SHARED = 2**13
"""Numbers that cores share: for fewer, to wake the cores takes longer."""


def can_join_vectors(operands: Sequence[te.Tensor], axis: int) -> bool:
    """Tell whether that is faster than to copy operands along an axis."""
    is_fused = any(isinstance(each.op, te.ComputeOp) for each in operands)
    return is_fused or _width(operands, axis) >= _MIN_WIDTH


def schedule_joined_rows(outs: Any, operands: Sequence[te.Tensor], axis: int) -> te.Schedule:
    """Schedule a function that has such a concatenation."""
    schedule = te.create_schedule([each.op for each in outs])
    te.schedule.AutoInlineInjective(schedule)
    for out in outs:
        _schedule_rows(schedule, out, _width(operands, axis))
    return schedule


def _width(operands: Sequence[te.Tensor], axis: int) -> int:
    """Return how many numbers of a row are together: a power of two, if there is one."""
    rows = [shape_of(each)[-1] for each in operands]
    is_row = axis % len(operands[0].shape) == len(operands[0].shape) - 1
    common = gcd(*rows) if is_row else rows[0]
    power = gcd(common, _MAX_WIDTH)
    return power if power >= _MIN_WIDTH else largest_divisor(common, _MAX_WIDTH)


def _schedule_rows(schedule: te.Schedule, out: te.Tensor, width: int) -> None:
    """Put each row on vectors, and let cores share the rows."""
    stage = schedule[out]
    *outer, row = stage.op.axis
    shape = shape_of(out)
    block, lanes = stage.split(row, factor=gcd(shape[-1], width))
    stage.vectorize(lanes)
    if prod(shape) < _MIN_SHARED:
        return
    shared = outer[: 3 if len(outer) > 3 else 2]
    stage.parallel(stage.fuse(*shared) if shared else block)
