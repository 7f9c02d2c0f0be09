"""m-SCT: m-ETF with devices that wait for favourite children.

C++: src/list/m_sct.cc (list::MSct). Jeon et al., "Baechi: Fast Device Placement of Machine Learning
Graphs", SoCC 2020, section 3 (10.1145/3419111.3421302).

A linear programme, `m_sct_lp.py`, chooses for each task a favourite child, which should follow it
on its device; the scheduler then is m-ETF with devices that wait for favourite children.

Favourites are a gamble: where memories are nearly full, one in 2,000 more or less can move the
makespan by 10 %, as it decides whose tensors fill the fast devices; then m-ETF may be shorter.
"""

from __future__ import annotations

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import m_sct, mean_graph
from heteroplace.solve.baselines.m_sct_lp import favourite_children
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.list.scheduler_solver import ListSolver
from heteroplace.solve.problem import Problem

THRESHOLD = 0.1
"""Edges with f up to that are favourites: what Baechi's experiments use."""


class MSctSolver(ListSolver):
    """m-ETF with devices that wait for favourite children."""

    name = "m-sct"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        graph = mean_graph(problem.native)
        favourite = favourite_children(graph, THRESHOLD, deadline)
        return m_sct(problem.native, favourite, deadline.left_s())
