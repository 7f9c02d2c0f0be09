"""Convolutional networks with routers: LiveSR-, MSDNet- and DynamicRouting-shaped.

Cui et al., "Brainstorm" (OSDI 2023), 6: LiveSR, patches of an image to branches of unlike widths.
Huang et al., "Multi-Scale Dense Networks" (ICLR 2018): exits behind blocks of a classifier.
Li et al., "Learning Dynamic Routing for Semantic Segmentation" (CVPR 2020): a grid of cells over
layers and scales, each of which keeps, widens or narrows its map, or several of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tvm import relay

from heteroplace import routing
from zoo.models.routed import RoutedNetwork, RoutedParts, steered_top_k


def live_sr(
    patches: int = 24,
    size: int = 32,
    widths: Sequence[int] = (8, 16, 32, 56),
    depth: int = 4,
    seed: int = 0,
) -> RoutedNetwork:
    """Return a network that doubles patches [patches, 3, size, size] by branches of some widths."""
    parts = RoutedParts(seed)
    x = parts.input("x", patches, 3, size, size)
    mean = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(parts.conv("router.conv", x, (3, 8))))
    logits = parts.linear("router", mean, 8, len(widths))
    decision = steered_top_k(logits, parts.steer("patches", patches, len(widths)), 1)
    cells = routing.annotate_cell(x, dims=(0,), shape=(1, 3, size, size))
    branches = [_enlarger(parts, f"branch{width}", width, depth) for width in widths]
    return parts.network(routing.route(cells, decision, branches, name="patches"), 1)


def _enlarger(
    parts: RoutedParts, name: str, width: int, depth: int
) -> Callable[[relay.Expr], relay.Expr]:
    def run(rows: relay.Expr) -> relay.Expr:
        y = parts.conv(f"{name}.head", rows, (3, width))
        for layer in range(depth):
            y = parts.conv(f"{name}.{layer}", y, (width, width))
        return relay.nn.depth_to_space(parts.conv(f"{name}.tail", y, (width, 12)), 2)

    return run


class _Sizes(NamedTuple):
    """Of an early-exit classifier."""

    layers: Sequence[int]
    size: int
    width: int
    classes: int
    has_exits: bool


def msdnet(
    layers: Sequence[int] = (2, 2, 2),
    size: int = 32,
    width: int = 32,
    classes: int = 10,
    seed: int = 0,
    *,
    has_exits: bool = True,
) -> RoutedNetwork:
    """Return a classifier of one image with exits: behind each block it may be sure enough.

    Parameters
    ----------
    layers
        Convolutions of each block.
    has_exits
        False: the same network up to its end, whatever the image.
    """
    parts = RoutedParts(seed)
    x = parts.conv("stem", parts.input("x", 1, 3, size, size), (3, width))
    return parts.network(_block(parts, x, 0, _Sizes(layers, size, width, classes, has_exits)), 1)


def _block(parts: RoutedParts, x: relay.Expr, index: int, sizes: _Sizes) -> relay.Expr:
    """A block, and its exit or what comes behind."""
    layers, size, width, classes, has_exits = sizes
    name, channels = f"exit{index}", width * 2**index
    stride = 1 if index == 0 else 2
    before = channels if index == 0 else channels // 2
    x = parts.conv(f"block{index}.0", x, (before, channels), stride=stride)
    for layer in range(1, layers[index]):
        x = parts.conv(f"block{index}.{layer}", x, (channels, channels))
    if not has_exits and index < len(layers) - 1:
        return _block(parts, x, index + 1, sizes)
    extent = size // 2**index
    # Of the whole map: TVM adds up a window in vectors, and a global pool number by number.
    pooled = relay.nn.batch_flatten(relay.nn.avg_pool2d(x, (extent, extent)))
    logits = parts.linear(f"{name}.classifier", pooled, channels, classes)
    if index == len(layers) - 1:
        return logits
    steer = parts.steer(name, 1, 2)
    sure = relay.max(relay.nn.softmax(logits, axis=1), axis=1)
    sure = relay.add(sure, relay.reshape(relay.strided_slice(steer, [0], [1], axes=[1]), (1,)))
    decision = routing.early_exit(sure, 0.9)
    flows = [
        routing.annotate_cell(logits, dims=(0,), shape=(1, classes)),
        routing.annotate_cell(x, dims=(0,), shape=(1, channels, extent, extent)),
    ]
    return routing.route(
        flows,
        decision,
        [
            lambda rows, _: rows,
            lambda _, rows: _block(parts, rows, index + 1, sizes),
        ],
        name=name,
    )


def dynamic_routing(
    layers: int = 48, scales: int = 4, size: int = 64, width: int = 8, seed: int = 0
) -> RoutedNetwork:
    """Return a grid of cells: by default 186 routers, each of one to three ways.

    The cell of a layer and scale takes the mean of what reaches it, computes, and sends its map to
    the same, the next narrower and the next wider scale of the next layer, as its router says. (The
    paper's cells add up, and normalise by batch; sums of seeded weights would grow with the layers
    until they outweigh what steers the routers.)
    """
    parts = RoutedParts(seed)
    x = parts.conv("stem", parts.input("x", 1, 3, size, size), (3, width))
    maps: dict[int, list[relay.Expr]] = {0: [x]}
    for layer in range(layers):
        sent: dict[int, list[relay.Expr]] = {}
        for scale, arrived in sorted(maps.items()):
            x = _mean(arrived)
            for target, y in _cell(parts, f"cell{layer}.{scale}", x, scale, (scales, size, width)):
                sent.setdefault(target, []).append(y)
        maps = sent
    pooled = [
        relay.nn.batch_flatten(relay.nn.global_avg_pool2d(y)) for _, ys in sorted(maps.items())
        for y in ys
    ]  # fmt: skip
    joined = relay.concatenate(pooled, axis=1)
    return parts.network(joined, 3)


def _mean(maps: Sequence[relay.Expr]) -> relay.Expr:
    total = maps[0]
    for other in maps[1:]:
        total = relay.add(total, other)
    return relay.multiply(total, relay.const(1 / len(maps))) if len(maps) > 1 else total


def _cell(
    parts: RoutedParts, name: str, x: relay.Expr, scale: int, sizes: tuple[int, int, int]
) -> list[tuple[int, relay.Expr]]:
    """The maps that a cell sends, with the scales that they are of."""
    scales, size, width = sizes
    channels, extent = width * 2**scale, size // 2**scale
    targets = [scale, *([scale - 1] if scale else []), *([scale + 1] if scale + 1 < scales else [])]
    pooled = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(x))
    scores = parts.linear(f"{name}.router", pooled, channels, len(targets))
    scores = relay.add(scores, parts.steer(name, 1, len(targets)))
    decision = routing.threshold(scores, 0.0, fallback=0)
    shapes = [(1, width * 2**target, *[size // 2**target] * 2) for target in targets]
    branches = [_way(parts, name, scale, index, (targets, shapes)) for index in range(len(targets))]
    cells = routing.annotate_cell(x, dims=(0,), shape=(1, channels, extent, extent))
    results = routing.route(cells, decision, branches, name=name)
    return list(zip(targets, results if isinstance(results, list) else [results], strict=True))


def _way(
    parts: RoutedParts,
    name: str,
    scale: int,
    index: int,
    ways: tuple[list[int], list[tuple[int, ...]]],
) -> Callable[[relay.Expr], list[relay.Expr]]:
    """A branch that makes the map of one scale, and 0 for the others: results are added up."""
    targets, shapes = ways

    def run(rows: relay.Expr) -> list[relay.Expr]:
        results = [relay.zeros(shape, "float32") for shape in shapes]
        stride = 2 if targets[index] > scale else 1
        channels = shapes[targets.index(scale)][1], shapes[index][1]
        y = parts.conv(f"{name}.{targets[index]}", rows, channels, stride=stride)
        results[index] = relay.nn.upsampling(y, 2, 2) if targets[index] < scale else y
        return results

    return run
