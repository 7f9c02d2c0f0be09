"""Solvers: TaskGraph + Cluster + CostTable -> SolveResult."""

from heteroplace.solve.auto import AutoSolver
from heteroplace.solve.base import (
    SOLVERS,
    Problem,
    SolveOptions,
    Solver,
    SolveResult,
    get_solver,
)
from heteroplace.solve.bgreedy import BatchedGreedySolver
from heteroplace.solve.bheft import BatchedHeftSolver
from heteroplace.solve.bmet import BatchedMetSolver
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.cpsat import CpSatSolver
from heteroplace.solve.cross_entropy import CrossEntropySolver
from heteroplace.solve.ea import EaSolver
from heteroplace.solve.explain import explain
from heteroplace.solve.heft import HeftSolver
from heteroplace.solve.metis import MetisSolver
from heteroplace.solve.sa import SaSolver
from heteroplace.solve.search import SearchSolver
from heteroplace.solve.single import SingleSolver

_ALL: tuple[Solver, ...] = (
    AutoSolver(),
    SingleSolver(),
    HeftSolver(),
    MetisSolver(),
    SaSolver(),
    EaSolver(),
    CrossEntropySolver(),
    BatchedMetSolver(),
    BatchedGreedySolver(),
    BatchedHeftSolver(),
    SearchSolver(),
    CpSatSolver(),
)
for _solver in _ALL:
    SOLVERS[_solver.name] = _solver

__all__ = [
    "SOLVERS",
    "Problem",
    "SolveOptions",
    "SolveResult",
    "Solver",
    "explain",
    "get_solver",
    "lower_bound",
]
