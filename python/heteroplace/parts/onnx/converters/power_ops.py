"""Pow ==> Relay, in the type of its base: of integers exact.

ONNX operator specification, version 15. TVM has powers of floats only, and its converter takes
float32 for all, whose 24 bits are no integer's. Integers that overflow keep their lower bits, as
numpy's do.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from tvm import relay

from heteroplace.parts.onnx.converters.call import Array, OnnxCall, const, constant_value

_WIDE = "float64"
_BITS = 64
"""Of the widest integers."""
_MAX_FACTORS = 4
"""Of a product that is written out; more are multiplied along an axis, as the code of a kernel
repeats what is read for each factor."""


def power(call: OnnxCall) -> relay.Expr | None:
    """Convert Pow; of a float and an exponent that its type holds TVM's converter is right."""
    base, exponent = call.operand(0), call.operand(1)
    dtype, own = call.dtype(0), call.dtype(1)
    if "float" in dtype and dtype in (own, _WIDE):
        return None
    value = constant_value(exponent, call.params)
    if "float" in dtype:
        if value is not None and _holds(dtype, value):
            return None
    elif "float" not in own or (value is not None and _holds("int64", value)):
        return _integer_power(call, value)
    wide = relay.power(relay.cast(base, _WIDE), relay.cast(exponent, _WIDE))
    return relay.cast(wide, dtype)


def _holds(dtype: str, values: Array) -> bool:
    """Tell whether a type has all of these numbers, which are finite."""
    if not np.isfinite(values).all():
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((values.astype(dtype).astype(values.dtype) == values).all())


def _integer_power(call: OnnxCall, value: Array | None) -> relay.Expr:
    """Return an integer to the power of a whole number."""
    base, dtype = call.operand(0), call.dtype(0)
    shape = call.shape(0)
    has_its_shape = np.broadcast_shapes(shape, call.shape(1)) == shape
    if value is not None and value.size == 1 and has_its_shape:
        count = int(value.item())
        if 1 <= count <= _MAX_FACTORS:
            return reduce(relay.multiply, [base] * count)
    exponent = relay.cast(call.operand(1), "int64")
    return _counted_product(base, dtype, exponent, value)


def _counted_product(
    base: relay.Expr, dtype: str, exponent: relay.Expr, value: Array | None
) -> relay.Expr:
    """Multiply as many factors as the exponent says along an axis of its own.

    More than `_BITS` of them change nothing of what fits into a type but a sign: the power is 0, 1
    or -1, or has overflowed.
    """
    zero, one = const(0, dtype), const(1, dtype)
    bits = const(_BITS, "int64")
    count = relay.abs(exponent)
    odd = relay.bitwise_and(count, const(1, "int64"))
    count = relay.where(relay.greater(count, bits), relay.add(bits, odd), count)
    most = _BITS + 1
    if value is not None:
        most = max(1, int(min(most, np.abs(value).max(initial=0))))
    factors = relay.where(
        relay.less(const(np.arange(most), "int64"), relay.expand_dims(count, -1)),
        relay.expand_dims(base, -1),
        one,
    )
    product = relay.prod(factors, axis=-1)
    if value is not None and (value >= 0).all():
        return product
    # 1 / x is whole for 1 and -1 only; onnxruntime makes this number of an infinite one.
    infinite = const(np.iinfo(dtype).min, dtype)
    part = relay.where(relay.equal(base, zero), infinite, zero)
    part = relay.where(relay.equal(relay.abs(base), one), product, part)
    return relay.where(relay.less(exponent, const(0, "int64")), part, product)
