"""Ops on sequences of tensors ==> Relay tuples: SequenceAt, -Erase, -Insert, SplitToSequence; and
OptionalHasElement.

ONNX operator specification, versions 11 and 24: positions are counted from the back where they are
negative, so that a tensor inserted at -1 comes before the last one; one number for `split` is the
size of each part, not their number.
"""

from __future__ import annotations

from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, const
from heteroplace.parts.onnx.converters.movement import parts_along
from heteroplace.relay.limits import MAX_SEQUENCE_TENSORS


def sequence_at(call: OnnxCall) -> relay.Expr:
    """Convert SequenceAt."""
    tensors = _tensors(call)
    return tensors[_position(call, 1, len(tensors), most=len(tensors) - 1)]


def sequence_erase(call: OnnxCall) -> relay.Expr:
    """Convert SequenceErase; without a position the last tensor goes."""
    tensors = _tensors(call)
    position = len(tensors) - 1
    if call.has(1) or not tensors:
        position = _position(call, 1, len(tensors), most=len(tensors) - 1)
    return relay.Tuple([*tensors[:position], *tensors[position + 1 :]])


def sequence_insert(call: OnnxCall) -> relay.Expr:
    """Convert SequenceInsert; without a position the tensor comes last."""
    tensors = _tensors(call)
    position = len(tensors)
    if call.has(2):
        position = _position(call, 2, len(tensors), most=len(tensors))
    return relay.Tuple([*tensors[:position], call.operand(1), *tensors[position:]])


def split_to_sequence(call: OnnxCall) -> relay.Expr:
    """Convert SplitToSequence: parts of one size, of given sizes, or slices of one element."""
    shape = call.shape(0)
    axis = int(call.number("axis", 0))
    if not -len(shape) <= axis < len(shape):
        raise FrontendError(f"its axis {axis} is none of the {len(shape)} of its operand")
    axis %= len(shape)
    size = shape[axis]
    given = call.constant(1, "split").tolist() if call.has(1) else 1
    num_tensors = len(given) if isinstance(given, list) else -(-size // max(given, 1))
    if num_tensors > MAX_SEQUENCE_TENSORS:
        raise FrontendError(
            f"it splits axis {axis} of {size} elements into {num_tensors} tensors; the limit is "
            f"{MAX_SEQUENCE_TENSORS}. Split it into larger parts, or express it by Reshape"
        )
    if isinstance(given, list):
        sizes = [int(one) for one in given]
    elif given > 0:
        sizes = [min(given, size - begin) for begin in range(0, size, given)]
    else:
        raise FrontendError(f"it splits into parts of {given} elements, and they need one at least")
    if sum(sizes) != size or any(one < 0 for one in sizes):
        raise FrontendError(f"its sizes {sizes} do not fill the {size} elements along axis {axis}")
    if not sizes:
        return relay.Tuple([])
    parts = list(parts_along(call, sizes, axis))
    if not call.has(1) and not call.number("keepdims", 1):
        parts = [relay.squeeze(part, axis=[axis]) for part in parts]
    return relay.Tuple(parts)


def optional_has_element(call: OnnxCall) -> relay.Expr:
    """Convert OptionalHasElement: whether its operand is there, of whatever rank that is.

    An optional without an element names its type in an attribute, which the importer refuses.
    """
    return const(call.has(0), "bool")


def _tensors(call: OnnxCall) -> list[relay.Expr]:
    sequence = call.operand(0)
    if not isinstance(sequence, relay.Tuple | relay.expr.TupleWrapper):
        raise FrontendError("its sequence is not made in this graph, and only such can be compiled")
    return [sequence[index] for index in range(len(sequence))]


def _position(call: OnnxCall, index: int, length: int, most: int) -> int:
    """Return the position that operand `index` says, counted from the front; `most` is allowed."""
    position = int(call.constant(index, "position").reshape(-1)[0])
    if not -length <= position <= most:
        raise FrontendError(
            f"its position {position} is not in a sequence of {length} tensors: expected "
            f"{-length} to {most}"
        )
    return position + length if position < 0 else position
