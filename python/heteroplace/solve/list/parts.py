"""List schedulers made of three parts: which task is next, what its device is chosen by, and where.

C++: src/list/engine/list_parts.cc names the papers. Coleman, Agrawal, Hirani, Krishnamachari,
"Parameterized Task Graph Scheduling Algorithm for Comparing Algorithmic Components", 2024 (arXiv
2403.07112), is the idea; `critical path reservation` of theirs is the choice `path` here.
"""

from __future__ import annotations

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import NAMED_PARTS, ListParts, plan_by
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.list.scheduler_solver import ListSolver
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, list_parts_of


class PartsSolver:
    """The scheduler `list`: of the parts that the option `list_parts` names."""

    name = "list"
    takes_list_parts = True

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        return _Given(list_parts_of(options.list_parts)).solve(problem, options)


class _Given(ListSolver):
    """One of the given parts."""

    name = PartsSolver.name

    def __init__(self, parts: ListParts) -> None:
        self._parts = parts

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return plan_by(problem.native, self._parts, deadline.left_s())


class NamedPartsSolver(ListSolver):
    """One of the literature, of NAMED_PARTS by its name."""

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return plan_by(problem.native, NAMED_PARTS[self.name], deadline.left_s())


class CpopSolver(NamedPartsSolver):
    """The critical path on one device, all other tasks where they finish first.

    Topcuoglu, Hariri, Wu, "Performance-Effective and Low-Complexity Task Scheduling for
    Heterogeneous Computing", 2002, section 4.3 (10.1109/71.993206).
    """

    name = "cpop"


class PeftSolver(NamedPartsSolver):
    """Each task where its finish plus the least time of all that follows is least.

    Arabnejad, Barbosa, "List Scheduling Algorithm for Heterogeneous Systems by an Optimistic Cost
    Table", 2014 (10.1109/TPDS.2013.57).
    """

    name = "peft"


class MetSolver(NamedPartsSolver):
    """Each task on the device that runs it fastest; memory permitting.

    Braun et al., "A Comparison of Eleven Static Heuristics for Mapping a Class of Independent Tasks
    onto Heterogeneous Distributed Computing Systems", 2001 (10.1006/jpdc.2000.1714); a baseline of
    DiviML (section V).
    """

    name = "met"


class MctSolver(NamedPartsSolver):
    """In topological order, each task behind all others where it is done first (Braun et al.)."""

    name = "mct"


class OlbSolver(NamedPartsSolver):
    """In topological order, each task on the device that is free first (Braun et al.)."""

    name = "olb"


class MinMinSolver(NamedPartsSolver):
    """Of a batch of ready tasks the one that can be done first goes next (Braun et al.)."""

    name = "min-min"


class MaxMinSolver(NamedPartsSolver):
    """Of a batch of ready tasks the one that is done last at its best goes next (Braun et al.)."""

    name = "max-min"


class SufferageSolver(NamedPartsSolver):
    """Of the ready tasks the one goes next that is done latest at its second best, over its best.

    Maheswaran, Ali, Siegel, Hensgen, Freund, "Dynamic Mapping of a Class of Independent Tasks onto
    Heterogeneous Computing Systems", 1999 (10.1006/jpdc.1999.1581).
    """

    name = "sufferage"


class GreedySolver(NamedPartsSolver):
    """In topological order, each task where the latency so far stays least.

    A baseline of "DiviML: A Module-based Heuristic for Mapping Neural Networks onto Heterogeneous
    Platforms", section V (arXiv 2308.00127).
    """

    name = "greedy"
