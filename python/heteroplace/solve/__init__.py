"""Solvers: TaskGraph + Cluster + CostTable -> SolveResult."""

from heteroplace.solve.bounds import Bound, lower_bound
from heteroplace.solve.explain import explain
from heteroplace.solve.network import solve_network
from heteroplace.solve.problem import Problem, ProgressReport, SolveOptions, SolveResult
from heteroplace.solve.registry import SOLVERS, Solver, get_solver

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
