"""Schedule of sums of rows, for CPUs: as many parts side by side as a vector has lanes.

TVM adds one element after the other, each waiting for the one before. Where an axis that is
contiguous in memory is summed up, here

    parts[lane] = sum over k of x[row, k * lanes + lane]       on a vector
    result[row] = sum over lanes of parts

What is elementwise before is computed on vectors with it.
"""

from __future__ import annotations

from typing import Any

from tvm import te
from tvm.topi import tag

from heteroplace.parts.kernels.cpu.product_tiles import item_bytes_of, shape_of, vector_bytes

_REDUCE_TAG = "comm_reduce"
_MIN_VECTORS = 2
"""Of a row."""


def row_fold(outs: Any, axes: tuple[int, ...]) -> te.Operation | None:
    """Return the fold in a fused function that can be made on vectors; None: there is no such.

    Parameters
    ----------
    axes
        Of the operand that are folded.
    """
    outs = [outs] if isinstance(outs, te.Tensor) else outs
    op = outs[0].op
    while isinstance(op, te.ComputeOp) and op.tag != _REDUCE_TAG and tag.is_broadcast(op.tag):
        computed = [each.op for each in op.input_tensors if isinstance(each.op, te.ComputeOp)]
        if len(computed) != 1:
            return None
        op = computed[0]
    if len(outs) != 1 or not isinstance(op, te.ComputeOp) or op.tag != _REDUCE_TAG:
        return None
    (operand, *others) = op.input_tensors
    if others or len(op.reduce_axis) != 1 or len(axes) != 1 or not _is_injective_before(operand.op):
        return None
    row, last = shape_of(operand)[-1], len(operand.shape) - 1
    lanes = vector_bytes() // item_bytes_of(op.output(0))
    is_row = axes[0] % len(operand.shape) == last and int(op.reduce_axis[0].dom.extent) == row
    is_float = operand.dtype == op.output(0).dtype == "float32"
    return op if is_row and is_float and row % lanes == 0 and row >= _MIN_VECTORS * lanes else None


def schedule_row_fold(outs: Any, fold: te.Operation) -> te.Schedule:
    """Schedule `fold`, one of `row_fold`, and what is fused with it."""
    (result,) = [outs] if isinstance(outs, te.Tensor) else outs
    schedule = te.create_schedule([result.op])
    inline_before(schedule, fold.input_tensors[0].op)
    op = result.op
    while not op.same_as(fold):
        (op,) = (each.op for each in op.input_tensors if isinstance(each.op, te.ComputeOp))
        if not op.same_as(fold):
            schedule[op].compute_inline()
    total = fold.output(0)
    parts = fold_on_vectors(schedule, total)
    whole = schedule[result]
    row = whole.fuse(*whole.op.axis)
    whole.parallel(row)
    if not result.op.same_as(fold):
        schedule[total].compute_at(whole, row)
    schedule[parts].compute_at(whole, row)
    return schedule


def fold_on_vectors(schedule: te.Schedule, fold: te.Tensor) -> te.Tensor:
    """Cut a fold of rows into one for each lane, which is returned, and one of all lanes."""
    stage = schedule[fold]
    lanes = vector_bytes() // item_bytes_of(fold)
    _, lane = stage.split(stage.op.reduce_axis[0], lanes)
    parts = schedule.rfactor(fold, lane, len(fold.shape))
    part = schedule[parts]
    part.reorder(*part.op.axis[:-1], *part.op.reduce_axis, part.op.axis[-1])
    part.vectorize(part.op.axis[-1])
    stage.unroll(stage.op.reduce_axis[0])
    return parts


def inline_before(schedule: te.Schedule, op: te.Operation) -> None:
    """Compute what is injective before a fold with it."""
    if isinstance(op, te.ComputeOp):
        schedule[op].compute_inline()
        for each in op.input_tensors:
            inline_before(schedule, each.op)


def _is_injective_before(op: te.Operation) -> bool:
    if not isinstance(op, te.ComputeOp):
        return True
    return bool(tag.is_injective(op.tag)) and all(
        _is_injective_before(each.op) for each in op.input_tensors
    )
