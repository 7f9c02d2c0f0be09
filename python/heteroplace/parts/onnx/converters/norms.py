"""BatchNormalization, LayerNormalization, MeanVarianceNormalization, LpNormalization ==> Relay.

ONNX operator specification. Statistics may have another type than what is normalised.
"""

from __future__ import annotations

from tvm import relay
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.parts.onnx.converters.call import OnnxCall, const, dtype_name, dtype_of

_MIN_DEVIATION = 1e-9
"""That MeanVarianceNormalization adds to a standard deviation, in the standard's definition."""


def lp_normalization(call: OnnxCall) -> relay.Expr:
    """Convert LpNormalization: over the norm along one axis; nothing over nothing is nothing."""
    data, dtype = call.operand(0), call.dtype(0)
    axis, p = int(call.number("axis", -1)), int(call.number("p", 2))
    if p == 1:
        norm = relay.sum(relay.abs(data), axis=[axis], keepdims=True)
    else:
        norm = relay.sqrt(relay.sum(relay.multiply(data, data), axis=[axis], keepdims=True))
    is_zero = relay.equal(norm, const(0, dtype))
    safe = relay.where(is_zero, const(1, dtype), norm)
    return relay.where(is_zero, const(0, dtype), relay.divide(data, safe))


def batch_normalization(call: OnnxCall) -> relay.Expr | relay.expr.TupleWrapper | None:
    """Convert BatchNormalization that trains: statistics of the batch, and the running ones."""
    if not call.number("training_mode", 0):
        return None
    data, dtype, rank = call.operand(0), call.dtype(0), len(call.shape(0))
    axes = [axis for axis in range(rank) if axis != 1]
    mean = relay.mean(data, axis=axes)
    variance = relay.variance(data, axis=axes)
    epsilon = const(call.number("epsilon", 1e-5), dtype)
    scale = relay.divide(
        relay.cast(call.operand(1), dtype), relay.sqrt(relay.add(variance, epsilon))
    )
    shape = [-1] + [1] * (rank - 2)
    centred = relay.subtract(data, relay.reshape(mean, shape))
    scaled = relay.multiply(centred, relay.reshape(scale, shape))
    result = relay.add(scaled, relay.reshape(relay.cast(call.operand(2), dtype), shape))
    if call.num_outputs == 1:
        return result
    momentum = call.number("momentum", 0.9)
    running = []
    for operand, value in ((3, mean), (4, variance)):
        own = dtype_of(call.operand(operand))
        old = relay.multiply(call.operand(operand), const(momentum, own))
        running.append(
            relay.add(old, relay.multiply(relay.cast(value, own), const(1 - momentum, own)))
        )
    outputs = [result, *running][: call.num_outputs]
    return relay.expr.TupleWrapper(relay.Tuple(outputs), len(outputs))


def layer_normalization(call: OnnxCall) -> relay.expr.TupleWrapper:
    """Convert LayerNormalization: (y, mean, 1 / deviation), the latter of the type `stash_type`."""
    operands = tvm_onnx.onnx_input()
    operands.extend(call.operands)
    normalised = tvm_onnx.LayerNormalization._impl_v17(operands, call.attributes, call.params)
    result, *statistics = normalised.astuple().fields
    dtype = dtype_name(int(call.number("stash_type", 1)))
    cast_statistics = [
        one if dtype_of(one) == dtype else relay.cast(one, dtype) for one in statistics
    ]
    return relay.expr.TupleWrapper(relay.Tuple([result, *cast_statistics]), 3)


def mean_variance_normalization(call: OnnxCall) -> relay.Expr:
    """Convert MeanVarianceNormalization; TVM's converter divides by the deviation alone, and takes
    it from a difference of squares."""
    data, dtype = call.operand(0), call.dtype(0)
    axes = [int(axis) for axis in call.attributes.get("axes", (0, 2, 3))]
    centred = relay.subtract(data, relay.mean(data, axis=axes, keepdims=True))
    variance = relay.mean(relay.multiply(centred, centred), axis=axes, keepdims=True)
    deviation = relay.add(relay.sqrt(variance), const(_MIN_DEVIATION, dtype))
    return relay.divide(centred, deviation)
