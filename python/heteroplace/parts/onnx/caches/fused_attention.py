"""MultiHeadAttention of com.microsoft with a past ==> a Concat, products and a softmax.

All attention is then checked in one form. A node without a past stays as it is, and so does one
with other operands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from heteroplace.parts.onnx.prepare.node_attributes import AXES_OPERAND, attribute_of
from heteroplace.parts.onnx.prepare.onnx_repair import opset_of

_QUERY, _KEY, _VALUE, _BIASES, _PADDING, _ADDED, _PAST_KEY, _PAST_VALUE = range(8)
_FILTER = -10000.0


def split_attention(model: ModelProto) -> int:
    """Write attention with a past as plain ops, in place; return how many nodes there were."""
    graph = model.graph
    if opset_of(model) < AXES_OPERAND:
        return 0
    sizes = {
        value.name: value.type.tensor_type.shape.dim[3].dim_value
        for value in graph.input
        if len(value.type.tensor_type.shape.dim) == 4
    }
    nodes: list[NodeProto] = []
    count = 0
    for node in graph.node:
        if is_fused(node) and sizes.get(node.input[_PAST_KEY], 0) > 0:
            nodes += _Splitter(graph, node, sizes[node.input[_PAST_KEY]]).nodes()
            count += 1
        else:
            nodes.append(NodeProto.FromString(node.SerializeToString()))
    if count:
        del graph.node[:], graph.value_info[:]
        graph.node.extend(nodes)
    return count


def is_fused(node: NodeProto) -> bool:
    """Return whether a node is attention of com.microsoft that adds rows to a past."""
    is_attention = (node.domain, node.op_type) == ("com.microsoft", "MultiHeadAttention")
    if not is_attention or not _PAST_VALUE < len(node.input) <= _PAST_VALUE + 1:
        return False
    needed = (_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE)
    return all(node.input[place] for place in needed) and len(node.output) == 3


class _Splitter:
    """Writes one node."""

    def __init__(self, graph: GraphProto, node: NodeProto, size: int) -> None:
        self._graph, self._node, self._size = graph, node, size
        self._heads = int(attribute_of(node, "num_heads", 1))
        self._nodes: list[NodeProto] = []
        self._prefix = f"{node.output[0]}.split"

    def nodes(self) -> list[NodeProto]:
        """Return what takes the place of the node."""
        queries, keys, values = (self._projected(place) for place in (_QUERY, _KEY, _VALUE))
        mixed, present_key, present_value = self._node.output
        past_key, past_value = self._node.input[_PAST_KEY], self._node.input[_PAST_VALUE]
        self._op("Concat", past_key, keys, output=present_key, axis=2)
        self._op("Concat", past_value, values, output=present_value, axis=2)
        turned = self._op("Transpose", present_key, perm=[0, 1, 3, 2])
        scale = float(attribute_of(self._node, "scale", 0.0)) or self._size**-0.5
        scores = self._op("MatMul", queries, turned)
        scores = self._op("Mul", scores, self._constant(scale, np.float32))
        for bias in self._biases(past_key, present_key):
            scores = self._op("Add", scores, bias)
        result = self._op("MatMul", self._op("Softmax", scores, axis=-1), present_value)
        joined = self._constant([0, 0, self._heads * self._size])
        self._op("Reshape", self._op("Transpose", result, perm=[0, 2, 1, 3]), joined, output=mixed)
        return self._nodes

    def _projected(self, place: int) -> str:
        """An operand with its bias, [batch, heads, length, size]."""
        name = self._node.input[place]
        width = self._heads * self._size
        if self._node.input[_BIASES]:
            ends = self._constant([place * width]), self._constant([(place + 1) * width])
            name = self._op("Add", name, self._op("Slice", self._node.input[_BIASES], *ends))
        split = self._op("Reshape", name, self._constant([0, 0, self._heads, self._size]))
        return self._op("Transpose", split, perm=[0, 2, 1, 3])

    def _biases(self, past_key: str, present_key: str) -> list[str]:
        """What is added to scores."""
        biases = [self._node.input[_ADDED]] if self._node.input[_ADDED] else []
        zero = self._constant(0.0, np.float32)
        lowest = self._constant(float(np.finfo(np.float32).min), np.float32)
        if self._node.input[_PADDING]:
            filtered = float(attribute_of(self._node, "mask_filter_value", _FILTER))
            is_kept = self._op("Cast", self._node.input[_PADDING], to=TensorProto.BOOL)
            is_kept = self._op("Unsqueeze", is_kept, self._constant([1, 2]))
            biases.append(self._op("Where", is_kept, zero, self._constant(filtered, np.float32)))
        if attribute_of(self._node, "unidirectional", 0):
            past, total = (
                self._op("Gather", self._op("Shape", name), self._constant(2), axis=0)
                for name in (past_key, present_key)
            )
            rows = self._op("Range", past, total, self._constant(1))
            keys = self._op("Range", self._constant(0), total, self._constant(1))
            is_seen = self._op(
                "LessOrEqual", keys, self._op("Unsqueeze", rows, self._constant([1]))
            )
            biases.append(self._op("Where", is_seen, zero, lowest))
        return biases

    def _op(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"{self._prefix}.{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def _constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        name = f"{self._prefix}.constant.{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name
