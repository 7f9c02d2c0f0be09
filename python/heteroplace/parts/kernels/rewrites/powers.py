"""Powers with constant exponents, and variances -> what runs on vectors.

TVM calls the C library for each element of a power.

    power(%x, 2)  ==>  multiply(%x, %x)
    power(%x, 3)  ==>  multiply(multiply(%x, %x), %x)
    variance(%x, %mean)  ==>  mean((%x - %mean) * (%x - %mean))
    nn.lrn(%x, size=5, bias=k, alpha=a, beta=0.75)
                  ==>  %x / (sqrt(%s) * sqrt(sqrt(%s))), %s = k + a / 5 * sum of %x^2 in the window

The norm over neighbouring channels (LRN) is then elementwise: the window is a sum of slices.
"""

from __future__ import annotations

from functools import reduce

import tvm
from tvm import relay

from heteroplace.relay.expr_map import ExprSet
from heteroplace.relay.expressions import function_pass, is_op_call, rebuilt, static_shape
from heteroplace.relay.tasks.spans import with_span

_PRODUCTS = (2, 3)
_LRN_BETA = 0.75


def Powers() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass. Types are not inferred."""

    def run(function: relay.Function) -> relay.Function:
        new_exprs = ExprSet(function.params)

        def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
            exponent = _exponent(old)
            if exponent is not None:
                value = reduce(relay.multiply, [new.args[0]] * exponent)
                new = with_span(value, new_exprs, old.span)
            elif is_op_call(old, "variance") and not old.attrs.unbiased:
                new = with_span(_variance(old, *new.args), new_exprs, old.span)
            elif _is_norm_of_roots(old):
                new = with_span(_norm(old, new.args[0]), new_exprs, old.span)
            new_exprs.add(new)
            return new

        return rebuilt(function, rewrite)

    return function_pass("Powers", run, opt_level=3, ops=("power", "variance", "nn.lrn"))


def _exponent(call: relay.Expr) -> int | None:
    """Of floats, as powers of whole numbers may overflow otherwise; None: it stays a power."""
    if not is_op_call(call, "power") or not isinstance(call.args[1], relay.Constant):
        return None
    exponent = call.args[1].data.numpy()
    has_its_shape = tvm.ir.structural_equal(call.args[0].checked_type, call.checked_type)
    if exponent.dtype.kind != "f" or not has_its_shape:
        return None
    return next((each for each in _PRODUCTS if (exponent == each).all()), None)


def _variance(old: relay.Call, x: relay.Expr, mean: relay.Expr) -> relay.Expr:
    attrs, offset = old.attrs, relay.subtract(x, mean)
    axes = None if attrs.axis is None else [int(axis) for axis in attrs.axis]
    return relay.mean(
        relay.multiply(offset, offset), axes, bool(attrs.keepdims), bool(attrs.exclude)
    )


def _is_norm_of_roots(call: relay.Expr) -> bool:
    """Whether it is an LRN of positive sums, whose power is one of roots."""
    if not is_op_call(call, "nn.lrn"):
        return False
    attrs = call.attrs
    is_positive = attrs.bias > 0 and attrs.alpha >= 0 and int(attrs.size) % 2 == 1
    return bool(is_positive and attrs.beta == _LRN_BETA)


def _norm(old: relay.Call, x: relay.Expr) -> relay.Expr:
    attrs, shape = old.attrs, static_shape(old.checked_type)
    axis, size = int(attrs.axis) % len(shape), int(attrs.size)
    around = [(size // 2, size // 2) if each == axis else (0, 0) for each in range(len(shape))]
    squares = relay.nn.pad(relay.multiply(x, x), around)
    window = [
        relay.strided_slice(squares, (first,), (first + shape[axis],), (1,), axes=(axis,))
        for first in range(size)
    ]
    dtype = old.checked_type.dtype
    mean = relay.multiply(reduce(relay.add, window), relay.const(attrs.alpha / size, dtype))
    root = relay.sqrt(relay.add(mean, relay.const(attrs.bias, dtype)))
    return relay.divide(x, relay.multiply(root, relay.sqrt(root)))
