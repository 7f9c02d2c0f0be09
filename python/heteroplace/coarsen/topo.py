"""Topological orders of tasks: M-TOPO, DFS-TOPO and CPD-TOPO (Celeritas).

Sections 4.2 and 5.1, DOI 10.48550/arXiv.2208.00184.

All three keep a list of tasks whose producers are out and take its head; freed tasks go to the
tail (M), to the head (DFS), or to the head with the longest path first (CPD). Ties go to the lower
task id. On unlike devices the paths of CPD are those of `heteroplace.coarsen.levels`.
"""

from __future__ import annotations

from heteroplace.coarsen.levels import LevelWeights
from heteroplace.errors import SolverError
from heteroplace.native.core_graph import IntArray

ORDERS = ("m", "dfs", "cpd")
"""Names that `order_tasks` knows."""


def m_topo(weights: LevelWeights) -> IntArray:
    """Return the breadth-first order. O(n + m)."""
    return weights.dag.breadth_first_order()


def dfs_topo(weights: LevelWeights) -> IntArray:
    """Return the depth-first order. O(n + m)."""
    return weights.dag.depth_first_order()


def cpd_topo(weights: LevelWeights) -> IntArray:
    """Return the depth-first order that follows critical paths. O(n log n + m).

    Tasks of one critical path become neighbours, so that fusing segments of the order joins them.
    """
    return weights.dag.critical_path_order(weights.levels().through_ns)


def order_tasks(weights: LevelWeights, rule: str = "cpd") -> IntArray:
    """Return the order that `rule` names: "m", "dfs" or "cpd".

    Raises
    ------
    SolverError
        There is no such rule.
    """
    rules = {"m": m_topo, "dfs": dfs_topo, "cpd": cpd_topo}
    if rule not in rules:
        raise SolverError(f"no order of tasks is called {rule!r}; expected one of {list(rules)}")
    return rules[rule](weights)
