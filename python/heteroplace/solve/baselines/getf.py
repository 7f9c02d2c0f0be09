"""GETF: a linear programme chooses a group of equally fast devices, ETF the device in it.

C++: src/list/engine/ready_queue.cc (list::PlaceEarliest), with the real transfers, which the
programme leaves out. Su, Ren, Vanderbei, Wierman, "Communication-Aware Scheduling of
Precedence-Constrained Tasks on Related Machines", 2020 (arXiv 2004.14639).

The programme is `getf_lp.py`. Unlike the paper, the machines are not related: groups are devices
with equal run times for all tasks; memory bounds the groups. Copies need room that the programme
does not know, so where ETF runs out of it the programme is solved again with less memory.
"""

from __future__ import annotations

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import etf
from heteroplace.solve.baselines.getf_lp import assign_groups, speed_groups
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.list.scheduler_solver import ListSolver
from heteroplace.solve.problem import Problem

_MEMORY_SHARES = (1.0, 0.9, 0.8, 0.7)
"""Parts of the memories that the programme may fill, tried one after the other."""


class GetfSolver(ListSolver):
    """Group by a linear programme, device by ETF."""

    name = "getf"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`; of plans that all overflow, the one that does least."""
        groups = speed_groups(problem)
        plans: list[NativePlan] = []
        for share in _MEMORY_SHARES:
            chosen = assign_groups(problem, groups, share, deadline)
            if chosen is None:
                break
            is_allowed = problem.native.run_ns >= 0
            devices = [
                [device for device in groups[group] if is_allowed[task, device]]
                for task, group in enumerate(chosen)
            ]
            plans.append(etf(problem.native, devices, deadline.left_s()))
            if plans[-1].violation == 0:
                return plans[-1]
        if not plans:
            return etf(problem.native, None, deadline.left_s())
        return min(plans, key=lambda plan: plan.violation)
