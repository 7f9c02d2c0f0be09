"""Feature transforms of ai.onnx.ml ==> elementwise Relay over [rows, features].

ONNX operator specification, and onnxruntime where the specification says nothing.
"""

from __future__ import annotations

import numpy as np
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import Array, OnnxCall, const, shape_of
from heteroplace.parts.onnx.converters.ml.ml_scores import (
    as_dtype,
    float32_rows,
    number,
    numbers,
    rows_of,
)


def scaler(call: OnnxCall) -> relay.Expr:
    """Scale features: (x - offset) * scale."""
    wide = "float64" if call.dtype(0) == "float64" else "float32"
    data = as_dtype(call.operand(0), wide)
    offset = _per_feature(call, "offset", numbers(call, "offset"))
    scale = _per_feature(call, "scale", numbers(call, "scale"))
    moved = relay.subtract(data, const(offset, wide)) if offset.size else data
    scaled = relay.multiply(moved, const(scale, wide)) if scale.size else moved
    return as_dtype(scaled, "float32")


def normalizer(call: OnnxCall) -> relay.Expr:
    """Divide each row by its norm: MAX, L1 or L2."""
    norm = call.text("norm", "MAX")
    rows = float32_rows(call)
    if norm == "MAX":
        size = relay.max(rows, axis=1, keepdims=True)
    elif norm == "L1":
        size = relay.sum(relay.abs(rows), axis=1, keepdims=True)
    elif norm == "L2":
        size = relay.sqrt(relay.sum(relay.multiply(rows, rows), axis=1, keepdims=True))
    else:
        raise FrontendError(f"its norm '{norm}' is not known; expected MAX, L1 or L2")
    is_zero = relay.equal(size, number(0))
    result = relay.divide(rows, relay.where(is_zero, number(1), size))
    return relay.reshape(result, call.shape(0)) if len(call.shape(0)) == 1 else result


def imputer(call: OnnxCall) -> relay.Expr:
    """Replace missing values: a number, or NaN."""
    dtype = call.dtype(0)
    kind = "float" if "float" in dtype else "int64"
    name = f"imputed_value_{kind}s"
    values = _per_feature(call, name, numbers(call, name, dtype))
    if not values.size:
        raise FrontendError(f"it has no {name}, which its operand of {dtype} needs")
    missing = call.number(f"replaced_value_{kind}", 0)
    data = call.operand(0)
    if np.isnan(missing):
        is_missing = relay.isnan(data)
    else:
        is_missing = relay.equal(data, const(missing, dtype))
    return relay.where(is_missing, const(values, dtype), data)


def binarizer(call: OnnxCall) -> relay.Expr:
    """1 where a value is above the threshold, else 0."""
    dtype = call.dtype(0)
    threshold = const(call.number("threshold", 0.0), "float32")
    wide = "float64" if dtype == "float64" else "float32"
    above = relay.greater(as_dtype(call.operand(0), wide), as_dtype(threshold, wide))
    return as_dtype(above, dtype)


def feature_vectorizer(call: OnnxCall) -> relay.Expr:
    """Join features of several operands, each cut or padded with zeros to its size."""
    sizes = numbers(call, "inputdimensions", np.int64)
    if len(sizes) != len(call.operands):
        raise FrontendError(f"it has {len(sizes)} inputdimensions for {len(call.operands)} inputs")
    parts = []
    for index, size in enumerate(int(size) for size in sizes):
        rows = float32_rows(call, index)
        num_features = shape_of(rows)[1]
        if size < num_features:
            rows = relay.strided_slice(rows, [0], [size], axes=[1])
        elif size > num_features:
            rows = relay.nn.pad(rows, ((0, 0), (0, size - num_features)))
        parts.append(rows)
    return relay.concatenate(parts, axis=1)


def array_feature_extractor(call: OnnxCall) -> relay.Expr:
    """Take elements of the last axis."""
    indices = relay.reshape(call.operand(1), [-1])
    data = call.operand(0)
    if len(call.shape(0)) == 1:
        data = rows_of(call)
    return relay.take(data, indices, axis=len(shape_of(data)) - 1)


def _per_feature(call: OnnxCall, name: str, values: Array) -> Array:
    """Check that there is one value, or one for each feature."""
    shape = call.shape(0)
    if values.size > 1 and (len(shape) not in (1, 2) or values.size != shape[-1]):
        raise FrontendError(
            f"its {name} has {values.size} values for an operand of shape {shape}; expected one, "
            f"or one for each feature of [rows, features]"
        )
    return values
