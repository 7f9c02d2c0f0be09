"""The names in an ONNX model: checked to be texts, and to mean one value each.

Protobuf hands on bytes where a name is no UTF-8, C++ cuts a text at a zero, and of two values of
one name each reader takes another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onnx import GraphProto, ModelProto, NodeProto

from heteroplace.errors import FrontendError
from heteroplace.terminal import printable

_MAX_NAMES = 5


def check_names(model: ModelProto, where: str) -> None:
    """Raise FrontendError for a name that is no text, or that two values of the graph have.

    Parameters
    ----------
    model
        As it was parsed.
    where
        Name of the model, for messages.
    """
    for name in _names(model.graph):
        if not isinstance(name, str) or "\0" in name:
            shown = name if isinstance(name, str) else bytes(name)
            raise FrontendError(
                f"{where} is damaged: it names a node or value {shown!r}, which is no text. "
                f"Export or download it again."
            )
    graph = model.graph
    inputs = Counter(value.name for value in graph.input)
    constants = Counter(tensor.name for tensor in graph.initializer)
    constants.update(tensor.values.name for tensor in graph.sparse_initializer)
    counts = Counter(name for node in graph.node for name in node.output if name)
    # An initialiser may be the default of an input.
    twice = [name for uses in (inputs, constants, counts) for name in uses if uses[name] > 1]
    twice += [name for name in counts if name in inputs or name in constants]
    if twice:
        shown = ", ".join(f"'{printable(name, allowed='')}'" for name in twice[:_MAX_NAMES])
        raise FrontendError(
            f"{where} is damaged: two values are called {shown}; each needs a name of its own. "
            f"Check it by onnx.checker, or export it again."
        )


def node_name(node: NodeProto) -> str:
    """Return the name of a node; an unnamed one is named by its first output, as in Netron."""
    return node.name or next((name for name in node.output if name), "")


def name_nodes(model: ModelProto) -> None:
    """Give every unnamed node of the graph its `node_name`, which becomes its layer's name."""
    for node in model.graph.node:
        node.name = node_name(node)


def _names(graph: GraphProto) -> Iterator[str | bytes]:
    """Every name in a graph and in those inside its nodes."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        yield value.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            if attribute.HasField("g"):
                yield from _names(attribute.g)
            for inner in attribute.graphs:
                yield from _names(inner)
