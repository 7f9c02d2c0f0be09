"""The steps of lowering a routed network -> one object, which the core asks for by name."""

from __future__ import annotations

from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.routed_lowering import RoutedLowering
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.parts.routing.lower.branch_program import BranchProgram
from heteroplace.parts.routing.lower.branches import Branches
from heteroplace.parts.routing.lower.elide_row_copies import with_rows_handed_on
from heteroplace.parts.routing.lower.fixed_capacity import at_capacity
from heteroplace.parts.routing.lower.loaded_weights import load_copies, with_loads
from heteroplace.parts.routing.lower.predictions import with_hit_rates, with_predictions
from heteroplace.parts.routing.lower.routed import lower_routed
from heteroplace.parts.routing.lower.sink_layout_transforms import sunk_calls


class _Lowering:
    lower_network = staticmethod(lower_routed)
    at_capacity = staticmethod(at_capacity)
    guards = staticmethod(Branches)
    load_copies = staticmethod(load_copies)
    guarded_program = staticmethod(BranchProgram)
    with_predictions = staticmethod(with_hit_rates)

    @staticmethod
    def without_row_copies(
        calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan
    ) -> KernelCalls:
        sunk = sunk_calls(calls, graph, cluster, plan)
        return with_rows_handed_on(sunk, graph, cluster, plan)

    @staticmethod
    def with_planned_steps(calls: KernelCalls, graph: TaskGraph, plan: Plan) -> KernelCalls:
        return with_loads(with_predictions(calls, graph, plan), graph, plan)


LOWERING: RoutedLowering = _Lowering()
"""The plugin `lowering` of the seam `routers`."""
