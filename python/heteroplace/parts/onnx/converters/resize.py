"""Resize and Upsample ==> gathers with constant positions and weights, one axis after the other.

ONNX operator specification, Resize (opsets 10 to 19). Interpolation of every mode is separable: an
element of the result is a weighted sum of a few elements along each axis, whose positions and
weights depend on sizes only. They are computed here in double precision, so that any scale, mode
and rounding is exact. TVM's own resize derives the scale from the sizes, which is another one
wherever size * scale is no whole number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, const, dtype_of, shape_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_FLOATS = ("float16", "float32", "float64")
_MAX_SIZE = 2**24
"""Of an axis: where each element comes from is a constant."""


class AxisResize(NamedTuple):
    """How one axis is resized."""

    axis: int
    input_size: int
    output_size: int
    scale: float
    region: tuple[float, float]
    """Start and end of the region of interest, in parts of the axis; for tf_crop_and_resize."""


class Taps(NamedTuple):
    """What each element along an axis is made of."""

    positions: Ints
    """[output_size, num_taps], within the axis."""
    weights: Floats
    """[output_size, num_taps]; all one for nearest."""
    is_outside: npt.NDArray[np.bool_]
    """[output_size]; True: the extrapolation value instead."""


def resize(call: OnnxCall) -> relay.Expr:
    """Convert Resize: (x, roi, scales, sizes), or (x, scales) in opset 10."""
    mode = call.text("mode", "nearest")
    data = call.operand(0)
    dtype = call.dtype(0)
    if mode != "nearest" and dtype not in _FLOATS:
        raise FrontendError(
            f"mode {mode!r} of {dtype} is rounded differently by each runtime; cast to float32 "
            f"before it and back after it"
        )
    outside_of_axis: dict[int, npt.NDArray[np.bool_]] = {}
    is_widened = dtype == "float16" and mode != "nearest"
    result = relay.cast(data, "float32") if is_widened else data
    for axis in _axes(call):
        if axis.output_size > _MAX_SIZE:
            raise FrontendError(
                f"axis {axis.axis} would have {axis.output_size} elements; expected at most "
                f"{_MAX_SIZE}"
            )
        taps = _taps(call, mode, axis)
        result = _gather(result, axis.axis, taps)
        if taps.is_outside.any():
            outside_of_axis[axis.axis] = taps.is_outside
    if outside_of_axis:
        result = _extrapolate(result, outside_of_axis, call.number("extrapolation_value", 0.0))
    return relay.cast(result, dtype) if is_widened else result


def upsample(call: OnnxCall) -> relay.Expr:
    """Convert Upsample: (x, scales), or attributes before opset 9; a Resize, asymmetric, floor."""
    attributes = {
        "mode": call.text("mode", "nearest"),
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    operands: list[relay.Expr | None] = [call.operand(0), None]
    if call.has(1):
        operands.append(call.operand(1))
    else:
        scales = call.attributes.get("scales")
        if scales is None:  # opset 1
            scales = (1, 1, call.number("height_scale", 1), call.number("width_scale", 1))
        operands.append(const(scales, "float32"))
    return resize(OnnxCall(operands, attributes, 11, 1, call.params))


def _axes(call: OnnxCall) -> list[AxisResize]:
    """Return the axes that change, with the scales that the node gives or its sizes imply."""
    shape = call.shape(0)
    rank = len(shape)
    given = call.attributes.get("axes", tuple(range(rank)))
    axes = [int(axis) % rank for axis in given]
    scales, sizes = _scales_and_sizes(call, [shape[axis] for axis in axes])
    mode = _coordinate_mode(call)
    regions = [(0.0, 1.0)] * len(axes)
    if mode == "tf_crop_and_resize":
        roi = call.constant(1, "region").astype(np.float64)
        count = len(roi) // 2
        regions = [(float(roi[i]), float(roi[count + i])) for i in range(count)]
    resized = [
        AxisResize(axis, shape[axis], size, scale, region)
        for axis, size, scale, region in zip(axes, sizes, scales, regions, strict=True)
    ]
    return [
        one
        for one in resized
        if one.scale != 1.0 or one.output_size != one.input_size or one.region != (0.0, 1.0)
    ]


def _scales_and_sizes(call: OnnxCall, shape: Sequence[int]) -> tuple[list[float], list[int]]:
    """Return scale and output size of each resized axis."""
    position = 1 if call.opset < 11 else 2
    scales = call.constant(position, "scales") if call.has(position) else np.zeros(0)
    if scales.size:
        if len(scales) != len(shape):
            raise FrontendError(f"it has {len(scales)} scales for {len(shape)} axes")
        # Of the product in double precision, as the specification's reference.
        given = [float(scale) for scale in scales]
        return given, [int(np.floor(s * n)) for s, n in zip(given, shape, strict=True)]
    sizes = [int(size) for size in call.constant(3, "sizes")]
    if len(sizes) != len(shape):
        raise FrontendError(f"it has {len(sizes)} sizes for {len(shape)} axes")
    if 0 in shape:
        raise FrontendError(f"an axis of no elements (of {list(shape)}) has no scale")
    ratios = [size / extent for size, extent in zip(sizes, shape, strict=True)]
    choose = {"not_larger": min, "not_smaller": max}.get(call.text("keep_aspect_ratio_policy", ""))
    if choose is None:
        return ratios, sizes
    ratio = choose(ratios)
    return [ratio] * len(shape), [int(ratio * extent + 0.5) for extent in shape]


def _coordinate_mode(call: OnnxCall) -> str:
    default = "asymmetric" if call.opset < 11 else "half_pixel"
    return call.text("coordinate_transformation_mode", default)


def _taps(call: OnnxCall, mode: str, axis: AxisResize) -> Taps:
    """Return what the elements along one axis are made of."""
    source = _source_positions(_coordinate_mode(call), axis)
    last = axis.input_size - 1
    is_outside = np.zeros(len(source), dtype=np.bool_)
    if _coordinate_mode(call) == "tf_crop_and_resize":
        is_outside = (source < 0) | (source > last)
    if mode == "nearest":
        rounding = call.text("nearest_mode", "floor" if call.opset < 11 else "round_prefer_floor")
        nearest = np.clip(_round(rounding, source), 0, last).astype(np.int64)[:, None]
        return Taps(nearest, np.ones(nearest.shape), is_outside)
    kernel, radius = _kernel(mode, call.number("cubic_coeff_a", -0.75))
    squeeze = min(axis.scale, 1.0) if call.number("antialias", 0) else 1.0
    # As in the reference, an even number of neighbours, the last of the left half being the
    # largest integer below the position (which itself counts as right half if it is an integer).
    left = np.ceil(source).astype(np.int64) - 1
    first = int(np.floor(-radius / squeeze)) + 1
    offsets = np.arange(first, 2 - first)
    positions = left[:, None] + offsets
    weights = kernel((positions - source[:, None]) * squeeze)
    if call.number("exclude_outside", 0):
        weights = np.where((positions < 0) | (positions > last), 0.0, weights)
    total = weights.sum(axis=1, keepdims=True)
    weights = weights / np.where(total == 0, 1.0, total)
    return Taps(np.clip(positions, 0, last), weights, is_outside)


def _source_positions(mode: str, axis: AxisResize) -> Floats:
    """Return where each output element lies in the input, [output_size]."""
    index = np.arange(axis.output_size, dtype=np.float64)
    extent, last = axis.scale * axis.input_size, axis.input_size - 1
    start, end = axis.region
    if mode == "align_corners":
        return index * 0.0 if extent == 1 else index * last / (extent - 1)
    if mode == "asymmetric":
        return index / axis.scale
    if mode == "tf_crop_and_resize":
        if extent == 1:
            return index * 0.0 + (start + end) * last / 2
        return index * (end - start) * last / (extent - 1) + start * last
    half_pixel = (index + 0.5) / axis.scale - 0.5
    if mode == "half_pixel":
        return half_pixel
    if mode == "pytorch_half_pixel":
        # As the specification and onnxruntime; its reference takes 1.5 elements for two.
        return half_pixel if axis.output_size > 1 else index * 0.0
    if mode == "half_pixel_symmetric":
        return half_pixel + axis.input_size / 2 * (1 - axis.output_size / extent)
    raise FrontendError(f"coordinate_transformation_mode {mode!r} is not known")


def _round(mode: str, source: Floats) -> Floats:
    roundings: dict[str, Callable[[Floats], Floats]] = {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    }
    if mode not in roundings:
        raise FrontendError(f"nearest_mode {mode!r} is not known")
    return roundings[mode](source)


def _kernel(mode: str, a: float) -> tuple[Callable[[Floats], Floats], int]:
    """Return weight by distance, and the distance from which on it is zero."""

    def linear(distance: Floats) -> Floats:
        return np.clip(1.0 - np.abs(distance), 0.0, 1.0)

    def cubic(distance: Floats) -> Floats:
        x = np.abs(distance)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))

    if mode == "linear" or mode == "bilinear":
        return linear, 1
    if mode == "cubic":
        return cubic, 2
    raise FrontendError(f"mode {mode!r} is not known")


def _gather(data: relay.Expr, axis: int, taps: Taps) -> relay.Expr:
    """Return the weighted sum of elements along one axis."""
    rank = len(shape_of(data))
    dtype = dtype_of(data)
    terms = []
    for positions, weights in zip(taps.positions.T, taps.weights.T, strict=True):
        if not weights.any():
            continue
        term = relay.take(data, const(positions, "int32"), axis=axis, mode="clip")
        if (weights != 1.0).any():
            shape = [-1 if i == axis else 1 for i in range(rank)]
            term = relay.multiply(term, const(weights.reshape(shape), dtype))
        terms.append(term)
    result = terms[0]
    for term in terms[1:]:
        result = relay.add(result, term)
    return result


def _extrapolate(
    data: relay.Expr, outside_of_axis: dict[int, npt.NDArray[np.bool_]], value: float
) -> relay.Expr:
    """Put `value` wherever the position along some axis is outside."""
    rank = len(shape_of(data))
    mask = np.zeros([1] * rank, dtype=np.bool_)
    for axis, is_outside in outside_of_axis.items():
        mask = mask | is_outside.reshape([-1 if i == axis else 1 for i in range(rank)])
    return relay.where(const(mask, "bool"), const(value, dtype_of(data)), data)
