"""Costs that the caller has: a table, a file, a function; what they lack is filled in if asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from heteroplace.codegen.compile import CompiledNetwork
from heteroplace.costs.predict import predict_costs
from heteroplace.costs.roofline import estimate_costs
from heteroplace.errors import SolverError
from heteroplace.files.costs import load_table
from heteroplace.measure.cost_models.measured import MeasuredCosts
from heteroplace.measure.cost_models.model import CostOptions
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.cost_lookup import check_known, find_costs, unknown_cells
from heteroplace.model.graph import TaskGraph

_ADVICE = (
    'Say what to do about that: missing="measure", "predict" or "estimate" (--placement-missing '
    "measure); or give costs that know it"
)
_NOT_HERE = (
    'Their devices are not in this machine, so that nothing could be measured: missing="predict" '
    "(--placement-missing predict), or give costs that know them"
)


class _PresentCosts(MeasuredCosts):
    """As `MeasuredCosts`; what is not here stays unknown."""

    skips_absent = True


class GivenCosts:
    """The caller's table, or what the caller's function returns."""

    has_interference = False

    def __init__(
        self,
        options: CostOptions,
        source: CostTable | str | os.PathLike[str] | Callable[[TaskGraph, Cluster], CostTable],
    ) -> None:
        self.options = options
        self._source = source
        self._present = _PresentCosts(options)

    def prepare(self, compiled: CompiledNetwork, cluster: Cluster) -> CompiledNetwork:
        """Note the scratch memory of kernels, on the devices that are here, as `profile` does.

        For a table and a function no kernel is looked at, unless some may be measured.
        """
        is_file = isinstance(self._source, (str, os.PathLike))
        if is_file or self.options.missing == "measure":
            return self._present.prepare(compiled, cluster)
        return compiled

    def costs(self, compiled: CompiledNetwork, cluster: Cluster) -> CostTable:
        """Return what the table knows of the network, and what it lacks as `options.missing` says.

        Raises
        ------
        CostMismatchError
            The table knows none of the tasks.
        MissingCostError
            A cost is missing, and is not to be filled in or cannot be.
        """
        graph, source = compiled.graph, self._table(compiled.graph, cluster)
        found = find_costs(source, graph, cluster)
        if self.options.missing == "refuse" or not unknown_cells(found, graph, cluster):
            check_known(found, graph, cluster, source, _ADVICE)
            return found
        if self.options.missing == "predict":
            return predict_costs(graph, cluster, found)
        part = _lacking(found, graph, cluster)
        others = (
            estimate_costs(graph, part)
            if self.options.missing == "estimate"
            else self._present.costs(compiled, part)
        )
        filled = _filled(found, graph, cluster, find_costs(others, graph, cluster))
        check_known(filled, graph, cluster, source, _NOT_HERE)
        return filled

    def _table(self, graph: TaskGraph, cluster: Cluster) -> CostTable:
        source = self._source
        if isinstance(source, (str, os.PathLike)):
            return load_table(source, graph, cluster)
        table = source if isinstance(source, CostTable) else source(graph, cluster)
        if not isinstance(table, CostTable):
            raise SolverError(
                f"the function given as costs must return a CostTable; it returned {table!r}"
            )
        return table


def _lacking(table: CostTable, graph: TaskGraph, cluster: Cluster) -> Cluster:
    """The part of the cluster with the devices of which the table does not know all."""
    ids = sorted({device for _, _, device in unknown_cells(table, graph, cluster)})
    return replace(cluster, devices=tuple(cluster.devices[index] for index in ids))


def _filled(table: CostTable, graph: TaskGraph, cluster: Cluster, others: CostTable) -> CostTable:
    """The table with the cells of another one where it knows nothing."""

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        own = table.cost(task, device, batch)
        is_filled = own.source == "unknown" and batch in others.batches
        return others.cost(task, device, batch) if is_filled else own

    return build_table(graph, cluster, cost, table.batches)
