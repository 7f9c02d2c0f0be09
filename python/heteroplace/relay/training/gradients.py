"""Op -> its gradient, for the ops that TVM's registry lacks, or has in a form that cannot be used.

TVM keeps the gradient of an op as a function (call, gradient of its result) -> gradients of its
operands, under `FPrimalGradient`. `register_gradients` adds those of this file there, so that
`relay.transform.gradient` has them too. Formulas are the textbook's, but for

- layer norm: Ba et al., "Layer Normalization" (section 3), differentiated as a whole, since its
  mean and variance depend on each element;
- `take`: TVM's own is a loop over the indices, which only its virtual machine runs. Here rows are
  added up by `scatter_nd`, which is right for an index that occurs twice.

At a kink the frameworks' choice is taken: relu has slope 0 at 0, and of two equal operands of
`maximum` or `minimum` the first gets the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tvm import relay
from tvm.relay.op._tensor_grad import avg_pool2d_grad, conv2d_grad, max_pool2d_grad

from heteroplace.errors import UnsupportedRelayError
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
    """What d base ** exponent / d base is; of small whole exponents without calling pow."""
    if isinstance(exponent, relay.Constant) and exponent.data.numpy().size == 1:
        value = float(exponent.data.numpy().reshape(()))
        if value == 2.0:
            return _constant(2.0, base) * base
        if value == 3.0:
            return _constant(3.0, base) * base * base
        return _constant(value, base) * relay.power(base, _constant(value - 1.0, base))
    return exponent * relay.power(base, exponent - _constant(1.0, exponent))


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


def _min(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    """Spread evenly over all that are smallest, as TVM's own of `max`."""
    data = call.args[0]
    shape, attrs = _shape(data), call.attrs
    named = range(len(shape)) if attrs.axis is None else [int(a) % len(shape) for a in attrs.axis]
    axes = [at for at in range(len(shape)) if (at in named) != bool(attrs.exclude)]
    kept = [1 if at in axes else extent for at, extent in enumerate(shape)]
    is_least = relay.equal(data, relay.reshape(call, kept))
    chosen = relay.cast(is_least, data.checked_type.dtype)
    count = relay.sum(chosen, axes, keepdims=True)
    return [chosen * relay.reshape(grad, kept) / count]


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


def _conv2d(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    """TVM's own, where that can be compiled."""
    if int(call.attrs.groups) != 1:
        raise UnsupportedRelayError(
            f"nn.conv2d of {int(call.attrs.groups)} groups has no gradient here, since TVM does "
            f"not compile that of groups for CPUs; only of 1 group has it one"
        )
    found: list[relay.Expr] = conv2d_grad(call, grad)
    return found


def _refuse_dilation(call: relay.Call) -> None:
    """TVM's kernels for gradients of pools leave dilation out."""
    if any(int(step) != 1 for step in call.attrs.dilation):
        raise UnsupportedRelayError(
            f"{call.op.name} has no gradient here for windows of dilation "
            f"{[int(step) for step in call.attrs.dilation]}; only windows without gaps have one"
        )


def _max_pool2d(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    """TVM's own, where that is right: each element may be in all the windows along an axis."""
    attrs, layout = call.attrs, str(call.attrs.layout)
    _refuse_dilation(call)
    for letter, size, stride in zip("HW", attrs.pool_size, attrs.strides, strict=True):
        num_windows = _shape(call)[layout.find(letter)]
        if -(-int(size) // int(stride)) > num_windows:
            raise UnsupportedRelayError(
                f"nn.max_pool2d has no gradient here where windows of {int(size)} at steps of "
                f"{int(stride)} overlap in more places than the {num_windows} that there are along "
                f"{letter}: TVM's kernel computes another one. Use larger maps or smaller windows"
            )
    found: list[relay.Expr] = max_pool2d_grad(call, grad)
    return found


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
    shape, found = _shape(data), _shape(call)
    starts, steps = _slices(call, shape)
    for axis, step in enumerate(steps):
        if step < 0:
            grad = relay.reverse(grad, axis)
            starts[axis] += (found[axis] - 1) * step
    steps = [abs(step) for step in steps]
    if max(steps, default=1) > 1:
        grad = relay.nn.dilate(grad, steps)
    widths = []
    for start, step, count, extent in zip(starts, steps, found, shape, strict=True):
        widths.append((start, extent - start - ((count - 1) * step + 1)))
    return [relay.nn.pad(grad, widths, _constant(0.0, call))]


def _slices(call: relay.Call, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """For each axis where its slice begins, in range, and the step."""
    attrs = call.attrs
    begins = [int(begin) for begin in attrs.begin]
    axes = range(len(begins)) if attrs.axes is None else [int(axis) for axis in attrs.axes]
    given = [int(step) for step in attrs.strides or ()]
    if str(attrs.slice_mode) == "size" or not given:
        given = [1]
    starts, steps = [0] * len(shape), [1] * len(shape)
    for position, axis in enumerate(at % len(shape) for at in axes):
        if position >= len(begins):
            break
        extent = shape[axis]
        steps[axis] = given[position] if len(given) > 1 else given[0]
        begin = begins[position] + (extent if begins[position] < 0 else 0)
        starts[axis] = min(max(begin, 0), extent - 1 if steps[axis] < 0 else extent)
    return starts, steps


def _avg_pool2d(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    """Of windows side by side each element of a window gets the same part; else TVM's own."""
    attrs, layout = call.attrs, str(call.attrs.layout)
    _refuse_dilation(call)
    sizes, steps = list(map(int, attrs.pool_size)), list(map(int, attrs.strides))
    is_plain = steps == sizes and not any((*map(int, attrs.padding), attrs.ceil_mode))
    if not is_plain or layout not in ("NCHW", "NHWC"):
        found: list[relay.Expr] = avg_pool2d_grad(call, grad)
        return found
    return [_spread(call, grad, sizes)]


def _global_avg_pool2d(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    layout = str(call.attrs.layout)
    sizes = [_shape(call.args[0])[layout.find(letter)] for letter in "HW"]
    return [_spread(call, grad, sizes)]


def _spread(call: relay.Call, grad: relay.Expr, sizes: Sequence[int]) -> relay.Expr:
    """What each element has in the mean of its window; those behind the last window have nothing.

    Unlike TVM's kernels for it, which read what was pooled for its shape, so that it is kept and
    put into another layout for them, and which nothing is fused with.
    """
    shape, layout = _shape(call.args[0]), str(call.attrs.layout)
    found = grad * _constant(1.0 / (sizes[0] * sizes[1]), call)
    rest = [(0, 0)] * len(shape)
    for letter, size in zip("HW", sizes, strict=True):
        axis = layout.find(letter)
        rest[axis] = (0, shape[axis] - _shape(call)[axis] * size)
        if size > 1:
            found = relay.repeat(found, size, axis)
    return relay.nn.pad(found, rest) if any(after for _, after in rest) else found


MISSING: Mapping[str, Gradient] = {
    "broadcast_to": _broadcast_to,
    "maximum": _of_two(relay.greater_equal),
    "min": _min,
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
    "clip": _clip,
    "nn.avg_pool2d": _avg_pool2d,
    "nn.conv2d": _conv2d,
    "nn.global_avg_pool2d": _global_avg_pool2d,
    "nn.max_pool2d": _max_pool2d,
    "nn.relu": _relu,
    "strided_slice": _strided_slice,
    "take": _take,
}
"""TVM's own take bounds for integers (clip), end in kernels that fail (groups of conv2d) or are
wrong (max_pool2d with windows larger than what they make), read more than they need (avg_pool2d),
have a slope of 1 at 0 (relu), know no slices with `axes`, or are loops over single indices
(take)."""
