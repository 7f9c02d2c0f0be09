"""A fused function -> the convolution of images by which cuDNN computes all of it, if it can.

    relu(convolution + bias + sum)

The convolution is an `nn.conv2d` of float32 in NCHW by filters in OIHW, with any strides, dilation
and groups, and as much padding before as behind. A bias is one number for each channel, a sum has
the shape of the result, and both and the relu may be missing. The form of the symbol is that which
`src/parts/kernels/convolution.h` reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tvm import relay

from heteroplace.parts.kernels.nvidia.epilogues import (
    Epilogue,
    activation_of,
    is_float32_function,
    op_name,
)
from heteroplace.parts.kernels.nvidia.library_kernels import (
    MAX_EXTENT,
    LibraryKernel,
    operands_text,
)
from heteroplace.relay.expressions import post_order, static_shape

_RANK = 4
_MAX_ELEMENTS = 2**31 - 1
"""Of a tensor that cuDNN takes."""


@dataclass(frozen=True)
class Convolution(LibraryKernel):
    """A convolution, and what is done to its result; row major, all of float32.

    Pairs are of rows and columns.
    """

    shape: tuple[int, int, int, int]
    """batch, channels, height, width of the data"""
    filters: int
    window: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    """Zeros before the first, and as many behind the last."""
    dilation: tuple[int, int]
    groups: int
    data: int
    """Position among the function's parameters, as of the others."""
    filter: int
    bias: int | None = None
    sum: int | None = None
    activation: str = "none"
    """"none" or "relu"."""

    library: ClassVar[str] = "cudnn"
    no_algorithm: ClassVar[str] = "0"

    @property
    def name(self) -> str:
        """What equal convolutions have in common; no blanks.

        >>> Convolution((1, 8, 14, 14), 16, (3, 3), (2, 2), (1, 1), (1, 1), 1, 0, 1, 2).name
        '1x8x14x14x16x3x3:2x2x1x1x1x1x1:none:0,1,2,-'
        """
        extents = (*self.shape, self.filters, *self.window)
        steps = (*self.strides, *self.padding, *self.dilation, self.groups)
        fields = ["x".join(map(str, extents)), "x".join(map(str, steps)), self.activation]
        return ":".join([*fields, operands_text(self.data, self.filter, self.bias, self.sum)])

    @property
    def operand_sizes(self) -> Mapping[int, int]:
        """Numbers of each operand by its position among the function's parameters."""
        per_filter = self.shape[1] // self.groups * math.prod(self.window)
        sizes = {self.data: math.prod(self.shape), self.filter: self.filters * per_filter}
        if self.bias is not None:
            sizes[self.bias] = self.filters
        if self.sum is not None:
            sizes[self.sum] = self.result_size
        return sizes

    @property
    def result_shape(self) -> tuple[int, int, int, int]:
        """Shape of the result."""
        extents = [
            (size + 2 * padding - (window - 1) * dilation - 1) // stride + 1
            for size, padding, window, dilation, stride in zip(
                self.shape[2:], self.padding, self.window, self.dilation, self.strides, strict=True
            )
        ]
        return (self.shape[0], self.filters, extents[0], extents[1])

    @property
    def result_size(self) -> int:
        """Numbers of the result."""
        return math.prod(self.result_shape)


def convolution_of(function: relay.Function) -> Convolution | None:
    """Return the convolution that a fused function is; None: it is none."""
    if not is_float32_function(function):
        return None
    parameters = list(function.params)
    calls = [node for node in post_order(function.body) if isinstance(node, relay.Call)]
    convolutions = [call for call in calls if op_name(call) == "nn.conv2d"]
    if len(convolutions) != 1 or any(
        argument not in parameters for argument in convolutions[0].args
    ):
        return None
    call = convolutions[0]
    if not _is_plain(call):
        return None
    data, filters = (static_shape(argument.checked_type) for argument in call.args)
    whole = static_shape(call.checked_type)
    if any(not 0 < extent <= MAX_EXTENT for extent in (*data, *filters, *whole)):
        return None
    if max(map(math.prod, (data, filters, whole))) > _MAX_ELEMENTS:
        return None
    channels = (1, whole[1], 1, 1)

    def is_bias(of_sum: Sequence[int], shape: Sequence[int], axis: int | None) -> bool:
        """Along the channels, of which nobody knows where they are once the shape has changed."""
        if tuple(of_sum) != tuple(whole):
            return False
        if axis is not None:
            return axis in (1, 1 - _RANK)
        return (*(1,) * (_RANK - len(shape)), *shape) == channels

    epilogue = Epilogue(function, calls, math.prod(whole), is_bias)
    activation = activation_of(function.body, epilogue.climb(call))
    if activation not in ("none", "relu") or not epilogue.reads_all(call):
        return None
    batch, num_channels, height, width = data
    return Convolution(
        (batch, num_channels, height, width),
        filters[0],
        _pair(filters[2:]),
        _pair(call.attrs.strides),
        _pair(call.attrs.padding),
        _pair(call.attrs.dilation),
        int(call.attrs.groups),
        parameters.index(call.args[0]),
        parameters.index(call.args[1]),
        epilogue.bias,
        epilogue.sum,
        activation,
    )


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    """The first two of some numbers."""
    first, second, *_ = (int(each) for each in numbers)
    return first, second


def _is_plain(call: relay.Call) -> bool:
    """Tell whether a convolution is one of float32 in NCHW with equal padding on both sides."""
    attrs = call.attrs
    top, left, bottom, right = (int(each) for each in attrs.padding)
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    return (
        str(call.checked_type.dtype) == "float32"
        and layouts in (("NCHW", "OIHW", ""), ("NCHW", "OIHW", "NCHW"))
        and (top, left) == (bottom, right)
        and min(top, left) >= 0
    )
