"""Network + cluster -> cost table: one file for each way to come by costs."""

from heteroplace.measure.cost_models.cost_model import (
    CostModel,
    CostOptions,
    choose_cost_model,
)

__all__ = ["CostModel", "CostOptions", "choose_cost_model"]
