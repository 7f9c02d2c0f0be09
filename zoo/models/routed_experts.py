"""Transformers whose feed-forward layers are experts: Switch-, SwinV2-MoE- and TaskMoE-shaped.

Fedus et al., "Switch Transformers" (JMLR 2022): tokens, one expert each, up to 256 a layer.
Hwang et al., "Tutel" (MLSys 2023): SwinV2-MoE, attention in windows, experts in every other block.
Kudugunta et al., "Beyond Distillation" (EMNLP 2021): TaskMoE, the task of a token is its route.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relay

from heteroplace import routing
from zoo.models.routed import RoutedNetwork, RoutedParts, steered_top_k


def switch_layer(
    tokens: int = 256,
    width: int = 768,
    hidden: int = 3072,
    experts: int = 32,
    k: int = 1,
    seed: int = 0,
) -> RoutedNetwork:
    """Return one layer of experts: x[tokens, width] -> the same, without attention."""
    parts = RoutedParts(seed)
    x = parts.input("x", tokens, width)
    y = _experts(parts, "moe0", x, (tokens, width, hidden, experts), k)
    return parts.network(relay.add(x, y), k)


def switch_layer_part(
    tokens: int, width: int, hidden: int, experts: int, k: int, branches: Sequence[int]
) -> RoutedNetwork:
    """Return `switch_layer` with some of its experts; cells of the others take none.

    Its weights have the names of those of the whole layer, and other values.
    """
    parts = RoutedParts(seed=0)
    x = parts.input("x", tokens, width)
    y = _experts(parts, "moe0", x, (tokens, width, hidden, experts), k, branches=branches)
    return parts.network(relay.add(x, y), k)


def switch(
    layers: int = 2,
    tokens: int = 128,
    width: int = 768,
    hidden: int = 3072,
    experts: int = 32,
    heads: int = 12,
    k: int = 1,
    seed: int = 0,
) -> RoutedNetwork:
    """Return an encoder of `layers` blocks: attention of all tokens, then experts."""
    parts = RoutedParts(seed)
    x = parts.input("x", tokens, width)
    for layer in range(layers):
        name = f"block{layer}"
        normed = parts.norm(f"{name}.norm1", x, width)
        x = relay.add(x, _attention(parts, f"{name}.attention", normed, (1, tokens, width, heads)))
        normed = parts.norm(f"{name}.norm2", x, width)
        y = _experts(parts, f"moe{layer}", normed, (tokens, width, hidden, experts), k)
        x = relay.add(x, y)
    return parts.network(x, k)


def swin_moe(
    blocks: int = 4,
    windows: int = 16,
    window: int = 49,
    width: int = 256,
    experts: int = 8,
    heads: int = 8,
    factor: float = 1.25,
    seed: int = 0,
) -> RoutedNetwork:
    """Return blocks of attention in windows; every other one has experts of bounded capacity."""
    parts = RoutedParts(seed)
    tokens, hidden = windows * window, 4 * width
    x = parts.input("x", tokens, width)
    for block in range(blocks):
        name = f"block{block}"
        y = _attention(parts, f"{name}.attention", x, (windows, window, width, heads))
        x = relay.add(x, parts.norm(f"{name}.norm1", y, width))  # SwinV2 norms what is added
        if block % 2:
            sizes = (tokens, width, hidden, experts)
            y = _experts(parts, f"moe{block}", x, sizes, 1, factor)
        else:
            inner = relay.nn.relu(parts.linear(f"{name}.in", x, width, hidden))
            y = parts.linear(f"{name}.out", inner, hidden, width)
        x = relay.add(x, parts.norm(f"{name}.norm2", y, width))
    return parts.network(x, 1)


def task_moe(
    layers: int = 3,
    sentences: int = 16,
    length: int = 16,
    width: int = 256,
    hidden: int = 1024,
    experts: int = 16,
    seed: int = 0,
) -> RoutedNetwork:
    """Return layers of experts of which the task of a token takes one; attention per sentence."""
    parts = RoutedParts(seed)
    tokens = sentences * length
    x = parts.input("x", tokens, width)
    for layer in range(layers):
        name = f"moe{layer}"
        y = _attention(parts, f"{name}.attention", x, (sentences, length, width, 4))
        x = parts.norm(f"{name}.norm", relay.add(x, y), width)
        steer = parts.steer(name, tokens, experts)
        ids = relay.topk(steer, 1, axis=1, ret_type="indices", dtype="int32")
        cells = routing.annotate_cell(x, dims=(0,), shape=(1, width))
        branches = parts.experts(name, range(experts), width, hidden)
        x = relay.add(x, routing.route(cells, routing.label(ids, experts), branches, name=name))
    return parts.network(x, 1)


def _experts(
    parts: RoutedParts,
    name: str,
    x: relay.Expr,
    sizes: tuple[int, int, int, int],
    k: int,
    factor: float = 0.0,
    branches: Sequence[int] | None = None,
) -> relay.Expr:
    """A layer of experts, sizes of tokens, width, hidden layer and how many they are.

    `branches`: those that are there; None: all.
    """
    tokens, width, hidden, count = sizes
    logits = parts.linear(f"{name}.router", x, width, count)
    decision = steered_top_k(logits, parts.steer(name, tokens, count), k, factor)
    cells = routing.annotate_cell(x, dims=(0,), shape=(1, width))
    experts = parts.experts(name, range(count) if branches is None else branches, width, hidden)
    if branches is not None:
        columns = relay.const(np.array(branches, dtype="int32"))
        mask, gates = (
            relay.take(each, columns, axis=1) for each in (decision.mask, decision.gates)
        )
        decision = routing.Decision(mask, k, gates)
    return routing.route(cells, decision, experts, gate="combine", name=name)


def _attention(
    parts: RoutedParts, name: str, x: relay.Expr, sizes: tuple[int, int, int, int]
) -> relay.Expr:
    """Self-attention within groups of rows, sizes of groups, rows, width and heads."""
    groups, rows, width, heads = sizes
    head = width // heads

    def split(part: str, order: tuple[int, ...]) -> relay.Expr:
        y = parts.linear(f"{name}.{part}", x, width, width)
        y = relay.transpose(relay.reshape(y, (groups, rows, heads, head)), order)
        return relay.reshape(
            y, (groups * heads, *((rows, head) if order[3] == 3 else (head, rows)))
        )

    query, key = split("query", (0, 2, 1, 3)), split("key", (0, 2, 1, 3))
    value = split("value", (0, 2, 3, 1))
    scale = relay.const(head**-0.5, "float32")
    scores = relay.nn.softmax(relay.multiply(relay.nn.batch_matmul(query, key), scale), axis=2)
    mixed = relay.reshape(relay.nn.batch_matmul(scores, value), (groups, heads, rows, head))
    joined = relay.reshape(relay.transpose(mixed, (0, 2, 1, 3)), (groups * rows, width))
    return parts.linear(f"{name}.out", joined, width, width)
