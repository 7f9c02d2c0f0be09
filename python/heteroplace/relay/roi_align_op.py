"""RoiAlign of ONNX as ops of Relay: regions of a map, sampled and pooled.

ONNX operator specification, RoiAlign; K. He et al., Mask R-CNN, doi:10.1109/ICCV.2017.322, section
3. Ops of TVM compute where the bins of a region are; an op of ours takes the samples of each bin.

TVM's `vision.roi_align` knows neither `half_pixel` nor the maximum of ONNX, which is that of the
weighted neighbours, one by one. With as many samples as a region is large, its kernel for CPUs
writes past its tables where a region is larger than the map.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relay, te, tir

from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_relay_op

ROI_ALIGN_OP = "heteroplace_pooled_samples"

_MAX_SAMPLES = 1 << 20
"""Of one axis of a bin; a region that is larger, or not finite, counts as an empty one."""
_GPU_THREADS = 256


class RoiAlignOptions(NamedTuple):
    """Attributes of ONNX's op, under its names."""

    output_height: int
    output_width: int
    sampling_ratio: int
    """Samples of each axis of a bin; 0: as many as it has pixels."""
    spatial_scale: float
    is_half_pixel: bool
    """Regions are moved by half a pixel, and may be smaller than a pixel."""
    is_max: bool
    """The largest weighted neighbour, not the mean of the samples."""


def roi_align(
    data: relay.Expr, regions: relay.Expr, images: relay.Expr, options: RoiAlignOptions, dtype: str
) -> relay.Expr:
    """Return the pooled regions, [R, C, output_height, output_width].

    Parameters
    ----------
    data
        [N, C, height, width].
    regions
        [R, 4]: x and y of the first corner, then of the other.
    images
        int32[R]: in which of the N images a region is.
    dtype
        Type of data and regions, "float32" or "float64".
    """

    def const(value: Any) -> relay.Expr:
        return relay.const(np.asarray(value, dtype), dtype)

    corners = relay.multiply(regions, const(options.spatial_scale))
    if options.is_half_pixel:
        corners = relay.subtract(corners, const(0.5))
    starts, ends = relay.split(corners, 2, axis=1)
    lengths = relay.subtract(ends, starts)
    if not options.is_half_pixel:
        lengths = relay.where(relay.greater(lengths, const(1)), lengths, const(1))
    bins = relay.divide(lengths, const([options.output_width, options.output_height]))
    if options.sampling_ratio > 0:
        counts = relay.full_like(bins, const(options.sampling_ratio))
    else:
        counts = relay.ceil(bins)
        is_some = relay.logical_and(
            relay.greater(counts, const(0)), relay.less_equal(counts, const(_MAX_SAMPLES))
        )  # of NaN, neither
        counts = relay.where(is_some, counts, const(0))
    total = _pooled_samples(
        [data, relay.concatenate([starts, bins], 1), relay.cast(counts, "int32"), images], options
    )
    samples = relay.reshape(relay.prod(counts, 1), [-1, 1, 1, 1])
    if not options.is_max:
        total = relay.divide(total, samples)
    return relay.where(relay.greater(samples, const(0)), total, const(0))


def _pooled_samples(operands: list[relay.Expr], options: RoiAlignOptions) -> relay.Call:
    """Return a call of the op: sums, or maxima, of the samples of each bin."""
    register_roi_align_op()
    attributes = tvm.ir.make_node(
        "DictAttrs",
        output_height=options.output_height,
        output_width=options.output_width,
        is_max=int(options.is_max),
    )
    return relay.Call(tvm.ir.Op.get(ROI_ALIGN_OP), operands, attributes)


def register_roi_align_op() -> None:
    """Make the op known to TVM. Doing so again changes nothing."""
    arguments = {
        "data": ("Tensor", "[N, C, height, width]"),
        "frames": ("Tensor", "[R, 4]: x and y of a region's start, width and height of a bin"),
        "counts": ("Tensor", "int32[R, 2]: samples of a bin along x and y"),
        "images": ("Tensor", "int32[R]"),
    }
    add_relay_op(
        ROI_ALIGN_OP, "Pooled samples of regions.", arguments, _type_of, _compute, _schedule
    )


def _type_of(arguments: Any, attributes: Any) -> tvm.ir.Type | None:
    data, frames, *_ = arguments
    if not isinstance(data, relay.TensorType) or not isinstance(frames, relay.TensorType):
        return None
    sizes = (int(attributes["output_height"]), int(attributes["output_width"]))
    return relay.TensorType((static_shape(frames)[0], static_shape(data)[1], *sizes), data.dtype)


def _neighbours(
    position: tir.PrimExpr, size: int
) -> tuple[tir.PrimExpr, list[tuple[tir.PrimExpr, tir.PrimExpr]]]:
    """Return whether a position counts, and index and weight of the pixels before and after it."""
    dtype = position.dtype
    is_inside = tir.all(position >= tir.const(-1, dtype), position <= tir.const(size, dtype))
    place = tir.Select(position > tir.const(0, dtype), position, tir.const(0, dtype))
    is_last = tir.Not(place < tir.const(size - 1, dtype))  # NaN, too
    place = tir.Select(is_last, tir.const(size - 1, dtype), place)
    low = place.astype("int32")
    part = place - low.astype(dtype)
    high = tir.min(low + 1, size - 1)
    return is_inside, [(low, tir.const(1, dtype) - part), (high, part)]


def _compute(attributes: Any, tensors: Any, result_type: Any) -> list[te.Tensor]:
    data, frames, counts, images = tensors
    num_images, _, *sizes = (int(extent) for extent in data.shape)
    is_max, dtype = bool(attributes["is_max"]), data.dtype
    largest = te.comm_reducer(
        lambda a, b: tir.max(a, b), lambda kind: tir.FloatImm(kind, float("-inf"))
    )

    def pooled(region: tir.Var, channel: tir.Var, *bins: tir.Var) -> tir.PrimExpr:
        samples, parts = [], []
        for axis, place, size in zip((1, 0), bins, sizes, strict=True):
            count = counts[region, axis]
            sample = te.reduce_axis((0, count), "xy"[axis])
            start, bin_size = frames[region, axis], frames[region, axis + 2]
            inside = (sample.var.astype(dtype) + tir.const(0.5, dtype)) * bin_size
            position = start + place.astype(dtype) * bin_size + inside / count.astype(dtype)
            samples.append(sample)
            parts.append(_neighbours(position, size))
        image = tir.max(tir.min(images[region], num_images - 1), 0)
        terms = [
            row_weight * column_weight * data[image, channel, row, column]
            for row, row_weight in parts[0][1]
            for column, column_weight in parts[1][1]
        ]
        value = terms[0]
        for term in terms[1:]:
            value = tir.max(value, term) if is_max else value + term
        is_inside = tir.all(parts[0][0], parts[1][0])
        value = tir.if_then_else(is_inside, value, tir.const(0, dtype))
        return (largest if is_max else te.sum)(value, axis=samples)

    return [te.compute(result_type.shape, pooled, name="samples")]


def _schedule(_attributes: Any, outs: Any, target: Any) -> te.Schedule:
    result = outs[0]
    schedule = te.create_schedule(result.op)
    stage = schedule[result]
    if "gpu" in target.keys:
        block, thread = stage.split(stage.fuse(*result.op.axis), factor=_GPU_THREADS)
        stage.bind(block, te.thread_axis("blockIdx.x"))
        stage.bind(thread, te.thread_axis("threadIdx.x"))
    else:
        stage.parallel(stage.fuse(*result.op.axis[:2]))
    return schedule
