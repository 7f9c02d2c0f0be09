"""A trace and the capacities of routers -> what is executed of it, exactly and without running it.

Rows are those of all branches of all routers, on average over the runs of the trace. A branch runs
at its padded load; what it would run at its very load is useful.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Plan
from heteroplace.model.routed.capacities import padded_load
from heteroplace.model.routed.route_profile import RouteRecord, RouterShape
from heteroplace.model.solution import Solution
from heteroplace.parts.routing.relay.router import RouterOptions
from heteroplace.simulate.decisions import decisions_of_records, expected_ns


class Executed(NamedTuple):
    """Rows of branches in a run, on average."""

    executed: float
    useful: float


def executed_rows(options: Mapping[str, RouterOptions], records: Sequence[RouteRecord]) -> Executed:
    """Return the rows that the routers' branches run, and those that hold a cell.

    Examples
    --------
    >>> router = RouterOptions("r", ((1, 2, 4, 8),) * 3, 2)
    >>> executed_rows({"r": router}, [RouteRecord(0, "r", (3, 4, 0), None)])
    Executed(executed=8.0, useful=7.0)
    """
    num_runs = len({record.run for record in records})
    executed = useful = 0
    for record in records:
        router = options[record.router]
        for load, sizes in zip(record.loads, router.capacities, strict=True):
            executed += padded_load(load, sizes, router.overflow)
            useful += min(load, sizes[-1]) if router.overflow == "drop" else load
    return Executed(executed / num_runs, useful / num_runs)


def hit_rate(records: Sequence[RouteRecord], routers: Sequence[RouterShape]) -> float:
    """Return the share of decisions that are the most frequent set of branches of their router.

    Examples
    --------
    >>> shapes = [RouterShape("r", 1, 2)]
    >>> records = [RouteRecord(n, "r", (1, 0) if n else (0, 1), None) for n in range(4)]
    >>> hit_rate(records, shapes)
    0.75
    """
    hits = 0
    for shape in routers:
        sets = [
            tuple(branch for branch, load in enumerate(record.loads) if load)
            for record in records
            if record.router == shape.name
        ]
        hits += max((sets.count(each) for each in set(sets)), default=0)
    return hits / len(records)


def fullest(records: Sequence[RouteRecord]) -> dict[str, int]:
    """Return for each router the largest load of any of its branches in a trace."""
    found: dict[str, int] = {}
    for record in records:
        found[record.router] = max(found.get(record.router, 1), *record.loads)
    return found


def copied_bytes(graph: TaskGraph, plan: Plan, records: Sequence[RouteRecord]) -> float:
    """Return what a plan's copies move between memories in a run of a trace, on average."""
    total = 0.0
    for step in plan.steps:
        if not isinstance(step, Copy):
            continue
        tensor, guard = graph.tensors[step.tensor], step.guard
        if guard is None:
            total += tensor.bytes
            continue
        router = graph.routers[guard.router]
        loads = [r.loads[guard.branch] for r in records if r.router == router.name]
        # Of a tensor in a routed buffer only the rows go over.
        shares = [
            load / router.num_cells if tensor.buffer is not None else float(load > 0)
            for load in loads
        ]
        total += tensor.bytes * sum(shares) / len(shares)
    return total


def predicted_ns(solution: Solution, records: Sequence[RouteRecord]) -> float:
    """Return the mean makespan of a plan over the runs of a trace, simulated; of a plan without
    routers that of every run."""
    graph = solution.graph
    if not graph.routers:
        return float(solution.predicted_ns)
    predicted = {each.prediction.router: each.prediction.branches for each in solution.predictions}
    known = [record for record in records if record.router in graph.router_ids]
    decisions = decisions_of_records(graph, known, predicted)
    return expected_ns(graph, solution.cluster, solution.costs, solution.plan, decisions)
