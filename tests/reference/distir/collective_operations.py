"""What collectives do: to the arrays of their devices, and to types.

The arguments are what the devices read, in rank order, or the one that the root reads; the outputs
are the tensors that the task makes. DistIR (arXiv 2111.05426, section 2). Sums ascend by rank, so
that they are the same wherever they are computed.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np

from heteroplace.errors import GraphError
from heteroplace.model.collectives import collective_op
from tests.reference.distir.dispatch import (
    Array,
    Level,
    OpCall,
    Operations,
    TensorType,
)


def _sum(call: OpCall, *parts: Array) -> list[Array]:
    return [reduce(add, parts)]


def _first(call: OpCall, whole: Any, *others: Any) -> list[Any]:
    return [whole]


def _join(call: OpCall, *parts: Array) -> list[Array]:
    (output,) = call.outputs
    axis = _axis(call, output.shape, [part.shape for part in parts])
    return [np.concatenate(parts, axis=axis)]


def _cut(call: OpCall, whole: Array) -> list[Array]:
    shapes = [output.shape for output in call.outputs]
    axis = _axis(call, whole.shape, shapes)
    ends = np.cumsum([shape[axis] for shape in shapes])
    return list(np.split(whole, ends[:-1], axis=axis))


def _sum_and_cut(call: OpCall, *parts: Array) -> list[Array]:
    return _cut(call, *_sum(call, *parts))


def _exchange(call: OpCall, *parts: Array) -> list[Array]:
    """Output i joins the i-th parts of all inputs: cut along one axis, joined along another."""
    made = [output.shape for output in call.outputs]
    first = parts[0].shape
    cut = [axis for axis, extent in enumerate(first) if made[0][axis] < extent]
    joined = [axis for axis, extent in enumerate(first) if made[0][axis] > extent]
    if len(cut) != 1 or len(joined) != 1:
        raise GraphError(
            f"task {call.task.name!r}: all_to_all of {list(first)} to {list(made[0])}; expected "
            f"one axis that becomes shorter and one that becomes longer"
        )
    ends = np.cumsum([shape[cut[0]] for shape in made])[:-1]
    blocks = [np.split(part, ends, axis=cut[0]) for part in parts]
    return [
        np.concatenate([row[position] for row in blocks], axis=joined[0])
        for position in range(len(made))
    ]


def _axis(call: OpCall, whole: tuple[int, ...], parts: list[tuple[int, ...]]) -> int:
    """The only axis whose extents differ."""
    axes = [
        axis
        for axis, extent in enumerate(whole)
        if any(len(part) != len(whole) or part[axis] != extent for part in parts)
    ]
    is_cut = len(axes) == 1 and sum(part[axes[0]] for part in parts) == whole[axes[0]]
    if not is_cut:
        raise GraphError(
            f"task {call.task.name!r}: {', '.join(map(str, map(list, parts)))} are no parts of "
            f"{list(whole)} along one axis"
        )
    return axes[0]


def _types(call: OpCall, *parts: TensorType) -> list[TensorType]:
    """What the graph says; parts of a sum must be alike."""
    if len({part.dtype for part in parts}) > 1:
        raise GraphError(f"task {call.task.name!r}: its devices have {', '.join(map(str, parts))}")
    return [TensorType(output.shape, parts[0].dtype) for output in call.outputs]


def _sum_type(call: OpCall, *parts: TensorType) -> list[TensorType]:
    if len(set(parts)) > 1:
        raise GraphError(f"task {call.task.name!r}: it adds up {', '.join(map(str, parts))}")
    return [parts[0]]


def _join_type(call: OpCall, *parts: TensorType) -> list[TensorType]:
    (output,) = call.outputs
    _axis(call, output.shape, [part.static_shape for part in parts])
    return _types(call, *parts)


def _cut_type(call: OpCall, whole: TensorType, *others: TensorType) -> list[TensorType]:
    _axis(call, whole.static_shape, [output.shape for output in call.outputs])
    return _types(call, whole, *others)


def register_collective_operations(operations: Operations) -> None:
    """Add the kinds of `model.collectives`, for any number of devices."""
    for kind, on_arrays, on_types in (
        ("all_reduce", _sum, _sum_type),
        ("reduce", _sum, _sum_type),
        ("broadcast", _first, _first),
        ("all_gather", _join, _join_type),
        ("gather", _join, _join_type),
        ("scatter", _cut, _cut_type),
        ("reduce_scatter", _sum_and_cut, _cut_type),
        ("all_to_all", _exchange, _types),
    ):
        op = collective_op(kind)
        operations.register(op, [Level.CONCRETE], on_arrays, is_variadic=True)
        operations.register(op, [Level.TYPED], on_types, is_variadic=True)
