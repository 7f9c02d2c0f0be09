"""A fused function -> its schedule: ops of our tags by functions of ours, all others inline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import te
from tvm.topi.utils import traverse_inline

ScheduleTagged = Callable[[te.Schedule, te.Tensor, te.Tensor], None]
"""Of (schedule, what the op computes, result of all that is fused behind it)."""


def schedule_by_tag(outs: Any, by_tag: Mapping[str, ScheduleTagged]) -> te.Schedule:
    """Return the schedule of a function: the op in it that has such a tag by its function."""
    result = outs[0]
    schedule = te.create_schedule([each.op for each in outs])

    def visit(op: te.Operation) -> None:
        if op.tag in by_tag:
            by_tag[op.tag](schedule, op.output(0), result)

    traverse_inline(schedule, result.op, visit)
    return schedule


def largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of `number` that is at most `limit`, and at least 1."""
    return next(each for each in range(max(1, min(number, limit)), 0, -1) if number % each == 0)
