"""Run TVM's Legalize with the spans kept: what stands for an op belongs to the task of the op.

    nn.conv2d(%x, %w) /* task:conv2d.1 */  ==>  nn.conv2d(cast(add(cast(%x), 128)), %w') - ...
                                                /* task:conv2d.1 on every call of it */

Where a target has no instruction for products of 8 bits they are computed by floats. Gradients of
the weights of convolutions are convolutions over the batch.

TVM's own pass returns what the target's function makes of an op as it is, without a span; kernels
could then not be traced to their tasks, or would be counted as those of a neighbour.

Source: TVM, `src/relay/transforms/legalize.cc`.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relay

from heteroplace.relay.axes.shapes import with_attributes
from heteroplace.relay.expr_map import ExprMap, ExprSet
from heteroplace.relay.expressions import function_pass, op_name, rebuilt, static_shape
from heteroplace.relay.local_types import write_types
from heteroplace.relay.targets import multiplies_integers
from heteroplace.relay.tasks.spans import with_span

_PRODUCTS = ("nn.conv2d", "nn.dense")
_WEIGHT_GRADIENT = "nn.conv2d_backward_weight"
_ATTRIBUTE = "FTVMLegalize"
_OPT_LEVEL = 1


def Legalize() -> tvm.transform.Pass:  # noqa: N802  (stands for the pass of TVM of that name)
    """Return the pass that makes of every op what the current target knows.

    Its name and level are those of TVM's, so `disabled_pass` means both. The types of the result
    are not inferred.
    """

    return function_pass("Legalize", _legalize, opt_level=_OPT_LEVEL)


def _legalize(function: relay.Function) -> relay.Function:
    new_exprs = ExprSet(function.params)
    forms: dict[str, Any] = {}
    wide = ExprMap[relay.Constant]()

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        name = op_name(new)
        if name is not None:
            if name not in forms:
                forms[name] = new.op.get_attr(_ATTRIBUTE)
            value = None if forms[name] is None else _legal_form(forms[name], old, new, wide)
            if value is not None:
                new = with_span(value, new_exprs, old.span)
        new_exprs.add(new)
        return new

    return rebuilt(function, rewrite)


def _legal_form(
    legal_form: Any, old: relay.Call, new: relay.Call, wide: ExprMap[relay.Constant]
) -> relay.Expr | None:
    """What the target's function makes of a call; None: it stays as it is.

    `wide`: constants that have been widened, and what they became.
    """
    dtype = str(old.checked_type.dtype)
    if _is_integer_product(old) and dtype != "int32":
        sums = with_attributes(new, new.args, out_dtype="int32")
        write_types(sums)
        return relay.cast(_legal_form(legal_form, sums, sums, wide) or sums, dtype)
    if _is_integer_product(old) and not multiplies_integers(tvm.target.Target.current()):
        return _in_floats(new, wide)
    for argument in new.args:
        write_types(argument)  # some forms ask for them, and operands may be new
    if new.op.name == _WEIGHT_GRADIENT and _is_plain(new.attrs):
        return _weight_gradient(new, static_shape(old.checked_type))
    types = [*(argument.checked_type for argument in old.args), old.checked_type]
    return legal_form(new.attrs, new.args, types)


def _is_plain(attrs: tvm.ir.Attrs) -> bool:
    """Say whether the convolution of a gradient has one group, and layouts of planes."""
    # Of the gradient, the data and the weights, in fields that are named as of a convolution.
    layouts = [str(each) for each in (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)]
    return int(attrs.groups) == 1 and layouts == ["NCHW", "NCHW", "OIHW"]


def _weight_gradient(call: relay.Call, shape: tuple[int, ...]) -> relay.Expr:
    """The gradient of a convolution's weights as a convolution over the batch.

    Unlike TVM's form, which repeats the gradient for each input channel: the batch takes the place
    of channels, and nothing is larger than what is read.

        dw[o, i, k, l] = sum over n, y, x of g[n, o, y, x] * data[n, i, y s + k d, x s + l d]
    """
    gradient, data = (relay.transpose(argument, (1, 0, 2, 3)) for argument in call.args)
    attrs = call.attrs
    _, channels, *kernel = static_shape(call.args[0].checked_type)
    whole = relay.nn.conv2d(
        data,
        gradient,
        channels=channels,
        kernel_size=kernel,
        strides=attrs.dilation,
        padding=attrs.padding,
        dilation=attrs.strides,
        out_dtype=attrs.out_dtype,
    )
    turned = relay.transpose(whole, (1, 0, 2, 3))
    write_types(turned)
    if static_shape(turned.checked_type) == shape:
        return turned
    # Rows and columns of the data that a stride has left out at the end.
    return relay.strided_slice(turned, [0] * len(shape), list(shape))


def _is_integer_product(call: relay.Call) -> bool:
    return call.op.name in _PRODUCTS and "int8" in call.args[0].checked_type.dtype


def _in_floats(call: relay.Call, wide: ExprMap[relay.Constant]) -> relay.Expr:
    """By floats, which hold whole numbers up to 2^24, and of others those that are nearest.

    `Winograd`, whose sums are no whole numbers, leaves convolutions of such data alone.
    """
    arguments = [_widened(argument, wide) for argument in call.args]
    return relay.cast(with_attributes(call, arguments, out_dtype="float32"), "int32")


def _widened(value: relay.Expr, wide: ExprMap[relay.Constant]) -> relay.Expr:
    """Return the value as float32. Weights stay constants, and those that are shared stay shared:
    of constants, kernels read panels that are made while compiling."""
    if not isinstance(value, relay.Constant):
        return relay.cast(value, "float32")
    if value not in wide:
        wide[value] = relay.const(value.data.numpy().astype("float32"))
    return wide[value]
