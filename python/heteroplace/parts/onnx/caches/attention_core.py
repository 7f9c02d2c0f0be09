"""A model with caches that grow -> the nodes between each cache and the result of its attention.

    scores = MatMul(queries, turned keys)
    result = MatMul(Softmax(masked scores), values)

Only the ends are recognised by their form. What lies between them (repeated heads, scales, masks,
guards) may be anything: `core_proof.py` runs it, and checks that it is causal attention.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto, NodeProto

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.caches.grown_pairs import GrownCache
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node

_LOOKS_AT_SHAPE = ("Shape", "Size")
_AFTER_SOFTMAX = frozenset(
    {"Cast", "Clip", "Dropout", "Identity", "IsNaN", "Reshape", "Slice", "Squeeze", "Transpose"}
    | {"Unsqueeze", "Where"}
)
"""Ops between a softmax and the product with values."""


@dataclass(frozen=True)
class AttentionCore:
    """The attention of one layer, from its query and its caches to its result."""

    keys: GrownCache
    values: GrownCache
    query: str
    """The operand of the first product."""
    scores: str
    """What the softmax reads."""
    result: str
    """The output of the second product."""
    nodes: Sequence[NodeProto]
    """In the order of the model."""
    outer: Sequence[str]
    """What the nodes read beside query and caches: masks and constants, each once."""

    @property
    def last(self) -> NodeProto:
        """The second product."""
        return self.nodes[-1]

    @property
    def is_capped(self) -> bool:
        """Whether scores may have a bound."""
        return any(node.op_type == "Tanh" for node in self.nodes)


@dataclass(frozen=True)
class _Product:
    """The first product that reads a cache."""

    cache: GrownCache
    node: NodeProto
    side: str
    """The operand that comes from the cache."""
    other: str


def attention_cores(
    graph: GraphProto, caches: Sequence[GrownCache], computed: Collection[str]
) -> list[AttentionCore]:
    """Return the attention of each layer.

    Parameters
    ----------
    computed
        Tensors whose values are computed from data.

    Raises
    ------
    FrontendError
        A cache is used by something else than one attention.
    """
    consumers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            consumers.setdefault(name, []).append(node)
    products = [_product_of(cache, consumers) for cache in caches]
    by_output = {product.node.output[0]: product for product in products}
    finder = _Finder(graph, by_output, computed)
    cores = [finder.core_of(product) for product in products if finder.reads_shares(product)]
    used = {cache.past for core in cores for cache in (core.keys, core.values)}
    for cache in caches:
        if cache.past not in used:
            raise FrontendError(
                f"{describe_node(cache.node)}: its rows, of '{cache.past}', are not the keys or "
                f"values of an attention as expected: a product with queries, a softmax, and a "
                f"product with values. Leave the option state out"
            )
    return cores


def _product_of(cache: GrownCache, consumers: Mapping[str, list[NodeProto]]) -> _Product:
    """Follow a cache to the product that reads it."""
    products: dict[int, _Product] = {}
    pending, seen = [cache.joined], {cache.joined}
    while pending:
        name = pending.pop()
        for node in consumers.get(name, ()):
            if node.op_type in _LOOKS_AT_SHAPE:
                continue
            if node.op_type == "MatMul":
                (other,) = [each for each in node.input if each != name] or [name]
                products[id(node)] = _Product(cache, node, name, other)
                continue
            new = [each for each in node.output if each and each not in seen]
            seen.update(new)
            pending += new
    if len(products) != 1:
        names = ", ".join(describe_node(each.node) for each in products.values()) or "none"
        raise FrontendError(
            f"{describe_node(cache.node)}: its rows, of '{cache.past}', are read by these "
            f"products: {names}; expected one, a MatMul with queries or with shares of a softmax. "
            f"Leave the option state out"
        )
    (product,) = products.values()
    return product


class _Finder:
    """Finds what lies between two products."""

    def __init__(
        self, graph: GraphProto, by_output: Mapping[str, _Product], computed: Collection[str]
    ) -> None:
        self._order = {id(node): index for index, node in enumerate(graph.node)}
        self._producers = {name: node for node in graph.node for name in node.output}
        self._by_output, self._computed = by_output, computed

    def reads_shares(self, product: _Product) -> bool:
        """Return whether a product is that of shares, from a softmax, with values."""
        pending, seen = [product.other], {product.other}
        while pending:
            producer = self._producers.get(pending.pop())
            if producer is not None and producer.op_type == "Softmax":
                return True
            if producer is not None and producer.op_type in _AFTER_SOFTMAX:
                new = [name for name in producer.input if name and name not in seen]
                seen.update(new)
                pending += new
        return False

    def core_of(self, product: _Product) -> AttentionCore:
        """Return the core that ends with a product.

        Raises
        ------
        FrontendError
            Something else is behind it.
        """
        nodes, outer, firsts = {id(product.node): product.node}, dict[str, None](), []
        pending, seen = list(product.node.input), {product.cache.joined}
        strangers = []
        while pending:
            name = pending.pop()
            if not name or name in seen:
                continue
            seen.add(name)
            first = self._by_output.get(name)
            producer = self._producers.get(name)
            if name not in self._computed:
                outer[name] = None
            elif first is not None:
                firsts.append(first)
                nodes[id(first.node)] = first.node
                seen |= {first.other, first.cache.joined}
                pending.append(first.side)
            elif producer is None or producer.op_type in _LOOKS_AT_SHAPE:
                strangers.append(name)
            else:
                nodes[id(producer)] = producer
                pending += producer.input
        if len(firsts) != 1 or firsts[0].cache is product.cache:
            names = ", ".join(f"'{first.cache.past}'" for first in firsts) or "none"
            raise FrontendError(
                f"{describe_node(product.node)}: this attention of '{product.cache.past}' has keys "
                f"of these caches: {names}; expected one other cache. Leave the option state out"
            )
        if strangers:
            raise FrontendError(
                f"{describe_node(product.node)}: this attention of '{product.cache.past}' also "
                f"reads {', '.join(sorted(strangers))}; expected queries, keys, values and a mask "
                f"that depends on the numbers of tokens. Leave the option state out"
            )
        ordered = sorted(nodes.values(), key=lambda node: self._order[id(node)])
        scores = [node.input[0] for node in ordered if node.op_type == "Softmax"]
        if len(scores) != 1:
            raise FrontendError(
                f"{describe_node(product.node)}: there are {len(scores)} Softmax nodes between "
                f"keys and values of this attention; expected one. Leave the option state out"
            )
        keys, query, result = firsts[0].cache, firsts[0].other, product.node.output[0]
        return AttentionCore(keys, product.cache, query, scores[0], result, ordered, tuple(outer))
