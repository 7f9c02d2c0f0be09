"""Adjusting Placement (Celeritas, section 5.3, algorithm 2). See `src/sched/adjusting_placement.h`.

The paper returns a best-effort plan when all devices are full. `adjusting_placement` does too, with
the excess of each memory; the solver, whose plans can all be run, raises InfeasibleError instead.
Celeritas claims that no step of it is worse than Order-Place. That holds step by step only, so a
user of both takes the better plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.native import baselines
from heteroplace.native.schedule import Draft
from heteroplace.solve.feasibility import excess_bytes
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


@dataclass(frozen=True)
class AdjustedDraft:
    """A schedule that may need more memory than there is."""

    draft: Draft
    excess_bytes: dict[str, int]
    """Bytes that memories lack, by name; empty: it fits."""

    @property
    def is_overcommitted(self) -> bool:
        """Whether some memory lacks room."""
        return bool(self.excess_bytes)


class AdjustingPlacementSolver(ListSolver):
    """In CPD-TOPO order, each task where the one before is, unless another device pays."""

    name = "adjusting-placement"

    def draft(self, problem: Problem) -> Draft:
        """See `ListSolver.draft`."""
        return adjusting_placement(problem).draft


def adjusting_placement(problem: Problem) -> AdjustedDraft:
    """Return the plan of the algorithm, flagged if it overcommits memories.

    Complexity: O((tasks + reads) * devices * log), and the sorting of CPD-TOPO.
    """
    draft = baselines.adjusting_placement(
        problem.native, baselines.critical_path_order(problem.native)
    )
    return AdjustedDraft(draft, excess_bytes(problem, draft) if draft.violation else {})
