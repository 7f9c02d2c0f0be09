"""Quantised results of convolutions of 8 bits that are proven to be small -> an op without clips.

    cast(clip(clip(x + M) - M + z), "uint8")  ==>  heteroplace_bounded_byte(x, zero=z)

with x = cast(conv(%data, const)) * const, and ReLU and sums with constants between. Each product of
a convolution is at most 255 times its weight. So the weights of a channel limit its sum, and
intervals limit what is computed from the sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from tvm import relay

from heteroplace.parts.kernels.cpu.bounded_bytes import LARGEST, bounded_bytes
from heteroplace.relay.expressions import is_op_call, op_name, rebuilt, static_shape
from heteroplace.relay.tasks.fold import constant_scalar
from heteroplace.relay.tasks.folded_steps import ROUNDING_SHIFT

_MAX_BYTE = 255
_CONVOLUTIONS = {
    "nn.contrib_conv2d_NCHWc": (1, 2, 3, 4, 6),
    "nn.contrib_depthwise_conv2d_NCHWc": (1, 2, 3, 4),
}
"""Axes of the weights over which the sum of a channel goes, by op."""
_NUM_AXES = {"nn.contrib_conv2d_NCHWc": 7, "nn.contrib_depthwise_conv2d_NCHWc": 6}


class _Interval(NamedTuple):
    """Limits of the values of each channel; float64 [blocks, lanes]."""

    least: np.ndarray
    most: np.ndarray


def with_bounded_steps(function: relay.Function) -> relay.Function:
    """Return a function with the op, for CPUs with VNNI; layouts of maps are in blocks before."""
    return rebuilt(function, _rewritten, ops=("cast",))


def _rewritten(old: relay.Call, new: relay.Call) -> relay.Expr:
    """Return the op for a quantisation of small numbers; `new` for anything else."""
    quantised = _quantised(old)
    if quantised is None:
        return new
    zero, depth = quantised
    value = new
    for _ in range(depth):
        old, value = old.args[0], value.args[0]
    if zero == 0 and is_op_call(old, "nn.relu") and _is_small(old.args[0]):
        return bounded_bytes(value.args[0], zero, new.span)  # which makes 0 of negative numbers
    return bounded_bytes(value, zero, new.span) if _is_small(old) else new


def _is_small(value: relay.Expr) -> bool:
    interval = _interval(value)
    if interval is None:
        return False
    return float(max(-interval.least.min(), interval.most.max())) <= LARGEST


def _quantised(cast: relay.Call) -> tuple[int, int] | None:
    """The zero point of a quantisation, and how many calls lie above what is rounded."""
    value, depth, zero = cast.args[0], 1, 0.0
    if str(cast.attrs.dtype) != "uint8" or not _is_clip(value, 0, _MAX_BYTE):
        return None
    value, depth = value.args[0], depth + 1
    offset = constant_scalar(value.args[1]) if is_op_call(value, "add") else None
    if offset is not None and not is_op_call(value.args[0], "clip"):
        value, depth, zero = value.args[0], depth + 1, offset
    if not is_op_call(value, "subtract") or constant_scalar(value.args[1]) != ROUNDING_SHIFT:
        return None
    value, depth = value.args[0], depth + 1
    wide = _MAX_BYTE + abs(zero)
    if not (is_op_call(value, "clip") and _is_around(value, wide)):
        return None
    value, depth = value.args[0], depth + 1
    is_shifted = is_op_call(value, "add") and constant_scalar(value.args[1]) == ROUNDING_SHIFT
    is_even = zero in range(0, _MAX_BYTE + 1, 2)
    return (int(zero), depth + 1) if is_shifted and is_even else None


def _interval(value: relay.Expr) -> _Interval | None:
    """Limits of a scaled sum of each channel; None: it is something else."""
    if not isinstance(value, relay.Call):
        return None
    name = op_name(value)
    if name in _CONVOLUTIONS:
        return _interval_of_sums(value, name)
    interval = _interval(value.args[0]) if value.args else None
    if interval is None:
        return None
    least, most = interval
    if name == "nn.relu":
        return _Interval(np.maximum(least, 0), np.maximum(most, 0))
    if name == "cast" and str(value.attrs.dtype) in ("int32", "float32"):
        return interval
    constant = _of_channels(value.args[1], least.shape) if len(value.args) == 2 else None
    if constant is None or name not in ("add", "subtract", "multiply"):
        return None
    if name == "multiply":
        both = least * constant, most * constant
        return _Interval(np.minimum(*both), np.maximum(*both))
    moved = constant if name == "add" else -constant
    return _Interval(least + moved, most + moved)


def _interval_of_sums(call: relay.Call, name: str) -> _Interval | None:
    data, weights = call.args
    is_byte = str(data.checked_type.dtype) == "uint8"
    if not is_byte or not isinstance(weights, relay.Constant):
        return None
    values = weights.data.numpy().astype("float64")
    is_blocked = values.ndim == _NUM_AXES[name] and str(call.checked_type.dtype) == "int32"
    if not is_blocked:
        return None
    axes = _CONVOLUTIONS[name]
    return _Interval(
        np.minimum(values, 0).sum(axis=axes) * _MAX_BYTE,
        np.maximum(values, 0).sum(axis=axes) * _MAX_BYTE,
    )


def _of_channels(value: relay.Expr, shape: tuple[int, ...]) -> np.ndarray | None:
    """A constant for each channel, in blocks, or one for all; None: it is no such constant."""
    if not isinstance(value, relay.Constant):
        return None
    numbers: np.ndarray = value.data.numpy().astype("float64")
    blocks, lanes = shape
    if numbers.size == 1:
        return numbers.reshape(())
    is_of_channels = static_shape(value.checked_type)[-5:] == (1, blocks, 1, 1, lanes)
    return numbers.reshape(shape) if is_of_channels else None


def _is_clip(value: relay.Expr, least: float, most: float) -> bool:
    return is_op_call(value, "clip") and (value.attrs.a_min, value.attrs.a_max) == (least, most)


def _is_around(clip: relay.Call, wide: float) -> bool:
    """Tell whether a clip leaves all numbers that are within `wide` of the shift."""
    return bool(
        clip.attrs.a_min <= ROUNDING_SHIFT - wide and ROUNDING_SHIFT + wide <= clip.attrs.a_max
    )
