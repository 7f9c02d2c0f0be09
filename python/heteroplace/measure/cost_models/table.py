"""Costs that the caller has: a table, a file, a function; what they lack is filled in if asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from heteroplace.costs.complete import complete_costs
from heteroplace.costs.roofline import Speeds
from heteroplace.entries import load_entry
from heteroplace.errors import SolverError
from heteroplace.files.costs_file import load_table
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.measure.peak_speeds import measure_speeds
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.cost_lookup import check_known, without_unsafe
from heteroplace.model.graph import TaskGraph

if TYPE_CHECKING:
    from heteroplace.measure.cost_models.measured import PresentCosts

_ADVICE = (
    'Say what to do about that: missing="measure", "predict" or "estimate" (--missing measure; '
    "tvmc: --placement-option missing=measure); or give costs that know it"
)
_NOT_HERE = (
    'Their devices are not in this machine, so that nothing could be measured: missing="predict" '
    "(--missing predict; tvmc: --placement-option missing=predict), or give costs that know them"
)
_PRESENT = "heteroplace.measure.cost_models.measured:PresentCosts"
"""Loaded when something is measured."""


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

    @cached_property
    def _present(self) -> PresentCosts:
        """What measures the tasks that the table does not know."""
        present: PresentCosts = load_entry(_PRESENT)(self.options)
        return present

    def prepare(self, compiled: CompiledNetwork, cluster: Cluster) -> CompiledNetwork:
        """Note the scratch memory of kernels, on the devices that are here, as `profile` does.

        For a table and a function no kernel is looked at, unless some may be measured.
        """
        return self._present.prepare(compiled, cluster) if self.finds_interference else compiled

    @property
    def finds_interference(self) -> bool:
        """See `CostModel.finds_interference`."""
        is_file = isinstance(self._source, (str, os.PathLike))
        return is_file or self.options.missing == "measure"

    def costs(
        self, compiled: CompiledNetwork, cluster: Cluster, batches: Sequence[int] = (1,)
    ) -> CostTable:
        """Return what the table knows of the network, and what it lacks as `options.missing` says.

        Raises
        ------
        CostMismatchError
            The table knows none of the tasks.
        MissingCostError
            A cost is missing, and is not to be filled in or cannot be.
        """
        graph, source = compiled.graph, self._table(compiled.graph, cluster, batches)

        def measure(part: Cluster, batches: Sequence[int]) -> CostTable:
            return self._present.costs(compiled, part, batches)

        missing = self.options.missing
        fill = measure, self._measure_speeds
        table = complete_costs(source, graph, cluster, missing, _ADVICE, *fill)
        check_known(table, graph, cluster, source, _NOT_HERE)
        return without_unsafe(table, graph, cluster)

    def _measure_speeds(self, cluster: Cluster, names: Collection[str]) -> dict[str, Speeds]:
        return measure_speeds(cluster, names, self.options.progress)

    def _table(self, graph: TaskGraph, cluster: Cluster, batches: Sequence[int]) -> CostTable:
        """The caller's table; `batches` is for those that are made to order."""
        source = self._source
        if isinstance(source, (str, os.PathLike)):
            return load_table(source, graph, cluster)
        table = source if isinstance(source, CostTable) else source(graph, cluster)
        if not isinstance(table, CostTable):
            raise SolverError(
                f"the function given as costs must return a CostTable; it returned {table!r}"
            )
        return table
