"""What the control flow of ONNX consists of: attributes of nodes that hold graphs."""

from __future__ import annotations

from typing import cast

import numpy as np
from onnx import GraphProto, NodeProto, numpy_helper


def keeps_condition(body: GraphProto) -> bool:
    """Tell whether the condition of a Loop comes out of its body as it went in, or true."""
    name, passed = body.output[0].name, body.input[1].name
    producers = {output: node for node in body.node for output in node.output}
    while name in producers and producers[name].op_type == "Identity":
        name = producers[name].input[0]
    if name == passed:
        return True
    constants = {tensor.name: tensor for tensor in body.initializer}
    node = producers.get(name)
    if node is not None and node.op_type == "Constant" and node.attribute[0].HasField("t"):
        constants[name] = node.attribute[0].t
    return name in constants and bool(np.all(numpy_helper.to_array(constants[name])))


def subgraph_of(node: NodeProto, name: str) -> GraphProto:
    """Return the graph that an attribute of a node holds."""
    (body,) = (attribute.g for attribute in node.attribute if attribute.name == name)
    return cast(GraphProto, body)


def integers_of(node: NodeProto, name: str, default: list[int]) -> list[int]:
    """Return an attribute of integers."""
    for attribute in node.attribute:
        if attribute.name == name:
            return [attribute.i] if attribute.HasField("i") else list(attribute.ints)
    return default


def num_nodes_of(body: GraphProto) -> int:
    """Return how many nodes a graph has, those of its subgraphs included."""
    inner = (a.g for node in body.node for a in node.attribute if a.HasField("g"))
    return len(body.node) + sum(map(num_nodes_of, inner))


def has_subgraph(node: NodeProto) -> bool:
    """Tell whether some attribute of a node holds a graph."""
    return any(attribute.HasField("g") for attribute in node.attribute)
