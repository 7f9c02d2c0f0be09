"""Norms of sums of com.microsoft ==> additions, and a norm over the last axis in float32.

onnxruntime, contributed operators: SkipLayerNormalization, SkipSimplifiedLayerNormalization
(without the mean) and SimplifiedLayerNormalization, which exporters write in the domain of ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relay

from heteroplace.parts.onnx.converters.call import OnnxCall, as_float32, const


def skip_layer_normalization(call: OnnxCall) -> relay.Expr | relay.expr.TupleWrapper:
    """Convert SkipLayerNormalization: (input, skip, gamma, beta, bias)."""
    total = _sum(call, 4)
    mean = relay.mean(as_float32(total), -1, keepdims=True)
    centred = relay.subtract(as_float32(total), mean)
    result, inverse = _scaled(call, centred, 2)
    if call.has(3):
        result = relay.add(result, as_float32(call.operand(3)))
    return _outputs(call, [relay.cast(result, call.dtype(0)), mean, inverse, total])


def skip_simplified_layer_normalization(call: OnnxCall) -> relay.Expr | relay.expr.TupleWrapper:
    """Convert SkipSimplifiedLayerNormalization: (input, skip, gamma, bias)."""
    total = _sum(call, 3)
    wide = as_float32(total)
    result, inverse = _scaled(call, wide, 2)
    mean = relay.mean(wide, -1, keepdims=True)
    return _outputs(call, [relay.cast(result, call.dtype(0)), mean, inverse, total])


def simplified_layer_normalization(call: OnnxCall) -> relay.Expr | relay.expr.TupleWrapper:
    """Convert SimplifiedLayerNormalization: (x, scale), over the axes from `axis` on."""
    rank = len(call.shape(0))
    first = int(call.number("axis", -1)) % rank
    result, inverse = _scaled(call, as_float32(call.operand(0)), 1, list(range(first, rank)))
    return _outputs(call, [relay.cast(result, call.dtype(1)), inverse])


def _sum(call: OnnxCall, bias: int) -> relay.Expr:
    total = relay.add(call.operand(0), call.operand(1))
    return relay.add(total, call.operand(bias)) if call.has(bias) else total


def _scaled(
    call: OnnxCall, data: relay.Expr, gamma: int, axes: Sequence[int] = (-1,)
) -> tuple[relay.Expr, relay.Expr]:
    """Return float32 numbers over the root of their mean square, times gamma; and 1 / that root."""
    square = relay.mean(relay.multiply(data, data), list(axes), keepdims=True)
    epsilon = call.number("epsilon", 1e-12 if gamma == 2 else 1e-5)
    inverse = relay.rsqrt(relay.add(square, const(epsilon, "float32")))
    scaled = relay.multiply(data, inverse)
    return relay.multiply(scaled, as_float32(call.operand(gamma))), inverse


def _outputs(call: OnnxCall, outputs: Sequence[relay.Expr]) -> relay.Expr | relay.expr.TupleWrapper:
    if call.num_outputs == 1:
        return outputs[0]
    return relay.expr.TupleWrapper(relay.Tuple(outputs[: call.num_outputs]), call.num_outputs)
