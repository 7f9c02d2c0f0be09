"""Costs from a file that `heteroplace profile` or `save_costs` wrote."""

from __future__ import annotations

import os

from heteroplace.codegen.compile import CompiledNetwork
from heteroplace.errors import CostMismatchError
from heteroplace.files.costs import load_costs
from heteroplace.measure.cost_models.model import CostOptions
from heteroplace.measure.profile import with_workspaces
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.run.executor import missing_devices


class FileCosts:
    """A cost table in a JSON file."""

    has_interference = False

    def __init__(self, _options: CostOptions, path: str | os.PathLike[str]) -> None:
        self._path = path

    def prepare(self, compiled: CompiledNetwork, cluster: Cluster) -> CompiledNetwork:
        """Return the network whose graph the file is for.

        `heteroplace profile` notes the scratch memory of compiled kernels in it, which only the
        machine that the kernels are for can tell.
        """
        try:
            load_costs(self._path, compiled.graph, cluster)
        except CostMismatchError:
            if missing_devices(cluster, [device.name for device in cluster.devices]):
                raise
            return with_workspaces(compiled, cluster)
        return compiled

    def costs(self, compiled: CompiledNetwork, cluster: Cluster) -> CostTable:
        """See `load_costs`."""
        return load_costs(self._path, compiled.graph, cluster)
