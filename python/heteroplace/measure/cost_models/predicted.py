"""Costs measured on the devices that are here, and predicted from them on the others."""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.costs.prediction.predict import predict_costs
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.cost_models.measured import MeasuredCosts
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable


class PredictedCosts(MeasuredCosts):
    """As `MeasuredCosts`, for clusters of other machines too.

    Where none of the devices is here, nothing is measured, and all is predicted from figures.
    """

    has_interference = False
    skips_absent = True

    def costs(
        self, compiled: CompiledNetwork, cluster: Cluster, batches: Sequence[int] = (1,)
    ) -> CostTable:
        """See `profile_network` and `predict_costs`."""
        return predict_costs(compiled.graph, cluster, super().costs(compiled, cluster, batches))
