"""MaxPool, AveragePool, LpPool and MaxUnpool ==> Relay, for every rounding, dilation and padding.

ONNX operator specification. A window that would begin beyond the input and its first padding is
none, which TVM's rounding up does not know; so the output sizes are computed here, and the padding
at the end is made to fit them. What an average divides by is then a constant of each position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, check_table, const, dtype_of

_MAX_POOLS = (relay.nn.max_pool1d, relay.nn.max_pool2d, relay.nn.max_pool3d)
_AVERAGE_POOLS = (relay.nn.avg_pool1d, relay.nn.avg_pool2d, relay.nn.avg_pool3d)
_LAYOUTS = ("NCW", "NCHW", "NCDHW")


@dataclass(frozen=True)
class Window:
    """How windows lie along one axis."""

    input_size: int
    kernel: int
    stride: int
    dilation: int
    first_pad: int
    last_pad: int
    """As the node gives it, or as it follows from auto_pad."""
    output_size: int

    @property
    def needed_pad(self) -> int:
        """Padding at the end that the last window reaches."""
        end = (self.output_size - 1) * self.stride + self.dilation * (self.kernel - 1) + 1
        return max(end - self.first_pad - self.input_size, 0)

    def positions(self) -> np.ndarray:
        """Return where each element of each window lies, [output_size, kernel]."""
        check_table(self.output_size * self.kernel, "the positions of its windows")
        starts = np.arange(self.output_size) * self.stride - self.first_pad
        return np.asarray(starts[:, None] + np.arange(self.kernel) * self.dilation)

    def counts(self, includes_pad: bool) -> np.ndarray:
        """Return how many elements of each window an average is over, [output_size]."""
        positions = self.positions()
        first = -self.first_pad if includes_pad else 0
        end = self.input_size + (self.last_pad if includes_pad else 0)
        return np.asarray(((positions >= first) & (positions < end)).sum(axis=1))


def max_pool(call: OnnxCall) -> relay.Expr | relay.expr.TupleWrapper:
    """Convert MaxPool, with its indices where they are asked for."""
    windows = _windows(call)
    if call.num_outputs > 1:
        return _max_pool_with_indices(call, windows)
    return _MAX_POOLS[len(windows) - 1](
        call.operand(0),
        pool_size=[window.kernel for window in windows],
        strides=[window.stride for window in windows],
        dilation=[window.dilation for window in windows],
        padding=[w.first_pad for w in windows] + [w.needed_pad for w in windows],
        layout=_LAYOUTS[len(windows) - 1],
    )


def average_pool(call: OnnxCall) -> relay.Expr:
    """Convert AveragePool."""
    windows = _windows(call)
    includes_pad = bool(call.number("count_include_pad", 0))
    if all(window.dilation == 1 for window in windows) and not call.number("ceil_mode", 0):
        return _average(call.operand(0), windows, [w.last_pad for w in windows], includes_pad)
    counts = np.ones(1)
    for window in windows:
        counts = np.multiply.outer(counts, window.counts(includes_pad))
    total = _window_sums(call.operand(0), windows)
    dtype = call.dtype(0)
    return relay.multiply(total, const(1.0 / counts[None], dtype))


def lp_pool(call: OnnxCall) -> relay.Expr:
    """Convert LpPool: (sum of |x|**p) ** (1/p) over each window."""
    return lp_norm(call, lambda data: _window_sums(data, _windows(call)))


def global_lp_pool(call: OnnxCall) -> relay.Expr:
    """Convert GlobalLpPool: over all but batch and channels."""
    axes = list(range(2, len(call.shape(0))))
    return lp_norm(call, lambda data: relay.sum(data, axis=axes, keepdims=True))


def lp_norm(call: OnnxCall, add_up: Callable[[relay.Expr], relay.Expr]) -> relay.Expr:
    """Return (add_up(|x|**p)) ** (1/p), p an attribute."""
    data, p = relay.abs(call.operand(0)), call.number("p", 2)
    dtype = call.dtype(0)
    if p == 1:
        return add_up(data)
    if p == 2:
        return relay.sqrt(add_up(relay.multiply(data, data)))
    power = add_up(relay.power(data, const(p, dtype)))
    return relay.power(power, const(1.0 / p, dtype))


def max_unpool(call: OnnxCall) -> relay.Expr:
    """Convert MaxUnpool: put each element where its index says, zeros elsewhere.

    The indices count in the tensor that was pooled, whose sizes follow from kernel and strides; the
    output may be larger.
    """
    shape, dtype = call.shape(0), call.dtype(0)
    rank = len(shape) - 2
    kernel = [int(size) for size in call.attributes["kernel_shape"]]
    strides = [int(stride) for stride in call.attributes.get("strides", [1] * rank)]
    pads = [int(pad) for pad in call.attributes.get("pads", [0] * 2 * rank)]
    pooled = [
        (shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i] for i in range(rank)
    ]
    inner = [*shape[:2], *pooled]
    flat = relay.scatter_elements(
        relay.zeros((prod(inner),), dtype),
        relay.reshape(relay.cast(call.operand(1), "int64"), [-1]),
        relay.reshape(call.operand(0), [-1]),
        axis=0,
    )
    result = relay.reshape(flat, inner)
    if not call.has(2):
        return result
    output = [int(size) for size in call.constant(2, "output shape")]
    if any(size < least for size, least in zip(output, inner, strict=True)):
        raise FrontendError(f"its output shape {output} is smaller than {inner}, which was pooled")
    pads_after = [(0, size - least) for size, least in zip(output, inner, strict=True)]
    return relay.nn.pad(result, pads_after)


def _windows(call: OnnxCall) -> list[Window]:
    """Return how windows lie along each spatial axis."""
    sizes = call.shape(0)[2:]
    rank = len(sizes)
    if not 1 <= rank <= len(_LAYOUTS):
        raise FrontendError(f"pooling over {rank} axes is not supported, only over 1 to 3")
    kernel = call.attributes["kernel_shape"]
    strides = call.attributes.get("strides", (1,) * rank)
    dilations = call.attributes.get("dilations", (1,) * rank)
    pads = call.attributes.get("pads", (0,) * 2 * rank)
    mode = call.text("auto_pad", "NOTSET")
    rounds_up = bool(call.number("ceil_mode", 0))
    return [
        _window(
            (sizes[i], int(kernel[i]), int(strides[i]), int(dilations[i])),
            (int(pads[i]), int(pads[rank + i])),
            mode,
            rounds_up,
        )
        for i in range(rank)
    ]


def _window(
    given: tuple[int, int, int, int], pads: tuple[int, int], mode: str, rounds_up: bool
) -> Window:
    size, kernel, stride, dilation = given
    span = dilation * (kernel - 1) + 1
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        count = -(-size // stride)
        total = max((count - 1) * stride + span - size, 0)
        small, large = total // 2, total - total // 2
        first, last = (small, large) if mode == "SAME_UPPER" else (large, small)
        return Window(*given, first, last, count)
    first, last = (0, 0) if mode == "VALID" else pads
    room = size + first + last - span
    count = (-(-room // stride) if rounds_up else room // stride) + 1
    if rounds_up and (count - 1) * stride >= size + first:
        count -= 1
    if count < 1:
        raise FrontendError(f"a window of {span} does not fit in {size + first + last} elements")
    return Window(*given, first, last, count)


def _window_sums(data: relay.Expr, windows: Sequence[Window]) -> relay.Expr:
    """Return the sum of each window."""
    average = _average(data, windows, [window.needed_pad for window in windows], True)
    size = prod(window.kernel for window in windows)
    return relay.multiply(average, const(size, dtype_of(data)))


def _average(
    data: relay.Expr, windows: Sequence[Window], last_pads: Sequence[int], includes_pad: bool
) -> relay.Expr:
    """Let TVM average each window."""
    return _AVERAGE_POOLS[len(windows) - 1](
        data,
        pool_size=[window.kernel for window in windows],
        strides=[window.stride for window in windows],
        dilation=[window.dilation for window in windows],
        padding=[*(window.first_pad for window in windows), *last_pads],
        layout=_LAYOUTS[len(windows) - 1],
        count_include_pad=includes_pad,
    )


def _max_pool_with_indices(call: OnnxCall, windows: Sequence[Window]) -> relay.expr.TupleWrapper:
    """Compare the elements of each window one by one, and keep where the largest lies.

    Where all are as low as what is put around the map, it is the first one of the map.
    """
    data, shape, dtype = call.operand(0), call.shape(0), call.dtype(0)
    is_float = dtype.startswith("float")
    lowest = const(-np.inf if is_float else np.iinfo(dtype).min, dtype)
    pads = [(0, 0), (0, 0), *((w.first_pad, w.needed_pad) for w in windows)]
    padded = relay.nn.pad(data, pads, pad_value=lowest)
    strides_in = [prod(shape[2 + i + 1 :]) for i in range(len(windows))]
    if call.number("storage_order", 0):
        strides_in = [prod(shape[2 : 2 + i]) for i in range(len(windows))]
    candidates, offsets = [], []
    for index in np.ndindex(*(window.kernel for window in windows)):
        begins = [0, 0, *(i * w.dilation for i, w in zip(index, windows, strict=True))]
        reach = [(w.output_size - 1) * w.stride + 1 for w in windows]
        ends = [*shape[:2], *(b + r for b, r in zip(begins[2:], reach, strict=True))]
        steps = [1, 1, *(window.stride for window in windows)]
        candidates.append(relay.strided_slice(padded, begins, ends, steps))
        offsets.append(
            sum(i * w.dilation * s for i, w, s in zip(index, windows, strides_in, strict=True))
        )
    stacked = relay.stack(candidates, 0)
    is_lowest = relay.all(relay.equal(stacked, lowest), axis=[0])
    first = const(_first_inside(windows), "int32")
    largest = relay.where(is_lowest, first, relay.argmax(stacked, axis=0))
    origin = np.zeros(shape[:2], dtype=np.int64)
    origin += np.arange(prod(shape[:2])).reshape(shape[:2]) * prod(shape[2:])
    for window, stride in zip(windows, strides_in, strict=True):
        starts = (np.arange(window.output_size) * window.stride - window.first_pad) * stride
        origin = np.add.outer(origin, starts)
    chosen = relay.take(const(offsets, "int64"), largest, mode="clip")
    indices = relay.add(chosen, const(origin, "int64"))
    values = relay.where(is_lowest, lowest, relay.max(stacked, axis=0))
    return relay.expr.TupleWrapper(relay.Tuple([values, indices]), 2)


def _first_inside(windows: Sequence[Window]) -> np.ndarray:
    """Return which element of each window is the first one of the map, counted row by row."""
    first = np.zeros((), np.int64)
    for window in windows:
        positions = window.positions()
        is_inside = (positions >= 0) & (positions < window.input_size)
        first = np.add.outer(first * window.kernel, is_inside.argmax(axis=1))
    return first
