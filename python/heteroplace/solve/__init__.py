"""Solvers: TaskGraph + Cluster + CostTable -> SolveResult."""

from heteroplace.solve.adjusting_placement import AdjustingPlacementSolver
from heteroplace.solve.auto import AutoSolver
from heteroplace.solve.base import (
    SOLVERS,
    Problem,
    SolveOptions,
    Solver,
    SolveResult,
    get_solver,
)
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.cpsat import CpSatSolver
from heteroplace.solve.etf import EtfSolver
from heteroplace.solve.explain import explain
from heteroplace.solve.getf import GetfSolver
from heteroplace.solve.greedy import GreedySolver
from heteroplace.solve.heft import HeftSolver
from heteroplace.solve.m_etf import MEtfSolver
from heteroplace.solve.m_sct import MSctSolver
from heteroplace.solve.m_topo import MTopoSolver, UniformMTopoSolver
from heteroplace.solve.met import MetSolver
from heteroplace.solve.order_place import OrderPlaceSolver
from heteroplace.solve.search import SearchSolver
from heteroplace.solve.single import SingleSolver

for _solver in (
    AutoSolver(),
    SingleSolver(),
    HeftSolver(),
    SearchSolver(),
    CpSatSolver(),
    MetSolver(),
    GreedySolver(),
    EtfSolver(),
    MTopoSolver(),
    UniformMTopoSolver(),
    MEtfSolver(),
    MSctSolver(),
    GetfSolver(),
    OrderPlaceSolver(),
    AdjustingPlacementSolver(),
):
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
