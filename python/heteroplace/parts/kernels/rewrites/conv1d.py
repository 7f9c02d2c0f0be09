"""One-dimensional convolutions -> matrix products, or convolutions of maps with one row.

    nn.conv1d(%x[n, c, w], const[o, c, k])
        ==>  transpose(reshape(nn.dense(windows of %x[n t, c k], const'[o, c k]), [n, t, o]))
    nn.conv1d(%x[n, c, w], const, groups=g)
        ==>  squeeze(nn.conv2d(%x[n, c, 1, w], const'[o, c / g, 1, k], groups=g))

On CPUs TVM computes `nn.conv1d` by a plain loop, while these ops have vectorised kernels. The
windows (im2col) are a copy that is k / stride times as large as the input. The second form is for
long inputs, for groups and for dilations.
Source: Chellapilla et al., "High Performance Convolutional Neural Networks for Document Processing"
(2006), section 2, for the windows.
"""

from __future__ import annotations

import numpy as np
from tvm import relay

from heteroplace.relay.expressions import is_op_call, rebuilt, spanned, static_shape

_MAX_WINDOWS = 2**20
"""Numbers in all windows together: so many stay in the caches."""


def without_conv1d(function: relay.Function) -> relay.Function:
    """Return a typed function without `nn.conv1d`; the types of the result are not inferred."""
    return rebuilt(function, _rewritten)


def _rewritten(old: relay.Expr, new: relay.Expr) -> relay.Expr:
    if not is_op_call(old, "nn.conv1d") or not _is_plain(old):
        return new
    _, channels, size = static_shape(old.args[1].checked_type)
    num, _, width = static_shape(old.checked_type)
    is_alone = int(old.attrs.groups) == 1 and int(old.attrs.dilation[0]) == 1
    is_small = num * width * channels * size <= _MAX_WINDOWS
    return (_as_product if is_alone and is_small else _as_map)(old, new.args[0])


def _is_plain(call: relay.Call) -> bool:
    attrs = call.attrs
    return (
        (attrs.data_layout, attrs.kernel_layout) == ("NCW", "OIW")
        and attrs.out_layout in ("", "NCW")
        and isinstance(call.args[1], relay.Constant)
        and all(each.checked_type.dtype == "float32" for each in (*call.args, call))
    )


def _as_product(call: relay.Call, data: relay.Expr) -> relay.Expr:
    filters = call.args[1].data.numpy()
    num_out, channels, size = filters.shape
    num, _, width = static_shape(call.checked_type)
    before, after = _padding(call)
    if before or after:
        data = spanned(relay.nn.pad(data, ((0, 0), (0, 0), (before, after))), call.span)
    stride = int(call.attrs.strides[0])
    windows = spanned(relay.sliding_window(data, 1, [channels, size], [1, stride]), call.span)
    rows = spanned(relay.reshape(windows, (num * width, channels * size)), call.span)
    weights = relay.const(filters.reshape(num_out, channels * size))
    product = spanned(relay.nn.dense(rows, weights), call.span)
    product = spanned(relay.reshape(product, (num, width, num_out)), call.span)
    return spanned(relay.transpose(product, (0, 2, 1)), call.span)


def _as_map(call: relay.Call, data: relay.Expr) -> relay.Expr:
    attrs, filters = call.attrs, call.args[1].data.numpy()
    before, after = _padding(call)
    convolved = relay.nn.conv2d(
        spanned(relay.expand_dims(data, 2), call.span),
        relay.const(filters[:, :, np.newaxis]),
        strides=(1, int(attrs.strides[0])),
        padding=(0, before, 0, after),
        dilation=(1, int(attrs.dilation[0])),
        groups=int(attrs.groups),
        channels=len(filters),
        kernel_size=(1, filters.shape[2]),
    )
    return spanned(relay.squeeze(spanned(convolved, call.span), [2]), call.span)


def _padding(call: relay.Call) -> tuple[int, int]:
    """Elements before and after the data."""
    padding = [int(each) for each in call.attrs.padding]
    return padding[0], padding[-1]
