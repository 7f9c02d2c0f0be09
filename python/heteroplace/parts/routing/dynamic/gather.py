"""Groups of cells that an op mixes -> what it costs to bring them together, and as layers to place.

The cells of a sentence meet before attention, on the home of the group; from there they go to the
memories of their branches (scatter) and back to the home of the next layer (gather). Homes are
fixed for all layers, or movable: chosen for each layer, where most of its group's cells come from
and go to. Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023), says that the
cells of a sentence must meet; what that costs is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.dynamic.placement_problem import (
    BranchMemories,
    Layer,
    PlacementProblem,
)

Away = npt.NDArray[np.int64]


def gather_cost(
    routes: Sequence[Sequence[int]],
    groups: Sequence[int],
    memories: BranchMemories,
    num_memories: int,
    *,
    is_movable: bool,
    first_homes: Sequence[int] | None = None,
) -> int:
    """Return how many cells are sent in one run, to their branches and back together.

    Parameters
    ----------
    routes
        The branch of each cell in each layer; -1: it is dropped, and stays at home.
        [num_layers][num_cells]
    groups
        The group of each cell, 0-based. [num_cells]
    memories
        Of each branch. [num_layers][num_branches]
    is_movable
        Homes may differ from layer to layer; else each group has one.
    first_homes
        Where the cells of each group are at the beginning; None: where that is best. Fixed homes
        are these then. [num_groups]

    Raises
    ------
    RoutingError
        Sizes that do not fit together.
    """
    away = _cells_away(routes, groups, memories, num_memories)
    num_groups = away.shape[1]
    if first_homes is not None and len(first_homes) != num_groups:
        raise RoutingError(f"expected homes of {num_groups} groups, got {len(first_homes)}")
    if not is_movable:
        each = 2 * away.sum(axis=0)
        if first_homes is None:
            return int(each.min(axis=1).sum())
        return int(each[np.arange(num_groups), list(first_homes)].sum())
    # The home before layer l is charged by l (scatter) and by l - 1 (gather), and by nothing else.
    first = away[0]
    total = (
        int(first.min(axis=1).sum())
        if first_homes is None
        else int(first[np.arange(num_groups), list(first_homes)].sum())
    )
    for before, after in pairwise(away):
        total += int((before + after).min(axis=1).sum())
    return total + int(away[-1].min(axis=1).sum())


def _cells_away(
    routes: Sequence[Sequence[int]],
    groups: Sequence[int],
    memories: BranchMemories,
    num_memories: int,
) -> Away:
    """Cells of each group whose branch is not in a memory. [layers][num_groups][num_memories]"""
    if len(routes) != len(memories) or any(len(row) != len(groups) for row in routes):
        raise RoutingError(
            f"expected routes of {len(memories)} layers with {len(groups)} cells each, got "
            f"{[len(row) for row in routes]}"
        )
    num_groups = max(groups, default=-1) + 1
    away = np.zeros((len(routes), num_groups, num_memories), dtype=np.int64)
    for layer, (row, placed) in enumerate(zip(routes, memories, strict=True)):
        for cell, branch in enumerate(row):
            if branch >= 0:
                away[layer, groups[cell]] += 1
                away[layer, groups[cell], placed[branch]] -= 1
    return away


def with_homes(
    problem: PlacementProblem,
    cells_of_groups: Sequence[Sequence[Sequence[float]]],
    first_homes: Sequence[int],
    *,
    is_movable: bool,
) -> PlacementProblem:
    """Return the problem in which cells go over the homes of their groups between any two layers.

    ==> homes, layer 0, homes, layer 1, .., homes: layers of homes have a member for each group, no
    weights and no even shares. Cells between them are those of each group that take each branch.

    Parameters
    ----------
    cells_of_groups
        Mean cells per run of each group that take each branch.
        [num_layers][num_groups][num_branches]
    first_homes
        Where the cells of each group are at the beginning: the first scatter counts too.
        [num_groups]
    is_movable
        Homes behind the first layer are chosen; else they are the first ones.

    Raises
    ------
    RoutingError
        Sizes that do not fit together.
    """
    if len(cells_of_groups) != len(problem.layers):
        raise RoutingError(
            f"expected cells of groups in {len(problem.layers)} layers, got {len(cells_of_groups)}"
        )
    homes = tuple(first_homes)
    layers = [Layer("homes 0", len(homes), is_even=False, fixed=homes)]
    cells = []
    for index, (layer, counts) in enumerate(zip(problem.layers, cells_of_groups, strict=True)):
        matrix = tuple(tuple(float(value) for value in row) for row in counts)
        fixed = None if is_movable else homes
        layers += [layer, Layer(f"homes {index + 1}", len(homes), is_even=False, fixed=fixed)]
        cells += [matrix, tuple(zip(*matrix, strict=True))]
    return PlacementProblem(
        problem.num_memories, tuple(layers), tuple(cells), problem.cell_ns, problem.memory_bytes
    )


def without_homes(memories: BranchMemories) -> BranchMemories:
    """Return the branches' part of a placement of a problem that `with_homes` made."""
    return memories[1::2]
