"""ConvTranspose ==> Relay, with every padding, dilation and number of groups.

ONNX operator specification. Without padding a transposed convolution of n elements has
(n - 1) stride + (kernel - 1) dilation + 1 along an axis; the output is a part of these, from the
first padding on, with zeros behind them if it is longer (output_padding, output_shape). TVM's
kernels know no dilation, and groups of two axes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, const

_CONVOLUTIONS = (
    relay.nn.conv1d_transpose,
    relay.nn.conv2d_transpose,
    relay.nn.conv3d_transpose,
)


class _Axis(NamedTuple):
    """What is cut off the whole along one axis, and what follows it."""

    first_pad: int
    last_pad: int
    zeros: int


def conv_transpose(call: OnnxCall) -> relay.Expr:
    """Convert ConvTranspose of one to three axes."""
    rank = len(call.shape(0)) - 2
    if not 1 <= rank <= len(_CONVOLUTIONS):
        raise FrontendError(f"it has {rank} axes beside batch and channels; expected 1 to 3")
    strides = _per_axis(call, "strides", rank, 1)
    dilations = _per_axis(call, "dilations", rank, 1)
    axes = _axes(call, strides, dilations)
    weight = call.operand(1)
    if any(dilation != 1 for dilation in dilations):
        weight = relay.nn.dilate(weight, [1, 1, *dilations])
    kernel = [(n - 1) * d + 1 for n, d in zip(call.shape(1)[2:], dilations, strict=True)]

    def convolution(data: relay.Expr, weight: relay.Expr, groups: int) -> relay.Expr:
        return _CONVOLUTIONS[rank - 1](
            data,
            weight,
            strides=strides,
            padding=[axis.first_pad for axis in axes] + [axis.last_pad for axis in axes],
            channels=call.shape(1)[1] * groups,
            kernel_size=kernel,
            groups=groups,
        )

    data, groups = call.operand(0), int(call.number("group", 1))
    if groups == 1 or rank == 2:
        result = convolution(data, weight, groups)
    else:
        parts = [
            relay.split(operand, groups, 0 if operand is weight else 1)
            for operand in (data, weight)
        ]
        convolutions = [convolution(parts[0][i], parts[1][i], 1) for i in range(groups)]
        result = relay.concatenate(convolutions, 1)
    if any(axis.zeros for axis in axes):
        added = [(0, 0), (0, 0), *((0, axis.zeros) for axis in axes)]
        result = relay.nn.pad(result, added, pad_value=const(0, call.dtype(0)))
    return relay.nn.bias_add(result, call.operand(2)) if call.has(2) else result


def _per_axis(call: OnnxCall, name: str, rank: int, default: int) -> list[int]:
    return [int(value) for value in call.attributes.get(name, [default] * rank)]


def _axes(call: OnnxCall, strides: Sequence[int], dilations: Sequence[int]) -> list[_Axis]:
    rank = len(strides)
    whole = [
        (size - 1) * stride + (kernel - 1) * dilation + 1
        for size, kernel, stride, dilation in zip(
            call.shape(0)[2:], call.shape(1)[2:], strides, dilations, strict=True
        )
    ]
    extra = _per_axis(call, "output_padding", rank, 0)
    auto = call.text("auto_pad", "NOTSET")
    if "output_shape" in call.attributes:
        # Of opset 1 it may have the batch and the channels too.
        sizes = _per_axis(call, "output_shape", rank, 0)[-rank:]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        sizes = [n * stride for n, stride in zip(call.shape(0)[2:], strides, strict=True)]
    else:
        pads = [0] * 2 * rank if auto == "VALID" else _per_axis(call, "pads", 2 * rank, 0)
        return [
            _cut(whole[i], pads[i], whole[i] + extra[i] - pads[i] - pads[rank + i])
            for i in range(rank)
        ]
    axes = []
    for length, added, size in zip(whole, extra, sizes, strict=True):
        if "output_shape" not in call.attributes and length + added < size:
            raise FrontendError(
                f"auto_pad is {auto!r} and its kernel is shorter than its stride, so that the "
                f"padding would be {length + added - size} elements: the specification makes "
                f"{size} of them, onnxruntime {length + added}. Export pads or output_shape instead"
            )
        total = max(length + added - size, 0)
        axes.append(_cut(length, total // 2 if auto == "SAME_UPPER" else -(-total // 2), size))
    return axes


def _cut(whole: int, first_pad: int, size: int) -> _Axis:
    """Return how `size` elements of `whole` are taken, from `first_pad` on."""
    if size < 1:
        raise FrontendError(f"its padding leaves {size} elements of {whole}")
    rest = whole - first_pad - size
    return _Axis(first_pad, max(rest, 0), max(-rest, 0))
