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
from heteroplace.solve.bounds import Bound, lower_bound
from heteroplace.solve.explain import explain

# A new solver is one more line; `auto` is the default of the command line and of the pass.
for _name, _module, _class_name in (
    ("auto", "auto", "AutoSolver"),
    ("single", "single", "SingleSolver"),
    ("heft", "heft", "HeftSolver"),
    ("met", "met", "MetSolver"),
    ("greedy", "greedy", "GreedySolver"),
    ("etf", "etf", "EtfSolver"),
    ("m-topo", "m_topo", "MTopoSolver"),
    ("m-topo-uniform", "m_topo", "UniformMTopoSolver"),
    ("m-etf", "m_etf", "MEtfSolver"),
    ("m-sct", "m_sct", "MSctSolver"),
    ("getf", "getf", "GetfSolver"),
    ("order-place", "order_place", "OrderPlaceSolver"),
    ("adjusting-placement", "adjusting_placement", "AdjustingPlacementSolver"),
    ("metis", "metis", "MetisSolver"),
    ("sa", "sa", "SaSolver"),
    ("ea", "ea", "EaSolver"),
    ("cross-entropy", "cross_entropy", "CrossEntropySolver"),
    ("bmet", "bmet", "BatchedMetSolver"),
    ("bgreedy", "bgreedy", "BatchedGreedySolver"),
    ("bheft", "bheft", "BatchedHeftSolver"),
    ("divi", "divi_milp", "DiviSolver"),
    ("search", "search", "SearchSolver"),
    ("cpsat", "exact.cpsat", "CpSatSolver"),
    ("moirai", "exact.moirai", "MoiraiSolver"),
    ("lns", "lns.solver", "LnsSolver"),
    ("throughput", "throughput", "ThroughputSolver"),
):
    SOLVERS.add(_name, f"heteroplace.solve.{_module}", _class_name)

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
]
