"""Op -> its gradient, for the ops that TVM's registry lacks, or has in a form that cannot be used.

TVM keeps the gradient of an op as a function (call, gradient of its result) -> gradients of its
operands, under `FPrimalGradient`. `register_gradients` adds those of this file there, so that
`relay.transform.gradient` has them too. Formulas are the textbook's, but for

- layer norm: Ba et al., "Layer Normalization" (section 3), differentiated as a whole, since its
  mean and variance depend on each element;
- `take`: TVM's own is a loop over the indices, which only its virtual machine runs. Here rows are
  added up by `scatter_nd`, which is right for an index that occurs twice.

At a kink the frameworks' choice is taken: relu and abs have slope 0 at 0, and of two equal operands
of `maximum` or `minimum` the first gets the gradient. Convolutions and pools are in
`window_gradients.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.parts.parallel.training.window_gradients import (
    of_avg_pool2d,
    of_conv2d,
    of_global_avg_pool2d,
    of_max_pool2d,
)
from heteroplace.relay.axes.shapes import slice_entries
from heteroplace.relay.expressions import static_shape
from heteroplace.tvm_bridge import add_op_gradients

Gradient = Callable[[relay.Call, relay.Expr], list[relay.Expr]]
"""(call with its type inferred, gradient of its result) -> a gradient for each operand."""

BELOW_DEFAULT = 9
"""Level of what TVM lacks: whoever registers his own at TVM's default of 10 is preferred."""
ABOVE_DEFAULT = 11
"""Level of what replaces TVM's own."""


def register_gradients() -> None:
    """Add the gradients of this file to TVM's registry. Doing so again changes nothing."""
    add_op_gradients(MISSING, BELOW_DEFAULT)
    add_op_gradients(REPLACED, ABOVE_DEFAULT)


def _shape(expr: relay.Expr) -> tuple[int, ...]:
    return static_shape(expr.checked_type)


def _constant(value: float, like: relay.Expr) -> relay.Constant:
    return relay.const(value, dtype=like.checked_type.dtype)


def _zero_where(condition: relay.Expr, grad: relay.Expr, like: relay.Expr) -> relay.Expr:
    return relay.where(condition, _constant(0.0, like), grad)


def _split(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    count = len(call.checked_type.fields)
    parts = [relay.TupleGetItem(grad, index) for index in range(count)]
    return [relay.concatenate(parts, int(call.attrs.axis))]


def _power(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    base, exponent = call.args
    is_zero = relay.equal(base, _constant(0.0, base))
    logarithm = relay.log(relay.where(is_zero, _constant(1.0, base), base))
    return [
        relay.collapse_sum_like(grad * _power_slope(base, exponent), base),
        relay.collapse_sum_like(grad * call * logarithm, exponent),
    ]


def _power_slope(base: relay.Expr, exponent: relay.Expr) -> relay.Expr:
    """What d base ** exponent / d base is; of small whole exponents without calling pow.

    Of exponent 0 it is 0, at base 0 too, where the formula has 0 times infinity.
    """
    if isinstance(exponent, relay.Constant) and exponent.data.numpy().size == 1:
        value = float(exponent.data.numpy().reshape(()))
        if value == 0.0:
            return relay.zeros_like(base)
        if value == 2.0:
            return _constant(2.0, base) * base
        if value == 3.0:
            return _constant(3.0, base) * base * base
        return _constant(value, base) * relay.power(base, _constant(value - 1.0, base))
    slope = exponent * relay.power(base, exponent - _constant(1.0, exponent))
    return _zero_where(relay.equal(exponent, _constant(0.0, exponent)), slope, base)


def _abs(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    return [grad * relay.sign(call.args[0])]


def _variance(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    """Of any mean, which its second operand is: it need not be the data's own."""
    data, mean = call.args
    axes = _reduced_axes(call)
    reduced_shape = [1 if at in axes else extent for at, extent in enumerate(_shape(data))]
    count = int(np.prod([_shape(data)[axis] for axis in axes])) - bool(call.attrs.unbiased)
    scaled = relay.reshape(grad, reduced_shape) * _constant(2.0 / count, data)
    of_data = scaled * (data - mean)
    return [of_data, relay.negative(relay.collapse_sum_like(of_data, mean))]


def _reduced_axes(call: relay.Call) -> list[int]:
    rank, attrs = len(_shape(call.args[0])), call.attrs
    named = range(rank) if attrs.axis is None else [int(axis) % rank for axis in attrs.axis]
    return [at for at in range(rank) if (at in named) != bool(attrs.exclude)]


def _rsqrt(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    return [grad * _constant(-0.5, call.args[0]) * call * call * call]


def _layer_norm(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    data, gamma, beta = call.args
    shape = _shape(data)
    axis = int(call.attrs.axis) % len(shape)
    along = [extent if at == axis else 1 for at, extent in enumerate(shape)]
    # The forms of SimplifyInference, so that what the forward pass has computed is not again.
    mean = relay.mean(data, axis, keepdims=True)
    variance = relay.variance(data, axis, keepdims=True, with_mean=mean)
    deviation = relay.sqrt(variance + _constant(float(call.attrs.epsilon), data))
    normal = (data - mean) / deviation
    scaled = grad * relay.reshape(gamma, along) if call.attrs.scale else grad
    shared = relay.mean(scaled, axis, keepdims=True)
    aligned = relay.mean(scaled * normal, axis, keepdims=True)
    of_gamma = relay.sum(grad * normal, axis, exclude=True)
    of_beta = relay.sum(grad, axis, exclude=True)
    return [
        (scaled - shared - normal * aligned) / deviation,
        of_gamma if call.attrs.scale else relay.zeros_like(gamma),
        of_beta if call.attrs.center else relay.zeros_like(beta),
    ]


def _broadcast_to(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    return [relay.collapse_sum_like(grad, call.args[0])]


def _of_two(first_wins: Callable[[relay.Expr, relay.Expr], relay.Expr]) -> Gradient:
    """The gradient of a choice between two operands, element by element."""

    def gradient(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
        first, second = call.args
        is_first, zero = first_wins(first, second), _constant(0.0, call)
        return [
            relay.collapse_sum_like(relay.where(is_first, grad, zero), first),
            relay.collapse_sum_like(relay.where(is_first, zero, grad), second),
        ]

    return gradient


def _extreme(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    """Spread evenly over all that are smallest or largest. TVM's own of `max` takes no keepdims
    without axes."""
    data = call.args[0]
    axes = _reduced_axes(call)
    reduced_shape = [1 if at in axes else extent for at, extent in enumerate(_shape(data))]
    is_extreme = relay.equal(data, relay.reshape(call, reduced_shape))
    chosen = relay.cast(is_extreme, data.checked_type.dtype)
    count = relay.sum(chosen, axes, keepdims=True)
    return [chosen * relay.reshape(grad, reduced_shape) / count]


def _leaky_relu(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    data = call.args[0]
    slope = _constant(float(call.attrs.alpha), data)
    return [relay.where(relay.greater(data, _constant(0.0, data)), grad, grad * slope)]


def _tile(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    data = call.args[0]
    shape, repeats = _shape(data), [int(count) for count in call.attrs.reps]
    rank = max(len(shape), len(repeats))
    shape = (1,) * (rank - len(shape)) + shape
    repeats = [1] * (rank - len(repeats)) + repeats
    apart = [extent for pair in zip(repeats, shape, strict=True) for extent in pair]
    summed = relay.sum(relay.reshape(grad, apart), list(range(0, 2 * rank, 2)))
    return [relay.reshape_like(summed, data)]


def _repeat(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    shape, repeats = list(_shape(call.args[0])), int(call.attrs.repeats)
    axis = int(call.attrs.axis) % len(shape)
    apart = [*shape[: axis + 1], repeats, *shape[axis + 1 :]]
    return [relay.sum(relay.reshape(grad, apart), axis + 1)]


def _pad(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    data, value = call.args
    if str(call.attrs.pad_mode) != "constant":
        raise UnsupportedRelayError(
            f"nn.pad of mode {call.attrs.pad_mode!r} has no gradient here; only 'constant' has"
        )
    begin = [int(width[0]) for width in call.attrs.pad_width]
    end = [at + extent for at, extent in zip(begin, _shape(data), strict=True)]
    return [relay.strided_slice(grad, begin, end), relay.zeros_like(value)]


def _reverse(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    return [relay.reverse(grad, int(call.attrs.axis))]


def _relu(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    data = call.args[0]
    return [_zero_where(relay.less_equal(data, _constant(0.0, data)), grad, data)]


def _clip(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    data = call.args[0]
    below = relay.less(data, _constant(float(call.attrs.a_min), data))
    above = relay.greater(data, _constant(float(call.attrs.a_max), data))
    return [_zero_where(relay.logical_or(below, above), grad, data)]


def _take(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    data, indices = call.args
    attrs = call.attrs
    if int(attrs.batch_dims or 0) != 0:
        raise UnsupportedRelayError(
            f"take with batch_dims={int(attrs.batch_dims)} has no gradient here; only 0 has"
        )
    shape, axis = _shape(data), 0
    if attrs.axis is None:
        shape = (int(np.prod(shape)),)
    else:
        axis = int(attrs.axis) % len(shape)
    num_new = len(_shape(indices))
    before, behind = list(shape[:axis]), list(shape[axis + 1 :])
    # The axes of the indices first, since scatter_nd puts whole rows where they say.
    order = [*range(axis, axis + num_new), *range(axis)]
    order += range(axis + num_new, num_new + len(shape) - 1)
    rows = relay.transpose(grad, order) if before else grad
    places = relay.expand_dims(_in_range(indices, shape[axis], str(attrs.mode)), 0)
    if num_new == 0:
        rows, places = relay.expand_dims(rows, 0), relay.expand_dims(places, 0)
    zeros = relay.zeros([shape[axis], *before, *behind], data.checked_type.dtype)
    result = relay.scatter_nd(zeros, places, rows, mode="add")
    if before:
        back = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
        result = relay.transpose(result, back)
    return [relay.reshape_like(result, data), relay.zeros_like(indices)]


def _in_range(indices: relay.Expr, extent: int, mode: str) -> relay.Expr:
    """The places that `take` reads."""
    if mode == "clip":
        return relay.clip(indices, 0, extent - 1)
    if mode == "wrap":
        return relay.floor_mod(indices, relay.const(extent, indices.checked_type.dtype))
    return indices


def _strided_slice(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    """Zeros between what was taken, and around it."""
    data = call.args[0]
    shape, result_shape = _shape(data), _shape(call)
    starts, steps = _slices(call, shape)
    for axis, step in enumerate(steps):
        if step < 0:
            grad = relay.reverse(grad, axis)
            starts[axis] += (result_shape[axis] - 1) * step
    steps = [abs(step) for step in steps]
    if max(steps, default=1) > 1:
        grad = relay.nn.dilate(grad, steps)
    widths = []
    for start, step, count, extent in zip(starts, steps, result_shape, shape, strict=True):
        widths.append((start, extent - start - ((count - 1) * step + 1)))
    return [relay.nn.pad(grad, widths, _constant(0.0, call))]


def _slices(call: relay.Call, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """For each axis where its slice begins, in range, and the step."""
    starts, steps = [0] * len(shape), [1] * len(shape)
    for axis, begin, _, step in slice_entries(call):
        extent = shape[axis]
        begin += extent if begin < 0 else 0
        starts[axis] = min(max(begin, 0), extent - 1 if step < 0 else extent)
        steps[axis] = step
    return starts, steps


MISSING: Mapping[str, Gradient] = {
    "broadcast_to": _broadcast_to,
    "maximum": _of_two(relay.greater_equal),
    "min": _extreme,
    "minimum": _of_two(relay.less_equal),
    "nn.layer_norm": _layer_norm,
    "nn.leaky_relu": _leaky_relu,
    "nn.pad": _pad,
    "power": _power,
    "repeat": _repeat,
    "reverse": _reverse,
    "rsqrt": _rsqrt,
    "split": _split,
    "tile": _tile,
}
"""Those that TVM 0.17 has none of."""

REPLACED: Mapping[str, Gradient] = {
    "abs": _abs,
    "clip": _clip,
    "max": _extreme,
    "nn.avg_pool2d": of_avg_pool2d,
    "nn.conv2d": of_conv2d,
    "nn.global_avg_pool2d": of_global_avg_pool2d,
    "nn.max_pool2d": of_max_pool2d,
    "nn.relu": _relu,
    "strided_slice": _strided_slice,
    "take": _take,
    "variance": _variance,
}
"""TVM's own take bounds for integers (clip), end in kernels that fail (groups of conv2d) or are
wrong (max_pool2d with windows larger than what they make, variance of a mean that is not that of
its data), read more than they need (avg_pool2d), have a slope of 1 at 0 (relu, abs), know no slices
with `axes`, take no keepdims without axes (max), or are loops over single indices (take)."""
