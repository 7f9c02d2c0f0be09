"""Losses: a prediction and labels -> one number, and its gradient with respect to the prediction.

Both are divided by the number of items of the whole batch, of which the prediction may be a part:
then losses and gradients of the parts add up to those of the batch, however it is cut.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Protocol

import numpy as np
from tvm import relay

from heteroplace.errors import TrainingError
from heteroplace.relay.expressions import static_shape

_NUMPY_FLOATS = ("float16", "float32", "float64")
"""Types of floats that numpy has; bfloat16 has the range of float32."""


class Loss(Protocol):
    """What a network is trained for."""

    def labels_type(self, prediction: relay.TensorType) -> relay.TensorType:
        """Return the type of the labels for a prediction, the items along axis 0 of both."""

    def value(self, prediction: relay.Expr, labels: relay.Expr, batch: int) -> relay.Expr:
        """Return the loss, a scalar of the prediction's type; the prediction is typed."""

    def gradient(self, prediction: relay.Expr, labels: relay.Expr, batch: int) -> relay.Expr:
        """Return the gradient of the loss with respect to the prediction."""


class MeanSquaredError:
    """sum((p - y)^2) / (2 batch), so that the gradient is (p - y) / batch.

    Frameworks often divide by the number of elements in place of 2 batch: with `n` numbers per
    item their gradient is 2 / n times this one.
    """

    def labels_type(self, prediction: relay.TensorType) -> relay.TensorType:
        return prediction

    def value(self, prediction: relay.Expr, labels: relay.Expr, batch: int) -> relay.Expr:
        difference = relay.subtract(prediction, labels)
        total = relay.sum(relay.multiply(difference, difference))
        return _divided(total, 2 * batch, prediction.checked_type.dtype)

    def gradient(self, prediction: relay.Expr, labels: relay.Expr, batch: int) -> relay.Expr:
        difference = relay.subtract(prediction, labels)
        return _divided(difference, batch, prediction.checked_type.dtype)


class CrossEntropy:
    """-sum(log softmax(p)[label]) / batch, along the last axis of p; a label is its index, int64.

    An item may have many labels (one for each token); they are summed. A label that is no class
    makes the loss and its gradient NaN, as a step on a device cannot raise; none is left out.
    """

    def labels_type(self, prediction: relay.TensorType) -> relay.TensorType:
        shape = static_shape(prediction)
        if len(shape) < 2:
            raise TrainingError(
                f"cross_entropy of a prediction of shape {list(shape)}; expected the items along "
                f"axis 0 and a number for each class along the last axis: two axes or more"
            )
        return relay.TensorType(shape[:-1], "int64")

    def value(self, prediction: relay.Expr, labels: relay.Expr, batch: int) -> relay.Expr:
        dtype = prediction.checked_type.dtype
        logarithms = relay.nn.log_softmax(prediction, axis=-1)
        is_chosen = relay.cast(self._chosen(prediction, labels), "bool")
        # Not a product: that of 0 and the logarithm of another class's 0 is no number.
        other = self._zero_or_nan(prediction, labels)
        chosen = relay.sum(relay.where(is_chosen, logarithms, other))
        return _divided(chosen, -batch, dtype)

    def gradient(self, prediction: relay.Expr, labels: relay.Expr, batch: int) -> relay.Expr:
        likely = relay.nn.softmax(prediction, axis=-1)
        difference = relay.subtract(likely, self._chosen(prediction, labels))
        checked = relay.add(difference, self._zero_or_nan(prediction, labels))
        return _divided(checked, batch, prediction.checked_type.dtype)

    def _zero_or_nan(self, prediction: relay.Expr, labels: relay.Expr) -> relay.Expr:
        """0 beside a label that is a class; NaN beside others, of which nothing is `_chosen`."""
        type_ = prediction.checked_type
        classes = relay.const(static_shape(type_)[-1], "int64")
        is_class = relay.logical_and(
            relay.greater_equal(labels, relay.const(0, "int64")), relay.less(labels, classes)
        )
        zero, nan = (relay.const(value, type_.dtype) for value in (0, float("nan")))
        return relay.where(relay.expand_dims(is_class, -1), zero, nan)

    def _chosen(self, prediction: relay.Expr, labels: relay.Expr) -> relay.Expr:
        """1 at the label, 0 elsewhere."""
        type_ = prediction.checked_type
        one, zero = (relay.const(value, type_.dtype) for value in (1, 0))
        return relay.one_hot(labels, one, zero, static_shape(type_)[-1], -1, type_.dtype)


def _divided(value: relay.Expr, number: int, dtype: str) -> relay.Expr:
    """The quotient, in float32 where the number is too large for the type (65504 of float16): it
    would be infinite there, and each gradient 0."""
    with np.errstate(over="ignore"):
        fits = dtype not in _NUMPY_FLOATS or np.isfinite(np.array(number).astype(dtype))
    if fits:
        return relay.divide(value, relay.const(number, dtype))
    exact = relay.divide(relay.cast(value, "float32"), relay.const(number, "float32"))
    return relay.cast(exact, dtype)


LOSSES: MutableMapping[str, Loss] = {"mse": MeanSquaredError(), "cross_entropy": CrossEntropy()}
"""By name; more may be added."""


def loss_of(loss: str | Loss) -> Loss:
    """Return a loss by its name, or as it is.

    Raises
    ------
    TrainingError
        There is none of this name.
    """
    if not isinstance(loss, str):
        return loss
    if loss not in LOSSES:
        raise TrainingError(f"there is no loss {loss!r}; there are {', '.join(LOSSES)}")
    return LOSSES[loss]
