"""An ONNX model in float16 or bfloat16 -> the same in float32, between its inputs and outputs.

    y = Exp(x)                      ==>  y = Exp(x), all in float32
    y = Cast(x, to=FLOAT16)         ==>  y = Cast(Cast(x, to=FLOAT16), to=FLOAT)    x is wider

Half precision is how such a model stores its weights. Sums would lose half of their digits in it,
and CPUs widen each number anyhow. onnxruntime too rounds a value only where the model casts it
from a wider type, or where it leaves the network. Inputs and outputs keep their types. Kernels of
CPUs store the weights in two bytes again (`parts/kernels/rewrites/narrow_weights.py`).

`RoundToBFloat16` is an op of ours: TVM's code generator fails on many kernels that read bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)

from heteroplace.parts.onnx.prepare.onnx_process import infer_shapes

ROUND = "RoundToBFloat16"
HALF_TYPES: Mapping[int, str] = {
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
}
"""Names of element types of half precision."""
_FLOAT = TensorProto.FLOAT
_CASTS = ("Cast", "CastLike")
_READS_BITS = "BitCast"
"""The op that needs a value in its own type."""
_TYPES = frozenset(
    {"dtype", "output_datatype", "output_dtype", "softmax_precision", "stash_type", "to"}
)
"""Attributes that name an element type; in others 10 and 16 are numbers."""


def widen_half(model: ModelProto) -> list[str]:
    """Compute in float32 what `model` computes in half precision; changes it in place.

    Returns
    -------
    One line that says so, or none where weights alone are of half precision.
    """
    graph = model.graph
    if not any(_names_half(each) for each in _graphs(graph)):
        return []
    kinds = _half_values(model)
    renamed: dict[str, str] = {}
    for each in _graphs(graph):
        for tensor in each.initializer:
            _widen_tensor(tensor)
    initialised = {tensor.name for tensor in graph.initializer}
    before, after = [], []
    for value in graph.input:
        if value.name in initialised:
            _widen_type(value.type.tensor_type)
        elif value.type.tensor_type.elem_type in HALF_TYPES:
            renamed[value.name] = _wide(value.name)
            before.append(_cast(value.name, renamed[value.name], _FLOAT))
    for value in graph.output:
        data_type = value.type.tensor_type.elem_type or kinds.get(value.name, 0)
        if data_type in HALF_TYPES and value.name not in renamed:
            renamed[value.name] = _wide(value.name)
            after.append(_cast(renamed[value.name], value.name, data_type))
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    _widen_nodes(graph, kinds, renamed)
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    graph.node.extend([*before, *nodes, *after])
    computed = [kind for name, kind in kinds.items() if name not in initialised]
    names = [name for kind, name in HALF_TYPES.items() if kind in computed]
    if not names:
        return []
    return [f"{len(computed)} values of {' and '.join(names)} are computed in float32"]


def round_bfloat16(model: ModelProto) -> list[str]:
    """Cast to bfloat16, read by the network itself, ==> RoundToBFloat16; in place."""
    outputs = {value.name for value in model.graph.output}
    readers = {name for node in model.graph.node for name in node.input}
    nodes = []
    for node in model.graph.node:
        is_cast = node.op_type == "Cast" and _target_type(node, {}) == TensorProto.BFLOAT16
        if is_cast and node.output[0] in readers and node.output[0] not in outputs:
            nodes.append(helper.make_node(ROUND, node.input, node.output, name=node.name))
        else:
            nodes.append(NodeProto.FromString(node.SerializeToString()))
    count = sum(node.op_type == ROUND for node in nodes)
    if not count:
        return []
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return [f"{count} casts to bfloat16 round in float32"]


def _widen_nodes(graph: GraphProto, kinds: Mapping[str, int], renamed: Mapping[str, str]) -> None:
    """Widen the nodes of a graph and of those within it. `kinds`: the half type of each value that
    had one; `renamed`: other names of values of the outermost graph."""
    nodes = []
    for node in graph.node:
        casts_before, casts_after = [], []
        source, target = node.input[0] if node.input else "", _target_type(node, kinds)
        is_rounded = target in HALF_TYPES and kinds.get(source) != target
        reads_bits = node.op_type == _READS_BITS
        copy = NodeProto.FromString(node.SerializeToString())
        copy.input[:] = [renamed.get(name, name) for name in node.input]
        copy.output[:] = [renamed.get(name, name) for name in node.output]
        for attribute in copy.attribute:
            _widen_attribute(attribute, kinds, renamed, keeps_type=is_rounded or reads_bits)
        if is_rounded and node.op_type == "CastLike":
            copy = _cast(copy.input[0], copy.output[0], target)
        if reads_bits and source in kinds:
            casts_before = [_cast(copy.input[0], f"{node.output[0]}__half", kinds[source])]
            copy.input[0] = f"{node.output[0]}__half"
        if is_rounded:
            result = copy.output[0]
            copy.output[0] = f"{result}__rounded"
            casts_after = [_cast(copy.output[0], result, _FLOAT)]
        nodes += [*casts_before, copy, *casts_after]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)


def _widen_attribute(
    attribute: AttributeProto,
    kinds: Mapping[str, int],
    renamed: Mapping[str, str],
    *,
    keeps_type: bool,
) -> None:
    if attribute.HasField("t"):
        _widen_tensor(attribute.t)
    for tensor in attribute.tensors:
        _widen_tensor(tensor)
    if attribute.name in _TYPES and attribute.i in HALF_TYPES and not keeps_type:
        attribute.i = _FLOAT
    for graph in _inner_graphs(attribute):
        for value in (*graph.input, *graph.output):
            _widen_type(value.type.tensor_type)
        _widen_nodes(graph, kinds, renamed)
        named = {name for node in graph.node for name in node.output}
        named |= {tensor.name for tensor in graph.initializer}
        for value in graph.output:  # a value of a graph around it has another name now
            if value.name not in named:
                value.name = renamed.get(value.name, value.name)


def _target_type(node: NodeProto, kinds: Mapping[str, int]) -> int:
    """The element type to which a node casts; 0: to that of a value that is not half, or it is no
    cast."""
    if node.op_type == "CastLike":
        return kinds.get(node.input[1], 0)
    if node.op_type not in (*_CASTS, _READS_BITS):
        return 0
    return next((int(each.i) for each in node.attribute if each.name == "to"), 0)


def _names_half(graph: GraphProto) -> bool:
    """Tell whether a value of a graph can be of half precision."""
    types = {tensor.data_type for tensor in graph.initializer}
    values = (*graph.input, *graph.output, *graph.value_info)
    types |= {value.type.tensor_type.elem_type for value in values}
    for node in graph.node:
        for attribute in node.attribute:
            types |= {tensor.data_type for tensor in (attribute.t, *attribute.tensors)}
            if attribute.name in _TYPES:
                types.add(attribute.i)
    return not types.isdisjoint(HALF_TYPES)


def _half_values(model: ModelProto) -> dict[str, int]:
    """The values of half precision, with their element types."""
    kinds: dict[str, int] = {}
    for graph in _graphs(infer_shapes(model).graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            kinds[value.name] = value.type.tensor_type.elem_type
    for graph in _graphs(model.graph):
        kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {name: kind for name, kind in kinds.items() if kind in HALF_TYPES}


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and those within its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in _inner_graphs(attribute):
                yield from _graphs(inner)


def _inner_graphs(attribute: AttributeProto) -> list[GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs]


def _wide(name: str) -> str:
    return f"{name}__float32"


def _cast(source: str, target: str, data_type: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=target, to=data_type)


def _widen_type(tensor_type: TypeProto.Tensor) -> None:
    if tensor_type.elem_type in HALF_TYPES:
        tensor_type.elem_type = _FLOAT


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in HALF_TYPES:
        array = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
