"""Solvers: TaskGraph + Cluster + CostTable -> SolveResult."""

from heteroplace.solve.base import (
    SOLVERS,
    Problem,
    ProgressReport,
    SolveOptions,
    Solver,
    SolveResult,
    get_solver,
)
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.explain import explain

# A new solver is one more line; `auto` is the default of the command line and of the pass.
for _name, _class_name in (
    ("auto", "AutoSolver"),
    ("single", "SingleSolver"),
    ("heft", "HeftSolver"),
    ("search", "SearchSolver"),
    ("cpsat", "CpSatSolver"),
    ("throughput", "ThroughputSolver"),
):
    SOLVERS.add(_name, f"heteroplace.solve.{_name}", _class_name)

__all__ = [
    "SOLVERS",
    "Problem",
    "ProgressReport",
    "SolveOptions",
    "SolveResult",
    "Solver",
    "explain",
    "get_solver",
    "lower_bound",
]
