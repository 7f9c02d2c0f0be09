"""Logarithms of probabilities ==> Relay: LogSoftmax, SoftmaxCrossEntropyLoss.

ONNX operator specification. TVM's converters take the logarithm of a softmax, whose small terms are
0 (`codegen/vector_math.py`), so that it would be -inf from -87.3 on. Here it is

    x - max - log(sum of e**(x - max))
"""

from __future__ import annotations

from math import prod

from tvm import relay
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.relay.frontend.converters.call import OnnxCall

_ONE_AXIS = 13
"""From this opset on the sum is along one axis, before it over all axes from one on."""


def log_softmax(call: OnnxCall) -> relay.Expr:
    """Convert LogSoftmax."""
    data, shape = call.operand(0), call.shape(0)
    if 0 in shape:
        return data
    is_along_one = call.opset >= _ONE_AXIS
    axis = int(call.number("axis", -1 if is_along_one else 1))
    axis += len(shape) * (axis < 0)
    if is_along_one or axis == len(shape) - 1:
        return relay.nn.log_softmax(data, axis)
    rows = relay.reshape(data, [prod(shape[:axis]), prod(shape[axis:])])
    return relay.reshape(relay.nn.log_softmax(rows, 1), list(shape))


def softmax_cross_entropy_loss(call: OnnxCall) -> relay.Expr | relay.expr.TupleWrapper:
    """Convert SoftmaxCrossEntropyLoss, with the logarithms where they are asked for."""
    logarithms = relay.nn.log_softmax(call.operand(0), 1)
    losses = tvm_onnx.NegativeLogLikelihoodLoss.get_converter(call.opset)
    loss = losses([logarithms, *call.operands[1:]], call.attributes, call.params)
    if call.num_outputs == 1:
        return loss
    return relay.expr.TupleWrapper(relay.Tuple([loss, logarithms]), 2)
