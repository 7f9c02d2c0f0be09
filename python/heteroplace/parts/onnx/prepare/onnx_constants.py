"""Initialisers of an ONNX model -> Constant nodes, where the importer reads their values."""

from __future__ import annotations

import onnx
from onnx import ModelProto, helper

MAX_CONSTANT_ELEMENTS = 16
"""Floating-point tensors up to this size become constants, larger ones parameters."""

_WEIGHT_READERS = frozenset(
    {
        *("Add", "BatchNormalization", "Conv", "ConvTranspose", "Div", "Gather", "Gemm"),
        *("GroupNormalization", "InstanceNormalization", "LayerNormalization", "MatMul", "Mul"),
        *("PRelu", "Sub"),
    }
)
"""Ops whose converters take a tensor as a weight, not for its values."""

_FLOAT_TYPES = frozenset(
    {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.BFLOAT16,
    }
)


def make_constants(model: ModelProto, keep_weights: bool) -> None:
    """Make integer and small initialisers Constant nodes, whose values the importer reads."""
    graph = model.graph
    others = {name for node in graph.node if node.op_type not in _WEIGHT_READERS
              for name in node.input}  # fmt: skip
    constant = [
        tensor
        for tensor in graph.initializer
        if tensor.data_type not in _FLOAT_TYPES
        or (
            _num_elements(tensor) <= MAX_CONSTANT_ELEMENTS
            and not (keep_weights and _num_elements(tensor) > 1 and tensor.name not in others)
        )
    ]
    names = {tensor.name for tensor in constant}
    nodes = [
        helper.make_node("Constant", [], [tensor.name], name=tensor.name, value=tensor)
        for tensor in constant
    ]
    # Copied first: deleting from a protobuf field invalidates what it held.
    nodes += [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    # One by one, so that the large ones, which stay, are not copied.
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in names:
            del graph.initializer[index]


def _num_elements(tensor: onnx.TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count
