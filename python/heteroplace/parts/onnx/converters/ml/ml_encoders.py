"""LabelEncoder and OneHotEncoder of ai.onnx.ml ==> comparisons with all keys.

Strings are numbers by now (`prepare/onnx_labels.py`). ONNX operator specification; of
equal keys the first counts, as in onnxruntime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import Array, OnnxCall, const, dtype_of
from heteroplace.parts.onnx.converters.ml.ml_scores import as_dtype

_DEFAULTS = {"int64s": -1, "floats": -0.0}
"""Of `default_int64` and `default_float`, by the kind of the values."""


def label_encoder(call: OnnxCall) -> relay.Expr:
    """Map each key to its value, other elements to the default."""
    keys, _ = _table(call, "keys")
    values, kind = _table(call, "values")
    if len(keys) != len(values):
        raise FrontendError(f"it has {len(keys)} keys and {len(values)} values")
    if kind == "tensor":
        default = _default_tensor(call, values)
    else:
        default = call.number(f"default_{kind.removesuffix('s')}", _DEFAULTS[kind])
    is_equal = _equal_keys(call.operand(0), keys)
    position = relay.argmax(as_dtype(is_equal, "int32"), axis=-1)
    is_key = relay.any(is_equal, axis=-1)
    dtype = str(values.dtype)
    return relay.where(is_key, relay.take(const(values, dtype), position), const(default, dtype))


def one_hot_encoder(call: OnnxCall) -> relay.Expr:
    """One element for each category: 1 for the category of the value, else 0."""
    categories = np.asarray(call.attributes.get("cats_int64s", ()), np.int64)
    if not len(categories):
        raise FrontendError("it has no categories; expected cats_int64s")
    if len(np.unique(categories)) != len(categories):
        raise FrontendError("it names a category twice in cats_int64s")
    data = as_dtype(call.operand(0), "int64")  # a float counts as its whole part
    return as_dtype(_equal_keys(data, categories), "float32")


def _equal_keys(data: relay.Expr, keys: Array) -> relay.Expr:
    """Return bool [..., num_keys]: which key each element equals."""
    dtype = dtype_of(data)
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        raise FrontendError("one of its keys is NaN, which onnxruntime and ONNX treat differently")
    return relay.equal(relay.expand_dims(data, -1), const(keys, dtype))


def _table(call: OnnxCall, name: str) -> tuple[Array, str]:
    """Return the keys or the values of an encoder, and the kind of their attribute."""
    if f"{name}_tensor" in call.attributes:
        return _array(call.attributes[f"{name}_tensor"]), "tensor"
    for kind, dtype in (("int64s", np.int64), ("floats", np.float32)):
        if f"{name}_{kind}" in call.attributes:
            return np.asarray(call.attributes[f"{name}_{kind}"], dtype), kind
    raise FrontendError(f"it has no {name}; expected {name}_int64s, {name}_floats or {name}_tensor")


def _default_tensor(call: OnnxCall, values: Array) -> Any:
    if "default_tensor" in call.attributes:
        return _array(call.attributes["default_tensor"])[0]
    return np.array(-1 if values.dtype.kind == "i" else -0.0, values.dtype)


def _array(tensor: Any) -> Array:
    return numpy_helper.to_array(tensor).reshape(-1)
