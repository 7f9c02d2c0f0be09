"""PlacementProblem -> where branches lie, what that costs, and what no placement costs less than.

Up to `MAX_EXACT_MEMBERS` members by the search, then by a mixed-integer program that may prove it;
above that by the search alone, whose bound is that of pairs of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from heteroplace.errors import InfeasibleError, RoutingError
from heteroplace.model.routed.route_profile import Cells
from heteroplace.model.units import format_bytes
from heteroplace.parts.routing.dynamic.all_to_all import Counts, exchange_counts
from heteroplace.parts.routing.dynamic.placement_problem import (
    BranchMemories,
    PlacementProblem,
    crossing_cells,
    in_order,
    objective,
    relaxed_bound,
)
from heteroplace.parts.routing.dynamic.placement_program import solve_program
from heteroplace.parts.routing.dynamic.placement_search import search_placement
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import SolveOptions

MAX_EXACT_MEMBERS = 200
"""Above this the program's first relaxation takes longer than the search to end."""
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class BranchPlacement:
    """Where the members of each layer lie."""

    memories: BranchMemories
    objective: float
    """ns, or cells where the problem has no times; per run."""
    bound: float
    """No placement is below."""
    crossing_cells: float
    """Mean cells per run that change their memory between layers."""
    default_cells: float
    """The same of members in order, which know nothing of each other."""
    default_objective: float
    """Of members in order."""
    is_optimal: bool
    """The bound is as high, up to the arithmetic of the engine."""
    solver: str
    """What found it."""
    is_even: bool = True
    """False: shares are as unequal as room makes them, where `place_anyhow` found no equal ones."""

    @property
    def saved_share(self) -> float:
        """The part of the default's crossing cells that this one saves."""
        if not self.default_cells:
            return 0.0
        return 1 - self.crossing_cells / self.default_cells

    def text(self, unit: str = "cells") -> str:
        """Return it as a line; `unit`: of what goes between members."""
        proven = "optimal" if self.is_optimal else f"no less than {self.bound:.6g}"
        shares = "" if self.is_even else "; no equal shares fit, so they are unequal"
        return (
            f"{self.crossing_cells:.6g} {unit} per run change their memory, in order "
            f"{self.default_cells:.6g} ({-100 * self.saved_share:.0f} %); objective "
            f"{self.objective:.6g}, {proven}, by {self.solver}{shares}"
        )


def place_branches(
    problem: PlacementProblem, options: SolveOptions | None = None
) -> BranchPlacement:
    """Return the best placement found; it never costs more than members in order, if these fit.

    Parameters
    ----------
    options
        `seed`, `time_limit_s` and `engine` count; None: those by default. The search has half of
        the time, the program what is left.

    Raises
    ------
    InfeasibleError
        No placement fits into the memories, or none was found; of even layers none that is even.
    SolverError
        The engine that was asked for cannot be used.
    """
    options = options or SolveOptions()
    _check_room(problem)
    default = in_order(problem)
    deadline = Deadline.after(options.time_limit_s)
    half = deadline.within(options.time_limit_s / 2)
    best, solver = search_placement(problem, options.seed, half), "search"
    bound, tolerance, is_infeasible = relaxed_bound(problem), 0.0, False
    found_cost = np.inf if best is None else objective(problem, best)
    num_members = sum(layer.num_members for layer in problem.layers)
    if num_members <= MAX_EXACT_MEMBERS and found_cost > bound + _TOLERANCE * max(1.0, bound):
        end = solve_program(problem, replace(options, time_limit_s=deadline.left_s()))
        bound, is_infeasible = max(bound, end.bound), end.is_infeasible
        tolerance = 2 * end.tolerance
        if end.placement is not None:
            cost = objective(problem, end.placement)
            if best is None or cost < found_cost * (1 - _TOLERANCE):
                best, solver = end.placement, end.engine
    if best is None:
        raise InfeasibleError(_no_room(problem, is_proven=is_infeasible))
    cost = objective(problem, best)
    return BranchPlacement(
        best,
        cost,
        min(bound, cost),
        crossing_cells(problem, best),
        crossing_cells(problem, default),
        objective(problem, default),
        cost <= bound + max(tolerance, _TOLERANCE * cost),
        solver,
    )


def place_anyhow(problem: PlacementProblem, options: SolveOptions | None = None) -> BranchPlacement:
    """Return what `place_branches` does; where no even placement fits, members lie anywhere.

    Memories of very different sizes may have room for all branches, but not for equal shares.

    Raises
    ------
    InfeasibleError, SolverError
        As of `place_branches`, of the problem without even layers.
    """
    try:
        return place_branches(problem, options)
    except InfeasibleError:
        if not _even_layers(problem):
            raise
    layers = tuple(replace(layer, is_even=False) for layer in problem.layers)
    return replace(place_branches(replace(problem, layers=layers), options), is_even=False)


def replay(
    decisions: Sequence[Cells], memories: BranchMemories, num_memories: int
) -> tuple[Counts, ...]:
    """Return how many cells go from memory to memory between each two layers of one run.

    For routers that send a cell to one branch or to none: of such a run the counts are exact.

    Parameters
    ----------
    decisions
        Of each layer. [num_layers][num_cells]
    memories
        Of each branch. [num_layers][num_branches]

    Returns
    -------
    counts
        [num_layers - 1], each [num_memories][num_memories]

    Raises
    ------
    RoutingError
        A cell takes several branches.
    """
    several = [taken for cells in decisions for taken in cells if len(taken) > 1]
    if several:
        raise RoutingError(
            f"a cell takes branches {several[0]}: only decisions for one branch can be replayed as "
            f"ways from memory to memory"
        )
    where = [
        [placed[taken[0]] if taken else -1 for taken in cells]
        for cells, placed in zip(decisions, memories, strict=True)
    ]
    return tuple(exchange_counts(src, dst, num_memories) for src, dst in pairwise(where))


def _check_room(problem: PlacementProblem) -> None:
    """Raise InfeasibleError if the weights of all or of one member are too large."""
    if not problem.memory_bytes:
        return
    total = sum(sum(layer.weight_bytes) for layer in problem.layers)
    largest = max(
        (
            (weight, layer.name, member)
            for layer in problem.layers
            for member, weight in enumerate(layer.weight_bytes)
        ),
        default=(0, "", 0),
    )
    if total > sum(problem.memory_bytes) or largest[0] > max(problem.memory_bytes):
        raise InfeasibleError(_no_room(problem, is_proven=True, is_for_all=True))


def _even_layers(problem: PlacementProblem) -> list[str]:
    """Names of the layers of which each memory is to have an equal share."""
    return [layer.name for layer in problem.layers if layer.is_even and layer.fixed is None]


def _no_room(problem: PlacementProblem, *, is_proven: bool, is_for_all: bool = False) -> str:
    """What to tell; `is_for_all`: also of shares that are not equal."""
    rooms = ", ".join(format_bytes(room) for room in problem.memory_bytes) or "any"
    weights = [weight for layer in problem.layers for weight in layer.weight_bytes]
    shares = ""
    if not is_for_all and _even_layers(problem):
        shares = " with equal shares of a router in each memory"
    return (
        f"no placement of {len(weights)} branches{shares} fits: their weights are "
        f"{format_bytes(sum(weights))}, the largest {format_bytes(max(weights, default=0))}; the "
        f"memories have {rooms}{'' if is_proven else ' (none was found in the time given)'}. Give "
        f"them more room, place fewer routers, or keep weights elsewhere and preload them"
    )
