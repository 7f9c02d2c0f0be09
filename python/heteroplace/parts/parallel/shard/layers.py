"""Calls of a network -> the layer of each: what pipeline stages are cut between.

A network is cut where a single tensor goes on (the residual stream between two halves of a
transformer's block, the output of a convolutional block), as DiviML cuts modules (section 3.1); of
these parts a layer is one that multiplies by a weight, with those that follow it and do not; what
looks up embeddings before belongs to the first. Unlike there, what is made of the inputs without
any weight (an attention mask) does not count as going on: each stage that reads it gets it from
where it is made.

What computes gradients belongs to the layer of what it is the gradient of, which its span says, and
an update of a weight to the layer that reads the weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from heteroplace.parts.parallel.shard.carry import Carrier
from heteroplace.parts.parallel.shard.sharded_network import Node
from heteroplace.parts.parallel.training.step_spans import LOSS, forward_name, updated_weight
from heteroplace.relay.shard_spans import Tag


def layers_of(
    nodes: Sequence[Node], free: set[Node], carrier: Carrier
) -> tuple[dict[Node, Tag], int]:
    """Return where each call belongs, and the number of layers.

    Parameters
    ----------
    nodes
        A network, its types inferred, operands first.
    free
        Those that depend on weights alone.
    """
    back = _backward(nodes)
    forward = [node for node in nodes if node not in back]
    layer, count = _forward_layers(forward, free, carrier)
    layer |= {node: count for node in forward if node.name == LOSS}
    _give_to_first_reader(forward, layer)
    _give_backward(nodes, back, layer, count)
    tags = {node: Tag(layer[node], node in back, node.name) for node in nodes if node.op}
    return tags, count


def is_weighted(call: Node, free: set[Node], carrier: Carrier) -> bool:
    """Say whether an expression is a product with a matrix, or more, that is a weight."""
    if not call.op:
        return False
    labels = carrier.labels(call)
    if labels is None or not labels.is_product:
        return False
    return any(child in free and len(child.shapes[0]) > 1 for child in call.children)


def _is_look_up(node: Node, free: set[Node]) -> bool:
    """Whether rows of a table that is a weight are taken as the inputs say."""
    return node.op == "take" and node not in free and node.children[0] in free


def _backward(nodes: Sequence[Node]) -> set[Node]:
    """What computes gradients or updates, or is computed from them."""
    dependents: set[Node] = set()
    for node in nodes:
        is_made_so = any(child in dependents for child in node.children)
        own = forward_name(node.name) or updated_weight(node.name)
        if is_made_so or own is not None:
            dependents.add(node)
    return dependents


def _forward_layers(
    nodes: Sequence[Node], free: set[Node], carrier: Carrier
) -> tuple[dict[Node, int], int]:
    """The layer of whatever depends on a weight and on the inputs, and the number of layers."""
    before: dict[Node, set[Node]] = {}
    weighted = set()
    for node in nodes:
        read = {child for child in node.children if child in before}
        if is_weighted(node, free, carrier):
            weighted.add(node)
        if read or node in weighted or _is_look_up(node, free):
            before[node] = read
    order = list(before)
    layer: dict[Node, int] = {}
    current = -1
    for part in _parts(order, before):
        current += any(node in weighted for node in part)
        layer |= dict.fromkeys(part, max(current, 0))
    return layer, max(current, 0) + 1


def _parts(order: Sequence[Node], before: Mapping[Node, set[Node]]) -> list[list[Node]]:
    """The expressions in parts, each of which hands only its last one, a tensor, on."""
    readers = Counter(child for node in order for child in before[node])
    last_source = max((at for at, node in enumerate(order) if not before[node]), default=-1)
    parts: list[list[Node]] = [[]]
    live: set[Node] = set()
    for at, node in enumerate(order):
        parts[-1].append(node)
        for child in before[node]:
            readers[child] -= 1
            if not readers[child]:
                live.discard(child)
        if readers[node]:
            live.add(node)
        if node.op and node.is_tensor and live == {node} and at >= last_source:
            parts.append([])
    return parts


def _give_to_first_reader(nodes: Sequence[Node], layer: dict[Node, int]) -> None:
    """What depends on no weight belongs to the layer that reads it first; else to layer 0."""
    given = set(layer)
    for node in reversed(nodes):
        own = layer.setdefault(node, 0)
        for child in node.children:
            if child not in given:
                layer[child] = min(layer.get(child, own), own)


def _give_backward(
    nodes: Sequence[Node], back: set[Node], layer: dict[Node, int], count: int
) -> None:
    """The layer of what has it in its span; of others the first of those that they read from."""
    named: dict[str, int] = {LOSS: count}
    for node in nodes:
        if node.op and node not in back and node.name:
            named[node.name] = max(layer[node], named.get(node.name, 0))
    for node in nodes:
        if node not in back:
            continue
        read = [layer[child] for child in node.children if child in back]
        nearest = min(read, default=count - 1)
        layer[node] = named.get(forward_name(node.name) or "", nearest)
