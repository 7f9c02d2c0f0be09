"""What an imported graph may not hold: values too large, and constant indices outside of the data.

A file of a few bytes can ask for a constant of 2^62 elements, or gather from behind the end of a
tensor. TVM computes the one and reads the other, while it folds constants or when the model runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tvm
from tvm import relay

from heteroplace.errors import FrontendError, HeteroPlaceError
from heteroplace.model.graph import tensor_bytes
from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.expressions import known_shape, post_order, static_shape
from heteroplace.terminal import listed

MAX_ELEMENTS = 2**31 - 1
"""Of a tensor: compiled kernels count elements in 32 bits."""
MAX_CONSTANT_BYTES = 2**31
"""Of a constant that the graph itself makes; no larger one could stand in a file."""
MAX_UNROLLED_NODES = 2_000
"""Of all loops of a model together: nodes that replace them. Compiling takes a minute or more."""
MAX_RECURRENT_STEPS = 1_024
"""Of an RNN, GRU or LSTM that is unrolled, both directions together: each step becomes 10 to 20
calls."""
MAX_SEQUENCE_TENSORS = 1_024
"""Of a SplitToSequence: the time to import one grows with the square of its tensors."""

_MAX_FAULTS = 5


def check_sizes(function: relay.Function, where: str, error: type[HeteroPlaceError]) -> None:
    """Raise an error if a value is too large, or a constant index outside of its tensor.

    Parameters
    ----------
    function
        Typed; what has no static shape is not judged.
    where
        Name of the model, for messages.
    error
        What is raised.
    """
    faults = []
    for expr in post_order(function.body):
        fault = None
        if isinstance(expr, relay.Call) and isinstance(expr.op, tvm.ir.Op):
            fault = _type_fault(expr.checked_type) or copies_fault(expr) or _index_fault(expr)
            if fault is None and all(isinstance(each, relay.Constant) for each in expr.args):
                fault = call_fault(expr, expr.checked_type)
        elif isinstance(expr, relay.Var):
            fault = _type_fault(expr.checked_type)
        if fault is not None:
            faults.append(f"{_node_of(expr)}{fault}")
    if faults:
        raise error(
            f"{where} cannot be compiled: {listed(faults, '; ', _MAX_FAULTS)}. Export the "
            f"model with other sizes or indices, or split it."
        )


def check_unrolled(
    loop: str, num_steps: int, num_body_nodes: int, nodes_per_step: int, num_before: int
) -> int:
    """Return how many nodes replace a loop and those before it.

    Parameters
    ----------
    loop
        Its op and name, for messages.
    nodes_per_step
        Those of the body, and those that pick its inputs and join its outputs.
    num_before
        Nodes that replaced other loops of the model.

    Raises
    ------
    FrontendError
        They are more than `MAX_UNROLLED_NODES`.
    """
    num_nodes = num_steps * nodes_per_step
    if num_before + num_nodes <= MAX_UNROLLED_NODES:
        return num_before + num_nodes
    others = f", and the other loops {num_before}" if num_before else ""
    raise FrontendError(
        f"{loop} has {num_steps} steps and a body of {num_body_nodes} nodes. Unrolled, it takes "
        f"{num_nodes} nodes{others}; the limit is {MAX_UNROLLED_NODES}. Export the model with "
        f"fewer steps, or write the loop as ops on whole tensors"
    )


def _node_of(expr: relay.Expr) -> str:
    """Of what a fault is, for its message."""
    if expr.span:
        return f"node '{expr.span.source_name.name}': "
    return f"{expr.op.name}: " if isinstance(expr, relay.Call) else ""


def has_possible_sizes(shape: Iterable[int]) -> bool:
    """Return whether numpy and kernels can count each size, even if another one is 0."""
    return all(0 <= size <= MAX_ELEMENTS for size in shape)


def num_elements(shape: Iterable[int]) -> int:
    """Return the product of sizes, 1 of none."""
    count = 1
    for size in shape:
        count *= size
    return count


def call_fault(call: relay.Call, result_type: Any) -> str | None:
    """Return why a call of constants must not be computed, or None.

    Parameters
    ----------
    call
        Of an op; its arguments are constants.
    result_type
        Its type; None or of unknown sizes: its size is not judged.
    """
    if result_type is not None:
        for shape, part in _parts(result_type):
            if not has_possible_sizes(shape):
                return f"{call.op.name} makes a constant of the shape {shape}"
            num_bytes = tensor_bytes(shape, part.dtype)
            if num_bytes > MAX_CONSTANT_BYTES:
                return (
                    f"{call.op.name} makes a constant of {num_bytes} bytes, of the shape {shape}, "
                    f"and at most {MAX_CONSTANT_BYTES} are computed"
                )
    return copies_fault(call) or _index_fault(call)


def divisor_fault(call: relay.Call) -> str | None:
    """Return which attribute of a call is 0 that TVM divides by while it infers types, or None."""
    name = getattr(call.op, "name", "")
    for attribute in traits_of(name).divisors:
        value = getattr(call.attrs, attribute)
        numbers = value if isinstance(value, tvm.ir.Array) else [value]
        if any(isinstance(each, (int, tvm.tir.IntImm)) and int(each) == 0 for each in numbers):
            return f"{name} has the {attribute} {value}, and none may be 0"
    return None


def _type_fault(value_type: Any) -> str | None:
    for shape, _ in _parts(value_type):
        if num_elements(shape) > MAX_ELEMENTS:
            return (
                f"a value has {num_elements(shape)} elements, of the shape {shape}, and one "
                f"tensor can have {MAX_ELEMENTS}"
            )
        if not has_possible_sizes(shape):
            return f"a value has the shape {shape}"
    return None


def _parts(value_type: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The tensors of static shape in a type, each behind its shape."""
    fields = value_type.fields if isinstance(value_type, relay.TupleType) else [value_type]
    for part in fields:
        shape = known_shape(part) if isinstance(part, relay.TensorType) else None
        if shape is not None:
            yield shape, part


def copies_fault(call: relay.Call) -> str | None:
    """Return why a tile or repeat makes too many elements, or None.

    TVM multiplies sizes in 64 bits, so the type of 4 * 2^62 elements has the size 0.
    """
    if call.op.name not in ("tile", "repeat"):
        return None
    data = call.args[0]
    if isinstance(data, relay.Constant):
        shape: tuple[int, ...] | None = data.data.shape
    else:
        shape = known_shape(data.checked_type)
    counts = [call.attrs.repeats] if call.op.name == "repeat" else call.attrs.reps
    num_copies = num_elements(int(count) for count in counts)
    if shape is None or num_copies * num_elements(shape) <= MAX_ELEMENTS:
        return None
    return (
        f"{call.op.name} makes {num_copies} copies of the shape {shape}, and one tensor can have "
        f"{MAX_ELEMENTS} elements"
    )


def _index_fault(call: relay.Call) -> str | None:
    """What is wrong with the constant indices of a gather or scatter, or None.

    `take` clips its indices, or wraps them. Those that are not constant are held inside when the
    model runs (`relay/index_guards.py`).
    """
    name = call.op.name
    if name not in ("gather", "gather_nd", "scatter_elements", "scatter_nd"):
        return None
    data, indices = call.args[0], call.args[1]
    data_type = data._checked_type_
    if not isinstance(indices, relay.Constant) or not isinstance(data_type, relay.TensorType):
        return None
    values, shape = indices.data.numpy(), static_shape(data_type)
    if name in ("gather", "scatter_elements"):
        axis = int(call.attrs.axis)
        limits = np.array(shape[axis])
    else:  # The first axis of the indices goes along the axes of the data.
        batch = int(call.attrs.batch_dims) if name == "gather_nd" else 0
        depth = values.shape[0] if values.ndim else 0
        limits = np.array(shape[batch : batch + depth]).reshape(-1, *[1] * (values.ndim - 1))
    # The importer has made negative indices positive, from the end.
    outside = (values < 0) | (values >= limits)
    if not outside.any():
        return None
    index = values[outside].reshape(-1)[0]
    return f"{name} has the constant index {index}, outside of its data of the shape {shape}"
