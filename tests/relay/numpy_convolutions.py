"""Convolutions by numpy, for `numpy_relay`."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


def in_type_of_product(attrs: Any, *factors: Array) -> list[Array]:
    """The factors of a product, widened."""
    return [each.astype(str(attrs.out_dtype) or each.dtype) for each in factors]


def conv2d(attrs: Any, data: Array, kernel: Array) -> Array:
    """NCHW."""
    data, kernel = in_type_of_product(attrs, data, kernel)
    (top, left, bottom, right), groups = (int(pad) for pad in attrs.padding), int(attrs.groups)
    down, across = (int(stride) for stride in attrs.strides)
    gaps = [int(step) for step in attrs.dilation]
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    reach = [(size - 1) * gap + 1 for size, gap in zip(kernel.shape[2:], gaps, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, (2, 3))
    windows = windows[:, :, ::down, ::across, :: gaps[0], :: gaps[1]]
    parts = zip(np.split(windows, groups, 1), np.split(kernel, groups, 0), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", *part) for part in parts], 1)


def conv2d_backward_weight(attrs: Any, grad: Array, data: Array) -> Array:
    """NCHW, kernel OIHW, stride 1, one group."""
    top, left, bottom, right = (int(pad) for pad in attrs.padding)
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, grad.shape[2:], (2, 3))
    down, across = (int(step) for step in attrs.dilation)
    return np.einsum("nohw,niyxhw->oiyx", grad, windows[:, :, ::down, ::across])


def conv2d_transpose(attrs: Any, data: Array, kernel: Array) -> Array:
    """NCHW, kernel IOHW, one group."""
    (down, across), (below, beside) = map(_pair, (attrs.strides, attrs.output_padding))
    top, left, bottom, right = (int(pad) for pad in attrs.padding)
    (height, width), (rows, columns) = data.shape[2:], kernel.shape[2:]
    spread = np.zeros((*data.shape[:2], (height - 1) * down + 1, (width - 1) * across + 1))
    spread[:, :, ::down, ::across] = data
    widths = ((0, 0), (0, 0), (rows - 1, rows - 1), (columns - 1, columns - 1))
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(spread, widths), kernel.shape[2:], (2, 3)
    )
    whole = np.einsum("nihwyx,ioyx->nohw", windows, kernel[:, :, ::-1, ::-1])
    whole = np.pad(whole, ((0, 0), (0, 0), (0, below), (0, beside)))
    return whole[:, :, top : whole.shape[2] - bottom, left : whole.shape[3] - right]


def _pair(values: Any) -> tuple[int, int]:
    first, second = (int(value) for value in values)
    return first, second


def woven(attrs: Any, data: Array) -> Array:
    rows, columns = int(attrs["rows"]), int(attrs["columns"])
    n, channels, height, width = data.shape
    channels //= rows * columns
    parts = data.reshape(n, rows, columns, channels, height, width).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, channels, height * rows, width * columns)
