"""Relay run by numpy, op by op: the oracle of rewrites that are tried on many random networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import tvm
from tvm import relay

from heteroplace.relay.expressions import post_order

Array = np.ndarray


def run_by_numpy(mod: tvm.IRModule, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of a module of the ops below."""
    main = mod["main"]
    values: dict[relay.Expr, Any] = {param: inputs[param.name_hint] for param in main.params}
    for node in post_order(main.body):
        if isinstance(node, relay.Constant):
            values[node] = node.data.numpy()
        elif isinstance(node, relay.Tuple):
            values[node] = [values[field] for field in node.fields]
        elif isinstance(node, relay.TupleGetItem):
            values[node] = values[node.tuple_value][node.index]
        elif isinstance(node, relay.Call):
            run = _OPS[node.op.name.removeprefix("heteroplace.")]
            values[node] = run(node.attrs, *(values[argument] for argument in node.args))
            _check_shape(node, values[node])
    found = values[main.body]
    return found if isinstance(found, list) else [found]


def _check_shape(node: relay.Call, value: Any) -> None:
    if isinstance(node.checked_type, relay.TensorType):
        assert value.shape == tuple(int(extent) for extent in node.checked_type.shape), node


def _softmax(attrs: Any, data: Array) -> Array:
    grown = np.exp(data - data.max(int(attrs.axis), keepdims=True))
    return grown / grown.sum(int(attrs.axis), keepdims=True)


def _axes(attrs: Any) -> tuple[int, ...] | None:
    return None if attrs.axis is None else tuple(int(axis) for axis in attrs.axis)


def _sliced(attrs: Any, data: Array) -> Array:
    axes = range(len(attrs.begin)) if attrs.axes is None else [int(a) for a in attrs.axes]
    steps = [int(step) for step in attrs.strides] or [1]
    where = [slice(None)] * data.ndim
    for at, axis in enumerate(axes):
        step = steps[at] if len(steps) > 1 else steps[0]
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


def _conv2d(attrs: Any, data: Array, kernel: Array) -> Array:
    """NCHW, stride 1."""
    (top, left, bottom, right), groups = (int(pad) for pad in attrs.padding), int(attrs.groups)
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[2:], (2, 3))
    parts = zip(np.split(windows, groups, 1), np.split(kernel, groups, 0), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", *part) for part in parts], 1)


def _max_pool2d(attrs: Any, data: Array) -> Array:
    """NCHW, windows of the size of the stride."""
    down, across = (int(extent) for extent in attrs.pool_size)
    rows, columns, height, width = data.shape
    cut = data.reshape(rows, columns, height // down, down, width // across, across)
    return cut.max((3, 5))


def _axes_of_transpose(attrs: Any) -> list[int] | None:
    return None if attrs.axes is None else [int(axis) for axis in attrs.axes]


_OPS: dict[str, Callable[..., Any]] = {
    "add": lambda _, a, b: a + b,
    "subtract": lambda _, a, b: a - b,
    "multiply": lambda _, a, b: a * b,
    "divide": lambda _, a, b: a / b,
    "maximum": lambda _, a, b: np.maximum(a, b),
    "tanh": lambda _, a: np.tanh(a),
    "sigmoid": lambda _, a: 1 / (1 + np.exp(-a)),
    "negative": lambda _, a: -a,
    "nn.relu": lambda _, a: np.maximum(a, 0),
    "nn.bias_add": _bias_add,
    "nn.dense": lambda _, a, b: a @ b.T,
    "nn.batch_matmul": lambda attrs, a, b: (
        (a.swapaxes(1, 2) if attrs.transpose_a else a)
        @ (b.swapaxes(1, 2) if attrs.transpose_b else b)
    ),
    "nn.conv2d": _conv2d,
    "nn.max_pool2d": _max_pool2d,
    "nn.global_avg_pool2d": lambda _, a: a.mean((2, 3), keepdims=True),
    "nn.batch_flatten": lambda _, a: a.reshape(len(a), -1),
    "nn.softmax": _softmax,
    "sum": lambda attrs, a: a.sum(_axes(attrs), keepdims=bool(attrs.keepdims)),
    "mean": lambda attrs, a: a.mean(_axes(attrs), keepdims=bool(attrs.keepdims)),
    "max": lambda attrs, a: a.max(_axes(attrs), keepdims=bool(attrs.keepdims)),
    "reshape": lambda attrs, a: a.reshape([int(extent) for extent in attrs.newshape]),
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
    "gather": lambda attrs, a: np.concatenate(a, int(attrs["axis"])),
    "broadcast": lambda _, a: a,
    "scatter": _parts,
}
