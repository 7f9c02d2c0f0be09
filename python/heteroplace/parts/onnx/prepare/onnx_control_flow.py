"""An ONNX model -> an equal one whose only control flow is a choice between values of the graph.

    If (true) {then} {else}        ==>  then
    Scan (state, x [3, ...]) {body} ==>  body, body, body, and the results stacked
    Loop (3, true, state) {body}   ==>  likewise
    If (c) {Relu(x)} {Neg(x)}      ==>  a = Relu(x), b = Neg(x), If (c) {a} {b}

A condition or a number of steps is known if it is made of constants and sizes only. A loop whose
steps would take too many nodes is an error. The nodes of
branches that are chosen in the run become nodes of the graph: what nobody but a branch reads still
belongs to it. Other loops stay, and are refused by name later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from heteroplace.parts.onnx.prepare.node_attributes import AXES_OPERAND
from heteroplace.parts.onnx.prepare.onnx_process import evaluate, infer_shapes
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node, opset_of
from heteroplace.parts.onnx.prepare.onnx_subgraphs import (
    has_subgraph,
    integers_of,
    keeps_condition,
    num_nodes_of,
    subgraph_of,
)
from heteroplace.relay.limits import check_unrolled

_MAX_ROUNDS = 64
"""Bodies may hold control flow of their own; each round opens one level."""
_MAX_ANCESTORS = 200
"""A condition made of more nodes is taken for computed."""
BRANCHES = ("then_branch", "else_branch")
_SCAN_WITHOUT_BATCH = 9


def expand_control_flow(model: ModelProto) -> list[str]:
    """Put branches and steps in place of `If`, `Scan` and `Loop` where they are known.

    Of an `If` whose condition is not known, the branches are opened.

    Parameters
    ----------
    model
        Is changed in place.

    Returns
    -------
    A line that says how many of each were replaced, and one that says how many were opened.

    Raises
    ------
    FrontendError
        A loop is too long to be unrolled.
    """
    counts: dict[str, int] = {}
    num_opened = num_unrolled = 0
    for _ in range(_MAX_ROUNDS):
        if not any(node.op_type in _EXPANSIONS for node in model.graph.node):
            break
        graph = _Graph(model, num_unrolled=num_unrolled)
        for node in list(model.graph.node):
            expand = _EXPANSIONS.get(node.op_type)
            if expand is not None and expand(graph, node):
                counts[node.op_type] = counts.get(node.op_type, 0) + 1
            elif node.op_type == "If" and not is_choice(node):
                graph.nodes.append(_opened(graph, node))
                num_opened += 1
            else:
                graph.nodes.append(node)
        if not graph.is_changed:
            break
        graph.write()
        num_unrolled = graph.num_unrolled
    named = ", ".join(f"{count} {op_type}" for op_type, count in sorted(counts.items()))
    report = [f"put the known course in place of {named}"] if named else []
    if num_opened:
        report.append(f"{num_opened} If(s) choose in the run")
    return report


def is_choice(node: NodeProto) -> bool:
    """Tell whether the branches of an `If` hold nothing but values of the graph around it."""
    return all(
        not body.initializer and {each.op_type for each in body.node} <= {"Identity"}
        for body in (subgraph_of(node, name) for name in BRANCHES)
    )


def chosen_values(node: NodeProto, branch: str) -> list[str]:
    """Return the values of the graph that a branch of a choice hands on."""
    body = subgraph_of(node, branch)
    sources = {each.output[0]: each.input[0] for each in body.node}
    names = []
    for value in body.output:
        name = value.name
        while name in sources:
            name = sources[name]
        names.append(name)
    return names


@dataclass
class _Graph:
    """The nodes of a model while they are written anew."""

    model: ModelProto
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)
    is_changed: bool = False
    num_unrolled: int = 0
    """Nodes that have replaced loops, in earlier rounds too."""

    def __post_init__(self) -> None:
        graph = infer_shapes(self.model).graph
        self.producers = {name: node for node in self.model.graph.node for name in node.output}
        self.constants = {tensor.name: tensor for tensor in self.model.graph.initializer}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for value in (*graph.input, *graph.value_info):
            tensor = value.type.tensor_type
            sizes = [dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value")]
            if tensor.HasField("shape") and len(sizes) == len(tensor.shape.dim):
                self.shapes[value.name] = tuple(sizes)
        self.shapes |= {t.name: tuple(t.dims) for t in self.model.graph.initializer}

    def add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        """Append a node."""
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))

    def add_constant(self, value: Any, name: str) -> str:
        """Append an integer constant; return its name."""
        tensor = numpy_helper.from_array(np.asarray(value, dtype=np.int64), name)
        self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def add_tensor(self, tensor: TensorProto, name: str) -> None:
        """Append a tensor of a body to those of the graph, so that it may be a weight."""
        copy = TensorProto.FromString(tensor.SerializeToString())
        copy.name = name
        self.tensors.append(copy)

    def check_unrolled(self, node: NodeProto, steps: int, body: GraphProto, others: int) -> None:
        """Refuse a loop of too many nodes; `others`: nodes of a step outside of the body."""
        size = num_nodes_of(body)
        loop = describe_node(node)
        self.num_unrolled = check_unrolled(loop, steps, size, size + others, self.num_unrolled)

    def write(self) -> None:
        """Put the nodes into the model."""
        copies = [NodeProto.FromString(node.SerializeToString()) for node in self.nodes]
        del self.model.graph.node[:]
        self.model.graph.node.extend(copies)
        self.model.graph.initializer.extend(self.tensors)
        del self.model.graph.value_info[:]

    def value(self, name: str) -> Any | None:
        """Return the value of what is made of constants and sizes only, else None."""
        ancestors: list[NodeProto] = []
        feeds: dict[str, Any] = {}
        pending, seen = [name], set()
        while pending:
            one = pending.pop()
            if one in seen or not one:
                continue
            seen.add(one)
            node = self.producers.get(one)
            if one in self.constants:
                feeds[one] = numpy_helper.to_array(self.constants[one])
            elif node is None or len(ancestors) > _MAX_ANCESTORS or has_subgraph(node):
                return None
            elif node.op_type == "Shape" and node.input[0] in self.shapes and not node.attribute:
                feeds[one] = np.array(self.shapes[node.input[0]], dtype=np.int64)
            else:
                if all(node is not other for other in ancestors):
                    ancestors.append(node)
                pending += node.input
        order = {id(node): i for i, node in enumerate(self.model.graph.node)}
        ancestors.sort(key=lambda node: order.get(id(node), 0))
        if name in feeds:
            return feeds[name]
        output = helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)
        constants = [numpy_helper.from_array(value, name) for name, value in feeds.items()]
        graph = helper.make_graph(ancestors, "condition", [], [output], constants)
        return evaluate(helper.make_model(graph, opset_imports=self.model.opset_import))


def _inline_if(graph: _Graph, node: NodeProto) -> bool:
    """Put the branch that is taken in place of an If; return False if it is not known."""
    condition = graph.value(node.input[0])
    if condition is None or np.size(condition) != 1:
        return False
    name = "then_branch" if bool(np.reshape(condition, ())) else "else_branch"
    body = subgraph_of(node, name)
    results = _splice(graph, body, {}, f"{node.output[0]}__{name}")
    for result, output in zip(results, node.output, strict=True):
        if output:
            graph.add("Identity", [result], output)
    return True


def _opened(graph: _Graph, node: NodeProto) -> NodeProto:
    """Put the nodes of both branches into the graph; return an If that chooses between values."""
    bodies = {}
    for name in BRANCHES:
        prefix = f"{node.output[0]}__{name}"
        results = _splice(graph, subgraph_of(node, name), {}, prefix)
        copies = [f"{prefix}__chosen_{i}" for i in range(len(results))]
        nodes = [
            helper.make_node("Identity", [result], [copy])
            for result, copy in zip(results, copies, strict=True)
        ]
        types = [helper.make_empty_tensor_value_info(copy) for copy in copies]
        bodies[name] = helper.make_graph(nodes, name, [], types)
    return helper.make_node("If", node.input, node.output, name=node.name, **bodies)


def _unroll_scan(graph: _Graph, node: NodeProto) -> bool:
    """Put the steps of a Scan in its place; return False if their number is not known."""
    if opset_of(graph.model) < _SCAN_WITHOUT_BATCH:
        return False
    body, count = subgraph_of(node, "body"), integers_of(node, "num_scan_inputs", [0])[0]
    num_states = len(node.input) - count
    scanned = list(node.input[num_states:])
    if any(name not in graph.shapes for name in scanned):
        return False
    ranks = [len(graph.shapes[name]) for name in scanned]
    given = integers_of(node, "scan_input_axes", [0] * count)
    axes = [axis % rank for axis, rank in zip(given, ranks, strict=True)]
    backward = integers_of(node, "scan_input_directions", [0] * count)
    length = graph.shapes[scanned[0]][axes[0]]
    if length == 0:
        return False
    num_outputs = len(node.output) - num_states
    graph.check_unrolled(node, length, body, 2 * (count + num_outputs))
    unroll = _Unrolled(graph, node, body, num_states)
    for step in range(length):
        parts = []
        ways = zip(scanned, axes, backward, strict=True)
        for number, (name, axis, is_backward) in enumerate(ways):
            position = length - 1 - step if is_backward else step
            parts.append(unroll.part(name, axis, position, f"{step}__{number}"))
        unroll.step([*unroll.states, *parts], step)
    unroll.finish(
        integers_of(node, "scan_output_axes", [0] * num_outputs),
        integers_of(node, "scan_output_directions", [0] * num_outputs),
    )
    return True


def _unroll_loop(graph: _Graph, node: NodeProto) -> bool:
    """Put the steps of a Loop in its place; return False if they are not known, or none."""
    body = subgraph_of(node, "body")
    limit = graph.value(node.input[0]) if node.input[0] else None
    goes_on = len(node.input) < 2 or not node.input[1] or graph.value(node.input[1])
    if limit is None or goes_on is None or not np.all(goes_on) or not keeps_condition(body):
        return False
    length = int(np.reshape(limit, ()))
    if length < 1:
        return False
    num_states = len(node.input) - 2
    graph.check_unrolled(node, length, body, 1 + 2 * (len(node.output) - num_states))
    prefix = node.output[0] or node.name
    true = f"{prefix}__true"
    tensor = helper.make_tensor(true, TensorProto.BOOL, [], [True])
    graph.nodes.append(helper.make_node("Constant", [], [true], value=tensor))
    unroll = _Unrolled(graph, node, body, num_states, first_state=2, first_result=1)
    for step in range(length):
        index = graph.add_constant(step, f"{prefix}__step_{step}")
        unroll.step([index, true, *unroll.states], step)
    unroll.finish([0] * len(unroll.collected), [0] * len(unroll.collected))
    return True


_EXPANSIONS = {"If": _inline_if, "Loop": _unroll_loop, "Scan": _unroll_scan}


class _Unrolled:
    """The steps of one loop."""

    def __init__(
        self,
        graph: _Graph,
        node: NodeProto,
        body: GraphProto,
        num_states: int,
        first_state: int = 0,
        first_result: int = 0,
    ) -> None:
        self._graph, self._node, self._body = graph, node, body
        self._first_result = first_result
        self._prefix = next(name for name in (*node.output, node.name) if name)
        self.states = list(node.input[first_state : first_state + num_states])
        num_collected = len(body.output) - first_result - num_states
        self.collected: list[list[str]] = [[] for _ in range(num_collected)]
        """For each result that is stacked, its value in each step."""

    def part(self, name: str, axis: int, position: int, reader: str) -> str:
        """Return the name of one place along an axis of a value.

        `reader` tells the step and its operand: a tensor may be several operands of one.
        """
        result = f"{self._prefix}__{reader}__{name}"
        index = self._graph.add_constant(position, f"{result}__at")
        self._graph.add("Gather", [name, index], result, axis=axis)
        return result

    def step(self, operands: Sequence[str], step: int) -> None:
        """Append the body once."""
        names = dict(zip((value.name for value in self._body.input), operands, strict=True))
        results = _splice(self._graph, self._body, names, f"{self._prefix}__{step}")
        results = results[self._first_result :]
        self.states = results[: len(self.states)]
        for values, result in zip(self.collected, results[len(self.states) :], strict=True):
            values.append(result)

    def finish(self, axes: Sequence[int], backward: Sequence[int]) -> None:
        """Give the outputs of the node their values."""
        graph, outputs = self._graph, list(self._node.output)
        for state, output in zip(self.states, outputs, strict=False):
            if output:
                graph.add("Identity", [state], output)
        rest = outputs[len(self.states) :]
        for output, values, axis, is_backward in zip(
            rest, self.collected, axes, backward, strict=False
        ):
            if not output:
                continue
            ordered = list(reversed(values)) if is_backward else values
            parts = [
                self._unsqueezed(value, axis, f"{output}__{i}") for i, value in enumerate(ordered)
            ]
            graph.add("Concat", parts, output, axis=axis)

    def _unsqueezed(self, name: str, axis: int, output: str) -> str:
        if opset_of(self._graph.model) < AXES_OPERAND:
            self._graph.add("Unsqueeze", [name], output, axes=[axis])
        else:
            axes = self._graph.add_constant([axis], f"{output}__axes")
            self._graph.add("Unsqueeze", [name, axes], output)
        return output


def _splice(graph: _Graph, body: GraphProto, names: Mapping[str, str], prefix: str) -> list[str]:
    """Append the nodes of a body, its own names under a prefix; return the names of its results."""
    graph.is_changed = True
    renamed = dict(names)
    for tensor in body.initializer:
        renamed[tensor.name] = f"{prefix}__{tensor.name}"
        graph.add_tensor(tensor, renamed[tensor.name])
    for node in body.node:
        for name in node.output:
            if name:
                renamed[name] = f"{prefix}__{name}"
        graph.nodes.append(_renamed(node, renamed, prefix))
    return [renamed.get(value.name, value.name) for value in body.output]


def _renamed(node: NodeProto, names: Mapping[str, str], prefix: str) -> NodeProto:
    """Return a copy of a node under other names, those that its subgraphs read included."""
    copy: NodeProto = NodeProto.FromString(node.SerializeToString())
    copy.name = f"{prefix}__{node.name}" if node.name else ""
    for position, name in enumerate(node.input):
        copy.input[position] = names.get(name, name)
    for position, name in enumerate(node.output):
        copy.output[position] = names.get(name, name)
    for attribute in copy.attribute:
        if attribute.HasField("g"):
            own = {value.name for value in attribute.g.input}
            own |= {tensor.name for tensor in attribute.g.initializer}
            own |= {name for inner in attribute.g.node for name in inner.output}
            outer = {old: new for old, new in names.items() if old not in own}
            nodes = [_renamed(inner, outer, "") for inner in attribute.g.node]
            for inner, old in zip(nodes, attribute.g.node, strict=True):
                inner.name = old.name
            del attribute.g.node[:]
            attribute.g.node.extend(nodes)
            for value in attribute.g.output:
                value.name = outer.get(value.name, value.name)
    return copy
