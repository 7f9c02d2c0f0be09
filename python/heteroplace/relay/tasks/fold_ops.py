"""Relay calls on constants -> numpy arrays: one small evaluator per foldable op.

Each evaluator takes the call's attributes, its constant arguments and the static type of its
result, and returns an array (or a list of arrays), or None: "not mine, leave it to TVM". An
evaluator never guesses: a case whose rounding or whose meaning differs between numpy and TVM's
code generator (half-way rounding, float sums) returns None. Of integers divided by 0 or shifted too
far, numpy's results are those of our kernels (`tir/safe_integers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heteroplace.relay.expressions import SHARED_DTYPES, static_shape
from heteroplace.relay.tasks.fold_corrections import max_pool, relu, scatter_elements

Array = npt.NDArray[Any]
Folded = Array | list[Array] | None
Evaluator = Callable[[Any, Sequence[Any], Any], Folded]

FOLDABLE_DTYPES = SHARED_DTYPES | {"bool"}
"""Element types that mean the same in numpy and in TVM (bfloat16 and float8 do not)."""


def transform_layout(array: Array, src_layout: str, dst_layout: str) -> Array | None:
    """Return `array` with its dimensions moved from one TVM layout string to another.

    Upper-case letters are whole axes, `8i` is the inner part of axis I split by 8.
    Returns None where padding would be needed, the axes differ, or one is split twice.

    Examples
    --------
    >>> transform_layout(np.zeros((32, 16, 3, 3)), "OIHW", "OIHW8i4o").shape
    (8, 2, 3, 3, 8, 4)
    """
    src, dst = _parse_layout(src_layout), _parse_layout(dst_layout)
    if any(len({letter for letter, _ in each}) < len(each) for each in (src, dst)):
        return None
    src_axes = sorted({letter.upper() for letter, _ in src})
    if src_axes != sorted({letter.upper() for letter, _ in dst}) or len(src) != array.ndim:
        return None
    src_position = {letter: index for index, (letter, _) in enumerate(src)}
    order: list[int] = []
    whole: list[int] = []
    for axis in src_axes:
        parts = [p for p in (axis, axis.lower()) if p in src_position]
        order += [src_position[part] for part in parts]
        whole.append(int(np.prod([array.shape[src_position[part]] for part in parts])))
    merged = array.transpose(order).reshape(whole)
    factors = {letter: factor for letter, factor in dst if factor}
    split_shape: list[int] = []
    split_position: dict[str, int] = {}
    for axis, extent in zip(src_axes, whole, strict=True):
        factor = factors.get(axis.lower(), 1)
        if extent % factor:
            return None
        split_position[axis] = len(split_shape)
        split_shape.append(extent // factor)
        if axis.lower() in factors:
            split_position[axis.lower()] = len(split_shape)
            split_shape.append(factor)
    permutation = [split_position[letter] for letter, _ in dst]
    return np.asarray(merged.reshape(split_shape).transpose(permutation))


def _parse_layout(layout: str) -> list[tuple[str, int]]:
    """Split "OIHW8i4o" into [("O", 0), ("I", 0), ..., ("i", 8), ("o", 4)]."""
    parts, factor = [], 0
    for character in layout:
        if character.isdigit():
            factor = factor * 10 + int(character)
        else:
            parts.append((character, factor))
            factor = 0
    return parts


def _unary(function: Callable[[Array], Any]) -> Evaluator:
    return lambda attrs, args, result: np.asarray(function(args[0]))


def _float_unary(function: Callable[[Array], Any]) -> Evaluator:
    def evaluate(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
        return np.asarray(function(args[0])) if args[0].dtype.kind == "f" else None

    return evaluate


def _binary(function: Callable[[Array, Array], Any]) -> Evaluator:
    return lambda attrs, args, result: np.asarray(function(args[0], args[1]))


def _bool_binary(function: Callable[[Array, Array], Any]) -> Evaluator:
    """Arithmetic on booleans is not defined alike: only other types are folded."""

    def evaluate(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
        return None if args[0].dtype.kind == "b" else np.asarray(function(args[0], args[1]))

    return evaluate


def _division(float_rule: Callable[..., Any], int_rule: Callable[..., Any]) -> Evaluator:
    def evaluate(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
        numerator, divisor = args
        if numerator.dtype.kind == "f":
            quotient = float_rule(numerator, divisor)
            return None if quotient is None else np.asarray(quotient)
        if numerator.dtype.kind == "b":
            return None
        return np.asarray(int_rule(numerator, divisor))

    return evaluate


def _truncating_divide(numerator: Array, divisor: Array) -> Array:
    """Integer division that rounds to zero, as TVM's `divide` does."""
    remainder = np.fmod(numerator, divisor)
    return np.asarray((numerator - remainder) // divisor)


def _power(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    return np.asarray(np.power(args[0], args[1])) if args[0].dtype.kind == "f" else None


def _reshaped(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    return np.reshape(args[0], static_shape(result))


def _broadcast(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    return np.broadcast_to(args[0], static_shape(result))


def _filled(value: int) -> Evaluator:
    return lambda attrs, args, result: np.full(static_shape(result), value, result.dtype)


def _transpose(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    axes = None if attrs is None or attrs.axes is None else [int(axis) for axis in attrs.axes]
    return np.transpose(args[0], axes or None)


def _layout_transform(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    return transform_layout(args[0], str(attrs.src_layout), str(attrs.dst_layout))


def _concatenate(attrs: Any, args: Sequence[Any], result: Any) -> Folded:
    return np.concatenate(args[0], axis=int(attrs.axis))


def _stack(attrs: Any, args: Sequence[Any], result: Any) -> Folded:
    return np.stack(args[0], axis=int(attrs.axis))


def _split(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    sections: Any = attrs.indices_or_sections
    if hasattr(sections, "value"):
        sections = int(sections)
    else:
        sections = [int(index) for index in sections]
    return [np.asarray(part) for part in np.split(args[0], sections, axis=int(attrs.axis))]


def _cast(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    if args[0].dtype.kind == "f" and result.dtype != "bool" and "float" not in result.dtype:
        limits = np.iinfo(result.dtype)
        # Of long types the largest number is rounded up as a float, and one more is the same.
        most = args[0].dtype.type(limits.max + 1)
        inside = np.isfinite(args[0]) & (args[0] >= limits.min) & (args[0] < most)
        if not np.all(inside):  # what such a cast gives depends on the processor
            return None
    return args[0].astype(result.dtype)


def _clip(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    dtype = args[0].dtype
    if dtype.kind != "f":
        return None
    # Of limits that are not in order the lower one counts, for numpy the upper one.
    below = np.minimum(args[0], dtype.type(attrs.a_max))
    return np.asarray(np.maximum(below, dtype.type(attrs.a_min)))


def _take(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    if int(attrs.batch_dims) != 0:
        return None
    data, indices = args
    axis = None if attrs.axis is None else int(attrs.axis)
    extent = data.size if axis is None else data.shape[axis]
    wrapped = str(attrs.mode) == "wrap"
    if not wrapped and not np.all((indices >= 0) & (indices < extent)):
        return None
    return np.take(data, indices, axis=axis, mode="wrap" if wrapped else "raise")


def _strided_slice(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    if attrs.begin is None or attrs.end is None:
        return None
    data = args[0]
    begin, end = [int(v) for v in attrs.begin], [int(v) for v in attrs.end]
    strides = [int(v) for v in attrs.strides] if attrs.strides is not None else [1]
    axes = range(len(begin)) if attrs.axes is None else [int(axis) for axis in attrs.axes]
    strides += [1] * (len(begin) - len(strides))  # as TVM does
    if str(attrs.slice_mode) != "end" or len(end) != len(begin) or min(strides, default=1) < 1:
        return None
    index = [slice(None)] * data.ndim
    for position, axis in enumerate(axes):
        index[axis] = slice(begin[position], end[position], strides[position])
    return data[tuple(index)]


def _dense(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    """Of zeros, the first state of a recurrent network; other sums are rounded in another order."""
    if args[0].any() or not np.isfinite(args[1]).all():
        return None
    return np.zeros(static_shape(result), result.dtype)


def _where(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    return np.where(args[0] != 0, args[1], args[2])


def _tile(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    return np.tile(args[0], [int(count) for count in attrs.reps])


def _repeat(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    return np.repeat(args[0], int(attrs.repeats), axis=int(attrs.axis))


def _reverse(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    return np.flip(args[0], axis=int(attrs.axis))


def _full(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    return np.full(static_shape(result), args[0], result.dtype)


def _arange(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    """start + step * i, of which numpy takes step as the difference of the first two numbers."""
    start, _, step = args
    if step == 0 or result.dtype == "float16":  # of which TVM rounds products and sums together
        return None
    numbers = np.arange(static_shape(result)[0]).astype(result.dtype)
    return np.asarray(start + step * numbers)


def _gather_nd(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
    data, indices = args
    if int(attrs.batch_dims) != 0 or np.any(indices < 0):
        return None
    extents = np.array(data.shape[: indices.shape[0]]).reshape([-1] + [1] * (indices.ndim - 1))
    return None if np.any(indices >= extents) else data[tuple(indices)]


def _reduction(function: Callable[..., Any]) -> Evaluator:
    """Reductions whose result does not depend on the order of the additions."""

    def evaluate(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
        data = args[0]
        if data.size == 0 or (data.dtype.kind == "f" and function in (np.sum, np.prod)):
            return None
        axes = _reduced_axes(attrs, data.ndim)
        keywords = {"dtype": data.dtype} if function in (np.sum, np.prod) else {}  # no promotion
        return np.asarray(function(data, axis=axes, keepdims=bool(attrs.keepdims), **keywords))

    return evaluate


def _reduced_axes(attrs: Any, rank: int) -> tuple[int, ...]:
    axes = tuple(range(rank))
    if attrs.axis is not None:
        axes = tuple(sorted(int(axis) % rank for axis in attrs.axis))
    if attrs.exclude:
        axes = tuple(axis for axis in range(rank) if axis not in axes)
    return axes


def _place(function: Callable[..., Any]) -> Evaluator:
    """The place of the largest or smallest element; TVM's kernels begin from place -1."""

    def evaluate(attrs: Any, args: Sequence[Array], result: Any) -> Folded:
        data = args[0]
        if data.size == 0:
            return None
        axes = _reduced_axes(attrs, data.ndim)
        kept_axes = [axis for axis in range(data.ndim) if axis not in axes]
        rows = data.transpose(*kept_axes, *axes).reshape(
            *(data.shape[axis] for axis in kept_axes), -1
        )
        if attrs.select_last_index:
            from_end = rows.shape[-1] - 1 - function(rows[..., ::-1], axis=-1)
        else:
            from_end = function(rows, axis=-1)
        return np.asarray(from_end).astype(result.dtype).reshape(static_shape(result))

    return evaluate


def _rsqrt(array: Array) -> Array:
    return np.asarray(array.dtype.type(1) / np.sqrt(array))


def _sigmoid(array: Array) -> Array:
    one = array.dtype.type(1)
    return np.asarray(one / (one + np.exp(-array)))


EVALUATORS: dict[str, Evaluator] = {
    "abs": _unary(np.abs),
    "add": _bool_binary(np.add),
    "all": _reduction(np.all),
    "any": _reduction(np.any),
    "arange": _arange,
    "argmax": _place(np.argmax),
    "argmin": _place(np.argmin),
    "broadcast_to": _broadcast,
    "broadcast_to_like": _broadcast,
    "cast": _cast,
    "cast_like": _cast,
    "ceil": _float_unary(np.ceil),
    "clip": _clip,
    "concatenate": _concatenate,
    "copy": _unary(np.copy),
    "divide": _division(np.divide, _truncating_divide),
    "equal": _binary(np.equal),
    "exp": _float_unary(np.exp),
    "expand_dims": _reshaped,
    "floor": _float_unary(np.floor),
    "floor_divide": _division(lambda a, b: np.floor(a / b), np.floor_divide),
    "floor_mod": _division(lambda a, b: a - np.floor(a / b) * b, np.mod),
    "full": _full,
    "full_like": lambda attrs, args, result: np.full(static_shape(result), args[1], result.dtype),
    "gather_nd": _gather_nd,
    "greater": _binary(np.greater),
    "greater_equal": _binary(np.greater_equal),
    "layout_transform": _layout_transform,
    "left_shift": _bool_binary(np.left_shift),
    "less": _binary(np.less),
    "less_equal": _binary(np.less_equal),
    "log": _float_unary(np.log),
    "logical_and": _binary(np.logical_and),
    "logical_not": _unary(np.logical_not),
    "logical_or": _binary(np.logical_or),
    "max": _reduction(np.max),
    "maximum": _binary(np.maximum),
    "min": _reduction(np.min),
    "minimum": _binary(np.minimum),
    "mod": _division(lambda a, b: None, np.fmod),
    "multiply": _bool_binary(np.multiply),
    "negative": lambda attrs, args, result: None if args[0].dtype.kind in "bu" else -args[0],
    "nn.batch_flatten": _reshaped,
    "nn.dense": _dense,
    "nn.max_pool1d": max_pool,
    "nn.max_pool2d": max_pool,
    "nn.max_pool3d": max_pool,
    "nn.relu": relu,
    "not_equal": _binary(np.not_equal),
    "ones": _filled(1),
    "ones_like": _filled(1),
    "power": _power,
    "prod": _reduction(np.prod),
    "repeat": _repeat,
    "reshape": _reshaped,
    "reshape_like": _reshaped,
    "reverse": _reverse,
    "right_shift": _bool_binary(np.right_shift),
    "rsqrt": _float_unary(_rsqrt),
    "scatter_elements": scatter_elements,
    "sigmoid": _float_unary(_sigmoid),
    "split": _split,
    "sqrt": _float_unary(np.sqrt),
    "squeeze": _reshaped,
    "stack": _stack,
    "strided_slice": _strided_slice,
    "subtract": _bool_binary(np.subtract),
    "sum": _reduction(np.sum),
    "take": _take,
    "tanh": _float_unary(np.tanh),
    "tile": _tile,
    "transpose": _transpose,
    "trunc_divide": _division(lambda a, b: np.trunc(a / b), _truncating_divide),
    "trunc_mod": _division(lambda a, b: None, np.fmod),
    "where": _where,
    "zeros": _filled(0),
    "zeros_like": _filled(0),
}
"""Relay op name -> evaluator. An op that is not here is left to TVM."""

SHAPE_OPS = frozenset({"shape_of", "ndarray_size"})
"""Ops that depend on the static type of their argument only, constant or not."""
