"""Layers of experts over several memories: cells go from the memory of one expert to the next's.

TaskMoE-shaped (Kudugunta et al., "Beyond Distillation", EMNLP 2021): the task of a token is its
route. Attention is left out: it mixes tokens of one sentence, which have one task and so are
together all the way. Every memory has a router over the experts that it holds: the expert of a
token is translated to (memory, number in it). Between two layers there is a router for each pair of
memories, whose only branch hands rows on: what the executor copies for it is a message of the
sparse exchange of Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023),
none where no token goes that way. The dense exchange moves all rows for every pair, as it must
where it is not known what goes where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relay

from heteroplace import routing
from heteroplace.bench.models.routed import RoutedNetwork, RoutedParts
from heteroplace.dynamic.placement_problem import BranchMemories
from heteroplace.model.graph import TaskGraph
from heteroplace.relay.routing.cells import shape_of

EXCHANGE = "exchange"
"""Routers of messages are called exchange.LAYER.SOURCE.DESTINATION."""
EXPERTS = "moe"
"""Routers of experts are called moe.LAYER.MEMORY."""


@dataclass(frozen=True)
class ExpertLayers:
    """Sizes of a network."""

    layers: int = 3
    tokens: int = 256
    width: int = 128
    hidden: int = 512
    experts: int = 16


def spread_experts(
    memories: BranchMemories, sizes: ExpertLayers = ExpertLayers(), *, is_sparse: bool = True
) -> RoutedNetwork:
    """Return the network whose expert e of layer l is in memory `memories[l][e]`.

    Its `routers` are those of the layers as they would be in one memory, "moe.LAYER", steered by
    the inputs of their names; every memory holds experts of every layer.

    Parameters
    ----------
    is_sparse
        Whether just the tokens that go from memory to memory are moved, or all of them.
    """
    parts = RoutedParts(0)
    count = max(max(row) for row in memories) + 1
    x = parts.input("x", sizes.tokens, sizes.width)
    ids = [
        relay.cast(
            relay.argmax(parts.steer(f"{EXPERTS}.{n}", sizes.tokens, sizes.experts), 1), "int32"
        )
        for n in range(sizes.layers)
    ]
    where = [_look_up(row, each) for row, each in zip(memories, ids, strict=True)]
    here = [x] * count
    for layer, row in enumerate(memories):
        name = f"{EXPERTS}.{layer}"
        experts = parts.experts(name, sizes.experts, sizes.width, sizes.hidden)
        made = []
        for memory in range(count):
            held = [expert for expert, at in enumerate(row) if at == memory]
            local = [held.index(e) if e in held else -1 for e in range(sizes.experts)]
            decision = routing.label(_look_up(local, ids[layer]), len(held))
            branches = [experts[expert] for expert in held]
            made.append(_routed(here[memory], decision, branches, f"{name}.{memory}"))
        here = made
        if layer + 1 < sizes.layers and is_sparse:
            here = [
                _received(made, at, (where[layer], where[layer + 1]), layer) for at in range(count)
            ]
        elif layer + 1 < sizes.layers:
            here = [_sum(made)] * count
    return parts.network(_sum(here), 1)


def _received(
    made: Sequence[relay.Expr], memory: int, ways: tuple[relay.Expr, relay.Expr], layer: int
) -> relay.Expr:
    """The tokens that a memory needs for the next layer; other rows may hold anything."""
    found = made[memory]
    for source, value in enumerate(made):
        if source != memory:
            goes = relay.logical_and(
                relay.equal(ways[0], relay.const(source, "int32")),
                relay.equal(ways[1], relay.const(memory, "int32")),
            )
            decision = routing.from_mask(relay.expand_dims(relay.cast(goes, "int32"), 1), top_k=1)
            name = f"{EXCHANGE}.{layer}.{source}.{memory}"
            found = _routed(value, decision, [lambda rows: rows], name, found)
    return found


def _routed(
    x: relay.Expr,
    decision: routing.Decision,
    branches: Sequence[Any],
    name: str,
    residual: relay.Expr | None = None,
) -> relay.Expr:
    cells = routing.annotate_cell(x, dims=(0,), shape=(1, shape_of(x)[1]))
    return routing.route(cells, decision, branches, residual=residual, name=name)


def _sum(values: Sequence[relay.Expr]) -> relay.Expr:
    total = values[0]
    for value in values[1:]:
        total = relay.add(total, value)
    return total


def _look_up(table: Sequence[int], ids: relay.Expr) -> relay.Expr:
    return relay.take(relay.const(np.array(table, "int32")), ids, axis=0)


def devices_of_tasks(graph: TaskGraph, devices: Sequence[str]) -> dict[str, str]:
    """Return the device of each task of a network that `spread_experts` makes.

    Routers decide and rows are dispatched where cells come from, branches run and rows are joined
    where they go; what belongs to no router is on the first device.

    Parameters
    ----------
    devices
        Names, of one in each memory.
    """
    ...
