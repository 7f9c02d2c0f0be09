"""Costs + interference + plan -> costs of tasks as they run beside that plan.

A solver minimises fixed times. These are fixed times that know what a plan loses: those of a device
are longer by the share of its work in a plan during which the devices beside it work too. A plan
that is solved with them is judged by `expect`, and gives the shares of the next ones.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.simulate.disturbed import DisturbedRuns, times_alone
from heteroplace.simulate.interference import Interference
from heteroplace.simulate.simulator import simulate

_LEAST_SPEED = 0.05
"""Of a task beside others, of its speed alone: twenty times slower is the most measured."""


class DisturbedCosts(NamedTuple):
    """What `costs_beside` returns."""

    costs: CostTable
    lost_ratio: float
    """Of the time of the plan's own tasks, the part that they lose to each other."""


def costs_beside(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    plan: Plan,
    interference: Interference,
) -> DisturbedCosts:
    """Return the costs of tasks beside a plan, for one item, and what the plan loses.

    A task with slowdown s loses 1 - 1 / s of the time during which all others work, so beside
    others that work for a share q of it, it takes its time alone / (1 - q (1 - 1 / s)).

    Raises
    ------
    CostMismatchError
        `costs` or `interference` belong to another graph or cluster.
    PlanError
        As `simulate`.
    """
    runs = DisturbedRuns(graph, cluster, plan, interference)
    alone_ns = times_alone(plan, simulate(graph, cluster, costs, plan))
    start, finish = runs.play(runs.durations(costs, alone_ns, (None,)))
    beside = runs.shares_beside(start[:, 0], finish[:, 0])
    lost = beside[0] * (1 - 1 / interference.slowdown)
    lost += beside[1] * (1 - 1 / interference.copy_slowdown)
    speeds = np.maximum(1 - lost, _LEAST_SPEED)
    times = np.array(costs.ns[0], dtype=np.int64).reshape(speeds.shape)
    disturbed = np.where(times > 0, np.rint(times * interference.pace(costs) / speeds), times)
    rows = [(step.task, step.device) for step in plan.steps if isinstance(step, Run)]
    tasks, devices = np.array(rows).T if rows else np.zeros((2, 0), dtype=int)
    work_ns = disturbed[tasks, devices]
    lost_ns = float((work_ns * (1 - speeds[tasks, devices])).sum())
    beside_ns = array("q", disturbed.astype(np.int64).ravel().tolist())
    return DisturbedCosts(
        replace(costs, ns=(beside_ns, *costs.ns[1:])), lost_ns / max(1.0, float(work_ns.sum()))
    )
