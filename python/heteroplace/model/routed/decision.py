"""What the routers of a network decide in one run, and what is predicted of it.

A plan of a routed network has one timeline for each decision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from heteroplace.errors import RoutingError
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Guard
from heteroplace.model.routed.capacities import padded_load
from heteroplace.model.routed.routers import Router


@dataclass(frozen=True)
class Decision:
    """Cells of each branch in one run, by the ids of the routers; made by `decision_of`."""

    loads: tuple[tuple[int, ...], ...]
    """[num_routers][num_branches]"""
    predicted: tuple[frozenset[int], ...]
    """[num_routers], the branches that are predicted to have a load."""

    def makes(self, guard: Guard) -> bool:
        """Say whether a step with that guard is made."""
        is_active = self.loads[guard.router][guard.branch] > 0
        is_predicted = guard.branch in self.predicted[guard.router]
        if guard.when == "predicted":
            return is_predicted
        return is_active and not (guard.when == "missed" and is_predicted)

    def cells(self, graph: TaskGraph, guard: Guard) -> int:
        """Return how many cells of a branch are not dropped."""
        router = graph.routers[guard.router]
        load = self.loads[guard.router][guard.branch]
        return min(load, router.capacities[guard.branch][-1]) if router.overflow == "drop" else load

    def rounds(self, graph: TaskGraph, guard: Guard) -> tuple[tuple[int, int], ...]:
        """Return (capacity, how often) of the runs of a task of a branch, for a step that is made.

        What is predicted, and wrongly, computes one cell.
        """
        router = graph.routers[guard.router]
        capacities = router.capacities[guard.branch]
        load = max(1, self.loads[guard.router][guard.branch])
        full, rest = divmod(padded_load(load, capacities, router.overflow), capacities[-1])
        return tuple((rows, times) for rows, times in ((capacities[-1], full), (rest, 1)) if rows)


def decision_of(
    graph: TaskGraph,
    loads: Mapping[str, Sequence[int]],
    predicted: Mapping[str, Collection[int]] | None = None,
) -> Decision:
    """Return the decision of loads, by the names of the routers.

    Parameters
    ----------
    loads
        For each router the cells of its branches; a router in a branch without cells may be left
        out.
    predicted
        For routers the branches that are predicted to have a load; left out: none.

    Raises
    ------
    RoutingError
        A router does not exist or is left out, its loads are none that it can decide, or a branch
        does not exist.
    """
    predicted = predicted or {}
    for name in (*loads, *predicted):
        if name not in graph.router_ids:
            names = ", ".join(graph.router_ids) or "none"
            raise RoutingError(f"graph {graph.name!r} has no router {name!r}; there are: {names}")
    branches_taken: list[tuple[int, ...]] = []
    # Parents come first: the task of an inner router reads what the outer one makes.
    for router in graph.routers:
        is_reached = router.parent is None or _parent_load(graph, branches_taken, router.parent) > 0
        if router.name not in loads and is_reached:
            raise RoutingError(f"no loads are given for router {router.name!r}")
        given = tuple(loads.get(router.name, (0,) * router.num_branches))
        _check_loads(router, given, is_reached)
        branches_taken.append(given)
    sets = []
    for router in graph.routers:
        branches = frozenset(predicted.get(router.name, ()))
        if not branches <= set(range(router.num_branches)):
            raise RoutingError(
                f"router {router.name!r} is predicted to take branches {sorted(branches)}; it has "
                f"0 to {router.num_branches - 1}"
            )
        sets.append(branches)
    return Decision(tuple(branches_taken), tuple(sets))


def _parent_load(graph: TaskGraph, loads: Sequence[Sequence[int]], parent: tuple[str, int]) -> int:
    router, branch = parent
    return loads[graph.router_ids[router]][branch]


def _check_loads(router: Router, loads: tuple[int, ...], is_reached: bool) -> None:
    most = router.num_cells * router.top_k
    fault = ""
    if len(loads) != router.num_branches:
        fault = f"expected one for each of its {router.num_branches} branches"
    elif not all(0 <= load <= router.num_cells for load in loads):
        fault = f"expected 0 to {router.num_cells} cells in each branch"
    elif sum(loads) > most:
        fault = (
            f"expected at most {most} together: {router.num_cells} cells in {router.top_k} "
            f"branches each"
        )
    elif any(loads) and not is_reached:
        fault = "the branch that it is in has no cells; expected none here"
    elif router.overflow == "error":
        sizes = zip(loads, router.capacities, strict=True)
        over = [branch for branch, (load, caps) in enumerate(sizes) if load > caps[-1]]
        if over:
            most = router.capacities[over[0]][-1]
            fault = f"branch {over[0]} holds at most {most}, and its overflow is an error"
    if fault:
        raise RoutingError(f"the loads of router {router.name!r} are {loads}; {fault}")
