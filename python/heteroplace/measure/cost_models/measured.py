"""Costs measured in place: the whole network on each device, a clock around each kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.batches import of_batch
from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.profile import join_batches, profile_network, with_workspaces
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.stage_log import StageLog


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
        log = StageLog.of(self.options.progress)
        return with_workspaces(
            compiled, cluster, skips_absent=self.skips_absent, on_kernel=log.count
        )

    def costs(
        self, compiled: CompiledNetwork, cluster: Cluster, batches: Sequence[int] = (1,)
    ) -> CostTable:
        """See `profile_network`."""
        with self.options.open_store() as store:
            options = ProfileOptions(
                is_in_place=self.is_in_place,
                skips_absent=self.skips_absent,
                store=store,
                progress=self.options.progress,
            )
            tables: dict[int, CostTable] = {}
            # Below its smallest capacity a branch is at that one.
            sizes = (own[0] for router in compiled.graph.routers for own in router.capacities)
            smallest = min(sizes, default=1)
            for size in sorted({max(batch, smallest) for batch in batches}):
                is_whole = size == 1 and not compiled.graph.routers
                network = compiled if is_whole else of_batch(compiled, size)
                chosen = replace(options, batch=size)
                profile = profile_network(network, cluster, chosen)
                self.options.disturbances.append(profile.others_cores)
                tables[size] = profile.costs
        of_batches = {batch: tables[max(batch, smallest)] for batch in batches}
        return join_batches(compiled.graph, cluster, of_batches)


class PresentCosts(MeasuredCosts):
    """As `MeasuredCosts`; costs on devices that are not in this machine stay unknown."""

    skips_absent = True
