"""Ops that move or make elements ==> Relay: Split, Pad, Unsqueeze, OneHot, Gather*, Expand, ...

ONNX operator specification, all forms up to opset 28: sizes, pads and axes as attributes or as
operands, axes counted from the back, parts of no elements, padding of every mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import (
    OnnxCall,
    check_table,
    const,
    constant_value,
    dtype_name,
    dtype_of,
    shape_of,
    typed,
)
from heteroplace.parts.onnx.converters.refused import SIZE_REASON
from heteroplace.parts.onnx.routers.onnx_masks import REASON
from heteroplace.relay.expressions import known_shape

_Positions = npt.NDArray[np.int64]
_PAD_MODES: dict[str, Callable[[_Positions, tuple[int, int]], _Positions]] = {
    "reflect": lambda positions, added: np.pad(positions, added, mode="reflect"),
    "edge": lambda positions, added: np.pad(positions, added, mode="edge"),
    "wrap": lambda positions, added: np.pad(positions, added, mode="wrap"),
}
_SCATTER_MODES = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def split(call: OnnxCall) -> relay.Expr | relay.expr.TupleWrapper:
    """Convert Split: sizes given, or equal parts of which the last may be smaller."""
    shape = call.shape(0)
    axis = int(call.number("axis", 0)) % len(shape)
    if call.has(1):
        sizes = [int(size) for size in call.constant(1, "sizes")]
    elif "split" in call.attributes:
        sizes = [int(size) for size in call.attributes["split"]]
    else:
        size = -(-shape[axis] // call.num_outputs)
        begins = [min(i * size, shape[axis]) for i in range(call.num_outputs + 1)]
        sizes = [int(n) for n in np.diff(begins)]
    if sum(sizes) != shape[axis] or len(sizes) != call.num_outputs:
        raise FrontendError(
            f"its sizes {sizes} do not make {call.num_outputs} parts of the {shape[axis]} elements "
            f"along axis {axis}"
        )
    if len(sizes) == 1:
        return call.operand(0)
    return parts_along(call, sizes, axis)


def parts_along(call: OnnxCall, sizes: Sequence[int], axis: int) -> relay.expr.TupleWrapper:
    """Return parts of operand 0, of these sizes along an axis, which they fill."""
    shape = call.shape(0)
    ends = [int(end) for end in np.cumsum(sizes)]
    if 0 not in shape and 0 not in sizes:
        split = relay.split(call.operand(0), ends[:-1], axis=axis)
        return split if isinstance(split, relay.expr.TupleWrapper) else _wrapped([split])
    parts = [
        const(np.zeros([*shape[:axis], size, *shape[axis + 1 :]]), call.dtype(0))
        if 0 in (size, *shape)
        else relay.strided_slice(call.operand(0), [end - size], [end], axes=[axis])
        for size, end in zip(sizes, ends, strict=True)
    ]
    return _wrapped(parts)


def _wrapped(parts: Sequence[relay.Expr]) -> relay.expr.TupleWrapper:
    return relay.expr.TupleWrapper(relay.Tuple(list(parts)), len(parts))


def pad(call: OnnxCall) -> relay.Expr:
    """Convert Pad: constant, reflect, edge or wrap; negative pads cut."""
    data, shape = call.operand(0), call.shape(0)
    mode = call.text("mode", "constant")
    pads = [_AxisPads.of(axis, *one) for axis, one in enumerate(_pads(call, shape))]
    if mode == "constant":
        if any(one.cut != (0, 0) for one in pads):
            last = [size - one.cut[1] for size, one in zip(shape, pads, strict=True)]
            data = relay.strided_slice(data, [one.cut[0] for one in pads], last)
        added = [one.added for one in pads]
        return data if not any(map(any, added)) else _pad_constant(call, data, added)
    for axis, (size, one) in enumerate(zip(shape, pads, strict=True)):
        if one == _AxisPads((0, 0), (0, 0)):
            continue
        if size <= sum(one.cut):
            raise FrontendError(f"axis {axis} has no elements to pad with by mode '{mode}'")
        check_table(size + sum(one.added), f"the positions along axis {axis}")
        positions = np.arange(one.cut[0], size - one.cut[1], dtype=np.int64)
        if mode not in _PAD_MODES:
            raise FrontendError(f"mode '{mode}' is not known")
        positions = _PAD_MODES[mode](positions, one.added)
        data = relay.take(data, const(positions, "int32"), axis=axis, mode="clip")
    return data


@dataclass(frozen=True)
class _AxisPads:
    """What is done to an axis, first at its begin and then at its end."""

    cut: tuple[int, int]
    """So many elements of its own go."""
    added: tuple[int, int]
    """And so many are put there."""

    @classmethod
    def of(cls, axis: int, size: int, begin: int, end: int) -> _AxisPads:
        """Split pads: what is to be cut, and is not there, is cut from what the other side adds."""
        if size + begin + end < 0:
            raise FrontendError(f"pads {begin} and {end} cut more than the {size} of axis {axis}")
        first, last = min(max(-begin, 0), size), min(max(-end, 0), size)
        added = max(begin, 0) - max(-end - size, 0), max(end, 0) - max(-begin - size, 0)
        return cls((first, last), added)


def _pads(call: OnnxCall, shape: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the size of each axis, and its padding before and after."""
    rank = len(shape)
    given = call.attributes.get("pads", call.attributes.get("paddings"))
    if given is None:
        given = call.constant(1, "pads")
    axes = list(range(rank))
    if call.has(3):
        axes = [int(axis) % rank for axis in call.constant(3, "axes").reshape(-1)]
    if len(given) != 2 * len(axes):
        raise FrontendError(f"it has {len(given)} pads for {len(axes)} axes")
    begins, ends = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        begins[axis], ends[axis] = int(given[position]), int(given[len(axes) + position])
    return list(zip(shape, begins, ends, strict=True))


def _pad_constant(call: OnnxCall, data: relay.Expr, added: Sequence[tuple[int, int]]) -> relay.Expr:
    dtype = call.dtype(0)
    value: relay.Expr = const(call.number("value", 0), dtype)
    if call.has(2):
        value = relay.reshape(call.operand(2), []) if call.shape(2) else call.operand(2)
    if dtype == "bool":
        padded = relay.nn.pad(relay.cast(data, "int8"), added, pad_value=relay.cast(value, "int8"))
        return relay.cast(padded, "bool")
    return relay.nn.pad(data, added, pad_value=value)


def unsqueeze(call: OnnxCall) -> relay.Expr:
    """Convert Unsqueeze: axes of the result, in any order.

    TVM's converter counts those from the back in what it has made so far.
    """
    given = call.attributes.get("axes")
    if given is None:
        given = call.constant(1, "axes").reshape(-1)
    rank = len(typed(call.operand(0)).checked_type.shape) + len(given)
    axes = sorted(int(axis) + (rank if axis < 0 else 0) for axis in given)
    if len(set(axes)) < len(axes) or any(not 0 <= axis < rank for axis in axes):
        raise FrontendError(
            f"its axes {[int(axis) for axis in given]} are not {len(axes)} different ones of the "
            f"{rank} of its result"
        )
    result = call.operand(0)
    for axis in axes:
        result = relay.expand_dims(result, axis)
    return result


def one_hot(call: OnnxCall) -> relay.Expr:
    """Convert OneHot: positions count from the back if negative; those outside give no one."""
    depth = int(call.constant(1, "depth").reshape(-1)[0])
    indices = relay.cast(call.operand(0), "int64")
    rank = len(call.shape(0)) + 1
    axis = int(call.number("axis", -1)) % rank
    size = const(depth, "int64")
    counted = relay.where(relay.less(indices, const(0, "int64")), relay.add(indices, size), indices)
    shape = [depth if i == axis else 1 for i in range(rank)]
    check_table(depth, "the positions along its depth")
    places = const(np.arange(depth).reshape(shape), "int64")
    is_one = relay.equal(relay.expand_dims(counted, axis), places)
    off, on = (relay.take(call.operand(2), const(i, "int32"), axis=0) for i in range(2))
    return relay.where(is_one, on, off)


def scatter_elements(call: OnnxCall) -> relay.Expr:
    """Convert ScatterElements and Scatter."""
    shape = call.shape(0)
    axis = int(call.number("axis", 0)) % len(shape)
    indices = _from_front(call, 1, shape[axis])
    return _scattered(
        call, lambda data, new, mode: relay.scatter_elements(data, indices, new, axis, mode)
    )


def gather(call: OnnxCall) -> relay.Expr:
    """Convert Gather: TVM's converter takes the size of axis 0 for that of a negative one."""
    shape = call.shape(0)
    axis = int(call.number("axis", 0)) % len(shape)
    return relay.take(call.operand(0), _from_front(call, 1, shape[axis]), axis)


def gather_elements(call: OnnxCall) -> relay.Expr:
    """Convert GatherElements; of other axes than its own TVM reads all or nothing."""
    shape, read = call.shape(0), list(call.shape(1))
    axis = int(call.number("axis", 0)) % len(shape)
    read[axis] = shape[axis]
    data = call.operand(0)
    if read != list(shape):
        data = relay.strided_slice(data, [0] * len(read), read)
    return relay.gather(data, axis, _from_front(call, 1, shape[axis]))


def gather_nd(call: OnnxCall) -> relay.Expr:
    """Convert GatherND."""
    batch = int(call.number("batch_dims", 0))
    depth = call.shape(1)[-1]
    return relay.gather_nd(call.operand(0), _coordinates(call, batch), batch, depth)


def scatter_nd(call: OnnxCall) -> relay.Expr:
    """Convert ScatterND."""
    coordinates = _coordinates(call, 0)
    return _scattered(call, lambda data, new, mode: relay.scatter_nd(data, coordinates, new, mode))


def _coordinates(call: OnnxCall, batch: int) -> relay.Expr:
    """Return positions from the front, along the first axis; ONNX has them along the last, and from
    the back if negative."""
    shape, indices = call.shape(0), call.operand(1)
    rank = len(shape_of(indices))
    sizes = const(shape[batch : batch + shape_of(indices)[-1]], dtype_of(indices))
    zero = const(0, dtype_of(indices))
    indices = relay.where(relay.less(indices, zero), relay.add(indices, sizes), indices)
    return relay.transpose(indices, [rank - 1, *range(rank - 1)])


def _scattered(
    call: OnnxCall, write: Callable[[relay.Expr, relay.Expr, str], relay.Expr]
) -> relay.Expr:
    """Return what writes the updates (operand 2) into the data; a sum of booleans is their "or"."""
    data, new, mode = call.operand(0), call.operand(2), _scatter_mode(call)
    if (call.dtype(0), mode) != ("bool", "add"):
        return write(data, new, mode)
    wide = write(relay.cast(data, "uint8"), relay.cast(new, "uint8"), "max")
    return relay.cast(wide, "bool")


def _scatter_mode(call: OnnxCall) -> str:
    reduction = call.text("reduction", "none")
    if reduction not in _SCATTER_MODES:
        raise FrontendError(f"reduction '{reduction}' is not known")
    return _SCATTER_MODES[reduction]


def _from_front(call: OnnxCall, index: int, size: int) -> relay.Expr:
    """Return positions counted from the front, of operand `index` that may count from the back."""
    indices, dtype = call.operand(index), call.dtype(index)
    constant = constant_value(indices, call.params)
    if constant is not None:
        return const(np.where(constant < 0, constant + size, constant), dtype)
    # The kernel, too, takes negative indices to count from the back.
    shifted = relay.maximum(relay.add(indices, const(size, dtype)), const(0, dtype))
    return relay.where(relay.less(indices, const(0, dtype)), shifted, indices)


def space_to_depth(call: OnnxCall) -> relay.Expr:
    """Convert SpaceToDepth, by blocks (DCR) or by channels (CRD)."""
    batch, channels, height, width = call.shape(0)
    size = int(call.number("blocksize", 1))
    split_up = relay.reshape(
        call.operand(0), [batch, channels, height // size, size, width // size, size]
    )
    is_by_channels = call.text("mode", "DCR") == "CRD"
    order = [0, 1, 3, 5, 2, 4] if is_by_channels else [0, 3, 5, 1, 2, 4]
    moved = relay.transpose(split_up, order)
    return relay.reshape(moved, [batch, channels * size * size, height // size, width // size])


def arange(call: OnnxCall) -> relay.Expr:
    """Convert Range: its operands are constants, and so is its result."""
    names = ("start", "limit", "delta")
    is_float = "float" in call.dtype(0)
    start, limit, delta = (
        call.constant(i, name).reshape(-1)[0].astype("float64" if is_float else "int64")
        for i, name in enumerate(names)
    )
    if not delta:
        raise FrontendError("its delta is 0")
    count = max(int(np.ceil((limit - start) / delta)), 0)
    check_table(count, "its result")
    return const(start + np.arange(count) * delta, call.dtype(0))


def non_zero(call: OnnxCall) -> relay.Expr:
    """Convert NonZero of a constant; of anything else the size of the result is not known."""
    value = constant_value(call.operand(0), call.params)
    if value is None:
        reason = call.text(REASON, "")
        raise FrontendError(
            f"{SIZE_REASON}. It is no dispatch of rows: {reason}" if reason else SIZE_REASON
        )
    return const(np.stack(np.nonzero(value)), "int64")


def constant_of_shape(call: OnnxCall) -> relay.Expr:
    """Convert ConstantOfShape: TVM's converter narrows what it fills with to 32 bits."""
    tensor = call.attributes.get("value")
    value = np.zeros(1, "float32") if tensor is None else numpy_helper.to_array(tensor)
    dtype = "float32" if tensor is None else dtype_name(tensor.data_type)
    return relay.full(const(value.reshape(-1)[0], dtype), call.operand(0), dtype=dtype)


def eye_like(call: OnnxCall) -> relay.Expr:
    """Convert EyeLike: a constant; TVM's converter writes the ones behind the end of a matrix that
    its diagonal leaves."""
    rows, columns = call.shape(0)
    check_table(rows * columns, "its result")
    type_code = int(call.number("dtype", 0))
    offset = min(max(int(call.number("k", 0)), -rows), columns)
    return const(
        np.eye(rows, columns, offset), dtype_name(type_code) if type_code else call.dtype(0)
    )


def sizes(call: OnnxCall) -> relay.Expr | None:
    """Convert Shape: of the axes from `start` to `end`; TVM's converter takes an end at 0 for none.

    Both are attributes, counted from the back if negative; beyond all axes they count as the last.
    """
    shape = known_shape(typed(call.operand(0)).checked_type)
    if shape is None:
        return None
    end = call.attributes.get("end")
    return const(shape[int(call.number("start", 0)) : None if end is None else int(end)], "int64")


def reverse_sequence(call: OnnxCall) -> relay.Expr:
    """Convert ReverseSequence; TVM's converter wants both axes to be given."""
    time, batch = int(call.number("time_axis", 0)), int(call.number("batch_axis", 1))
    return relay.reverse_sequence(call.operand(0), call.operand(1), time, batch)


def expand(call: OnnxCall) -> relay.Expr | None:
    """Convert Expand to a known shape; TVM's converter takes the larger one of 0 and 1."""
    shape = constant_value(call.operand(1), call.params)
    if shape is None:
        return None
    own, target = list(call.shape(0)), [int(size) for size in shape]
    rank = max(len(own), len(target))
    own, target = ([1] * (rank - len(sizes)) + sizes for sizes in (own, target))
    return relay.broadcast_to(
        call.operand(0),
        [size if other == 1 else other for size, other in zip(own, target, strict=True)],
    )
