"""A model, which outputs replace which inputs, and sizes -> the caches that grow with each call.

Such a cache is an input to whose rows a node Concat adds those of the new tokens:

    present = Concat(past, new, axis=2)
    [1, heads, past, size]  ->  [1, heads, past + new, size]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.caches.fused_attention import is_fused
from heteroplace.parts.onnx.caches.length_run import LengthValues
from heteroplace.parts.onnx.prepare.node_attributes import attribute_of
from heteroplace.parts.onnx.prepare.onnx_load import model_structure, true_inputs
from heteroplace.parts.onnx.prepare.onnx_repair import ONNX_DOMAINS, describe_node
from heteroplace.state_option import StateNames, possible_pairs

MASK, POSITIONS = "attention_mask", "position_ids"
_TOKENS = ("input_ids", "inputs_embeds")
_ROWS, _RANK = 2, 4
"""The axis of tokens, and how many axes a cache has."""
_SAME = ("Cast", "Identity")
"""What may lie between a Concat and an output, if it changes nothing."""


@dataclass(frozen=True)
class GrownCache:
    """Keys or values of one layer."""

    past: str
    """The input."""
    present: str
    """The output that replaces it."""
    joined: str
    """The output of the Concat: the present one, or what it is the same as."""
    new: str
    """The rows of the new tokens."""
    node: NodeProto
    """The Concat."""


@dataclass(frozen=True)
class CacheSizes:
    """Sizes of a model that is imported with caches of fixed capacity."""

    length: int
    """New tokens of a call."""
    capacity: int
    """Tokens that the cache has room for."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of all inputs, with caches and mask of the capacity."""

    def trials(self) -> tuple[int, ...]:
        """Return numbers of past tokens to look at: the first ones, and the largest ones."""
        largest = self.capacity - self.length
        some = (0, 1, 2, 3, 5, largest // 2, largest - 1, largest)
        return tuple(sorted({each for each in some if 0 <= each <= largest}))


def may_have_grown_caches(graph: GraphProto, pairs: Iterable[tuple[str, str]]) -> bool:
    """Return whether the inputs of some pair may be caches that grow, by their shapes."""
    pasts = {past for past, _ in pairs}
    return any(value.name in pasts and _may_grow(value) for value in true_inputs(graph))


def grown_caches(graph: GraphProto, pairs: Iterable[tuple[str, str]]) -> list[GrownCache]:
    """Return the caches of a graph whose rows a Concat adds, in the order of the pairs.

    Parameters
    ----------
    pairs
        (input, output that may replace it).
    """
    inputs = {value.name: value for value in true_inputs(graph)}
    producers = {name: node for node in graph.node for name in node.output}
    caches = []
    for past, present in pairs:
        value = inputs.get(past)
        if value is None or not _may_grow(value):
            continue
        joined = present
        while joined in producers and producers[joined].op_type in _SAME:
            joined = producers[joined].input[0]
        node = producers.get(joined)
        if node is not None and node.op_type == "Concat" and _is_join(node, past, producers):
            caches.append(GrownCache(past, present, joined, node.input[1], node))
    return caches


def share_capacity(
    source: str | os.PathLike[str] | ModelProto,
    sizes: dict[str, tuple[int | str, ...]],
    shapes: Mapping[str, Sequence[int]],
    state: StateNames,
) -> None:
    """Give a free size of the mask the name, or the number, of that of a past, in place.

    Parameters
    ----------
    sizes
        Of each input that leaves one free; a free one by its name.
    shapes
        Of other inputs.
    """
    mask = sizes.get(MASK, ())
    if len(mask) != _ROWS or not isinstance(mask[1], str):
        return
    model = model_structure(source)
    outputs = [value.name for value in model.graph.output]
    names = [value.name for value in true_inputs(model.graph)]
    pairs = possible_pairs(state, names, outputs)
    grown = [cache.past for cache in grown_caches(model.graph, pairs)]
    fused = {
        name
        for node in model.graph.node
        if joins_rows(node) or node.op_type == "GroupQueryAttention"
        for name in node.input
    }
    grown += [name for name, _ in pairs if name in fused]
    if grown:
        past = sizes.get(grown[0], shapes.get(grown[0]))
        if past is not None and len(past) == _RANK:
            sizes[MASK] = (mask[0], past[_ROWS])


def joins_rows(node: NodeProto) -> bool:
    """Whether a node adds rows to caches that it reads."""
    is_standard = node.op_type == "Attention" and node.domain in ONNX_DOMAINS
    return is_standard or is_fused(node)


def _is_join(node: NodeProto, past: str, producers: Mapping[str, NodeProto]) -> bool:
    """Whether a Concat adds rows after a past."""
    if len(node.input) != 2 or attribute_of(node, "axis", 0) not in (_ROWS, _ROWS - _RANK):
        return False
    first = node.input[0]
    while first in producers and producers[first].op_type == "Identity":
        first = producers[first].input[0]
    return bool(first == past)


def _may_grow(value: ValueInfoProto) -> bool:
    """Whether the file leaves the number of rows of an input open."""
    dims = value.type.tensor_type.shape.dim
    return len(dims) == _RANK and dims[_ROWS].dim_value <= 0


def cache_sizes(
    graph: GraphProto, caches: Sequence[GrownCache], shapes: Mapping[str, Sequence[int]], where: str
) -> CacheSizes | None:
    """Return the sizes of a model with caches of fixed capacity; None: some are not given.

    Raises
    ------
    FrontendError
        Sizes do not fit one another, or the model has no mask of tokens.
    """
    full: dict[str, tuple[int, ...]] = {}
    for value in true_inputs(graph):
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        full[value.name] = tuple(int(size) for size in shapes.get(value.name, dims))
        if len(full[value.name]) != len(dims) or any(size <= 0 for size in full[value.name]):
            return None
    pasts = [cache.past for cache in caches]
    names = [name for name in _TOKENS if len(full.get(name, ())) > 1]
    if len(full.get(MASK, ())) != _ROWS or not names:
        raise FrontendError(
            f"{where}: its cache '{pasts[0]}' grows with each call. It can be state of a fixed "
            f"size if the model takes '{MASK}' [1, capacity] and '{_TOKENS[0]}' [1, length]; it "
            f"takes {', '.join(full)}. Leave the option state out, or export the model with them"
        )
    capacity, length = full[pasts[0]][_ROWS], full[names[0]][1]
    expected = {MASK: (1, capacity), **{name: (1, *full[name][1:]) for name in names}}
    expected |= {name: (1, full[name][1], capacity, full[name][3]) for name in pasts}
    for name, shape in expected.items():
        if full[name] != shape:
            raise FrontendError(
                f"{where}: input '{name}' has the shape {full[name]}, and with state it must be "
                f"{shape}: one sequence, and room for {capacity} tokens, as in '{pasts[0]}'"
            )
    if length > capacity:
        raise FrontendError(
            f"{where}: a call takes {length} new tokens, and '{pasts[0]}' has room for "
            f"{capacity}; give the past a larger size, or the call fewer tokens"
        )
    return CacheSizes(length, capacity, full)


def check_growth(
    caches: Sequence[GrownCache], runs: Mapping[int, LengthValues], length: int, where: str
) -> None:
    """Raise FrontendError unless each present has the rows of its past and of the new tokens."""
    for cache in caches:
        for past, values in runs.items():
            before = values[cache.past]
            expected = (*before.shape[:_ROWS], past + length, *before.shape[_ROWS + 1 :])
            for name in (cache.joined, cache.present):
                after = values.get(name)
                if after is None or (after.shape, after.array.dtype) != (
                    expected,
                    before.array.dtype,
                ):
                    shown = f"{after.array.dtype} {list(after.shape)}" if after else "not known"
                    raise FrontendError(
                        f"{where}: {describe_node(cache.node)}: with {past} past tokens and "
                        f"{length} new ones, the type of '{cache.present}' is {shown}; expected "
                        f"{before.array.dtype} {list(expected)}. It cannot be state: give a "
                        f"smaller capacity if the model keeps fewer rows, or leave the option "
                        f"state out"
                    )
