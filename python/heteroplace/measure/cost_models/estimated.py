"""Costs from sizes and peak speeds, by the roofline; nothing is run or compiled."""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.costs.roofline import estimate_costs
from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.measure.cost_models.table import GivenCosts
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph


class EstimatedCosts(GivenCosts):
    """As a table that `estimate_costs` makes."""

    def __init__(self, options: CostOptions, _source: str = "") -> None:
        super().__init__(options, estimate_costs)

    def _table(self, graph: TaskGraph, cluster: Cluster, batches: Sequence[int]) -> CostTable:
        return estimate_costs(graph, cluster, batches, self._measure_speeds)
