"""Costs of kernels that run alone: quicker than in place, less exact, shared between networks."""

from __future__ import annotations

from heteroplace.measure.cost_models.measured import MeasuredCosts


class IsolatedCosts(MeasuredCosts):
    """As `MeasuredCosts`, each distinct kernel by itself."""

    has_interference = False
    finds_interference = False
    is_in_place = False
