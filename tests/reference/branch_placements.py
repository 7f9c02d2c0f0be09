"""The cheapest placement of branches, by trying all of them.

Layers of a chain depend on their neighbours alone, so what is tried for one layer is combined with
the best of all before it; only bytes join all layers, and then every combination is tried.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from heteroplace.parts.routing.dynamic.placement_problem import (
    Layer,
    PlacementProblem,
    fits,
    layer_loads,
    objective,
)


def all_placements(problem: PlacementProblem, layer: Layer) -> list[tuple[int, ...]]:
    """Every placement of one layer that keeps its rules."""
    if layer.fixed is not None:
        return [layer.fixed]
    fewest, most = problem.even_sizes(layer)
    return [
        members
        for members in product(range(problem.num_memories), repeat=layer.num_members)
        if all(fewest <= members.count(d) <= most for d in range(problem.num_memories))
    ]


def least_objective(problem: PlacementProblem) -> float | None:
    """The objective of the cheapest placement; None: none fits."""
    choices = [all_placements(problem, layer) for layer in problem.layers]
    if problem.memory_bytes:
        found = [objective(problem, each) for each in product(*choices) if fits(problem, each)]
        return min(found, default=None)
    costs: np.ndarray | None = None
    for index, (layer, tried) in enumerate(zip(problem.layers, choices, strict=True)):
        own = np.array([max(layer_loads(problem, layer, each), default=0.0) for each in tried])
        if costs is None:
            costs = own
            continue
        # [tried before][tried now] = sum of cells[e][f] move[d(e)][d(f)], as a product.
        before = _one_hot(problem, choices[index - 1])
        matrix = np.einsum(
            "iea,ef,ab->ifb", before, np.array(problem.cells[index - 1]), problem.move_ns
        ).reshape(len(before), -1)
        joined = matrix @ _one_hot(problem, tried).reshape(len(tried), -1).T
        costs = (costs[:, None] + joined).min(axis=0) + own
    assert costs is not None
    return float(costs.min()) if len(costs) else None


def _one_hot(problem: PlacementProblem, tried: list[tuple[int, ...]]) -> np.ndarray:
    """[placements][members][memories]"""
    return np.eye(problem.num_memories)[np.array(tried)]
