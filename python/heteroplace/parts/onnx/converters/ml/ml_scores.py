"""Operands and scores of ai.onnx.ml's models: what its classifiers and regressors share.

ONNX operator specification, domain ai.onnx.ml. Where it leaves a case open (one score for two
classes, `post_transform` of one score), onnxruntime's numbers decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import Array, OnnxCall, const, dtype_of

_NO_SCORE = 1e-7
"""A score within this distance of zero counts as no score for SOFTMAX_ZERO."""
_WINITZKI = 0.147
"""The parameter of Winitzki's approximation of the inverse of erf, as in onnxruntime."""


def rows_of(call: OnnxCall, index: int = 0) -> relay.Expr:
    """Return an operand as a matrix [rows, features]; a vector is one row.

    Raises
    ------
    FrontendError
        It has another rank, for which the specification says nothing.
    """
    shape = call.shape(index)
    if len(shape) == 1:
        return relay.expand_dims(call.operand(index), 0)
    if len(shape) != 2:
        raise FrontendError(
            f"operand {index} has the shape {shape}; expected a matrix [rows, features]. Reshape it"
        )
    return call.operand(index)


def float32_rows(call: OnnxCall, index: int = 0) -> relay.Expr:
    """Return an operand as a float32 matrix [rows, features]."""
    return as_dtype(rows_of(call, index), "float32")


def as_dtype(expr: relay.Expr, dtype: str) -> relay.Expr:
    """Return an expression in a type; itself if it has it: TVM has no kernel for such a cast."""
    return expr if dtype_of(expr) == dtype else relay.cast(expr, dtype)


def numbers(call: OnnxCall, name: str, dtype: npt.DTypeLike = np.float32) -> Array:
    """Return a list attribute as an array; empty if the node does not have it."""
    return np.asarray(call.attributes.get(name, ()), dtype).reshape(-1)


def class_labels(call: OnnxCall, name: str) -> Array:
    """Return the integer labels of a classifier, in the order of its classes.

    Raises
    ------
    FrontendError
        There are none, or one label stands alone.
    """
    labels = numbers(call, name, np.int64)
    if len(labels) < 2:
        raise FrontendError(f"it has {len(labels)} class label(s); expected at least 2 in {name}")
    return labels


def labels_at(positions: relay.Expr, labels: Array) -> relay.Expr:
    """Return the labels of classes given by position."""
    if np.array_equal(labels, np.arange(len(labels))):
        return as_dtype(positions, "int64")
    return relay.take(const(labels, "int64"), positions)


def label_if(condition: relay.Expr, labels: Array) -> relay.Expr:
    """Return the second of two labels where a condition [rows, 1] holds, else the first."""
    first, second = (const(label, "int64") for label in labels)
    return relay.reshape(relay.where(condition, second, first), [-1])


def transform_of(call: OnnxCall) -> str:
    """Return the name of the `post_transform` of a node.

    Raises
    ------
    FrontendError
        There is no transform of this name.
    """
    name = call.text("post_transform", "NONE")
    if name not in TRANSFORMS:
        raise FrontendError(
            f"its post_transform '{name}' is not known; expected one of {', '.join(TRANSFORMS)}"
        )
    return name


def join_scores(first: relay.Expr, second: relay.Expr) -> relay.Expr:
    """Return the scores [rows, 2] of two classes, of columns [rows, 1]."""
    return relay.concatenate([first, second], axis=1)


def number(value: float) -> relay.Expr:
    """Return a float32 constant."""
    return const(value, "float32")


def _softmax_zero(scores: relay.Expr) -> relay.Expr:
    """A softmax over the scores that are not zero; the others are only scaled."""
    largest = relay.max(scores, axis=-1, keepdims=True)
    is_score = relay.greater(relay.abs(scores), number(_NO_SCORE))
    powers = relay.exp(relay.subtract(scores, largest))
    total = relay.sum(relay.where(is_score, powers, number(0)), axis=-1, keepdims=True)
    rest = relay.multiply(scores, relay.exp(relay.negative(largest)))
    return relay.divide(relay.where(is_score, powers, rest), total)


def _probit(scores: relay.Expr) -> relay.Expr:
    """The inverse of the normal distribution: sqrt(2) times that of erf at 2 x - 1."""
    one, half = number(1), number(0.5)
    x = relay.subtract(relay.multiply(scores, number(2)), one)
    log = relay.log(relay.multiply(relay.subtract(one, x), relay.add(one, x)))
    base = relay.add(number(2 / (np.pi * _WINITZKI)), relay.multiply(log, half))
    squares = relay.multiply(base, base)
    inner = relay.sqrt(relay.subtract(squares, relay.multiply(log, number(1 / _WINITZKI))))
    size = relay.sqrt(relay.subtract(inner, base))
    return relay.multiply(relay.multiply(relay.sign(x), size), number(np.sqrt(2)))


TRANSFORMS: Mapping[str, Callable[[relay.Expr], relay.Expr]] = {
    "NONE": lambda scores: scores,
    "LOGISTIC": relay.sigmoid,
    "SOFTMAX": lambda scores: relay.nn.softmax(scores, axis=-1),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}
"""Name of a `post_transform` -> what it makes of several scores [rows, classes]."""
