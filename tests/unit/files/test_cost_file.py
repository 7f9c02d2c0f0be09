"""Cost files, and times in a graph file: round trips, older versions, faults with their paths."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import CostMismatchError, MissingCostError
from heteroplace.files.costs_file import (
    costs_from_json,
    costs_to_json,
    load_costs,
    save_costs,
)
from heteroplace.files.fields.given_times import costs_from_times
from heteroplace.files.graph_file import graph_from_json
from heteroplace.model.cluster import Memory
from heteroplace.model.collectives import CollectiveCosts, collective_op
from heteroplace.model.cost import Cost, table_from_rows
from heteroplace.model.cost_lookup import find_costs
from heteroplace.model.graph import Task, TaskGraphBuilder
from tests.strategies import exact_cases
from tests.unit.files.graph_files import CLUSTER, VALIDATORS, diamond, graphs


@pytest.fixture
def read():
    return graph_from_json(diamond())


def test_times_become_costs():
    read = graph_from_json(diamond())
    table = costs_from_times(read.graph, CLUSTER, read.times)
    assert table.rows[0] == (Cost.given(5), Cost.given(2))
    assert table.rows[1][1].source == "unsupported"
    assert table.rows[2][1].reason == "task is pinned to cpu"
    table.check(read.graph, CLUSTER)


def test_missing_times_are_named():
    read = graph_from_json(diamond())
    times = {"a": {"cpu": 1}, "c": {"cpu": 1, "npu": 1}}
    with pytest.raises(
        MissingCostError,
        match="no time for task 'a' on 'gpu', task 'b' on 'cpu', task 'b' on 'gpu'; it gives "
        "times for the devices: cpu, npu",
    ):
        costs_from_times(read.graph, CLUSTER, times)


def test_times_of_unknown_tasks_are_refused():
    with pytest.raises(CostMismatchError, match="graph 'diamond' has not: q"):
        costs_from_times(graph_from_json(diamond()).graph, CLUSTER, {"q": {}})


COSTS = st.one_of(
    st.builds(Cost.measured, st.integers(0, 10**15), st.integers(0, 99), st.text(max_size=3)),
    *(
        st.builds(make, st.integers(0, 10**15), st.text(max_size=3), st.none() | st.floats(0, 9))
        for make in (Cost.scaled, Cost.regressed, Cost.roofline)
    ),
    st.builds(Cost.given, st.integers(0, 10**15)),
    st.builds(Cost.unsupported, st.text(max_size=3)),
    st.builds(Cost.unknown),
)


@pytest.mark.costly
@exact_cases(50)
@given(graphs(), st.data())
def test_saved_costs_are_read_back_equal(graph, data):
    row = st.tuples(*[COSTS for _ in CLUSTER.devices])
    rows = {
        batch: tuple(data.draw(row) for _ in graph.tasks)
        for batch in (1, *sorted(data.draw(st.sets(st.integers(2, 10**6), max_size=2))))
    }
    table = table_from_rows(
        graph, CLUSTER, rows[1], {batch: rows[batch] for batch in rows if batch > 1}
    )
    assert {batch: table.rows_of(batch) for batch in table.batches} == rows
    value = json.loads(json.dumps(costs_to_json(table, graph, CLUSTER)))
    assert costs_from_json(value, graph, CLUSTER) == table
    VALIDATORS["costs"].validate(value)


@pytest.mark.parametrize("key", ["1", "0", "02", "two", "-2"])
def test_batch_costs_of_a_wrong_number_are_refused(read, key):
    table = costs_from_times(read.graph, CLUSTER, read.times)
    value = costs_to_json(table, read.graph, CLUSTER)
    value["batch_costs"] = {key: value["costs"]}
    with pytest.raises(CostMismatchError, match="expected a number of items above 1 as the key"):
        costs_from_json(value, read.graph, CLUSTER)
    assert not VALIDATORS["costs"].is_valid(value)


def test_costs_of_a_graph_without_a_task_in_common_are_refused(read, tmp_path):
    table = costs_from_times(read.graph, CLUSTER, read.times)
    save_costs(table, read.graph, CLUSTER, tmp_path / "costs.json")
    assert load_costs(tmp_path / "costs.json", read.graph, CLUSTER) == table
    builder = TaskGraphBuilder("other")
    builder.add_task(Task("a", "pool"), reads=[])
    other = builder.finalize([])
    with pytest.raises(CostMismatchError, match="none of the tasks of graph 'other': task 'a'"):
        load_costs(tmp_path / "costs.json", other, CLUSTER)
    with pytest.raises(CostMismatchError, match="it has 3 tasks, expected 1"):
        save_costs(table, other, CLUSTER, tmp_path / "costs.json")


def as_version(value, version, graph):
    """A cost file as older versions had it."""
    old = {key: entry for key, entry in value.items() if key not in ("rows", "columns")}
    digests = {"graph_digest": graph.digest(), "cluster_digest": CLUSTER.digest()}
    return {**old, "schema_version": version, **digests}


def test_a_file_of_an_older_version_is_for_one_graph_and_cluster_only(read, tmp_path):
    value = costs_to_json(costs_from_times(read.graph, CLUSTER, read.times), read.graph, CLUSTER)
    value["costs"]["c"]["gpu"] = {"source": "unsupported", "reason": "task is pinned to cpu"}
    old = as_version(value, 2, read.graph)
    assert costs_from_json(old, read.graph, CLUSTER).rows[0] == (Cost.given(5), Cost.given(2))
    roomy = replace(CLUSTER, memories=(Memory("ram", 2000), CLUSTER.memories[1]))
    with pytest.raises(CostMismatchError, match=r"is of version 2.*heteroplace profile MODEL"):
        costs_from_json(old, read.graph, roomy)
    with pytest.raises(CostMismatchError, match='the key "graph_digest" is missing'):
        costs_from_json({**old, "graph_digest": ""}, read.graph, CLUSTER)


def test_all_faults_of_a_cost_file_are_reported_at_once(read):
    value = costs_to_json(costs_from_times(read.graph, CLUSTER, read.times), read.graph, CLUSTER)
    value["costs"]["a"]["cpu"] = {"source": "guessed", "ns": 1}
    value["costs"]["a"]["gpu"] = {"source": "measured"}
    value["costs"]["b"]["gpu"]["ns"] = 3
    value["costs"]["d"] = value["costs"].pop("c")
    with pytest.raises(CostMismatchError) as fault:
        costs_from_json(value, read.graph, CLUSTER)
    text = str(fault.value)
    assert "$.costs.a.cpu.source: expected one of measured, given, scaled, regressed, roo" in text
    assert '$.costs.a.gpu: the key "ns" is missing' in text
    assert "$.costs.b.gpu.ns: a cost that is unsupported has no time" in text
    assert '$.costs: the key "c" is missing' in text
    assert '$.costs: unknown key "d"' in text
    assert not VALIDATORS["costs"].is_valid(value)


@pytest.mark.parametrize("key", ["ns", "error"])
def test_a_key_of_a_cost_may_be_absent_but_not_null(read, key):
    value = costs_to_json(costs_from_times(read.graph, CLUSTER, read.times), read.graph, CLUSTER)
    value["costs"]["a"]["cpu"][key] = None
    with pytest.raises(CostMismatchError, match=rf"\$\.costs\.a\.cpu\.{key}: .*, got null$"):
        costs_from_json(value, read.graph, CLUSTER)
    assert not VALIDATORS["costs"].is_valid(value)


def test_files_of_version_1_are_read_with_estimates_as_rooflines(read):
    value = costs_to_json(costs_from_times(read.graph, CLUSTER, read.times), read.graph, CLUSTER)
    value = as_version(value, 1, read.graph)
    value["costs"]["c"]["gpu"] = {"source": "unsupported", "reason": "pinned"}
    value["costs"]["a"]["cpu"] = {"source": "estimated", "ns": 4, "reason": "peaks"}
    value["costs"]["a"]["gpu"] = {"source": "measured", "ns": 10, "spread_ns": 1}
    table = costs_from_json(value, read.graph, CLUSTER)
    assert table.rows[0] == (Cost.roofline(4, "peaks"), Cost.measured(10, 1))
    value["costs"]["a"]["cpu"] = {"source": "scaled", "ns": 4}
    with pytest.raises(CostMismatchError, match="expected one of measured, estimated, given"):
        costs_from_json(value, read.graph, CLUSTER)


@pytest.mark.parametrize("version", [0, 4])
def test_cost_files_of_other_versions_are_refused(read, version):
    value = costs_to_json(costs_from_times(read.graph, CLUSTER, read.times), read.graph, CLUSTER)
    assert value["schema_version"] == 3
    value["schema_version"] = version
    with pytest.raises(CostMismatchError, match=f"version {version}, and .* versions 1 to 3"):
        costs_from_json(value, read.graph, CLUSTER)


def test_estimates_are_of_version_1_only(read):
    value = costs_to_json(costs_from_times(read.graph, CLUSTER, read.times), read.graph, CLUSTER)
    value["costs"]["a"]["cpu"] = {"source": "estimated", "ns": 4}
    with pytest.raises(CostMismatchError, match="expected one of measured, given, scaled"):
        costs_from_json(value, read.graph, CLUSTER)


def test_a_negative_error_is_refused(read):
    value = costs_to_json(costs_from_times(read.graph, CLUSTER, read.times), read.graph, CLUSTER)
    value["costs"]["a"]["cpu"] = {"source": "scaled", "ns": 4, "error": -0.1}
    assert not VALIDATORS["costs"].is_valid(value)
    with pytest.raises(CostMismatchError, match=r"costs.a.cpu.error: expected a number >= 0"):
        costs_from_json(value, read.graph, CLUSTER)


def test_fitted_times_of_collectives_are_read_back_equal(read):
    table = costs_from_times(read.graph, CLUSTER, read.times)
    fits = (("all_reduce", 4, 0.25, 1500.5),)
    in_updates = frozenset({read.graph.tasks[0].name})
    for found in (CollectiveCosts(), CollectiveCosts(fits), CollectiveCosts(fits, in_updates)):
        fitted = replace(table, collectives=found)
        value = json.loads(json.dumps(costs_to_json(fitted, read.graph, CLUSTER)))
        VALIDATORS["costs"].validate(value)
        assert costs_from_json(value, read.graph, CLUSTER) == fitted
    assert "collectives" not in costs_to_json(table, read.graph, CLUSTER)
    with pytest.raises(CostMismatchError, match=r"sums_in_updates\[0\].*nobody"):
        costs_from_json(value | {"sums_in_updates": ["nobody"]}, read.graph, CLUSTER)
    value["collectives"] = [{"kind": "reduce", "devices": -1, "ns_per_byte": 1}]
    with pytest.raises(CostMismatchError, match=r"collectives\[0\]"):
        costs_from_json(value, read.graph, CLUSTER)


def test_collectives_need_no_times():
    builder = TaskGraphBuilder("lanes")
    parts = [builder.add_input(name, (4,), "int8") for name in ("x", "y")]
    builder.add_task(Task("sum", collective_op("all_reduce")), parts)
    graph = builder.finalize([builder.add_tensor("sum", (4,), "int8")])
    table = costs_from_times(graph, CLUSTER, {})
    assert table.cost(0, 0).source == "unsupported"
    assert find_costs(table, graph, CLUSTER) == table
