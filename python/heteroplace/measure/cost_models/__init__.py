"""Network + cluster -> cost table: one file for each way to come by costs."""

from heteroplace.measure.cost_models.model import (
    COST_MODELS,
    CostModel,
    CostOptions,
    CostSource,
    choose_cost_model,
)

__all__ = ["COST_MODELS", "CostModel", "CostOptions", "CostSource", "choose_cost_model"]
