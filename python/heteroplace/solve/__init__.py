"""Solvers: TaskGraph + Cluster + CostTable -> SolveResult.

Commands read the names of solvers and their options from here, and mostly solve nothing. So the
functions that solve, and bounds, are loaded at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heteroplace.entries import load_entry
from heteroplace.solve.problem import Problem, ProgressReport, SolveOptions, SolveResult
from heteroplace.solve.solvers import SOLVERS, Solver, get_solver

if TYPE_CHECKING:
    from heteroplace.solve.bounds.bound import Bound
    from heteroplace.solve.bounds.lower_bound import lower_bound
    from heteroplace.solve.network_solution import solve_network
    from heteroplace.solve.plan_reasons import explain

__all__ = [
    "SOLVERS",
    "Bound",
    "Problem",
    "ProgressReport",
    "SolveOptions",
    "SolveResult",
    "Solver",
    "explain",
    "get_solver",
    "lower_bound",
    "solve_network",
]

_LATE = {
    "Bound": "heteroplace.solve.bounds:Bound",
    "explain": "heteroplace.solve.plan_reasons:explain",
    "lower_bound": "heteroplace.solve.bounds:lower_bound",
    "solve_network": "heteroplace.solve.network_solution:solve_network",
}


def __getattr__(name: str) -> Any:
    """Load a name of `_LATE`."""
    if name not in _LATE:
        raise AttributeError(f"module 'heteroplace.solve' has no attribute {name!r}")
    return load_entry(_LATE[name])
