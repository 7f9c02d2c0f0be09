"""Relay run by numpy, op by op: the oracle of rewrites that are tried on many random networks, and
of gradients, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import tvm
from numpy_convolutions import (
    conv2d,
    conv2d_backward_weight,
    conv2d_transpose,
    in_type_of_product,
    woven,
)
from numpy_routing import ROUTING_OPS
from tvm import relay

from heteroplace.relay.expressions import post_order
from heteroplace.relay.tasks.fold import children

Array = np.ndarray


def run_by_numpy(mod: tvm.IRModule, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of a module of the ops below."""
    return executor_by_numpy(mod)(inputs)


def executor_by_numpy(
    mod: tvm.IRModule, *, is_wide: bool = False
) -> Callable[[Mapping[str, Array]], list[Array]]:
    """The same for any inputs; walking over a module takes longer than its numbers.

    `is_wide`: floats are those of float64, whatever their types, but what ops cast to others.
    """
    main = mod["main"]
    nodes = [node for node in post_order(main.body) if not isinstance(node, tvm.ir.Op)]
    places = {node: place for place, node in enumerate(nodes)}
    operands = [[places[child] for child in children(node)] for node in nodes]

    def run(inputs: Mapping[str, Array]) -> list[Array]:
        values: list[Any] = []
        for node, reads in zip(nodes, operands, strict=True):
            value = _value(node, [values[place] for place in reads], inputs)
            values.append(_widened(value) if is_wide else value)
        found = values[places[main.body]]
        return found if isinstance(found, list) else [found]

    return run


def _widened(value: Any) -> Any:
    if isinstance(value, list):
        return [_widened(part) for part in value]
    is_narrow = isinstance(value, np.ndarray) and value.dtype == np.float32
    return value.astype(np.float64) if is_narrow else value


def _value(node: relay.Expr, reads: list[Any], inputs: Mapping[str, Array]) -> Any:
    if isinstance(node, relay.Var):
        return inputs[node.name_hint]
    if isinstance(node, relay.Constant):
        return node.data.numpy()
    if isinstance(node, relay.Tuple):
        return reads
    if isinstance(node, relay.TupleGetItem):
        return reads[0][node.index]
    if isinstance(node, relay.If):
        return reads[1] if reads[0] else reads[2]
    found = _OPS[node.op.name.removeprefix("heteroplace.")](node.attrs, *reads)
    _check_shape(node, found)
    return found


def _check_shape(node: relay.Call, value: Any) -> None:
    if isinstance(node.checked_type, relay.TensorType):
        assert value.shape == tuple(int(extent) for extent in node.checked_type.shape), node


def _gather(attrs: Any, data: Any, indices: Array | None = None) -> Array:
    """Relay's op of elements, or the collective, which reads the tensors of all shards."""
    if indices is None:
        return np.concatenate(data, int(attrs["axis"]))
    return np.take_along_axis(data, indices, int(attrs.axis))


def _scattered_elements(attrs: Any, data: Array, indices: Array, updates: Array) -> Array:
    found = data.copy()
    assert attrs.reduction == "update"
    np.put_along_axis(found, indices, updates, int(attrs.axis))
    return found


def _softmax(attrs: Any, data: Array) -> Array:
    grown = np.exp(data - data.max(int(attrs.axis), keepdims=True))
    return grown / grown.sum(int(attrs.axis), keepdims=True)


def _axes(attrs: Any) -> tuple[int, ...] | None:
    return None if attrs.axis is None else tuple(int(axis) for axis in attrs.axis)


def _sliced(attrs: Any, data: Array) -> Array:
    if str(attrs.slice_mode) == "size":
        return _slice_in_range(attrs, data)
    axes = range(len(attrs.begin)) if attrs.axes is None else [int(a) for a in attrs.axes]
    steps = [int(step) for step in attrs.strides]
    where = [slice(None)] * data.ndim
    for at, axis in enumerate(axes):
        step = steps[at] if at < len(steps) else 1
        where[axis] = slice(int(attrs.begin[at]), int(attrs.end[at]), step)
    return data[tuple(where)]


def _split(attrs: Any, data: Array) -> list[Array]:
    given = attrs.indices_or_sections
    places = int(given) if isinstance(given, tvm.tir.IntImm) else [int(at) for at in given]
    return np.split(data, places, int(attrs.axis))


def _parts(attrs: Any, data: Array) -> list[Array]:
    ends = np.cumsum([int(extent) for extent in attrs["parts"]])
    return np.split(data, ends[:-1], int(attrs["axis"]))


def _bias_add(attrs: Any, data: Array, bias: Array) -> Array:
    shape = [1] * data.ndim
    shape[int(attrs.axis)] = -1
    return data + bias.reshape(shape)


def _dense(attrs: Any, data: Array, weight: Array) -> Array:
    data, weight = in_type_of_product(attrs, data, weight)
    return data @ weight.T


def _depth_to_space(attrs: Any, data: Array) -> Array:
    """NCHW, the block before the channels."""
    assert str(attrs.mode) == "DCR"
    (rows, channels, height, width), size = data.shape, int(attrs.block_size)
    parts = data.reshape(rows, size, size, channels // size**2, height, width)
    moved = parts.transpose(0, 3, 4, 1, 5, 2)
    return moved.reshape(rows, channels // size**2, height * size, width * size)


def _upsampled(attrs: Any, data: Array) -> Array:
    """NCHW, to the nearest."""
    assert str(attrs["method"]) == "nearest_neighbor"
    return data.repeat(int(attrs.scale_h), 2).repeat(int(attrs.scale_w), 3)


def _window_means(attrs: Any, a: np.ndarray) -> np.ndarray:
    """NCHW, of windows side by side; what is left behind the last one is in none."""
    high, wide = map(int, attrs.pool_size)
    is_one = a.shape[2:] == (high, wide)
    assert [*map(int, attrs.padding)] == [0] * 4 and (is_one or [*attrs.strides] == [high, wide])
    down, across = a.shape[2] // high, a.shape[3] // wide
    cut = a[:, :, : down * high, : across * wide]
    return cut.reshape(*a.shape[:2], down, high, across, wide).mean((3, 5))


def _max_pool2d(attrs: Any, data: Array) -> Array:
    """NCHW, windows of the size of the stride."""
    down, across = (int(extent) for extent in attrs.pool_size)
    rows, columns, height, width = data.shape
    cut = data.reshape(rows, columns, height // down, down, width // across, across)
    return cut.max((3, 5))


def _log_softmax(attrs: Any, data: Array) -> Array:
    return np.log(_softmax(attrs, data))


def _variance(attrs: Any, data: Array, mean: Array) -> Array:
    axes, kept = _excluded_axes(attrs, data), bool(attrs.keepdims)
    summed = ((data - mean) ** 2).sum(axes, keepdims=kept)
    return summed / (data.size // summed.size - bool(attrs.unbiased))


def _excluded_axes(attrs: Any, data: Array) -> tuple[int, ...] | None:
    axes = _axes(attrs)
    if axes is None or not attrs.exclude:
        return axes
    return tuple(axis for axis in range(data.ndim) if axis not in [at % data.ndim for at in axes])


def _reduced(reduce_axes: Callable[..., Any]) -> Callable[..., Any]:
    def run(attrs: Any, data: Array) -> Array:
        axes = _excluded_axes(attrs, data)
        return np.asarray(reduce_axes(data, axis=axes, keepdims=bool(attrs.keepdims)))

    return run


def _layer_norm(attrs: Any, data: Array, gamma: Array, beta: Array) -> Array:
    axis = int(attrs.axis)
    shape = [1] * data.ndim
    shape[axis] = -1
    mean = data.mean(axis, keepdims=True)
    normal = (data - mean) / np.sqrt(data.var(axis, keepdims=True) + float(attrs.epsilon))
    normal = normal * gamma.reshape(shape) if attrs.scale else normal
    return normal + beta.reshape(shape) if attrs.center else normal


def _take(attrs: Any, data: Array, indices: Array) -> Array:
    axis = None if attrs.axis is None else int(attrs.axis)
    if str(attrs.mode) == "fast":
        return np.asarray(np.take(data, indices, axis))
    if str(attrs.mode) == "clip":
        return np.asarray(np.take(data, indices, axis, mode="clip"))
    return np.asarray(np.take(data, indices, axis, mode="wrap"))


def _scatter_nd(attrs: Any, data: Array, indices: Array, updates: Array) -> Array:
    assert str(attrs.mode) == "add"
    result = data.copy()
    np.add.at(result, tuple(indices), updates)
    return result


def _one_hot(attrs: Any, indices: Array, on: Array, off: Array) -> Array:
    assert int(attrs.axis) == -1
    return np.where(indices[..., None] == np.arange(int(attrs.depth)), on, off)


def _dilated(attrs: Any, data: Array) -> Array:
    steps = [int(step) for step in attrs.strides]
    shape = [(extent - 1) * step + 1 for extent, step in zip(data.shape, steps, strict=True)]
    result = np.zeros(shape, data.dtype)
    result[tuple(slice(None, None, step) for step in steps)] = data
    return result


def _padded(attrs: Any, data: Array, value: Array) -> Array:
    widths = [[int(width) for width in pair] for pair in attrs.pad_width]
    return np.pad(data, widths, constant_values=value)


def _expanded(attrs: Any, data: Array) -> Array:
    axis, count = int(attrs.axis), int(attrs.num_newaxis)
    place = axis if axis >= 0 else data.ndim + axis + 1
    return data.reshape(*data.shape[:place], *[1] * count, *data.shape[place:])


def _filled(value: int) -> Callable[..., Any]:
    return lambda attrs: np.full([int(extent) for extent in attrs.shape], value, str(attrs.dtype))


def _reshaped(attrs: Any, data: Array) -> Array:
    """With ONNX's and Relay's 0 for "as before"."""
    shape = [int(extent) for extent in attrs.newshape]
    return data.reshape([data.shape[at] if e == 0 else e for at, e in enumerate(shape)])


def _matmul(attrs: Any, a: Array, b: Array) -> Array:
    return (a.T if attrs.transpose_a else a) @ (b.T if attrs.transpose_b else b)


def _slice_in_range(attrs: Any, data: Array) -> Array:
    """The mode in which `end` is a size, or -1 for all that is left."""
    begins, sizes = ([int(at) for at in part] for part in (attrs.begin, attrs.end))
    pairs = zip(begins, sizes, strict=True)
    return data[tuple(slice(at, None if size == -1 else at + size) for at, size in pairs)]


def _topk(attrs: Any, data: Array) -> Array | list[Array]:
    """Indices along the last axis, of equal values the first, and if asked for the values."""
    assert str(attrs.ret_type) in ("indices", "both") and not int(attrs.is_ascend)
    order = np.argsort(-data, axis=-1, kind="stable")[..., : int(attrs.k)]
    indices = order.astype(str(attrs.dtype))
    if str(attrs.ret_type) == "indices":
        return indices
    return [np.take_along_axis(data, order, -1), indices]


_erf = np.vectorize(math.erf, otypes=["float64"])


def _max_pool2d_grad(attrs: Any, grad: Array, data: Array) -> Array:
    """Of windows of the size of the stride, no two elements of which are equal."""
    sizes = [int(extent) for extent in attrs.pool_size]

    def spread(value: Array) -> Array:
        return value.repeat(sizes[0], 2).repeat(sizes[1], 3)

    return np.where(data == spread(_max_pool2d(attrs, data)), spread(grad), 0)


def _axes_of_transpose(attrs: Any) -> list[int] | None:
    return None if attrs.axes is None else [int(axis) for axis in attrs.axes]


_OPS: dict[str, Callable[..., Any]] = {
    "copy": lambda attrs, data: data,
    "add": lambda _, a, b: a + b,
    "subtract": lambda _, a, b: a - b,
    "multiply": lambda _, a, b: a * b,
    "divide": lambda _, a, b: a / b,
    "maximum": lambda _, a, b: np.maximum(a, b),
    "tanh": lambda _, a: np.tanh(a),
    "sigmoid": lambda _, a: 1 / (1 + np.exp(-a)),
    "negative": lambda _, a: -a,
    "abs": lambda _, a: np.abs(a),
    "sign": lambda _, a: np.sign(a),
    "trilu": lambda attrs, a, k: (np.triu if attrs.upper else np.tril)(a, int(k)),
    "nn.relu": lambda _, a: np.maximum(a, 0),
    "nn.bias_add": _bias_add,
    "nn.dense": _dense,
    "nn.batch_matmul": lambda attrs, a, b: (
        (a.swapaxes(1, 2) if attrs.transpose_a else a)
        @ (b.swapaxes(1, 2) if attrs.transpose_b else b)
    ),
    "nn.conv2d": conv2d,
    "nn.conv2d_transpose": conv2d_transpose,
    "heteroplace_weave": woven,
    "nn.conv2d_backward_weight": conv2d_backward_weight,
    "nn.depth_to_space": _depth_to_space,
    "nn.upsampling": _upsampled,
    "nn.max_pool2d": _max_pool2d,
    "nn.max_pool2d_grad": _max_pool2d_grad,
    "nn.avg_pool2d": _window_means,
    "nn.global_avg_pool2d": lambda _, a: a.mean((2, 3), keepdims=True),
    "nn.batch_flatten": lambda _, a: a.reshape(len(a), -1),
    "nn.softmax": _softmax,
    "nn.log_softmax": _log_softmax,
    "nn.layer_norm": _layer_norm,
    "nn.leaky_relu": lambda attrs, a: np.where(a > 0, a, a * float(attrs.alpha)),
    "nn.matmul": _matmul,
    "nn.pad": _padded,
    "nn.dilate": _dilated,
    "sum": _reduced(np.sum),
    "mean": _reduced(np.mean),
    "max": _reduced(np.max),
    "min": _reduced(np.min),
    "variance": _variance,
    "reshape": _reshaped,
    "minimum": lambda _, a, b: np.minimum(a, b),
    "power": lambda _, a, b: a**b,
    "floor_mod": lambda _, a, b: a % b,
    "exp": lambda _, a: np.exp(a),
    "log": lambda _, a: np.log(a),
    "sqrt": lambda _, a: np.sqrt(a),
    "rsqrt": lambda _, a: 1 / np.sqrt(a),
    "erf": lambda _, a: _erf(a),
    "clip": lambda attrs, a: np.clip(a, float(attrs.a_min), float(attrs.a_max)).astype(a.dtype),
    "cast": lambda attrs, a: a.astype(str(attrs.dtype)),
    "where": lambda _, condition, a, b: np.where(condition, a, b),
    "equal": lambda _, a, b: a == b,
    "less": lambda _, a, b: a < b,
    "less_equal": lambda _, a, b: a <= b,
    "greater": lambda _, a, b: a > b,
    "greater_equal": lambda _, a, b: a >= b,
    "logical_or": lambda _, a, b: a | b,
    "zeros": _filled(0),
    "ones": _filled(1),
    "take": _take,
    "scatter_nd": _scatter_nd,
    "one_hot": _one_hot,
    "broadcast_to": lambda attrs, a: np.broadcast_to(a, [int(extent) for extent in attrs.shape]),
    "squeeze": lambda attrs, a: a.squeeze(_axes(attrs)),
    "expand_dims": _expanded,
    "stack": lambda attrs, a: np.stack(a, int(attrs.axis)),
    "repeat": lambda attrs, a: np.repeat(a, int(attrs.repeats), int(attrs.axis)),
    "tile": lambda attrs, a: np.tile(a, [int(count) for count in attrs.reps]),
    "reverse": lambda attrs, a: np.flip(a, int(attrs.axis)),
    "transpose": lambda attrs, a: a.transpose(_axes_of_transpose(attrs)),
    "concatenate": lambda attrs, a: np.concatenate(a, int(attrs.axis)),
    "strided_slice": _sliced,
    "split": _split,
    "all_reduce": lambda _, a: reduce(np.add, a),
    "all_gather": lambda attrs, a: np.concatenate(a, int(attrs["axis"])),
    "reduce_scatter": lambda attrs, a: _parts(attrs, reduce(np.add, a)),
    "all_to_all": lambda attrs, a: [
        np.concatenate(mine, int(attrs["join"]))
        for mine in zip(*(_parts(attrs, each) for each in a), strict=True)
    ],
    "reduce": lambda _, a: reduce(np.add, a),
    "gather": _gather,
    "broadcast": lambda _, a: a,
    "scatter": _parts,
    "argmax": lambda attrs, a: a.argmax(int(attrs.axis[0])).astype("int32"),
    "topk": _topk,
    "cumsum": lambda attrs, a: a.cumsum(int(attrs.axis), a.dtype),
    "not_equal": lambda _, a, b: a != b,
    "logical_and": lambda _, a, b: a & b,
    "logical_not": lambda _, a: ~a,
    "any": _reduced(np.any),
    "all": _reduced(np.all),
    "bitwise_and": lambda _, a, b: a & b,
    "right_shift": lambda _, a, b: a >> b,
    "mod": lambda _, a, b: np.fmod(a, b),
    "einsum": lambda attrs, a: np.einsum(str(attrs.equation), *a),
    "scatter_elements": _scattered_elements,
    **ROUTING_OPS,
}
