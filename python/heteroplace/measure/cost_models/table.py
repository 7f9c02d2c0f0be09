"""Costs that the caller has: a table, or a function that makes one."""

from __future__ import annotations

from collections.abc import Callable

from heteroplace.codegen.compile import CompiledNetwork
from heteroplace.errors import SolverError
from heteroplace.measure.cost_models.model import CostOptions
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph


class GivenCosts:
    """The caller's table; no kernel is looked at."""

    has_interference = False

    def __init__(
        self, _options: CostOptions, source: CostTable | Callable[[TaskGraph, Cluster], CostTable]
    ) -> None:
        self._source = source

    def prepare(self, compiled: CompiledNetwork, cluster: Cluster) -> CompiledNetwork:
        """Leave the network as it is."""
        del cluster
        return compiled

    def costs(self, compiled: CompiledNetwork, cluster: Cluster) -> CostTable:
        """Return the table; CostMismatchError if it is of another graph or cluster."""
        source, graph = self._source, compiled.graph
        table = source if isinstance(source, CostTable) else source(graph, cluster)
        if not isinstance(table, CostTable):
            raise SolverError(
                f"the function given as costs must return a CostTable; it returned {table!r}"
            )
        table.check(graph, cluster)
        return table
