"""SVMClassifier and SVMRegressor of ai.onnx.ml ==> kernels, products and votes.

ONNX operator specification; C.-C. Chang and C.-J. Lin, "LIBSVM: A Library for Support Vector
Machines" (doi:10.1145/1961189.1961199), for what the coefficients mean and for the votes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import Array, OnnxCall, const, shape_of
from heteroplace.parts.onnx.converters.ml.ml_scores import (
    TRANSFORMS,
    as_dtype,
    class_labels,
    float32_rows,
    join_scores,
    labels_at,
    number,
    numbers,
    transform_of,
)

_WIDE = "float64"
"""Decision values add up in it, as in onnxruntime."""
_KERNELS = "LINEAR, POLY, RBF or SIGMOID"
_MAX_FACTORS = 8
"""Degree up to which a polynomial kernel is a product."""


def svm_regressor(call: OnnxCall) -> relay.Expr:
    """Support vector regression, or the side of a one-class model: 1 or -1."""
    if transform_of(call) != "NONE":
        raise FrontendError("its post_transform is not NONE, which has no definition for this op")
    coefficients, rho = numbers(call, "coefficients"), numbers(call, "rho")
    num_vectors = int(call.number("n_supports", 0))
    if num_vectors:
        values = _kernel_values(call, num_vectors)
    else:
        values = float32_rows(call)
    scores = _decisions(values, coefficients.reshape(1, -1), rho[:1])
    if call.number("one_class", 0):
        return relay.where(relay.greater(scores, number(0)), number(1), number(-1))
    return scores


def svm_classifier(call: OnnxCall) -> relay.expr.TupleWrapper:
    """Label by votes of support vector machines of pairs of classes, and the decision values."""
    labels = class_labels(call, "classlabels_ints")
    sizes = numbers(call, "vectors_per_class", np.int64)
    if len(sizes) != len(labels):
        raise FrontendError(
            f"it has {len(sizes)} vectors_per_class for {len(labels)} class labels. A model "
            f"without support vectors is a LinearClassifier"
        )
    if numbers(call, "prob_a").size:
        raise FrontendError(
            "its probabilities (prob_a, prob_b) come from an iteration whose length depends on "
            "values at run time. Export the model without probabilities (probability=False), or "
            "calibrate it by CalibratedClassifierCV"
        )
    name = transform_of(call)
    machines = _Pairs.of(call, sizes)
    scores = _decisions(_kernel_values(call, int(sizes.sum())), machines.coefficients, machines.rho)
    is_first = relay.greater(scores, number(0))
    votes = relay.add(
        relay.nn.dense(as_dtype(is_first, "float32"), const(machines.gains, "float32")),
        const(machines.seconds, "float32"),
    )
    label = labels_at(relay.argmax(votes, axis=1), labels)
    if len(labels) > 2:
        result = TRANSFORMS[name](scores)
    elif name == "NONE":
        result = join_scores(relay.negative(scores), scores)
    else:
        raise FrontendError(f"its post_transform {name} of one score has no definition; use NONE")
    return relay.expr.TupleWrapper(relay.Tuple([label, result]), 2)


@dataclass(frozen=True)
class _Pairs:
    """One machine for each pair (i, j) of classes, i < j, in lexical order."""

    coefficients: Array
    """Of the kernel values, float32 [num_pairs, num_vectors]."""
    rho: Array
    """What is added to each decision value, float32 [num_pairs]."""
    gains: Array
    """By how much a positive decision changes the votes, float32 [num_classes, num_pairs]."""
    seconds: Array
    """Votes if no decision is positive, float32 [1, num_classes]."""

    @classmethod
    def of(cls, call: OnnxCall, sizes: Array) -> _Pairs:
        """Read the machines of a classifier; `sizes` are the numbers of vectors of the classes."""
        num_classes, num_vectors = len(sizes), int(sizes.sum())
        given, rho = numbers(call, "coefficients"), numbers(call, "rho")
        pairs = list(itertools.combinations(range(num_classes), 2))
        if given.size != (num_classes - 1) * num_vectors or rho.size < len(pairs):
            raise FrontendError(
                f"it has {given.size} coefficients and {rho.size} rho for {num_classes} classes "
                f"and {num_vectors} support vectors"
            )
        rows = given.reshape(num_classes - 1, num_vectors)
        ends = np.cumsum(sizes)
        spans = [slice(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]
        coefficients = np.zeros((len(pairs), num_vectors), np.float32)
        gains = np.zeros((num_classes, len(pairs)), np.float32)
        seconds = np.zeros((1, num_classes), np.float32)
        for index, (i, j) in enumerate(pairs):
            coefficients[index, spans[i]] = rows[j - 1, spans[i]]
            coefficients[index, spans[j]] = rows[i, spans[j]]
            gains[i, index], gains[j, index] = 1, -1
            seconds[0, j] += 1
        return cls(coefficients, rho[: len(pairs)], gains, seconds)


def _decisions(values: relay.Expr, coefficients: Array, rho: Array) -> relay.Expr:
    """Return values * coefficients^T + rho, float32 [rows, machines]."""
    if shape_of(values)[1] != coefficients.shape[1]:
        raise FrontendError(
            f"it has {coefficients.shape[1]} coefficients for {shape_of(values)[1]} values"
        )
    product = relay.nn.dense(as_dtype(values, _WIDE), const(coefficients, _WIDE))
    return as_dtype(relay.add(product, const(rho.reshape(1, -1), _WIDE)), "float32")


def _kernel_values(call: OnnxCall, num_vectors: int) -> relay.Expr:
    """Return the kernel of each row with each support vector, float32 [rows, num_vectors]."""
    kind = call.text("kernel_type", "LINEAR")
    given = numbers(call, "kernel_params")
    gamma, offset, degree = [*given.tolist(), 0.0, 0.0, 0.0][:3]
    rows = float32_rows(call)
    vectors = numbers(call, "support_vectors")
    num_features = shape_of(rows)[1]
    if vectors.size != num_vectors * num_features:
        raise FrontendError(
            f"its support_vectors have {vectors.size} elements; expected {num_vectors} vectors of "
            f"{num_features} features"
        )
    vectors = vectors.reshape(num_vectors, num_features)
    if kind == "RBF":
        # Differences, not |x|^2 - 2 x v + |v|^2, which loses the digits of near vectors.
        gaps = relay.subtract(relay.expand_dims(rows, 1), const(vectors[None], "float32"))
        distances = relay.sum(relay.multiply(gaps, gaps), axis=2)
        return relay.exp(relay.multiply(distances, number(-gamma)))
    product = relay.nn.dense(rows, const(vectors, "float32"))
    if kind == "LINEAR":
        return product
    shifted = relay.add(relay.multiply(product, number(gamma)), number(offset))
    if kind == "SIGMOID":
        return relay.tanh(shifted)
    if kind == "POLY":
        return _power(shifted, float(degree))
    raise FrontendError(f"its kernel_type '{kind}' is not known; expected {_KERNELS}")


def _power(base: relay.Expr, exponent: float) -> relay.Expr:
    if not (exponent.is_integer() and 1 <= exponent <= _MAX_FACTORS):
        return relay.power(base, number(exponent))
    result = base
    for _ in range(int(exponent) - 1):
        result = relay.multiply(result, base)
    return result
