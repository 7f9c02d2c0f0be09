"""Costs measured in place: the whole network on each device, a clock around each kernel."""

from __future__ import annotations

from heteroplace.codegen.compile import CompiledNetwork
from heteroplace.measure.cost_models.model import CostOptions
from heteroplace.measure.options import ProfileOptions
from heteroplace.measure.profile import profile_network, with_workspaces
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable


class MeasuredCosts:
    """The most exact model; every device must be in this machine."""

    has_interference = True
    finds_interference = True
    is_in_place = True
    skips_absent = False

    def __init__(self, options: CostOptions, _source: str = "") -> None:
        self.options = options

    def prepare(self, compiled: CompiledNetwork, cluster: Cluster) -> CompiledNetwork:
        """Note the scratch memory of kernels."""
        return with_workspaces(compiled, cluster, skips_absent=self.skips_absent)

    def costs(self, compiled: CompiledNetwork, cluster: Cluster) -> CostTable:
        """See `profile_network`."""
        with self.options.open_store() as store:
            options = ProfileOptions(
                is_in_place=self.is_in_place,
                skips_absent=self.skips_absent,
                store=store,
                progress=self.options.progress,
            )
            return profile_network(compiled, cluster, options).costs
