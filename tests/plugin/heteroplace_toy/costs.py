"""A network and a cluster -> costs: a nanosecond for ten floating-point operations."""

from heteroplace.measure.cost_models.table import GivenCosts
from heteroplace.model.cost import Cost, build_table


class FlopsCosts(GivenCosts):
    def __init__(self, options, name):
        super().__init__(options, costs_by_flops)


def costs_by_flops(graph, cluster):
    return build_table(
        graph, cluster, lambda task, device: Cost.given(1 + graph.tasks[task].flops // 10)
    )
