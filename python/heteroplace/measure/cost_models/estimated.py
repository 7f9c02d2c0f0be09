"""Costs from sizes and peak speeds, by the roofline; nothing is run or compiled."""

from __future__ import annotations

from heteroplace.costs.roofline import estimate_costs
from heteroplace.measure.cost_models.model import CostOptions
from heteroplace.measure.cost_models.table import GivenCosts


class EstimatedCosts(GivenCosts):
    """As a table that `estimate_costs` makes."""

    def __init__(self, options: CostOptions, _source: str = "") -> None:
        super().__init__(options, estimate_costs)
