"""Celeritas: CPD-TOPO, optimal fusion, then the better of Order-Place and Adjusting Placement.

"Celeritas: Fast Optimizer for Large Dataflow Graphs", sections 4 and 5, DOI
10.48550/arXiv.2208.00184. The tasks, in CPD-TOPO order, are fused into segments by Optimal
Operation Fusion (`coarsen/breakpoints.py`); the segments, in CPD-TOPO order of their graph, are
placed (C++: src/list/order_place.cc, src/list/adjusting_placement.cc); the plan is expanded to the
tasks. Unlike the paper, which holds that Adjusting Placement is never worse than Order-Place (it
is, now and then): both are made, and the shorter one that fits is taken; where neither does, that
of the tasks alone by Adjusting Placement. Order-Place's alone is taken where the time is up then.
Costs of a segment are sums over its tasks.
"""

from dataclasses import replace

from heteroplace.coarsen.breakpoints import fuse_segments
from heteroplace.coarsen.coarse import Coarsening, coarsen
from heteroplace.coarsen.joined_groups import join_colocation_groups
from heteroplace.errors import SolverLimitError
from heteroplace.native.core_problem import UNREACHABLE_PENALTY, NativePlan
from heteroplace.native.list import adjusting_placement, critical_path_order, order_place
from heteroplace.native.simulate import native_plan_of
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.feasibility import overflow
from heteroplace.solve.list.scheduler_solver import ListSolver
from heteroplace.solve.problem import Problem


class CeleritasSolver(ListSolver):
    """The whole system of Celeritas; ties: Order-Place."""

    name = "celeritas"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`. O(n log n + m) beside the schedulers."""
        graph, cluster = problem.graph, problem.cluster
        joined = join_colocation_groups(graph, cluster, problem.costs)
        fused = coarsen(joined, fuse_segments(joined, cluster, problem.costs).groups)
        costs = fused.project_costs(problem.costs, cluster)
        groups = replace(problem, graph=fused.graph, costs=costs)
        order = critical_path_order(groups.native)
        best = self._expanded(problem, fused, groups, order_place(groups.native, order))
        try:
            adjusted = adjusting_placement(groups.native, order, deadline.left_s())
        except SolverLimitError:
            if best.violation:
                raise
            return best
        other = self._expanded(problem, fused, groups, adjusted)
        best = min(best, other, key=lambda plan: (plan.violation, plan.makespan_ns))
        if not best.violation:
            return best
        order = critical_path_order(problem.native)
        alone = adjusting_placement(problem.native, order, deadline.left_s())
        return min(best, alone, key=lambda plan: (plan.violation, plan.makespan_ns))

    def _expanded(
        self, problem: Problem, fused: Coarsening, groups: Problem, plan: NativePlan
    ) -> NativePlan:
        """The plan of the tasks; tensors inside segments live too, which their graph hides."""
        steps = fused.expand_plan(groups.native.plan(plan.steps, self.name)).steps
        if plan.violation >= UNREACHABLE_PENALTY:  # It lacks copies, and cannot be timed.
            expanded = native_plan_of(problem.native, steps, plan.makespan_ns)
            return replace(expanded, violation=plan.violation)
        violation = max(plan.violation, sum(overflow(problem, steps)))
        return replace(native_plan_of(problem.native, steps), violation=violation)
