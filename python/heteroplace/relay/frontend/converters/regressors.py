"""LinearRegressor of ai.onnx.ml ==> a product, and what is made of its scores.

ONNX operator specification, and onnxruntime where it says nothing. Of one score there is nothing
to transform there but by PROBIT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tvm import relay
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.errors import FrontendError
from heteroplace.relay.frontend.converters.call import OnnxCall, const

_NO_SCORE = 1e-7
"""A score within it of zero counts as none for SOFTMAX_ZERO."""
_WINITZKI = 0.147
"""The parameter of Winitzki's approximation of the inverse of erf, as in onnxruntime."""


def linear_regressor(call: OnnxCall) -> relay.Expr:
    """Convert LinearRegressor; TVM's converter leaves the scores as they are."""
    name = call.text("post_transform", "NONE")
    if name not in _TRANSFORMS:
        raise FrontendError(
            f"its post_transform '{name}' is not known; expected one of {', '.join(_TRANSFORMS)}"
        )
    inputs = tvm_onnx.onnx_input()
    inputs.extend(call.operands)
    scores = tvm_onnx.LinearRegressor._impl_v1(inputs, call.attributes, call.params)
    if call.number("targets", 1) == 1 and name != "PROBIT":
        return scores
    return _TRANSFORMS[name](scores)


def _softmax_zero(scores: relay.Expr) -> relay.Expr:
    """A softmax of those that are not zero; of the others the score itself takes part."""
    most = relay.max(scores, axis=-1, keepdims=True)
    is_score = relay.greater(relay.abs(scores), _number(_NO_SCORE))
    powers = relay.exp(relay.subtract(scores, most))
    total = relay.sum(relay.where(is_score, powers, _number(0)), axis=-1, keepdims=True)
    rest = relay.multiply(scores, relay.exp(relay.negative(most)))
    return relay.divide(relay.where(is_score, powers, rest), total)


def _probit(scores: relay.Expr) -> relay.Expr:
    """The inverse of the normal distribution: sqrt(2) times that of erf at 2 x - 1."""
    one, half = _number(1), _number(0.5)
    x = relay.subtract(relay.multiply(scores, _number(2)), one)
    log = relay.log(relay.multiply(relay.subtract(one, x), relay.add(one, x)))
    base = relay.add(_number(2 / (np.pi * _WINITZKI)), relay.multiply(log, half))
    squares = relay.multiply(base, base)
    inner = relay.sqrt(relay.subtract(squares, relay.multiply(log, _number(1 / _WINITZKI))))
    size = relay.sqrt(relay.subtract(inner, base))
    return relay.multiply(relay.multiply(relay.sign(x), size), _number(np.sqrt(2)))


def _number(value: float) -> relay.Expr:
    return const(value, "float32")


_TRANSFORMS: Mapping[str, Callable[[relay.Expr], relay.Expr]] = {
    "NONE": lambda scores: scores,
    "LOGISTIC": relay.sigmoid,
    "SOFTMAX": lambda scores: relay.nn.softmax(scores, axis=-1),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}
