"""GridSample, AffineGrid, RoiAlign, Col2Im ==> gathers and scatters in Relay.

ONNX operator specification. GridSample follows it (and PyTorch, where it comes from) in that the
padding modes border and reflection move the position for nearest and linear sampling, and the
single neighbours for cubic.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

import numpy as np
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, check_table, const, shape_of
from heteroplace.parts.onnx.converters.quantized.quantized import round_half_even
from heteroplace.relay.roi_align_op import RoiAlignOptions
from heteroplace.relay.roi_align_op import roi_align as roi_align_of

_CUBIC_A = -0.75
_WIDE = "float32"
Tap = tuple[relay.Expr, "relay.Expr | None", "relay.Expr | None"]
"""Position and weight (None: it is one) of a neighbour, and where it is within the axis (None:
everywhere)."""


def grid_sample(call: OnnxCall) -> relay.Expr:
    """Convert GridSample: x [N, C, *sizes], grid [N, *out, rank] -> [N, C, *out]."""
    shape, grid_shape = call.shape(0), call.shape(1)
    sizes, out = shape[2:], grid_shape[1:-1]
    rank = len(sizes)
    padding = call.text("padding_mode", "zeros")
    mode = call.text("mode", "linear").removeprefix("bi")
    is_aligned = bool(call.number("align_corners", 0))
    grid = relay.cast(relay.reshape(call.operand(1), [shape[0], prod(out), rank]), _WIDE)
    taps_of_axis = []
    for axis, size in enumerate(sizes):
        place = relay.take(grid, const(rank - 1 - axis, "int32"), axis=-1)  # x comes first
        place = _unnormalised(place, size, is_aligned)
        taps_of_axis.append(axis_taps(place, size, mode, padding, is_aligned))
    flat = relay.reshape(call.operand(0), [*shape[:2], prod(sizes)])
    total = weighted_taps(flat, taps_of_axis, sizes, call.dtype(0))
    return relay.reshape(total, [*shape[:2], *out])


def weighted_taps(
    flat: relay.Expr, taps_of_axis: Sequence[Sequence[Tap]], sizes: Sequence[int], dtype: str
) -> relay.Expr:
    """Return the weighted sums of neighbours, [N, C, places], of data [N, C, prod(sizes)]."""
    strides = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    total = None
    for taps in itertools.product(*taps_of_axis):
        index, weight, inside = None, None, None
        for (position, own, is_inside), stride in zip(taps, strides, strict=True):
            part = relay.multiply(position, const(stride, "int32"))
            index = part if index is None else relay.add(index, part)
            if own is not None:
                weight = own if weight is None else relay.multiply(weight, own)
            if is_inside is not None:
                inside = is_inside if inside is None else relay.logical_and(inside, is_inside)
        places = relay.expand_dims(index, 1)
        spread = relay.broadcast_to(places, [*shape_of(flat)[:2], shape_of(index)[1]])
        value = relay.gather(flat, 2, spread)
        if inside is not None:  # before the weight, which may be NaN
            value = relay.where(relay.expand_dims(inside, 1), value, const(0, dtype))
        if weight is not None:
            value = relay.multiply(value, relay.cast(relay.expand_dims(weight, 1), dtype))
        total = value if total is None else relay.add(total, value)
    return total


def _unnormalised(place: relay.Expr, size: int, is_aligned: bool) -> relay.Expr:
    """Return positions from -1 .. 1 as positions in the axis."""
    one = relay.add(place, const(1, _WIDE))
    if is_aligned:
        return relay.multiply(one, const((size - 1) / 2, _WIDE))
    scaled = relay.multiply(one, const(size, _WIDE))
    return relay.multiply(relay.subtract(scaled, const(1, _WIDE)), const(0.5, _WIDE))


def axis_taps(place: relay.Expr, size: int, mode: str, padding: str, is_aligned: bool) -> list[Tap]:
    """Return the neighbours along one axis."""
    if mode in ("nearest", "linear"):
        place = _padded(place, size, padding, is_aligned)
    if mode == "nearest":
        position = round_half_even(place)
        return [(_index(position, size), None, _inside(position, size, padding))]
    low = relay.floor(place)
    part = relay.subtract(place, low)
    if mode == "linear":
        weights = [relay.subtract(const(1, _WIDE), part), part]
        offsets = [0, 1]
    elif mode == "cubic":
        offsets = [-1, 0, 1, 2]
        weights = [_cubic_weight(part, offset) for offset in offsets]
    else:
        raise FrontendError(f"mode '{mode}' is not known")
    taps = []
    for offset, weight in zip(offsets, weights, strict=True):
        position = relay.add(low, const(offset, _WIDE))
        if mode == "cubic":
            position = _padded(position, size, padding, is_aligned)
        taps.append((_index(position, size), weight, _inside(position, size, padding)))
    return taps


def _cubic_weight(part: relay.Expr, offset: int) -> relay.Expr:
    """Return the weight of the neighbour at `offset` from the one before the position."""
    distance = relay.abs(relay.subtract(part, const(offset, _WIDE)))

    def polynomial(coefficients: Sequence[float]) -> relay.Expr:
        result = const(coefficients[0], _WIDE)
        for coefficient in coefficients[1:]:
            result = relay.add(relay.multiply(result, distance), const(coefficient, _WIDE))
        return result

    a = _CUBIC_A
    if offset in (0, 1):
        return polynomial([a + 2, -(a + 3), 0, 1])
    return polynomial([a, -5 * a, 8 * a, -4 * a])


def _padded(place: relay.Expr, size: int, padding: str, is_aligned: bool) -> relay.Expr:
    """Return positions outside moved to where the padding mode reads."""
    if padding == "zeros":
        return place
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if is_aligned else (-0.5, float(size))
        if span == 0:
            return relay.zeros_like(place)
        distance = relay.abs(relay.subtract(place, const(low, _WIDE)))
        flips = relay.floor(relay.divide(distance, const(span, _WIDE)))
        rest = relay.subtract(distance, relay.multiply(flips, const(span, _WIDE)))
        half = relay.multiply(flips, const(0.5, _WIDE))
        is_odd = relay.not_equal(half, relay.floor(half))
        back = relay.subtract(const(span, _WIDE), rest)
        place = relay.add(relay.where(is_odd, back, rest), const(low, _WIDE))
    elif padding != "border":
        raise FrontendError(f"padding_mode '{padding}' is not known")
    return relay.clip(place, 0.0, float(size - 1))


def _inside(position: relay.Expr, size: int, padding: str) -> relay.Expr | None:
    """Return where a neighbour is within the axis; None: it always is."""
    if padding != "zeros":
        return None
    return relay.logical_and(
        relay.greater_equal(position, const(0, _WIDE)),
        relay.less_equal(position, const(size - 1, _WIDE)),
    )


def _index(position: relay.Expr, size: int) -> relay.Expr:
    return relay.cast(relay.clip(position, 0.0, float(size - 1)), "int32")


def roi_align(call: OnnxCall) -> relay.Expr:
    """Convert RoiAlign: x [N, C, height, width], regions [R, 4], images [R]."""
    default = "output_half_pixel" if call.opset < 16 else "half_pixel"
    coordinates = call.text("coordinate_transformation_mode", default)
    mode, dtype = call.text("mode", "avg"), call.dtype(0)
    if coordinates not in ("half_pixel", "output_half_pixel") or mode not in ("avg", "max"):
        raise FrontendError(
            f"coordinate_transformation_mode='{coordinates}' with mode='{mode}' is not known"
        )
    options = RoiAlignOptions(
        int(call.number("output_height", 1)),
        int(call.number("output_width", 1)),
        int(call.number("sampling_ratio", 0)),
        float(call.number("spatial_scale", 1.0)),
        coordinates == "half_pixel",
        mode == "max",
    )
    wide = "float64" if dtype == "float64" else "float32"
    data, regions = (
        call.operand(i) if dtype == wide else relay.cast(call.operand(i), wide) for i in range(2)
    )
    images = relay.clip(call.operand(2), 0, call.shape(0)[0] - 1)  # before fewer bits hold it
    result = roi_align_of(data, regions, relay.cast(images, "int32"), options, wide)
    return result if dtype == wide else relay.cast(result, dtype)


def affine_grid(call: OnnxCall) -> relay.Expr:
    """Convert AffineGrid: theta [N, rank, rank + 1], sizes of [N, C, *sizes] -> [N, *sizes, rank].

    The standard's own definition, of other ops, fails for N = 1.
    """
    batch, _, *sizes = (int(size) for size in call.constant(1, "size"))
    check_table(prod(sizes) * (len(sizes) + 1), "its grid")
    dtype, is_aligned = call.dtype(0), bool(call.number("align_corners", 0))
    places = [_grid_places(size, is_aligned) for size in sizes]
    axes = np.meshgrid(*places, indexing="ij")[::-1]  # x comes first
    grid = np.stack([*axes, np.ones(sizes)], axis=-1).reshape(1, -1, len(sizes) + 1)
    points = relay.broadcast_to(const(grid, dtype), [batch, *grid.shape[1:]])
    result = relay.nn.batch_matmul(points, call.operand(0))  # which transposes theta
    return relay.reshape(result, [batch, *sizes, len(sizes)])


def _grid_places(size: int, is_aligned: bool) -> np.ndarray:
    """Return the centres, or with aligned corners the ends, of pixels that fill -1 .. 1."""
    if is_aligned:
        return np.linspace(-1, 1, size)
    return (2 * np.arange(size) + 1) / size - 1


def col2im(call: OnnxCall) -> relay.Expr:
    """Convert Col2Im: add up columns [N, C * prod(block), L] where they come from."""
    image = [int(size) for size in call.constant(1, "image shape")]
    block = [int(size) for size in call.constant(2, "block shape")]
    rank = len(image)
    strides = call.attributes.get("strides", (1,) * rank)
    dilations = call.attributes.get("dilations", (1,) * rank)
    pads = call.attributes.get("pads", (0,) * 2 * rank)
    padded = [image[i] + pads[i] + pads[rank + i] for i in range(rank)]
    counts = [
        (padded[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)
    ]
    places = np.zeros((1, 1), dtype=np.int64)
    for i in range(rank):
        check_table(places.size * block[i] * counts[i], "the places of its columns")
        offsets = np.arange(block[i]) * dilations[i]
        starts = np.arange(counts[i]) * strides[i]
        here = (offsets[:, None] + starts) * prod(padded[i + 1 :])
        places = (places[:, None, :, None] + here[None, :, None, :]).reshape(
            len(places) * block[i], -1
        )
    batch, columns, _ = call.shape(0)
    channels = columns // prod(block)
    flat = [batch, channels, places.size]
    result = relay.scatter_elements(
        relay.zeros([batch, channels, prod(padded)], call.dtype(0)),
        relay.broadcast_to(const(places.reshape(1, 1, -1), "int64"), flat),
        relay.reshape(call.operand(0), flat),
        2,
        "add",
    )
    begins = [0, 0, *(int(pad) for pad in pads[:rank])]
    ends = [batch, channels, *(b + size for b, size in zip(begins[2:], image, strict=True))]
    whole = relay.reshape(result, [batch, channels, *padded])
    assert shape_of(whole) == (batch, channels, *padded)
    return relay.strided_slice(whole, begins, ends)
