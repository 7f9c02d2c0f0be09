"""Graph algorithms in the most obvious form: oracles for the core's linear ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

Edge = tuple[int, int]


def closure(num_nodes: int, edges: Iterable[Edge]) -> list[list[bool]]:
    """[num_nodes][num_nodes]: is there a path of at least one edge (Warshall)?"""
    reaches = [[False] * num_nodes for _ in range(num_nodes)]
    for src, dst in edges:
        reaches[src][dst] = True
    for middle in range(num_nodes):
        for src in range(num_nodes):
            if reaches[src][middle]:
                for dst in range(num_nodes):
                    reaches[src][dst] = reaches[src][dst] or reaches[middle][dst]
    return reaches


def is_acyclic(num_nodes: int, edges: Iterable[Edge]) -> bool:
    reaches = closure(num_nodes, edges)
    return not any(reaches[node][node] for node in range(num_nodes))


def is_topological(num_nodes: int, edges: Iterable[Edge], order: Sequence[int]) -> bool:
    position = {node: index for index, node in enumerate(order)}
    return sorted(order) == list(range(num_nodes)) and all(
        position[src] < position[dst] for src, dst in edges
    )


def longest_paths(
    num_nodes: int, weight: Sequence[int], edges: dict[Edge, int]
) -> tuple[list[int], list[int]]:
    """t-levels and b-levels by going over all edges until nothing changes."""
    tlevel, blevel = [0] * num_nodes, list(weight)
    for _ in range(num_nodes):
        for (src, dst), transfer in edges.items():
            tlevel[dst] = max(tlevel[dst], tlevel[src] + weight[src] + transfer)
            blevel[src] = max(blevel[src], weight[src] + transfer + blevel[dst])
    return tlevel, blevel


def least_cut(
    order: Sequence[int],
    edges: dict[Edge, int],
    num_bytes: Sequence[int],
    max_nodes: int,
    max_bytes: int,
) -> int:
    """Least weight of the edges between segments, over every set of breakpoints."""
    position = {node: index for index, node in enumerate(order)}
    best = sum(edges.values())
    for starts in cut_sets(len(order)):
        segments = [order[begin:end] for begin, end in pairwise([*starts, len(order)])]
        if all(
            len(segment) == 1
            or (len(segment) <= max_nodes and sum(num_bytes[node] for node in segment) <= max_bytes)
            for segment in segments
        ):
            segment_of = [
                sum(position[node] >= start for start in starts) for node in sorted(order)
            ]
            cut = sum(ns for (src, dst), ns in edges.items() if segment_of[src] != segment_of[dst])
            best = min(best, cut)
    return best


def least_module_cost(
    order: Sequence[int],
    edges: Iterable[Edge],
    max_channels: int,
    target_nodes: int,
    min_nodes: int,
) -> int:
    """Least sum of (size - target)^2 over every set of cuts that leaves a path of modules."""
    position = {node: index for index, node in enumerate(order)}
    spans = [(position[src], position[dst]) for src, dst in edges]
    best = (len(order) - target_nodes) ** 2
    for starts in cut_sets(len(order)):
        sizes = [end - begin for begin, end in pairwise([*starts, len(order)])]
        crossed = [[cut for cut in starts if src < cut <= dst] for src, dst in spans]
        counts = [sum(cut in cuts for cuts in crossed) for cut in starts]
        if (
            max(counts) <= max_channels
            and all(len(cuts) <= 1 for cuts in crossed)
            and (len(sizes) == 1 or min(sizes) >= min_nodes)
        ):
            best = min(best, sum((size - target_nodes) ** 2 for size in sizes))
    return best


def cut_sets(size: int) -> Iterable[tuple[int, ...]]:
    """Every ascending tuple of starts of segments over `size` positions."""
    for count in range(size):
        for cuts in combinations(range(1, size), count):
            yield (0, *cuts)


def num_components(nodes: Iterable[int], edges: Iterable[Edge]) -> int:
    """Connected components, edges taken as undirected."""
    label = {node: node for node in nodes}
    for src, dst in edges:
        if src in label and dst in label and label[src] != label[dst]:
            old, new = label[src], label[dst]
            label = {node: new if name == old else name for node, name in label.items()}
    return len(set(label.values()))


def articulation_points(num_nodes: int, edges: Sequence[Edge]) -> list[int]:
    """Nodes without which there are more components."""
    nodes = range(num_nodes)
    whole = num_components(nodes, edges)
    return [
        node for node in nodes if num_components((n for n in nodes if n != node), edges) > whole
    ]


def bridges(num_nodes: int, edges: Sequence[Edge]) -> list[Edge]:
    """Edges without which there are more components."""
    nodes = range(num_nodes)
    whole = num_components(nodes, edges)
    return [e for e in edges if num_components(nodes, (f for f in edges if f != e)) > whole]


def parted_by_less_than(num_nodes: int, edges: Iterable[Edge], k: int) -> list[list[bool]]:
    """[num_nodes][num_nodes]: does some cut of fewer than k edges part the two? Over all cuts."""
    pairs = list(edges)
    parted = [[False] * num_nodes for _ in range(num_nodes)]
    for side in range(2**num_nodes):
        if sum((side >> src & 1) != (side >> dst & 1) for src, dst in pairs) >= k:
            continue
        for a in range(num_nodes):
            for b in range(num_nodes):
                parted[a][b] = parted[a][b] or (side >> a & 1) != (side >> b & 1)
    return parted
