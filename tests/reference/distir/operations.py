"""What the ops of sharded graphs do: to arrays, and to types.

The ops of `transforms.mlp`, and those that compute shapes (DistIR, arXiv 2111.05426, section 3.3).
Arguments come in the order of the tensors' ids, weights first. Others register their own with
`OPERATIONS.register`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heteroplace.errors import GraphError
from tests.reference.distir.collective_operations import (
    register_collective_operations,
)
from tests.reference.distir.dispatch import (
    Array,
    Level,
    OpCall,
    Operations,
    TensorType,
)

_CONCRETE, _TYPED, _ANY = Level.CONCRETE, Level.TYPED, Level.ANY


def _fault(call: OpCall, *types: object) -> GraphError:
    given = ", ".join(map(str, types))
    return GraphError(
        f"task {call.task.name!r}: op {call.name!r} cannot be applied to ({given}); check the "
        f"shapes of the graph"
    )


# Perceptrons, on arrays.


def _matmul(call: OpCall, weight: Array, x: Array) -> list[Array]:
    return [x @ weight]


def _relu(call: OpCall, z: Array) -> list[Array]:
    return [np.maximum(z, z.dtype.type(0))]


def _dense(call: OpCall, weight: Array, x: Array) -> list[Array]:
    return _relu(call, x @ weight)


def _loss_grad(call: OpCall, y: Array, p: Array) -> list[Array]:
    """The gradient of the sum of squares over two, divided by the whole batch.

    Halves are divided in float32: a batch of more than 65504 is infinite among them.
    """
    (batch,) = call.attributes
    wide = np.result_type(p.dtype, np.float32)
    difference = p.astype(wide) - y.astype(wide)
    return [(difference / wide.type(float(batch))).astype(p.dtype)]


def _relu_grad(call: OpCall, z: Array, da: Array) -> list[Array]:
    return [da * (z > 0).astype(da.dtype)]


def _matmul_dw(call: OpCall, x: Array, dz: Array) -> list[Array]:
    return [x.T @ dz]


def _matmul_dx(call: OpCall, weight: Array, dz: Array) -> list[Array]:
    return [dz @ weight.T]


def _dense_grad(call: OpCall, weight: Array, x: Array, da: Array) -> list[Array]:
    """Gradients of weight and input, or of the weight alone."""
    (dz,) = _relu_grad(call, x @ weight, da)
    return [x.T @ dz, dz @ weight.T][: len(call.outputs)]


def _identity(call: OpCall, value: Any) -> list[Any]:
    return [value]


def _slice(call: OpCall, whole: Array) -> list[Array]:
    """The part of a lane, which is as long as the output along the only axis that differs."""
    (output,) = call.outputs
    (lane,) = call.attributes
    axes = [a for a, extent in enumerate(output.shape) if extent != whole.shape[a]]
    if len(axes) != 1:
        raise _fault(call, list(whole.shape), list(output.shape))
    extent = output.shape[axes[0]]
    return [np.take(whole, np.arange(extent) + int(lane) * extent, axis=axes[0])]


def _sgd(call: OpCall, weight: Array, *others: Array) -> list[Array]:
    """weight - rate * gradient; with momentum m, the direction m' = share * m + gradient."""
    number = weight.dtype.type
    rate = number(float(call.attributes[0]))
    if len(others) == 1:
        return [weight - rate * others[0]]
    moment, gradient = others
    moment = number(float(call.attributes[1])) * moment + gradient
    return [weight - rate * moment, moment]


# The same on types.


def _product(call: OpCall, first: TensorType, second: TensorType) -> list[TensorType]:
    """Of two matrices."""
    rows, inner = _matrix(call, first)
    found, columns = _matrix(call, second)
    if inner != found or first.dtype != second.dtype:
        raise _fault(call, first, second)
    return [TensorType((rows, columns), first.dtype)]


def _matrix(call: OpCall, value: TensorType) -> tuple[int, int]:
    if len(value.static_shape) != 2:
        raise _fault(call, value)
    rows, columns = value.static_shape
    return rows, columns


def _transposed(call: OpCall, value: TensorType) -> TensorType:
    rows, columns = _matrix(call, value)
    return TensorType((columns, rows), value.dtype)


def _matmul_type(call: OpCall, weight: TensorType, x: TensorType) -> list[TensorType]:
    return _product(call, x, weight)


def _matmul_dw_type(call: OpCall, x: TensorType, dz: TensorType) -> list[TensorType]:
    return _product(call, _transposed(call, x), dz)


def _matmul_dx_type(call: OpCall, weight: TensorType, dz: TensorType) -> list[TensorType]:
    return _product(call, dz, _transposed(call, weight))


def _dense_grad_type(
    call: OpCall, weight: TensorType, x: TensorType, da: TensorType
) -> list[TensorType]:
    if _product(call, x, weight) != [da]:
        raise _fault(call, weight, x, da)
    return [weight, x][: len(call.outputs)]


def _equal_types(call: OpCall, *values: TensorType) -> list[TensorType]:
    if len(set(values)) > 1:
        raise _fault(call, *values)
    return [values[0]]


def _sgd_type(call: OpCall, *values: TensorType) -> list[TensorType]:
    (found,) = _equal_types(call, *values)
    return [found] * len(call.outputs)


def _slice_type(call: OpCall, whole: TensorType) -> list[TensorType]:
    (output,) = call.outputs
    pairs = zip(whole.static_shape, output.shape, strict=False)
    is_part = len(whole.static_shape) == len(output.shape)
    if not is_part or sum(a != b for a, b in pairs) != 1:
        raise _fault(call, whole, list(output.shape))
    return [TensorType(output.shape, whole.dtype)]


# Shapes.


def _elementwise(function: Callable[[Array, Array], Array]) -> Callable[..., list[Array]]:
    def run(call: OpCall, first: Array, second: Array) -> list[Array]:
        return [function(first, second)]

    return run


def broadcast_type(call: OpCall, first: TensorType, second: TensorType) -> list[TensorType]:
    """Return the type of an elementwise op of two tensors, by numpy's rules.

    An extent that is unknown on one side is that of the other side if this is not 1.
    """
    if first.dtype != second.dtype:
        raise _fault(call, first, second)
    if first.shape is None or second.shape is None:
        return [TensorType(None, first.dtype)]
    length = max(len(first.shape), len(second.shape))
    padded = [(1,) * (length - len(value.shape or ())) + (value.shape or ())
              for value in (first, second)]  # fmt: skip
    shape: list[int | None] = []
    for a, b in zip(*padded, strict=True):
        if a is not None and b is not None and a != b and 1 not in (a, b):
            raise _fault(call, first, second)
        if a is None or b is None:
            known = b if a is None else a
            shape.append(None if known in (None, 1) else known)
        else:
            shape.append(b if a == 1 else a)
    return [TensorType(tuple(shape), first.dtype)]


def _shape(call: OpCall, value: Array) -> list[Array]:
    return [np.array(value.shape, np.int64)]


def _shape_of_type(call: OpCall, value: TensorType) -> list[Array]:
    return [np.array(value.static_shape, np.int64)]


def _shape_of_any(call: OpCall, value: TensorType) -> list[TensorType]:
    return [TensorType(None if value.shape is None else (len(value.shape),), "int64")]


def _gather(call: OpCall, data: Array, indices: Array) -> list[Array]:
    return [np.asarray(np.take(data, indices, axis=0))]


def _gather_type(call: OpCall, data: TensorType, indices: TensorType) -> list[TensorType]:
    if data.shape is None or indices.shape is None:
        return [TensorType(None, data.dtype)]
    return [TensorType((*indices.shape, *data.shape[1:]), data.dtype)]


def _unsqueeze(call: OpCall, value: Array) -> list[Array]:
    return [np.expand_dims(value, 0)]


def _unsqueeze_type(call: OpCall, value: TensorType) -> list[TensorType]:
    shape = None if value.shape is None else (1, *value.shape)
    return [TensorType(shape, value.dtype)]


def _concat(call: OpCall, *values: Array) -> list[Array]:
    return [np.concatenate(values)]


def _concat_type(call: OpCall, *values: TensorType) -> list[TensorType]:
    """Along the first axis."""
    if len({value.dtype for value in values}) > 1:
        raise _fault(call, *values)
    shapes = [value.shape for value in values if value.shape]
    if len(shapes) < len(values):
        return [TensorType(None, values[0].dtype)]
    rest = shapes[0][1:]
    if any(len(shape) != len(shapes[0]) for shape in shapes):
        raise _fault(call, *values)
    first = [shape[0] for shape in shapes]
    known = [extent for extent in first if extent is not None]
    total = sum(known) if len(known) == len(first) else None
    tail = tuple(
        next((shape[1 + axis] for shape in shapes if shape[1 + axis] is not None), None)
        for axis in range(len(rest))
    )
    return [TensorType((total, *tail), values[0].dtype)]


def _reshape(call: OpCall, data: Array, shape: Array) -> list[Array]:
    return [np.reshape(data, [int(extent) for extent in shape])]


def _reshape_type(call: OpCall, data: TensorType, shape: Array) -> list[TensorType]:
    """One extent may be -1: what is left."""
    extents: list[int | None] = [int(extent) for extent in shape]
    known = 1
    for extent in extents:
        known *= extent if extent is not None and extent != -1 else 1
    if extents.count(-1) > 1 or data.size % max(known, 1):
        raise _fault(call, data, extents)
    left = data.size // max(known, 1)
    if -1 not in extents and left != 1:
        raise _fault(call, data, extents)
    return [TensorType(tuple(left if e == -1 else e for e in extents), data.dtype)]


def _reshape_of_any(call: OpCall, data: TensorType, shape: Array) -> list[TensorType]:
    """Of a tensor whose size is not known, -1 stays unknown."""
    extents = [int(extent) for extent in shape]
    return [TensorType(tuple(None if e == -1 else e for e in extents), data.dtype)]


def _reshape_unknown(call: OpCall, data: TensorType, shape: TensorType) -> list[TensorType]:
    rank = shape.shape[0] if shape.shape is not None and len(shape.shape) == 1 else None
    return [TensorType(None if rank is None else (None,) * rank, data.dtype)]


def _unchanged(call: OpCall, value: TensorType) -> list[TensorType]:
    return [value]


def built_in_operations() -> Operations:
    """Return a new registry with the ops above."""
    ops = Operations()
    of_arrays: Sequence[tuple[str, int, Callable[..., Sequence[Any]]]] = (
        ("matmul", 2, _matmul),
        ("relu", 1, _relu),
        ("dense", 2, _dense),
        ("loss_grad", 2, _loss_grad),
        ("relu_grad", 2, _relu_grad),
        ("matmul_dw", 2, _matmul_dw),
        ("matmul_dx", 2, _matmul_dx),
        ("dense_grad", 3, _dense_grad),
        ("add_up", 1, _identity),
        ("slice", 1, _slice),
        ("sgd", 2, _sgd),
        ("sgd", 3, _sgd),
        ("add", 2, _elementwise(np.add)),
        ("subtract", 2, _elementwise(np.subtract)),
        ("multiply", 2, _elementwise(np.multiply)),
        ("shape", 1, _shape),
        ("gather", 2, _gather),
        ("unsqueeze", 1, _unsqueeze),
        ("reshape", 2, _reshape),
    )
    for op, arity, function in of_arrays:
        ops.register(op, [_CONCRETE] * arity, function)
    of_types: Sequence[tuple[str, Sequence[Level], Callable[..., Sequence[Any]]]] = (
        ("matmul", (_TYPED, _TYPED), _matmul_type),
        ("relu", (_ANY,), _unchanged),
        ("dense", (_TYPED, _TYPED), _matmul_type),
        ("loss_grad", (_TYPED, _TYPED), _equal_types),
        ("relu_grad", (_TYPED, _TYPED), _equal_types),
        ("matmul_dw", (_TYPED, _TYPED), _matmul_dw_type),
        ("matmul_dx", (_TYPED, _TYPED), _matmul_dx_type),
        ("dense_grad", (_TYPED, _TYPED, _TYPED), _dense_grad_type),
        ("add_up", (_ANY,), _unchanged),
        ("slice", (_TYPED,), _slice_type),
        ("sgd", (_TYPED, _TYPED), _sgd_type),
        ("sgd", (_TYPED, _TYPED, _TYPED), _sgd_type),
        ("add", (_ANY, _ANY), broadcast_type),
        ("subtract", (_ANY, _ANY), broadcast_type),
        ("multiply", (_ANY, _ANY), broadcast_type),
        ("shape", (_TYPED,), _shape_of_type),
        ("shape", (_ANY,), _shape_of_any),
        ("gather", (_ANY, _ANY), _gather_type),
        ("unsqueeze", (_ANY,), _unsqueeze_type),
        ("reshape", (_TYPED, _CONCRETE), _reshape_type),
        ("reshape", (_ANY, _CONCRETE), _reshape_of_any),
        ("reshape", (_ANY, _ANY), _reshape_unknown),
    )
    for op, signature, function in of_types:
        ops.register(op, signature, function)
    ops.register("concat", [_CONCRETE], _concat, is_variadic=True)
    ops.register("concat", [_ANY], _concat_type, is_variadic=True)
    register_collective_operations(ops)
    return ops


OPERATIONS = built_in_operations()
"""What all domains call, unless they are given others."""
