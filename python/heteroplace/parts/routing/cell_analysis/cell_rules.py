"""An op and the cells in its operands -> the cells in its results.

Rules go by kind: ops that work element by element, ops that only move elements (they are run on
the numbers of the elements), ops that work along an axis, and products, in which the zeros of a
constant kill dependences. An op's record (`cells`, in `model/op_traits`) names its rule. An op
without one broadcasts by its shapes, or mixes all that it reads.

A dependence is one of values: what is multiplied by a constant 0 counts as gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relay

from heteroplace.model.op_traits.op_table import rules_by_op
from heteroplace.parts.routing.cell_analysis.cell_sets import (
    CellOperand,
    Sets,
    compact,
    empty_sets,
    everywhere,
    union,
    with_rank,
)
from heteroplace.parts.routing.cell_analysis.cell_windows import convolved, pooled
from heteroplace.relay.axes.rules import is_broadcast
from heteroplace.relay.expressions import static_shape, tensor_types
from heteroplace.relay.tasks.fold_ops import EVALUATORS

MAX_ZERO_TEST = 2**16
"""Entries of a constant; of a larger one every entry counts as other than 0."""

_Rule = Callable[[Any, Sequence[CellOperand], int], "list[Sets] | None"]
"""Of a call, the tensors it reads (tuples flattened) and the words of a set; None: not known."""


def transfer(call: relay.Call, operands: Sequence[CellOperand], words: int) -> list[Sets]:
    """Return the sets of every tensor that a call of an op makes.

    Parameters
    ----------
    call
        Its type is inferred.
    operands
        The tensors that it reads, tuples flattened.
    words
        Of a set.
    """
    types = tensor_types(call.checked_type)
    ranks = [len(type_.shape) for type_ in types]
    if all(operand.is_empty for operand in operands):
        return [empty_sets(rank, words) for rank in ranks]
    name = call.op.name
    moved: list[Sets] | None = None
    if name in _RULES:
        moved = _RULES[name](call, operands, words)
    elif len(types) == 1 and all(
        isinstance(argument.checked_type, relay.TensorType) for argument in call.args
    ):
        moved = _broadcast(call, operands, words) if is_broadcast(call) else None
    if moved is None:
        return [everywhere(operands, rank, words) for rank in ranks]
    return [compact(sets) for sets in moved]


def nonzero(operand: CellOperand) -> np.ndarray | None:
    """Return where a constant is not 0; None: everywhere, as far as is known."""
    value = operand.value
    if value is None or value.size > MAX_ZERO_TEST:
        return None
    is_nonzero = value != 0
    return None if is_nonzero.all() else np.asarray(is_nonzero)


def contracted(sets: Sets, is_present: np.ndarray | None) -> Sets:
    """Return the cells that reach the elements of a product from one of its two factors.

    Parameters
    ----------
    sets
        Of the factor [batch, m, k]: [.., words], extents 1 where all are equal.
    is_present
        Where the other factor [batch, n, k] is not 0; None: everywhere.

    Returns
    -------
    Of the product [batch, m, n]; 1 along n where all are equal.
    """
    if is_present is None:
        return union(sets, [2])
    patterns, inverse = np.unique(
        is_present.reshape(-1, is_present.shape[-1]), axis=0, return_inverse=True
    )
    which: npt.NDArray[np.intp] = inverse.reshape(is_present.shape[:-1])  # [batch or 1, n]
    full = np.broadcast_to(sets, (*sets.shape[:2], is_present.shape[-1], sets.shape[-1]))
    parts = np.stack([union(full[:, :, pattern], [2])[:, :, 0] for pattern in patterns])
    batch = max(sets.shape[0], which.shape[0])
    parts = np.broadcast_to(parts, (parts.shape[0], batch, *parts.shape[2:]))
    which = np.broadcast_to(which, (batch, which.shape[1]))
    # [batch, n, m, words] by the pattern of each (batch, n)
    contributions = parts[which, np.arange(batch)[:, None]]
    return np.asarray(contributions.transpose(0, 2, 1, 3))


def _broadcast(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets]:
    """Each element of the result is made of those at its place."""
    rank = len(call.checked_type.shape)
    sets = empty_sets(rank, words)
    for operand in operands:
        sets = sets | with_rank(operand.sets, rank)
    return [sets]


def _multiply(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets]:
    """A constant factor of 0 ends what is at its place."""
    rank = len(call.checked_type.shape)
    (sets,) = _broadcast(call, operands, words)
    for operand in operands:
        is_present = nonzero(operand)
        if is_present is not None:
            mask = is_present.reshape(*[1] * (rank - is_present.ndim), *is_present.shape, 1)
            sets = np.where(mask, sets, np.uint64(0))
    return [sets]


def _where(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets]:
    """A constant condition chooses."""
    condition = operands[0].value
    if condition is None or condition.size > MAX_ZERO_TEST:
        return _broadcast(call, operands, words)
    rank = len(call.checked_type.shape)
    then, otherwise = (with_rank(operand.sets, rank) for operand in operands[1:])
    chosen = (condition != 0).reshape(*[1] * (rank - condition.ndim), *condition.shape, 1)
    return [np.where(chosen, then, otherwise)]


def _moved(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets] | None:
    """The op is run on the numbers of the elements of its operands."""
    parts: list[Sets] = []
    values: list[Any] = []
    count = 0
    for operand in operands:
        full = operand.full()
        if full is None:
            return None
        if operand.value is not None and call.op.name in ("take", "gather_nd"):
            values.append(operand.value)
            continue
        size = full[..., 0].size
        values.append(np.arange(count, count + size).reshape(operand.shape))
        parts.append(full.reshape(-1, words))
        count += size
    arguments = [values] if call.op.name in ("concatenate", "stack") else values
    moved = EVALUATORS[call.op.name](call.attrs, arguments, call.checked_type)
    if moved is None:
        return None
    sets = np.concatenate(parts)
    return [sets[ids] for ids in (moved if isinstance(moved, list) else [moved])]


def _taken(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets] | None:
    """Of constant indices the very elements; of others whatever they may find, and they."""
    data, indices = operands
    if indices.value is not None and (moved := _moved(call, operands, words)) is not None:
        return moved
    if call.attrs.axis is None or int(call.attrs.batch_dims):
        return None
    axis = int(call.attrs.axis) % len(data.shape)
    table = union(data.sets, [axis])
    before, after = table.shape[:axis], table.shape[axis + 1 :]
    table = table.reshape(*before, *[1] * len(indices.shape), *after)
    rest = [1] * (len(data.shape) - axis - 1)
    return [table | indices.sets.reshape(*[1] * axis, *indices.sets.shape[:-1], *rest, words)]


def _padded(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets] | None:
    full = operands[0].full()
    if full is None or str(call.attrs.pad_mode) != "constant" or not operands[1].is_empty:
        return None
    widths = [(int(low), int(high)) for low, high in call.attrs.pad_width]
    if min(min(pair) for pair in widths) < 0:
        return None
    return [np.pad(full, [*widths, (0, 0)])]


def _axes(call: Any, rank: int) -> list[int]:
    """The axes that the attribute `axis` of a call names; none named: all."""
    axis = call.attrs.axis
    if axis is None:
        return list(range(rank))
    named = [int(each) % rank for each in (axis if hasattr(axis, "__len__") else [axis])]
    if getattr(call.attrs, "exclude", False):
        return [each for each in range(rank) if each not in named]
    return named


def _reduced(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets]:
    rank = len(operands[0].shape)
    axes = _axes(call, rank)
    (sets,) = [operands[0].sets] if len(operands) == 1 else _joined(operands)
    sets = union(sets, axes)
    return [sets if call.attrs.keepdims else np.squeeze(sets, axis=tuple(axes))]


def _joined(operands: Sequence[CellOperand]) -> list[Sets]:
    """`variance` reads the mean as well."""
    sets = operands[0].sets
    for operand in operands[1:]:
        sets = sets | with_rank(operand.sets, sets.ndim - 1)
    return [sets]


def _along_axis(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets]:
    """All along the axis meet, and the result has them all."""
    sets = union(operands[0].sets, _axes(call, len(operands[0].shape)))
    return [sets for _ in tensor_types(call.checked_type)]


def _normalised(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets]:
    """`layer_norm`: along its axis, then a scale and a shift of it."""
    axis = _axes(call, len(operands[0].shape))[0]
    sets = union(operands[0].sets, [axis])
    return [_with_vectors(sets, operands[1:], axis)]


def _with_vectors(sets: Sets, vectors: Sequence[CellOperand], axis: int) -> Sets:
    """The sets with those of vectors along an axis."""
    for vector in vectors:
        shape = [1] * (sets.ndim - 1)
        shape[axis] = vector.sets.shape[0]
        sets = sets | vector.sets.reshape(*shape, sets.shape[-1])
    return sets


def _channelwise(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets]:
    """`bias_add`, `prelu`, `batch_norm` with learnt figures: a function for each channel."""
    axis = int(call.attrs.axis) % len(operands[0].shape)
    sets = _with_vectors(operands[0].sets, operands[1:], axis)
    rest = tensor_types(call.checked_type)[1:]
    return [sets, *(operand.sets for operand in operands[-len(rest) :] if rest)]


def _item_normalised(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets]:
    """`instance_norm`, `group_norm`: over the places, and of a group norm over all channels."""
    axis, rank = int(call.attrs.axis), len(operands[0].shape)
    axis %= rank
    apart = {0, axis} if call.op.name == "nn.instance_norm" else {0}
    sets = union(operands[0].sets, [each for each in range(rank) if each not in apart])
    return [_with_vectors(sets, operands[1:], axis)]


def _accumulated(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets] | None:
    full, axis = operands[0].full(), call.attrs.axis
    if full is None or axis is None:
        return None
    axis = int(axis) % len(operands[0].shape)
    sets = np.bitwise_or.accumulate(full, axis=axis)
    if call.attrs.exclusive:
        sets = np.roll(sets, 1, axis=axis)
        sets[(slice(None),) * axis + (0,)] = 0
    return [sets]


def _product(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets]:
    """`dense`, `matmul`, `batch_matmul`: both factors with the summed axis last."""
    attrs, name = call.attrs, call.op.name
    is_turned = [False, name == "nn.dense"]
    if name != "nn.dense":
        is_turned = [bool(attrs.transpose_a), bool(attrs.transpose_b)]
    # As [batch, m, k] and [batch, n, k].
    left = _oriented(operands[0], is_turned[0])
    right = _oriented(operands[1], not is_turned[1])
    result = contracted(left.sets, nonzero(right))
    other = contracted(right.sets, nonzero(left)).transpose(0, 2, 1, 3)
    sets = result | other
    rank = len(call.checked_type.shape)
    shape = static_shape(call.checked_type)[: rank - 2]
    leading = sets.shape[:1] if rank == 3 else (1,) * len(shape)
    return [sets.reshape(*leading, *sets.shape[1:])]


def _oriented(operand: CellOperand, is_turned: bool) -> CellOperand:
    """A factor of three axes, the summed one last."""
    shape, sets, value = operand
    if len(shape) == 2:
        shape, sets = (1, *shape), sets[None]
        value = None if value is None else value[None]
    if is_turned:
        shape, sets = (shape[0], shape[2], shape[1]), sets.transpose(0, 2, 1, 3)
        value = None if value is None else value.transpose(0, 2, 1)
    return CellOperand(shape, sets, value)


def _convolved(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets] | None:
    data, weight = operands
    if not weight.is_empty:
        return None
    is_known = weight.value is not None and weight.value.size <= MAX_ZERO_TEST
    is_present = weight.value != 0 if weight.value is not None and is_known else None
    return convolved(call, data, weight.shape, is_present)


def _pooled(call: Any, operands: Sequence[CellOperand], words: int) -> list[Sets] | None:
    return pooled(call, operands[0])


_RULES: Mapping[str, _Rule] = rules_by_op(
    lambda op: op.cells,
    {
        "move": _moved,  # the results are elements of the operands, by place alone
        "take": _taken,
        "pad": _padded,
        "broadcast": _broadcast,  # of `trilu`: each element is that at its place, or 0
        "multiply": _multiply,
        "where": _where,
        "reduce": _reduced,
        "axis": _along_axis,
        "accumulate": _accumulated,
        "layer_norm": _normalised,
        "items": _item_normalised,
        "channels": _channelwise,
        "product": _product,
        "convolution": _convolved,
        "pool": _pooled,
    },
)
"""By op."""
