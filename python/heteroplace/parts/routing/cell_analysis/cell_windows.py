"""Convolutions and pools: the cells under the window of each output place, by exact arithmetic.

Output place p of an axis sees the input places p * stride - padding + tap * dilation; those in the
padding hold no cell. A window wider than its stride thus reaches into the neighbour cells (halo).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from heteroplace.parts.routing.cell_analysis.cell_sets import CellOperand, Sets, union
from heteroplace.relay.expressions import static_shape


def convolved(
    call: Any, data: CellOperand, weight_shape: Sequence[int], is_present: np.ndarray | None
) -> list[Sets] | None:
    """Return the sets of a convolution's result; None: a layout in blocks.

    Parameters
    ----------
    call
        nn.conv1d, nn.conv2d or nn.conv3d, typed.
    data
        What is convolved.
    weight_shape, kept
        Of its kernel, and where that is not 0; None: everywhere.
    """
    attrs = call.attrs
    layout, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
    out_layout = str(attrs.out_layout) or layout
    if not all(text.isalpha() and text.isupper() for text in (layout, kernel, out_layout)):
        return None
    places = [letter for letter in layout if letter not in "NC"]
    order = [layout.index(letter) for letter in ("N", "C", *places)]
    sets = data.sets.transpose(*order, data.sets.ndim - 1)
    turned = [kernel.index(letter) for letter in ("O", "I", *places)]
    sizes = [weight_shape[axis] for axis in turned]
    mask = None if is_present is None else is_present.transpose(turned)
    groups, channels = int(attrs.groups), data.shape[layout.index("C")]
    if groups > 1 and groups == channels:  # a kernel of [channels, multiplier] is one of [out, 1]
        mask = None if mask is None else mask.reshape(-1, 1, *mask.shape[2:])
        sizes = [sizes[0] * sizes[1], 1, *sizes[2:]]
    outs = [static_shape(call.checked_type)[out_layout.index(letter)] for letter in places]
    count = len(places)
    windows = _Windows(
        sets,
        [data.shape[layout.index(letter)] for letter in places],
        outs,
        [int(stride) for stride in attrs.strides],
        [int(step) for step in attrs.dilation],
        _padding(attrs.padding, count),
    )
    result: Sets | None = None
    for tap in product(*(range(size) for size in sizes[2:])):
        place = (slice(None), slice(None), *tap)
        tap_mask = None if mask is None else mask[place]
        part = _over_channels(windows.at(tap), tap_mask, sizes[0], groups)
        result = part if result is None else result | part
    assert result is not None  # a kernel has a tap
    back = [("N", "C", *places).index(letter) for letter in out_layout]
    return [result.transpose(*back, result.ndim - 1)]


def pooled(call: Any, data: CellOperand) -> list[Sets] | None:
    """Return the sets of a pool's result, each channel alone; None: a layout in blocks."""
    attrs = call.attrs
    layout = str(attrs.layout)
    if not (layout.isalpha() and layout.isupper()):
        return None
    axes = [axis for axis, letter in enumerate(layout) if letter not in "NC"]
    if call.op.name.startswith("nn.global_"):
        return [union(data.sets, axes)]
    order = [layout.index("N"), layout.index("C"), *axes]
    windows = _Windows(
        data.sets.transpose(*order, data.sets.ndim - 1),
        [data.shape[axis] for axis in axes],
        [static_shape(call.checked_type)[axis] for axis in axes],
        [int(stride) for stride in attrs.strides],
        [int(step) for step in attrs.dilation],
        _padding(attrs.padding, len(axes)),
    )
    sets: Sets | None = None
    for tap in product(*(range(int(size)) for size in attrs.pool_size)):
        part = windows.at(tap)
        sets = part if sets is None else sets | part
    assert sets is not None
    back = [order.index(axis) for axis in range(len(order))]
    return [sets.transpose(*back, sets.ndim - 1)]


class _Windows:
    """The input [N, C, places ..] of an op that moves a window over it."""

    def __init__(
        self,
        sets: Sets,
        extents: Sequence[int],
        outs: Sequence[int],
        strides: Sequence[int],
        dilation: Sequence[int],
        padding: Sequence[tuple[int, int]],
    ) -> None:
        words = sets.shape[-1]
        full = np.broadcast_to(sets, (*sets.shape[:2], *extents, words))
        # What lies behind the padding, too: with `ceil_mode` the last window reaches further.
        widths = [
            (low, high + stride) for (low, high), stride in zip(padding, strides, strict=True)
        ]
        self._sets = np.pad(full, [(0, 0), (0, 0), *widths, (0, 0)])
        self._outs, self._strides, self._dilation = outs, strides, dilation

    def at(self, tap: Sequence[int]) -> Sets:
        """Return what one place of the window sees: [N, C, output places .., words]."""
        index = [slice(None), slice(None)]
        for place, out, stride, step in zip(
            tap, self._outs, self._strides, self._dilation, strict=True
        ):
            first = place * step
            index.append(slice(first, first + (out - 1) * stride + 1, stride))
        return self._sets[tuple(index)]


def _padding(given: Sequence[Any], count: int) -> list[tuple[int, int]]:
    """The padding of each place axis, before and after: given once, per axis, or for both ends."""
    sizes = [int(size) for size in given]
    if len(sizes) == 1:
        sizes = sizes * count
    if len(sizes) == count:
        sizes = sizes * 2
    return list(zip(sizes[:count], sizes[count:], strict=True))


def _over_channels(sets: Sets, mask: np.ndarray | None, num_outs: int, groups: int) -> Sets:
    """The union over the input channels that each output channel reads.

    Parameters
    ----------
    sets
        [N, C or 1, places .., words]
    mask
        [outputs, inputs of a group], where the kernel is not 0; None: everywhere.

    Returns
    -------
    [N, outputs or 1, places .., words]
    """
    is_uniform = sets.shape[1] == 1
    if mask is None and (groups == 1 or is_uniform):
        return union(sets, [1])
    if is_uniform:
        assert mask is not None
        reads = mask.any(axis=1).reshape(1, -1, *[1] * (sets.ndim - 2))
        return np.where(reads, sets, np.uint64(0))
    width, outs = sets.shape[1] // groups, num_outs // groups
    parts = []
    for out in range(num_outs):
        first = out // outs * width
        group = sets[:, first : first + width]
        chosen = group if mask is None else group[:, mask[out]]
        parts.append(union(chosen, [1]))
    return np.concatenate(parts, axis=1)
