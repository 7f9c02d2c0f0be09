"""Logarithms of probabilities ==> Relay: LogSoftmax, SoftmaxCrossEntropyLoss and its like.

ONNX operator specification. TVM's converters take the logarithm of a softmax, whose small terms are
0 (`parts/kernels/cpu/vector_math.py`), so that it would be -inf from -87.3 on. Here it is

    x - max - log(sum of e**(x - max))
"""

from __future__ import annotations

from math import prod

from tvm import relay

from heteroplace.parts.onnx.converters.call import OnnxCall, const, dtype_of

ONE_AXIS = 13
"""From this opset on the sum is along one axis, before it over all axes from one on."""


def log_softmax(call: OnnxCall) -> relay.Expr:
    """Convert LogSoftmax."""
    data, shape = call.operand(0), call.shape(0)
    if 0 in shape:
        return data
    is_along_one = call.opset >= ONE_AXIS
    axis = int(call.number("axis", -1 if is_along_one else 1))
    axis += len(shape) * (axis < 0)
    if is_along_one or axis == len(shape) - 1:
        return relay.nn.log_softmax(data, axis)
    rows = relay.reshape(data, [prod(shape[:axis]), prod(shape[axis:])])
    return relay.reshape(relay.nn.log_softmax(rows, 1), list(shape))


def softmax_cross_entropy_loss(call: OnnxCall) -> relay.Expr | relay.expr.TupleWrapper:
    """Convert SoftmaxCrossEntropyLoss, with the logarithms where they are asked for."""
    logarithms = relay.nn.log_softmax(call.operand(0), 1)
    loss = _loss(call, logarithms)
    if call.num_outputs == 1:
        return loss
    return relay.expr.TupleWrapper(relay.Tuple([loss, logarithms]), 2)


def negative_log_likelihood_loss(call: OnnxCall) -> relay.Expr:
    """Convert NegativeLogLikelihoodLoss: (logarithms, labels, weight of each class)."""
    return _loss(call, call.operand(0))


def _loss(call: OnnxCall, logarithms: relay.Expr) -> relay.Expr:
    """Return the loss of [items, classes, ..] of logarithms for [items, ..] labels.

    What is ignored counts as class 0 of no weight: its label need not be a class, and TVM's
    converter would read there.
    """
    labels, dtype = call.operand(1), dtype_of(logarithms)
    ignored = call.attributes.get("ignore_index")
    weights = relay.ones(call.shape(1), dtype)
    if ignored is not None:
        is_ignored = relay.equal(labels, const(ignored, call.dtype(1)))
        labels = relay.where(is_ignored, const(0, call.dtype(1)), labels)
    if call.has(2):
        weights = relay.take(call.operand(2), labels, axis=0)
    chosen = relay.squeeze(relay.gather(logarithms, 1, relay.expand_dims(labels, 1)), [1])
    losses = relay.multiply(relay.negative(chosen), weights)
    if ignored is not None:
        losses, weights = (
            relay.where(is_ignored, const(0, dtype), each) for each in (losses, weights)
        )
    reduction = call.text("reduction", "mean")
    if reduction == "none":
        return losses
    total = relay.sum(losses)
    return relay.divide(total, relay.sum(weights)) if reduction == "mean" else total
