"""DeformConv ==> gathers, a bilinear mix of neighbours, and a product with the filters.

ONNX operator specification, DeformConv; J. Dai et al., Deformable Convolutional Networks,
doi:10.1109/ICCV.2017.89, equations 2 and 3.
"""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, check_table, const
from heteroplace.parts.onnx.converters.vision import axis_taps, weighted_taps


def deform_conv(call: OnnxCall) -> relay.Expr:
    """Convert DeformConv: x [N, C, H, W], filters, offsets, bias, mask -> [N, O, *out]."""
    batch, channels, *sizes = call.shape(0)
    num_filters, filter_channels, *kernel = call.shape(1)
    if len(sizes) != 2:
        raise FrontendError(f"a map of {len(sizes)} axes is not supported, only of 2")
    out, dtype = list(call.shape(2)[2:]), call.dtype(0)
    groups, parts = (int(call.number(name, 1)) for name in ("group", "offset_group"))
    taps, places = prod(kernel), prod(out)
    starts = _starts(call, kernel, out)
    # [N * parts, taps, y or x, places]
    offsets = relay.reshape(call.operand(2), [batch * parts, taps, 2, places])
    positions = relay.add(relay.cast(offsets, "float32"), const(starts, "float32"))
    taps_of_axis = []
    for axis, size in enumerate(sizes):
        one = relay.take(positions, const(axis, "int32"), axis=2)
        one = relay.reshape(one, [batch * parts, taps * places])
        taps_of_axis.append(axis_taps(one, size, "linear", "zeros", is_aligned=True))
    data = relay.reshape(call.operand(0), [batch * parts, channels // parts, prod(sizes)])
    samples = weighted_taps(data, taps_of_axis, sizes, dtype)
    if call.has(4):
        mask = relay.reshape(call.operand(4), [batch * parts, 1, taps * places])
        samples = relay.multiply(samples, mask)
    columns = relay.reshape(samples, [batch * groups, filter_channels * taps, places])
    filters = relay.reshape(call.operand(1), [groups, -1, filter_channels * taps])
    filters = relay.tile(filters, [batch, 1, 1])
    result = relay.nn.batch_matmul(filters, columns, transpose_b=False)
    result = relay.reshape(result, [batch, num_filters, *out])
    if call.has(3):
        result = relay.add(result, relay.reshape(call.operand(3), [num_filters, 1, 1]))
    return result


def _starts(call: OnnxCall, kernel: list[int], out: list[int]) -> np.ndarray:
    """Return where each tap of each place reads without an offset, [1, taps, 2, places]."""
    strides, dilations = (call.attributes.get(name, (1, 1)) for name in ("strides", "dilations"))
    pads = call.attributes.get("pads", (0, 0, 0, 0))
    check_table(2 * prod(kernel) * prod(out), "the places of its taps")
    lines = [
        np.arange(kernel[i])[:, None] * dilations[i] + np.arange(out[i]) * strides[i] - pads[i]
        for i in range(2)
    ]
    shape = (kernel[0], kernel[1], out[0], out[1])
    rows = np.broadcast_to(lines[0][:, None, :, None], shape).reshape(prod(kernel), -1)
    columns = np.broadcast_to(lines[1][None, :, None, :], shape).reshape(prod(kernel), -1)
    return np.stack([rows, columns], axis=1)[None]
