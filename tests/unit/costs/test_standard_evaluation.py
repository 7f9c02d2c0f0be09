"""standard_evaluation: graphs and tables at a batch that was not measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heteroplace.costs.standard_evaluation import (
    check_same_tasks,
    estimate_costs,
    estimate_graph,
)
from heteroplace.errors import CostMismatchError, GraphError, MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from tests.instances import gpus

PER_ITEM = {"a": 100, "b": 7}
ONCE = {"a": 30, "b": 0}


def graph_of(batch: int, second: str = "b") -> TaskGraph:
    builder = TaskGraphBuilder("two")
    image = builder.add_input("image", (batch, 8), "float32")
    builder.add_task(Task("a", "conv", weight_bytes=64, workspace_bytes=16 * batch), [image])
    first = builder.add_tensor("a", (12 * batch, 4), "float32")
    builder.add_task(Task(second, "relu", flops=48 * batch), [first])
    return builder.finalize([builder.add_tensor(second, (batch, 48), "float32")])


def cluster() -> Cluster:
    return gpus({(0, 1): 1, (1, 0): 1}, 2)


def table_of(batch: int) -> CostTable:
    """Device 1 takes twice as long, and cannot run the second task."""
    graph = graph_of(batch)

    def cost(task: int, device: int) -> Cost:
        name = graph.tasks[task].name
        if (task, device) == (1, 1):
            return Cost.unsupported("no kernel")
        return Cost.measured((device + 1) * (ONCE[name] + batch * PER_ITEM[name]))

    return build_table(graph, cluster(), cost)


GRAPHS = {batch: graph_of(batch) for batch in (1, 2, 4)}
TABLES = {batch: table_of(batch) for batch in (1, 2, 4)}


def test_sizes_are_those_of_the_large_batch() -> None:
    assert estimate_graph(GRAPHS, 16) == graph_of(16)


def test_times_are_those_of_the_large_batch() -> None:
    table = estimate_costs(graph_of(16), cluster(), TABLES, 16)
    table.check(graph_of(16), cluster())
    assert [table.run_ns(0, device) for device in (0, 1)] == [1630, 3260]
    assert table.run_ns(1, 0) == 112
    cell = table.cost(0, 0)
    assert cell.source == "regressed" and "batches 1, 2, 4" in cell.reason
    assert cell.error is not None and 0 < cell.error < 0.1
    assert table.cost(1, 1) == Cost.unsupported("no kernel")


def test_another_task_at_one_batch_is_refused() -> None:
    with pytest.raises(CostMismatchError, match="becomes 'c'"):
        check_same_tasks({1: GRAPHS[1], 2: graph_of(2, second="c")})


def test_fewer_tasks_at_one_batch_are_refused() -> None:
    builder = TaskGraphBuilder("two")
    builder.add_task(Task("a", "conv"), [builder.add_input("image", (2, 8), "float32")])
    alone = builder.finalize([builder.add_tensor("a", (24, 4), "float32")])
    with pytest.raises(CostMismatchError, match="from 2 to 1"):
        check_same_tasks({1: GRAPHS[1], 2: alone})


def test_other_edges_at_one_batch_are_refused() -> None:
    other = replace(
        GRAPHS[2], tensors=(replace(GRAPHS[2].tensors[0], consumers=(0, 1)), *GRAPHS[2].tensors[1:])
    )
    with pytest.raises(CostMismatchError, match="edges change"):
        check_same_tasks({1: GRAPHS[1], 2: other})


def test_extents_that_do_not_grow_evenly_are_refused() -> None:
    def odd(batch: int, extent: int) -> TaskGraph:
        graph = graph_of(batch)
        tensors = (replace(graph.tensors[0], shape=(batch, extent)), *graph.tensors[1:])
        return replace(graph, tensors=tensors)

    with pytest.raises(GraphError, match="not a whole number"):
        estimate_graph({1: odd(1, 8), 3: odd(3, 9)}, 2)


def test_unknown_time_is_refused() -> None:
    unknown = build_table(GRAPHS[2], cluster(), lambda task, device: Cost.unknown())
    with pytest.raises(MissingCostError):
        estimate_costs(graph_of(16), cluster(), {1: TABLES[1], 2: unknown}, 16)
