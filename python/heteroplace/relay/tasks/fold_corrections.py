"""Calls of constants whose TVM kernels are wrong -> numpy arrays: evaluators as in `fold_ops.py`.

What is computed in the run is made right before or behind TVM's lowering (`corner_scatters.py`,
`tir/fold_starts.py`, `tir/keep_nan.py`); TVM's folder of constants knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from heteroplace.relay.expressions import static_shape

Array = npt.NDArray[Any]

_SUMS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
_SPATIAL_LAST = ("NCW", "NCHW", "NCDHW")


def relu(attrs: Any, args: Sequence[Array], result: Any) -> Array:
    """Return the larger one of a number and 0; NaN stays."""
    return np.asarray(np.maximum(args[0], args[0].dtype.type(0)))


def scatter_elements(attrs: Any, args: Sequence[Array], result: Any) -> Array | None:
    """Write into a tensor, also where there are fewer places than it has along some axis."""
    data, places, updates = args
    axis, mode = int(attrs.axis) % data.ndim, str(attrs.reduction)
    if not np.all((places >= 0) & (places < data.shape[axis])) or places.shape != updates.shape:
        return None
    index: list[Array] = list(np.indices(places.shape, sparse=True))
    index[axis] = places
    written: Array = np.array(data)
    if mode == "update":
        written[tuple(index)] = updates
    elif mode in _SUMS and data.dtype.kind != "b":
        _SUMS[mode].at(written, tuple(index), updates)
    else:
        return None
    return written


def max_pool(attrs: Any, args: Sequence[Array], result: Any) -> Array | None:
    """Return the maxima of windows: of nothing but -inf, and of padding, -inf."""
    data, sizes = args[0], [int(size) for size in attrs.pool_size]
    rank, padding = len(sizes), [int(size) for size in attrs.padding]
    if str(attrs.layout) not in _SPATIAL_LAST or len(padding) != 2 * rank:
        return None
    strides, dilations = ([int(one) for one in each] for each in (attrs.strides, attrs.dilation))
    counts = static_shape(result)[2:]
    spans = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    added = [(0, 0), (0, 0)]
    for axis in range(rank):
        last = (counts[axis] - 1) * strides[axis] + spans[axis]
        added.append((padding[axis], max(last - padding[axis] - data.shape[axis + 2], 0)))
    least = -np.inf if data.dtype.kind == "f" else np.iinfo(data.dtype).min
    padded = np.pad(data, added, constant_values=least)
    windows = sliding_window_view(padded, spans, tuple(range(2, rank + 2)))
    chosen = [slice(None), slice(None)]
    chosen += [slice(0, (n - 1) * step + 1, step) for n, step in zip(counts, strides, strict=True)]
    chosen += [slice(None, None, step) for step in dilations]
    return np.asarray(windows[tuple(chosen)].max(axis=tuple(range(-rank, 0))))
