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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relay

from heteroplace import routing
from heteroplace.model.graph import TaskGraph
from heteroplace.parts.routing.dynamic.placement_problem import BranchMemories
from heteroplace.parts.routing.relay.cells import shape_of
from zoo.models.routed import RoutedNetwork, RoutedParts

Expert = Callable[[relay.Expr], relay.Expr]
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
    has_one_message_size: bool = False
    """Messages are copied by a kernel for all tokens, not by one for each power of four: of n
    memories there are n (n - 1) between two layers, and each kernel's call is compiled. What is
    moved from memory to memory is the same."""


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
        experts = _experts(parts, name, sizes)
        made = []
        for memory in range(count):
            held = [expert for expert, at in enumerate(row) if at == memory]
            local = [held.index(e) if e in held else -1 for e in range(sizes.experts)]
            decision = routing.label(_look_up(local, ids[layer]), len(held))
            branches = [experts[expert] for expert in held]
            rest = None, _sizes(sizes.tokens)
            made.append(_routed(here[memory], decision, branches, f"{name}.{memory}", rest))
        after = [*where, None][layer + 1]
        ends = range(count if after is not None else 1)
        if is_sparse:
            sizes_of = [sizes.tokens] if sizes.has_one_message_size else _sizes(sizes.tokens)
            here = [_received(made, end, (where[layer], after), layer, sizes_of) for end in ends]
        else:
            here = [_sum([made[end], *made[:end], *made[end + 1 :]]) for end in ends]
    return parts.network(here[0], 1)


def _experts(parts: RoutedParts, layer: str, sizes: ExpertLayers) -> list[Expert]:
    """Two products with a relu between them; weights do not depend on where which expert is."""

    def expert(name: str) -> Expert:
        normal, width, hidden = parts.weights.normal, sizes.width, sizes.hidden
        inner = normal(f"{name}.in.weight", (hidden, width), width**-0.5)
        bias = normal(f"{name}.in.bias", (hidden,), 0.02)
        outer = normal(f"{name}.out.weight", (width, hidden), hidden**-0.5)

        def run(rows: relay.Expr) -> relay.Expr:
            active = relay.nn.relu(relay.add(relay.nn.dense(rows, inner), bias))
            return relay.add(rows, relay.nn.dense(active, outer))

        return run

    return [expert(f"{layer}.{index}") for index in range(sizes.experts)]


def _received(
    made: Sequence[relay.Expr],
    memory: int,
    ways: tuple[relay.Expr, relay.Expr | None],
    layer: int,
    sizes: Sequence[int],
) -> relay.Expr:
    """The tokens that a memory needs for the next layer; other rows may hold anything.

    `ways`: the memories in which tokens are, and are needed; None: they all go to this one.
    `sizes`: rows that messages are compiled for.
    """
    found = made[memory]
    for source, value in enumerate(made):
        if source != memory:
            goes = relay.equal(ways[0], relay.const(source, "int32"))
            if ways[1] is not None:
                is_here = relay.equal(ways[1], relay.const(memory, "int32"))
                goes = relay.logical_and(goes, is_here)
            decision = routing.from_mask(relay.expand_dims(relay.cast(goes, "int32"), 1), top_k=1)
            name = f"{EXCHANGE}.{layer}.{source}.{memory}"
            found = _routed(value, decision, [lambda rows: rows], name, (found, sizes))
    return found


def _routed(
    x: relay.Expr,
    decision: routing.Decision,
    branches: Sequence[Expert],
    name: str,
    rest: tuple[relay.Expr | None, Sequence[int]],
) -> relay.Expr:
    """`rest`: what a token gets that takes no branch, and rows that branches are compiled for."""
    _, width = shape_of(x)
    residual, sizes = rest
    cells = routing.annotate_cell(x, dims=(0,), shape=(1, width))
    return routing.route(cells, decision, branches, residual=residual, capacities=sizes, name=name)


def _sizes(tokens: int) -> list[int]:
    """Few capacities, each four times the one before, as all of them are compiled."""
    powers = range((tokens - 1).bit_length() + 1 >> 1)
    return [*(4**power for power in powers), tokens]


def _sum(values: Sequence[relay.Expr]) -> relay.Expr:
    total = values[0]
    for value in values[1:]:
        total = relay.add(total, value)
    return total


def _look_up(table: Sequence[int], ids: relay.Expr) -> relay.Expr:
    return relay.take(relay.const(np.array(table, "int32")), ids, axis=0)


def memories_of_tasks(graph: TaskGraph) -> list[int]:
    """Return the memory in which each task of such a network runs.

    Rows are dispatched where tokens come from, which at the beginning is memory 0; branches run,
    and rows are joined, where they go. What prepares a decision is where all of its readers are.
    """
    ends = {router.name: _ends(router.name) for router in graph.routers}
    routers = {router.task: ends[router.name][0] for router in graph.routers}
    seats = {
        tensor: router.name
        for router in graph.routers
        for tensor in graph.task_outputs[router.task]
    }
    found = [0] * len(graph.tasks)
    for task in reversed(range(len(graph.tasks))):  # in topological order
        branch = graph.tasks[task].branch
        decided = next((seats[each] for each in graph.task_inputs[task] if each in seats), None)
        if branch is not None:
            found[task] = ends[branch[0]][1]
        elif task in routers:
            found[task] = routers[task]
        elif decided is not None:
            is_dispatch = any(
                graph.tensors[each].buffer is not None for each in graph.task_outputs[task]
            )
            found[task] = ends[decided][0 if is_dispatch else 1]
        else:
            readers = {
                found[reader]
                for tensor in graph.task_outputs[task]
                for reader in graph.tensors[tensor].consumers
            }
            found[task] = readers.pop() if len(readers) == 1 else 0
    return found


def _ends(router: str) -> tuple[int, int]:
    """The memories that rows come from and go to."""
    kind, layer, *ends = router.split(".")
    if kind == EXCHANGE:
        return int(ends[0]), int(ends[1])
    return (0 if layer == "0" else int(ends[0])), int(ends[0])
