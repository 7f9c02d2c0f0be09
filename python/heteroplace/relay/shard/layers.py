"""Calls of a network -> the layer of each: what pipeline stages are cut between.

A network is cut where a single tensor goes on (the residual stream between two halves of a
transformer's block, the output of a convolutional block), as DiviML cuts modules (section 3.1); of
these parts a layer is one with weights, with those without weights that follow it. Unlike there, what
is made of the inputs without multiplying by a weight (an attention mask, positions) does not
count as going on: each stage that reads it gets it from where it is made.

What computes gradients belongs to the layer of what it is the gradient of, which its span says, and
an update of a weight to the layer that reads the weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tvm import relay

from heteroplace.relay.shard.carry import Carrier
from heteroplace.relay.shard.spans import Tag, span_name
from heteroplace.relay.tasks.fold import children

GRADIENT = "gradient:"
UPDATE = "update:"
_LOSS = "loss"


def layers_of(
    nodes: Sequence[relay.Expr], free: set[relay.Expr], carrier: Carrier
) -> tuple[dict[relay.Expr, Tag], int]:
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
    layer |= {node: count for node in forward if span_name(node) == _LOSS}
    _give_to_first_reader(forward, layer)
    _give_backward(nodes, back, layer, count)
    calls = [node for node in nodes if isinstance(node, relay.Call)]
    return {call: Tag(layer[call], call in back, span_name(call)) for call in calls}, count


def is_weighted(call: relay.Expr, free: set[relay.Expr], carrier: Carrier) -> bool:
    """Say whether an expression is a product with a matrix, or more, that is a weight."""
    if not isinstance(call, relay.Call):
        return False
    labels = carrier.labels(call)
    if labels is None or not labels.is_product:
        return False
    return any(arg in free and len(arg.checked_type.shape) > 1 for arg in call.args)


def _backward(nodes: Sequence[relay.Expr]) -> set[relay.Expr]:
    """What computes gradients or updates, or is computed from them."""
    found: set[relay.Expr] = set()
    for node in nodes:
        is_made_so = any(child in found for child in children(node))
        if is_made_so or span_name(node).startswith((GRADIENT, UPDATE)):
            found.add(node)
    return found


def _forward_layers(
    nodes: Sequence[relay.Expr], free: set[relay.Expr], carrier: Carrier
) -> tuple[dict[relay.Expr, int], int]:
    """The layer of whatever depends on a product with a weight, and the number of layers."""
    before: dict[relay.Expr, set[relay.Expr]] = {}
    weighted = set()
    for node in nodes:
        read = {child for child in children(node) if child in before}
        if is_weighted(node, free, carrier):
            weighted.add(node)
        if read or node in weighted:
            before[node] = read
    order = list(before)
    layer: dict[relay.Expr, int] = {}
    current = -1
    for part in _parts(order, before):
        current += any(node in weighted for node in part)
        layer |= dict.fromkeys(part, current)
    return layer, max(current, 0) + 1


def _parts(
    order: Sequence[relay.Expr], before: Mapping[relay.Expr, set[relay.Expr]]
) -> list[list[relay.Expr]]:
    """The expressions in parts, each of which hands only its last one, a tensor, on."""
    readers = Counter(child for node in order for child in before[node])
    last_source = max((at for at, node in enumerate(order) if not before[node]), default=-1)
    parts: list[list[relay.Expr]] = [[]]
    live: set[relay.Expr] = set()
    for at, node in enumerate(order):
        parts[-1].append(node)
        for child in before[node]:
            readers[child] -= 1
            if not readers[child]:
                live.discard(child)
        if readers[node]:
            live.add(node)
        is_tensor = isinstance(node, relay.Call) and isinstance(node.checked_type, relay.TensorType)
        if is_tensor and live == {node} and at >= last_source:
            parts.append([])
    return parts


def _give_to_first_reader(nodes: Sequence[relay.Expr], layer: dict[relay.Expr, int]) -> None:
    """What depends on no product belongs to the layer that reads it first; else to layer 0."""
    given = set(layer)
    for node in reversed(nodes):
        own = layer.setdefault(node, 0)
        for child in children(node):
            if child not in given:
                layer[child] = min(layer.get(child, own), own)


def _give_backward(
    nodes: Sequence[relay.Expr], back: set[relay.Expr], layer: dict[relay.Expr, int], count: int
) -> None:
    """The layer of what has it in its span; of others the first of those that they read from."""
    named: dict[str, int] = {_LOSS: count}
    for node in nodes:
        if isinstance(node, relay.Call) and node not in back and span_name(node):
            named[span_name(node)] = max(layer[node], named.get(span_name(node), 0))
    for node in nodes:
        if node not in back:
            continue
        read = [layer[child] for child in children(node) if child in back]
        nearest = min(read, default=count - 1)
        layer[node] = named.get(span_name(node).removeprefix(GRADIENT), nearest)
