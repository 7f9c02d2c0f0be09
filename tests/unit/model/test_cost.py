"""Cost tables: what cells say, batch sizes, and what is refused."""

import pytest

from heteroplace.errors import CostMismatchError, MissingCostError
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.cost import (
    MAX_NS,
    NO_TIME,
    UNKNOWN,
    Cost,
    Detail,
    TableBuilder,
    build_table,
    table_from_rows,
)
from heteroplace.model.graph import Task, TaskGraphBuilder

CLUSTER = Cluster(
    "pair",
    (Memory("ram", 1000),),
    (Device("cpu.0", "cpu", "llvm", 0, 0), Device("cpu.1", "cpu", "llvm", 1, 0)),
    (),
    0,
)


@pytest.fixture
def graph():
    builder = TaskGraphBuilder("two")
    builder.add_task(Task("a", "conv"), reads=[])
    builder.add_task(Task("b", "relu", devices=("cpu.1",)), reads=[])
    return builder.finalize([])


def test_cells_are_asked_for_once_per_allowed_pair_and_batch(graph):
    asked = []

    def cost(task, device, batch):
        asked.append((task, device, batch))
        return Cost.measured(100 * task + 10 * device + batch, 3, "here")

    table = build_table(graph, CLUSTER, cost, batches=(1, 4))
    assert asked == [(0, 0, 1), (0, 1, 1), (1, 1, 1), (0, 0, 4), (0, 1, 4), (1, 1, 4)]
    assert table.batches == (1, 4)
    assert [table.run_ns(0, 1), table.run_ns(0, 1, 4), table.run_ns(1, 0, 4)] == [11, 14, None]
    assert table.cost(1, 1, 4) == Cost.measured(114, 3, "here")
    assert table.rows_of(4)[1][0].reason == "task is pinned to cpu.1"


def test_one_batch_calls_with_task_and_device(graph):
    table = build_table(graph, CLUSTER, lambda task, device: Cost.given(task + device))
    assert [[cost.ns for cost in row] for row in table.rows] == [[0, 1], [None, 2]]


def test_columns_hold_times_and_marks(graph):
    rows = (
        (Cost.given(7), Cost.unknown()),
        (Cost.unsupported("no"), Cost.roofline(9, "peak", 0.5)),
    )
    table = table_from_rows(graph, CLUSTER, rows)
    assert list(table.ns[0]) == [7, UNKNOWN, NO_TIME, 9]
    assert table.rows == rows
    assert table == table_from_rows(graph, CLUSTER, rows)


def test_unknown_costs_and_other_batches_are_errors(graph):
    table = build_table(graph, CLUSTER, lambda *_: Cost.unknown())
    with pytest.raises(MissingCostError, match=r"task 'a' on device 'cpu\.1' is unknown"):
        table.run_ns(0, 1)
    with pytest.raises(MissingCostError, match="no times for 2 items run together; it has them"):
        table.run_ns(0, 1, 2)


@pytest.mark.parametrize("batches", [(), (2,), (1, 1), (1, 4, 2)])
def test_batches_ascend_from_one(graph, batches):
    with pytest.raises(CostMismatchError, match="expected 1 and then larger ones, ascending"):
        build_table(graph, CLUSTER, lambda *_: Cost.given(1), batches)


def test_times_beyond_63_bits_are_refused(graph):
    with pytest.raises(CostMismatchError, match="a run time of 9223372036854775808 ns"):
        build_table(graph, CLUSTER, lambda *_: Cost.given(MAX_NS + 1))
    with pytest.raises(CostMismatchError, match="check its unit"):
        builder = TableBuilder(graph.identities, CLUSTER.identities)
        builder.add_times([0, MAX_NS + 1], Detail("given"))


def test_a_graph_without_tasks_has_empty_columns():
    graph = TaskGraphBuilder("empty").finalize([])
    table = build_table(graph, CLUSTER, lambda *_: Cost.given(1), (1, 2))
    assert (table.num_tasks, table.rows, table.rows_of(2)) == (0, (), ())


def test_the_error_of_a_measured_time_is_its_spread():
    assert Cost.measured(200, 3).error == 0.015
    assert Cost.measured(0, 3).error is None
    assert Cost.measured(200).error is None
    assert Cost.scaled(5, "x", 0.1) == Cost(5, "scaled", 0, "x", 0.1)
    assert Cost.regressed(5).error is None


def test_200_000_cells_share_their_details(graph):
    builder = TableBuilder(graph.identities, CLUSTER.identities)
    builder.add_times(range(200_000), Detail("scaled", 0, "x", 0.25))
    table = builder.finalize()
    assert len(table.details) == 1
    assert table.cost(99_999, 1) == Cost.scaled(199_999, "x", 0.25)
