"""Transposed convolutions -> a convolution that makes all phases of the result, and their weaving.

TVM puts zeros between the elements of the map and convolves that: of stride s it multiplies s^2
times as often as needed, most of it by 0. But elements of the result that are s apart see the same
part of the filter: they are one phase, an ordinary convolution of the map, and all phases together
are one of s^2 times the channels:

    nn.conv2d_transpose(%x, const, strides=[s, s])
        ==>  heteroplace_weave(nn.conv2d(%x, const'), s)        [n, s s c, h, w] -> [n, c, h s, w s]

A phase that sees less of the map than others has zeros in its filter, as where the stride does not
divide the filter or the padding: an infinity or a NaN in a map becomes a NaN in elements up to a
filter away that do not see it. `heteroplace_weave` takes maps in blocks of channels as they are,
so that it moves whole vectors.

Left as they are: weights that are computed, groups, dilation, other layouts and types, strides of
1, and paddings beyond the filter.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tvm
from tvm import relay, te
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

from heteroplace.relay.expressions import function_pass, rebuilt, spanned, static_shape
from heteroplace.tvm_bridge import add_relay_op

WEAVE_OP = "heteroplace_weave"
"""Of a map; attributes `rows` and `columns` say how many phases there are of each."""

_MAX_PHASES = 16
_OPS = ("nn.conv2d_transpose",)
_BLOCKED = re.compile(r"NCHW(\d+)c")


def ConvolvePhases() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass; it goes before AlterOpLayout. Types are not inferred."""

    def run(function: relay.Function) -> relay.Function:
        def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
            phases = _by_phases(old, new.args[0]) if _may_have_phases(old) else None
            return new if phases is None else phases

        return rebuilt(function, rewrite, ops=_OPS)

    return function_pass("ConvolvePhases", run, ops=_OPS)


def _may_have_phases(call: relay.Expr) -> bool:
    attrs = call.attrs
    strides = [int(each) for each in attrs.strides]
    types = {str(each.checked_type.dtype) for each in (*call.args, call)}
    return (
        isinstance(call.args[1], relay.Constant)
        and attrs.groups == 1
        and all(int(each) == 1 for each in attrs.dilation)
        and (attrs.data_layout, attrs.kernel_layout) == ("NCHW", "IOHW")
        and attrs.out_layout in ("", "NCHW")
        and types == {"float32"}
        and 1 < strides[0] * strides[1] <= _MAX_PHASES
    )


class _Axis:
    """Rows or columns: how the phases of an axis see the map."""

    def __init__(self, size: int, kernel: int, stride: int, before: int, result: int) -> None:
        self.stride, self.result = stride, result
        taps = [
            (phase, tap, (phase + before - tap) // stride)
            for phase in range(stride)
            for tap in range(kernel)
            if (phase + before - tap) % stride == 0
        ]
        least = min(offset for _, _, offset in taps)
        most = max(offset for _, _, offset in taps)
        self.window = most - least + 1
        self.taps = [(phase, tap, offset - least) for phase, tap, offset in taps]
        """(phase, place in the filter, place in the filter of the phase)."""
        self.before = -least
        needed = -(-result // stride)
        self.after = needed - size - self.before + self.window - 1
        self.made = size + self.before + max(0, self.after) - self.window + 1
        """Elements of a phase that are made; at least those that are needed."""


def _by_phases(old: relay.Call, data: relay.Expr) -> relay.Expr | None:
    weights = old.args[1].data.numpy()
    channels_in, channels, *kernel = weights.shape
    shape, result = static_shape(old.args[0].checked_type), static_shape(old.checked_type)
    strides = [int(each) for each in old.attrs.strides]
    befores = [int(each) for each in old.attrs.padding[:2]]
    rows, columns = (
        _Axis(size, extent, stride, before, output_extent)
        for size, extent, stride, before, output_extent in zip(
            shape[2:], kernel, strides, befores, result[2:], strict=True
        )
    )
    if min(rows.before, columns.before, rows.made, columns.made) < 0:
        return None
    phases = np.zeros(
        (rows.stride, columns.stride, channels, channels_in, rows.window, columns.window),
        weights.dtype,
    )
    for phase_y, tap_y, y in rows.taps:
        for phase_x, tap_x, x in columns.taps:
            phases[phase_y, phase_x, :, :, y, x] = weights[:, :, tap_y, tap_x].T
    phases = phases.reshape(-1, *phases.shape[3:])
    convolved = relay.nn.conv2d(
        data,
        relay.const(phases),
        padding=(rows.before, columns.before, max(0, rows.after), max(0, columns.after)),
        channels=phases.shape[0],
        kernel_size=(rows.window, columns.window),
    )
    woven = weave(spanned(convolved, old.span), rows.stride, columns.stride)
    value = spanned(woven, old.span)
    if (rows.made * rows.stride, columns.made * columns.stride) != result[2:]:
        cut = relay.strided_slice(value, (0, 0), result[2:], (1, 1), axes=(2, 3))
        value = spanned(cut, old.span)
    return value


def weave(data: relay.Expr, rows: int, columns: int) -> relay.Call:
    """Return a call of the op: channels (phases of rows, of columns, channels) side by side."""
    add_relay_op(
        WEAVE_OP,
        "The phases of a map side by side.",
        {"data": ("Tensor", "[n, phases and channels, height, width]")},
        _type_of,
        _compute,
        is_fusable=True,
        infer_layout=_layouts,
    )
    attrs = tvm.ir.make_node("DictAttrs", rows=rows, columns=columns)
    return relay.Call(tvm.ir.Op.get(WEAVE_OP), [data], attrs)


def _result_shape(attrs: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    rows, columns = int(attrs["rows"]), int(attrs["columns"])
    n, channels, height, width, *lanes = shape
    return (n, channels // (rows * columns), height * rows, width * columns, *lanes)


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    (data,) = arguments
    if not isinstance(data, relay.TensorType):
        return None
    return relay.TensorType(_result_shape(attrs, static_shape(data)), data.dtype)


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    (data,) = tensors
    rows, columns = int(attrs["rows"]), int(attrs["columns"])
    shape = _result_shape(attrs, tuple(int(extent) for extent in data.shape))
    div, mod = tvm.tir.indexdiv, tvm.tir.indexmod

    def element(n: Any, c: Any, y: Any, x: Any, *lane: Any) -> Any:
        phase = mod(y, rows) * columns + mod(x, columns)
        return data(n, phase * shape[1] + c, div(y, rows), div(x, columns), *lane)

    return [te.compute(shape, element, name="woven", tag=tvm.topi.tag.INJECTIVE)]


def _layouts(
    attrs: Any, new_layouts: Any, _old_layouts: Any, old_types: Any
) -> InferCorrectLayoutOutput:
    """Blocks of channels stay, if each block is of one phase."""
    layout = "NCHW"
    given = new_layouts[0].name if new_layouts else ""
    match = _BLOCKED.fullmatch(given)
    if match is not None:
        channels = static_shape(old_types[0])[1] // (int(attrs["rows"]) * int(attrs["columns"]))
        layout = layout if channels % int(match[1]) else given
    layouts = tvm.tir.layout(layout)
    return InferCorrectLayoutOutput([layouts], [layouts], attrs)
