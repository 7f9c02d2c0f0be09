"""Plan -> time per item in a steady state without batches.

With many items under way at once, each resource serves the steps of one item after those of
another, in whatever order keeps it busy; so the time per item is the largest sum of durations of
the steps of one item on any resource: a unit of a device, or what copies occupy.
"""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run, Step
from heteroplace.simulate.metrics import busy_ns


def throughput_ns(graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan) -> int:
    """Return the time per item of `plan` in ns; 1e9 over it is the throughput in items per second.

    Raises
    ------
    MissingCostError
        A cost that is needed is unknown.
    """
    # Many copies have the same route and size.
    transfers_ns: dict[tuple[tuple[int, ...], int], int] = {}

    def duration_ns(step: Step) -> int:
        if isinstance(step, Run):
            return costs.run_ns(step.task, step.device) or 0
        key = (step.route, graph.tensors[step.tensor].bytes)
        if key not in transfers_ns:
            transfers_ns[key] = cluster.transfer_ns(*key)
        return transfers_ns[key]

    return max(busy_ns(cluster, plan.steps, map(duration_ns, plan.steps)))
