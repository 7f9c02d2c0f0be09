"""Small networks over sequences of any length, with and without a mask, as ONNX models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, VOCABULARY, MOST = 16, 50, 256
"""Numbers of a token, tokens, and the largest length."""
LENGTH = "sequence_length"


def encoder() -> onnx.ModelProto:
    """A layer of attention with a mask: hidden states of each token, and their mean."""
    nodes = [
        _node("Gather", "table input_ids", "tokens"),
        _node("Shape", "input_ids", "shape"),
        _node("Gather", "shape one", "length", axis=0),
        _node("Slice", "positions zero length zero", "own_positions"),
        _node("Add", "tokens own_positions", "x"),
        *(_node("MatMul", f"x w{name}", name) for name in "qkv"),
        _node("Transpose", "k", "kt", perm=[0, 2, 1]),
        _node("MatMul", "q kt", "scores"),
        _node("Cast", "attention_mask", "mask", to=TensorProto.FLOAT),
        _node("Sub", "unit mask", "left_out"),
        _node("Mul", "left_out large", "lowered"),
        _node("Unsqueeze", "lowered one", "lowered_rows"),
        _node("Add", "scores lowered_rows", "masked"),
        _node("Softmax", "masked", "shares", axis=-1),
        _node("MatMul", "shares v", "mixed"),
        _node("Add", "mixed x", "hidden"),
        _node("Unsqueeze", "mask two", "mask_columns"),
        _node("Mul", "hidden mask_columns", "counted"),
        _node("ReduceSum", "counted one", "total", keepdims=0),
        _node("ReduceSum", "mask one", "number", keepdims=1),
        _node("Div", "total number", "pooled"),
    ]
    random = np.random.default_rng(0)
    weights = {
        "table": random.standard_normal((VOCABULARY, WIDTH)).astype("float32"),
        "positions": random.standard_normal((MOST, WIDTH)).astype("float32"),
        **{f"w{name}": _matrix(random) for name in "qkv"},
        "unit": np.float32(1),
        "large": np.float32(-10000),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
    }
    inputs = dict.fromkeys(("input_ids", "attention_mask"), (TensorProto.INT64, ["batch", LENGTH]))
    return _model(nodes, inputs, ["hidden", "pooled"], weights)


def per_position() -> onnx.ModelProto:
    """Two layers for each place: no place reads another one."""
    nodes = [
        _node("MatMul", "x wa", "a"),
        _node("Relu", "a", "b"),
        _node("MatMul", "b wb", "y"),
    ]
    return _of_features(nodes, "y", ("wa", "wb"))


def over_places(op_type: str) -> onnx.ModelProto:
    """A layer for each place, and then the mean or the largest number over all places."""
    nodes = [_node("MatMul", "x wa", "a"), _node(op_type, "a", "y", axes=[1], keepdims=0)]
    return _of_features(nodes, "y", ("wa",))


def mean_of_first() -> onnx.ModelProto:
    """The mean over the first places of each row, whose number is an input."""
    nodes = [
        _node("Shape", "x", "shape"),
        _node("Gather", "shape unit", "length", axis=0),
        _node("Range", "none length unit", "places"),
        _node("Unsqueeze", "x_lens one", "numbers"),
        _node("Less", "places numbers", "is_real"),
        _node("Cast", "is_real", "mask", to=TensorProto.FLOAT),
        _node("Unsqueeze", "mask two", "mask_columns"),
        _node("Mul", "x mask_columns", "counted"),
        _node("ReduceSum", "counted one", "total", keepdims=0),
        _node("Cast", "numbers", "divisors", to=TensorProto.FLOAT),
        _node("Div", "total divisors", "y"),
    ]
    inputs = {
        "x": (TensorProto.FLOAT, ["batch", LENGTH, WIDTH]),
        "x_lens": (TensorProto.INT64, ["batch"]),
    }
    weights = {"unit": np.array(1), "none": np.array(0), "one": np.array([1]), "two": np.array([2])}
    return _model(nodes, inputs, ["y"], weights)


def pairs() -> onnx.ModelProto:
    """Attention whose mask, of type bool, says for each two places whether one reads the other."""
    nodes = [
        _node("MatMul", "x wq", "q"),
        _node("Transpose", "x", "xt", perm=[0, 2, 1]),
        _node("MatMul", "q xt", "scores"),
        _node("Where", "is_read scores low", "masked"),
        _node("Softmax", "masked", "shares", axis=-1),
        _node("MatMul", "shares x", "y"),
    ]
    inputs = {
        "x": (TensorProto.FLOAT, ["batch", LENGTH, WIDTH]),
        "is_read": (TensorProto.BOOL, ["batch", LENGTH, LENGTH]),
    }
    weights = {"wq": _matrix(np.random.default_rng(0)), "low": np.float32(-10000)}
    return _model(nodes, inputs, ["y", "shares"], weights)


def halved() -> onnx.ModelProto:
    """A layer for each place; its output has half as many places."""
    nodes = [
        _node("MatMul", "x wa", "a"),
        _node("Transpose", "a", "b", perm=[0, 2, 1]),
        _node("MaxPool", "b", "y", kernel_shape=[2], strides=[2]),
    ]
    return _of_features(nodes, "y", ("wa",))


def encoder_inputs(length: int, batch: int = 1, seed: int = 0) -> dict[str, Any]:
    """Inputs of `encoder`, int64 [batch, length]; the last row leaves out its last place."""
    random = np.random.default_rng([length, seed])
    mask = np.ones((batch, length), "int64")
    if batch > 1 and length > 1:
        mask[-1, -1] = 0
    ids = random.integers(0, VOCABULARY, (batch, length))
    return {"input_ids": ids, "attention_mask": mask}


def _of_features(
    nodes: Sequence[onnx.NodeProto], output: str, matrices: Sequence[str]
) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    inputs = {"x": (TensorProto.FLOAT, ["batch", LENGTH, WIDTH])}
    return _model(nodes, inputs, [output], {name: _matrix(random) for name in matrices})


def _matrix(random: np.random.Generator) -> np.ndarray:
    return (random.standard_normal((WIDTH, WIDTH)) / 4).astype("float32")


def _node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], name=f"n_{output}", **attributes)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, list[Any]]],
    outputs: Sequence[str],
    weights: Mapping[str, Any],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "sequence",
        [helper.make_tensor_value_info(name, *form) for name, form in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)
