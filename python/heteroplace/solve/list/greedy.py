"""Greedy: each task where the latency of all that is scheduled so far stays least.

C++: src/list/greedy.cc (list::Greedy). A baseline of "DiviML: A Module-based Heuristic for Mapping
Neural Networks onto Heterogeneous Platforms", section V (arXiv 2308.00127).
"""

from heteroplace.solve.list.solver import ListSolver


class GreedySolver(ListSolver):
    """In topological order, each task where the latency so far stays least."""

    name = "greedy"
