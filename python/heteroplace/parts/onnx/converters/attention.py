"""Attention and QAttention of com.microsoft ==> TVM's own converters, with the scale that is given.

onnxruntime, contributed operators. TVM's converters divide the products of queries and keys by the
root of the head's size, whatever `scale` says, and add -10000 where the mask is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relay
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, const, dtype_of

_MASKED = -10000.0
"""What is added for a masked place; with less its probability is 0 as well."""


def attention(call: OnnxCall) -> relay.expr.TupleWrapper:
    """Convert Attention."""
    return _attention(call, tvm_onnx.Attention)


def quantized_attention(call: OnnxCall) -> relay.expr.TupleWrapper:
    """Convert QAttention."""
    return _attention(call, tvm_onnx.QAttention)


def _attention(call: OnnxCall, stock: Any) -> relay.expr.TupleWrapper:
    for name in ("do_rotary", "past_present_share_buffer"):
        if call.number(name, 0):
            raise FrontendError(f"{name}={call.number(name, 0)} is not supported, only 0")
    masked = call.number("mask_filter_value", _MASKED)
    if masked > _MASKED:
        raise FrontendError(
            f"mask_filter_value={masked} is not supported, only {_MASKED:g} and less"
        )
    scale = float(call.number("scale", 0.0))  # onnxruntime, too, takes 0 for none
    ignored = ("scale", "do_rotary", "past_present_share_buffer")
    attributes = {name: value for name, value in call.attributes.items() if name not in ignored}
    inputs = tvm_onnx.onnx_input()
    inputs.extend(call.operands)
    converter = _scaled(stock, scale) if scale else stock
    return converter._impl_v1(inputs, {"unidirectional": 0, **attributes}, call.params)


def _scaled(stock: Any, scale: float) -> Any:
    """Return a converter that multiplies products by `scale`, in place of the root."""

    class Scaled(stock):  # type: ignore[misc]
        """The converter whose queries bring the quotient of both."""

        @classmethod
        def _compute_attention(cls, queries: relay.Expr, *others: Any, **sizes: Any) -> relay.Expr:
            factor = const(scale * np.sqrt(sizes["head_size"]), dtype_of(queries))
            scaled = relay.multiply(queries, factor)
            return super()._compute_attention(scaled, *others, **sizes)

    return Scaled
