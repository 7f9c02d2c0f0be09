"""Ops that work in windows, convolutions and pools -> their gradients: TVM's own where it is right.

What TVM would compute wrongly, or ends in a kernel that fails, is refused by name or computed here.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relay
from tvm.relay.op._tensor_grad import avg_pool2d_grad, conv2d_grad, max_pool2d_grad

from heteroplace.errors import UnsupportedRelayError
from heteroplace.relay.expressions import static_shape


def of_conv2d(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    """Return TVM's own, where that can be compiled; of windows with gaps that of the data is ours.

    Raises
    ------
    UnsupportedRelayError
        It has groups or another layout than NCHW and OIHW.
    """
    attrs = call.attrs
    if int(attrs.groups) != 1:
        raise UnsupportedRelayError(
            f"nn.conv2d of {int(attrs.groups)} groups has no gradient here, since TVM does "
            f"not compile that of groups for CPUs; only of 1 group has it one"
        )
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout) or "NCHW"
    if layouts != ("NCHW", "OIHW", "NCHW"):
        raise UnsupportedRelayError(
            f"nn.conv2d of data {layouts[0]}, weights {layouts[1]}, result "
            f"{str(attrs.out_layout) or layouts[0]} has no gradient here; only of NCHW, OIHW, NCHW "
            f'has it one: relay.transform.ConvertLayout({{"nn.conv2d": ["NCHW", "OIHW"]}})'
        )
    gradients: list[relay.Expr] = conv2d_grad(call, grad)
    if any(int(step) != 1 for step in attrs.dilation):
        gradients[0] = _data_of_gaps(call, grad)
    return gradients


def _data_of_gaps(call: relay.Call, grad: relay.Expr) -> relay.Expr:
    """The gradient of the data as a convolution with the window turned round.

    TVM's transposed convolution, which it would be, knows no windows with gaps.
    """
    data, weight = call.args
    attrs, shape, kernel = call.attrs, _shape(data), _shape(weight)
    before = _padding(call)[:2]
    spread = grad
    if any(int(stride) != 1 for stride in attrs.strides):
        spread = relay.nn.dilate(grad, [1, 1, *map(int, attrs.strides)])
    widths = [(0, 0), (0, 0)]
    for axis in (2, 3):
        reach = (kernel[axis] - 1) * int(attrs.dilation[axis - 2])
        length = (_shape(call)[axis] - 1) * int(attrs.strides[axis - 2]) + 1
        front = reach - before[axis - 2]
        widths.append((front, shape[axis] + reach - length - front))
    if min(min(pair) for pair in widths) < 0:
        raise UnsupportedRelayError(
            f"nn.conv2d has no gradient here where the padding, {list(_padding(call))}, is wider "
            f"than a window of dilation {list(map(int, attrs.dilation))} reaches; pad less"
        )
    if any(map(any, widths)):
        spread = relay.nn.pad(spread, widths)
    turned = relay.reverse(relay.reverse(relay.transpose(weight, (1, 0, 2, 3)), 2), 3)
    return relay.nn.conv2d(
        spread,
        turned,
        dilation=attrs.dilation,
        channels=shape[1],
        kernel_size=kernel[2:],
        out_dtype=data.checked_type.dtype,
    )


def of_max_pool2d(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    """Return TVM's own, where that is right: each element may be in all the windows along an axis.

    Raises
    ------
    UnsupportedRelayError
        It is not, or windows have gaps.
    """
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
    gradients: list[relay.Expr] = max_pool2d_grad(call, grad)
    return gradients


def of_avg_pool2d(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    """Return of windows side by side the same part for each element of a window; else TVM's own.

    Raises
    ------
    UnsupportedRelayError
        Windows have gaps, or one reaches over the padding, which counts as well.
    """
    attrs, layout = call.attrs, str(call.attrs.layout)
    _refuse_dilation(call)
    sizes, steps = list(map(int, attrs.pool_size)), list(map(int, attrs.strides))
    is_plain = steps == sizes and not any((*map(int, attrs.padding), attrs.ceil_mode))
    if not is_plain or layout not in ("NCHW", "NHWC"):
        _refuse_overhang(call)
        gradients: list[relay.Expr] = avg_pool2d_grad(call, grad)
        return gradients
    return [_spread(call, grad, sizes)]


def of_global_avg_pool2d(call: relay.Call, grad: relay.Expr) -> list[relay.Expr]:
    """Return the same part for each element of a map."""
    layout = str(call.attrs.layout)
    sizes = [_shape(call.args[0])[layout.find(letter)] for letter in "HW"]
    return [_spread(call, grad, sizes)]


def _refuse_dilation(call: relay.Call) -> None:
    """TVM's kernels for gradients of pools leave dilation out."""
    if any(int(step) != 1 for step in call.attrs.dilation):
        raise UnsupportedRelayError(
            f"{call.op.name} has no gradient here for windows of dilation "
            f"{[int(step) for step in call.attrs.dilation]}; only windows without gaps have one"
        )


def _refuse_overhang(call: relay.Call) -> None:
    """TVM divides by what a window has inside of the padding, in its gradient by all of it."""
    attrs, layout = call.attrs, str(call.attrs.layout)
    if not (attrs.ceil_mode and attrs.count_include_pad):
        return
    padding = _padding(call)
    for at, letter in enumerate("HW"):
        size, stride = int(attrs.pool_size[at]), int(attrs.strides[at])
        axis = layout.find(letter)
        end = (_shape(call)[axis] - 1) * stride + size
        extent = _shape(call.args[0])[axis] + padding[at] + padding[at + 2]
        if end > extent:
            raise UnsupportedRelayError(
                f"nn.avg_pool2d has no gradient here where its last window along {letter} ends at "
                f"{end}, behind the {extent} that there are with the padding, which counts as "
                f"well: TVM's kernel computes another one. Say count_include_pad=False, or pad more"
            )


def _padding(call: relay.Call) -> tuple[int, int, int, int]:
    """Top, left, bottom, right; one or two numbers are of both sides."""
    given = [int(width) for width in call.attrs.padding]
    top, left, bottom, right = {1: given * 4, 2: given * 2}.get(len(given), given)
    return top, left, bottom, right


def _spread(call: relay.Call, grad: relay.Expr, sizes: Sequence[int]) -> relay.Expr:
    """What each element has in the mean of its window; those behind the last window have nothing.

    Unlike TVM's kernels for it, which read what was pooled for its shape, so that it is kept and
    put into another layout for them, and which nothing is fused with.
    """
    shape, layout = _shape(call.args[0]), str(call.attrs.layout)
    part = relay.const(1.0 / (sizes[0] * sizes[1]), call.checked_type.dtype)
    shares = grad * part
    rest = [(0, 0)] * len(shape)
    for letter, size in zip("HW", sizes, strict=True):
        axis = layout.find(letter)
        rest[axis] = (0, shape[axis] - _shape(call)[axis] * size)
        if size > 1:
            shares = relay.repeat(shares, size, axis)
    return relay.nn.pad(shares, rest) if any(after for _, after in rest) else shares


def _shape(expr: relay.Expr) -> tuple[int, ...]:
    return static_shape(expr.checked_type)
