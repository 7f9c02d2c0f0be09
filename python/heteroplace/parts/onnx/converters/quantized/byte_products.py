"""Products of bytes less their zero points ==> products of the bytes, and what the zeros add.

    sum of (a - z) * w  ==  sum of a * v  +  c * sum of a  -  z * sum of w,   w = v + c

with v of int8, a of uint8, and z computed in the run. Weights are constant, so that c, v and the
sums of w are known: c is 0 where w fits into 8 bits with its sign. Signed numbers a become a + 128.
All sums are whole numbers of 32 bits. Processors multiply unsigned by signed bytes.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (arXiv:1712.05877), section 2.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relay

from heteroplace.parts.onnx.converters.call import (
    OnnxCall,
    const,
    constant_value,
    dtype_of,
    shape_of,
)

_SIGNED_OFFSET = 128
_MAX_TERMS = (2**31 - 1) // (255 * 255)
"""Of sums that fit into 32 bits, and so do the three parts of each."""


@dataclass(frozen=True)
class ByteFactor:
    """Constant weights of bytes less their zero point, the right factor of products."""

    values: relay.Expr
    "v, int8: [columns, depth], or [channels, inputs, rows, columns] of a convolution."
    shift: int
    "c"
    sums: relay.Expr
    "Of w over all but the first axis, int32."

    def product(self, data: relay.Expr, zero: relay.Expr | None) -> relay.Expr:
        """Return int32 [..., columns] of bytes [..., depth].

        Parameters
        ----------
        zero
            One number, or [..., 1], of the type of `data`; None: 0.
        """
        shape = shape_of(data)
        data, zero = _unsigned(data, zero)
        rows = relay.reshape(data, [-1, shape[-1]]) if len(shape) > 2 else data
        total = relay.nn.dense(rows, self.values, out_dtype="int32")
        if len(shape) > 2:
            total = relay.reshape(total, [-1, *shape[1:-1], shape_of(self.sums)[0]])
        if self.shift:
            of_rows = relay.sum(relay.cast(data, "int32"), -1, keepdims=True)
            total = relay.add(total, relay.multiply(of_rows, const(self.shift, "int32")))
        return _without_zero(total, zero, self.sums)


def byte_factor(
    weights: relay.Expr, zero: relay.Expr | None, params: Mapping[str, Any]
) -> ByteFactor | None:
    """Return weights [depth, columns] as a right factor; None: they are no constants of bytes.

    Parameters
    ----------
    zero
        One number, or one of each column; None: 0.
    """
    values = _centred(weights, zero, params)
    return None if values is None else _factor(values.T)


def byte_convolution(call: OnnxCall) -> relay.Expr | None:
    """Convert ConvInteger of one group over two axes; None: it is another one."""
    if len(call.shape(0)) != 4 or call.number("group", 1) != 1:
        return None
    if call.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    values = _centred(call.operand(1), call.operand(3) if call.has(3) else None, call.params)
    factor = None if values is None else _factor(values)
    if values is None or factor is None:
        return None
    data, zero = _unsigned(call.operand(0), call.operand(2) if call.has(2) else None)
    top, left, bottom, right = call.attributes.get("pads", (0, 0, 0, 0))
    if any((top, left, bottom, right)):
        around = ((0, 0), (0, 0), (top, bottom), (left, right))
        filling = relay.cast(zero, "uint8") if zero is not None else const(0, "uint8")
        data = relay.nn.pad(data, around, relay.reshape(filling, []))
    geometry = {
        "kernel_size": values.shape[2:],
        "strides": call.attributes.get("strides", (1, 1)),
        "dilation": call.attributes.get("dilations", (1, 1)),
        "out_dtype": "int32",
    }
    total = relay.nn.conv2d(data, factor.values, channels=len(values), **geometry)
    if factor.shift:
        planes = relay.sum(relay.cast(data, "int32"), 1, keepdims=True)
        shift = const(np.full((1, 1, *values.shape[2:]), factor.shift), "int32")
        total = relay.add(total, relay.nn.conv2d(planes, shift, channels=1, **geometry))
    zero = None if zero is None else relay.reshape(zero, [])
    return _without_zero(total, zero, relay.reshape(factor.sums, [-1, 1, 1]))


def _centred(
    weights: relay.Expr, zero: relay.Expr | None, params: Mapping[str, Any]
) -> np.ndarray | None:
    """Return constant weights less their zero point, which is one number or one of each column."""
    if dtype_of(weights) not in ("int8", "uint8"):
        return None
    values = constant_value(weights, params)
    point = np.zeros((), "int32") if zero is None else constant_value(zero, params)
    if values is None or point is None or (point.size > 1 and values.ndim != 2):
        return None
    point = point.reshape(()) if point.size == 1 else point
    centred: np.ndarray = values.astype("int32") - point.astype("int32")
    return centred


def _factor(values: np.ndarray) -> ByteFactor | None:
    """Return weights, whose first axis is that of the columns; None: sums might not fit."""
    terms = values.reshape(len(values), -1)
    if terms.shape[1] > _MAX_TERMS or not terms.size:
        return None
    low, high = int(values.min()), int(values.max())
    if high - low > 255:  # zero points of columns that differ much
        return None
    shift = 0 if low >= -128 and high <= 127 else low + 128
    sums = const(terms.sum(1), "int32")
    return ByteFactor(const(values - shift, "int8"), shift, sums)


def _unsigned(data: relay.Expr, zero: relay.Expr | None) -> tuple[relay.Expr, relay.Expr | None]:
    """Return bytes as uint8 and their zero point as int32, where it is not 0."""
    wide = None if zero is None else relay.cast(zero, "int32")
    if dtype_of(data) == "uint8":
        return data, wide
    data = relay.cast(relay.add(relay.cast(data, "int16"), const(_SIGNED_OFFSET, "int16")), "uint8")
    offset = const(_SIGNED_OFFSET, "int32")
    return data, offset if wide is None else relay.add(wide, offset)


def _without_zero(total: relay.Expr, zero: relay.Expr | None, sums: relay.Expr) -> relay.Expr:
    return total if zero is None else relay.subtract(total, relay.multiply(zero, sums))
