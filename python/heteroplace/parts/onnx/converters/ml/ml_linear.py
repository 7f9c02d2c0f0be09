"""LinearClassifier and LinearRegressor of ai.onnx.ml ==> a product and a transform of the scores.

ONNX operator specification, and onnxruntime where it says nothing: one score alone is transformed
by PROBIT only.
"""

from __future__ import annotations

import numpy as np
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import Array, OnnxCall, const, shape_of
from heteroplace.parts.onnx.converters.ml.ml_scores import (
    TRANSFORMS,
    class_labels,
    float32_rows,
    join_scores,
    label_if,
    labels_at,
    number,
    numbers,
    transform_of,
)


def linear_regressor(call: OnnxCall) -> relay.Expr:
    """Scores of linear models, and their transform."""
    name = transform_of(call)
    num_targets = int(call.number("targets", 1))
    scores = _scores(call, num_targets, numbers(call, "intercepts"))
    if num_targets == 1 and name != "PROBIT":
        return scores
    return TRANSFORMS[name](scores)


def linear_classifier(call: OnnxCall) -> relay.expr.TupleWrapper:
    """Label of the largest score of linear models, and the transformed scores."""
    name = transform_of(call)
    intercepts = numbers(call, "intercepts")
    labels = class_labels(call, "classlabels_ints")
    num_scores = max(len(intercepts), 1)
    scores = _scores(call, num_scores, intercepts)
    if num_scores > 1:
        if num_scores > len(labels):
            raise FrontendError(f"it has {num_scores} intercepts for {len(labels)} class labels")
        label = labels_at(relay.argmax(scores, axis=1), labels)
        return _pair(label, TRANSFORMS[name](scores))
    if len(labels) != 2:
        raise FrontendError(f"it has one score for {len(labels)} class labels; expected 2 labels")
    label = label_if(relay.greater(scores, number(0)), labels)
    if name == "PROBIT":
        raise FrontendError("PROBIT of one score is not defined for two classes")
    if name == "LOGISTIC":
        return _pair(label, relay.sigmoid(join_scores(relay.negative(scores), scores)))
    return _pair(label, join_scores(relay.subtract(number(1), scores), scores))


def _pair(label: relay.Expr, scores: relay.Expr) -> relay.expr.TupleWrapper:
    return relay.expr.TupleWrapper(relay.Tuple([label, scores]), 2)


def _scores(call: OnnxCall, num_scores: int, intercepts: Array) -> relay.Expr:
    """Return x * coefficients^T + intercepts, float32 [rows, num_scores]."""
    coefficients = numbers(call, "coefficients")
    rows = float32_rows(call)
    num_features = shape_of(rows)[1]
    if num_scores < 1 or coefficients.size % num_scores:
        raise FrontendError(f"it has {coefficients.size} coefficients for {num_scores} score(s)")
    num_read = coefficients.size // num_scores
    if num_read > num_features:
        raise FrontendError(
            f"its coefficients are for {num_read} features, and its operand has {num_features}"
        )
    if num_read < num_features:
        rows = relay.strided_slice(rows, [0], [num_read], axes=[1])
    weights = coefficients.reshape(num_scores, num_read)
    scores = relay.nn.dense(rows, const(weights, "float32"))
    if not intercepts.size:
        return scores
    if intercepts.size not in (1, num_scores):
        raise FrontendError(f"it has {intercepts.size} intercepts for {num_scores} score(s)")
    return relay.add(scores, const(np.reshape(intercepts, (1, -1)), "float32"))
