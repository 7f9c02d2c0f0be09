"""A cost table that lacks cells -> one that lacks none, or the error that names them.

What every entry point does about the option `missing`: the pass, `tvmc` and `heteroplace place`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from heteroplace.costs.roofline import SpeedMeasurement, estimate_costs
from heteroplace.entries import load_entry
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.cost_lookup import check_known, find_costs, unknown_cells
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import with_devices

_PREDICT = "heteroplace.costs.prediction.predict:predict_costs"


def complete_costs(
    source: CostTable,
    graph: TaskGraph,
    cluster: Cluster,
    missing: str,
    advice: str,
    measure: Callable[[Cluster, Sequence[int]], CostTable] | None = None,
    measure_speeds: SpeedMeasurement | None = None,
) -> CostTable:
    """Return what a table knows of a graph and a cluster, the rest filled in as asked.

    Parameters
    ----------
    missing
        "refuse"; "predict": see `predict_costs`; "estimate": see `estimate_costs`; "measure".
    advice
        The last sentence of the error about what is refused.
    measure
        Costs of the graph on a part of the cluster, for batches of these sizes, unknown where a
        device is not here; must be there for "measure".
    measure_speeds
        For "estimate": see `estimate_costs`.

    Raises
    ------
    CostMismatchError
        The table knows none of the tasks.
    MissingCostError
        A cost is missing, and is not to be filled in or cannot be.
    """
    table = find_costs(source, graph, cluster)
    if missing == "refuse" or not unknown_cells(table, graph, cluster):
        check_known(table, graph, cluster, source, advice)
        return table
    if missing == "predict":
        predicted: CostTable = load_entry(_PREDICT)(graph, cluster, table)
        return predicted
    part = _lacking(table, graph, cluster)
    if missing == "estimate":
        others = estimate_costs(graph, part, table.batches, measure_speeds)
    else:
        assert measure is not None
        others = measure(part, table.batches)
    return _filled(table, graph, cluster, find_costs(others, graph, cluster))


def _lacking(table: CostTable, graph: TaskGraph, cluster: Cluster) -> Cluster:
    """The part of the cluster with the devices of which the table does not know all."""
    ids = sorted({device for _, _, device in unknown_cells(table, graph, cluster)})
    return with_devices(cluster, ids)


def _filled(table: CostTable, graph: TaskGraph, cluster: Cluster, others: CostTable) -> CostTable:
    """The table with the cells of another one where it knows nothing."""

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        own = table.cost(task, device, batch)
        is_filled = own.source == "unknown" and batch in others.batches
        return others.cost(task, device, batch) if is_filled else own

    filled = build_table(graph, cluster, cost, table.batches)
    return replace(filled, collectives=table.collectives)
