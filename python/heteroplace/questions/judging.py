"""A plan of any kind -> the number that it is judged by, simulated.

Solvers refuse graphs with routers, collectives or shared tensors; all of them can be simulated.
"""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.solution import Solution
from heteroplace.simulate.simulator import simulate
from heteroplace.simulate.throughput import throughput_ns


def judge(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan, *, is_per_item: bool
) -> int:
    """Return the simulated makespan of a plan, or its time per item in a steady state.

    Raises
    ------
    PlanError
        The plan breaks a rule: all faults are named.
    """
    if is_per_item:
        return throughput_ns(graph, cluster, costs, plan)
    return simulate(graph, cluster, costs, plan).makespan_ns


def judged_ns(solution: Solution) -> int:
    """Return that of a solution as it is, for comparisons with what `judge` says of others.

    Of a plan with guards it is what its solver expects of an average run.
    """
    if solution.plan.is_guarded:
        return solution.objective_ns
    if solution.item_ns is None:
        return solution.timeline.makespan_ns
    return throughput_ns(solution.graph, solution.cluster, solution.costs, solution.plan)
