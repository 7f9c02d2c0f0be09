"""ONNX: `If` between values of the graph ==> one node of an op of ours, which has a converter.

    y = If (c) {a} {b}  ==>  y = ChooseBranch(c, a, b)

The importer hands the operands of a node to its converter, and knows nothing of what branches
capture.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, helper

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.prepare.onnx_control_flow import (
    BRANCHES,
    chosen_values,
    expand_control_flow,
    is_choice,
)
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node

CHOOSE = "ChooseBranch"


def choose_branches(model: ModelProto) -> None:
    """Write every `If` of a model as a choice, in place.

    Raises
    ------
    FrontendError
        A branch holds nodes that cannot be opened.
    """
    graph = model.graph
    if not any(node.op_type == "If" for node in graph.node):
        return
    if any(node.op_type == "If" and not is_choice(node) for node in graph.node):
        expand_control_flow(model)  # the simplifier may have put something in
    nodes = []
    for node in graph.node:
        if node.op_type != "If":
            nodes.append(NodeProto.FromString(node.SerializeToString()))
            continue
        if not is_choice(node):
            raise FrontendError(f"{describe_node(node)}: its branches are nested too deep")
        operands = [name for branch in BRANCHES for name in chosen_values(node, branch)]
        name = node.name or node.output[0]
        nodes.append(helper.make_node(CHOOSE, [node.input[0], *operands], node.output, name=name))
    del graph.node[:]
    graph.node.extend(nodes)
