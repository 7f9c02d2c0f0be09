"""Graph, cost and plan files: round trips, faults with their paths, agreement with the schemas."""

import json
from dataclasses import replace
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from heteroplace.errors import CostMismatchError, GraphError, MissingCostError, PlanError
from heteroplace.files.costs import (
    costs_from_json,
    costs_from_times,
    costs_to_json,
    load_costs,
    save_costs,
)
from heteroplace.files.graph import graph_from_json, graph_to_json, load_graph, save_graph
from heteroplace.files.plan import load_plan, plan_from_json, plan_to_json, save_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, table_from_rows
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Copy, Plan, Run
from tests.corpus import corpus
from tests.strategies import exact_cases


def schema(name):
    folder = resources.files("heteroplace") / "schemas"
    return json.loads((folder / f"{name}.schema.json").read_text("utf-8"))


VALIDATORS = {name: Draft202012Validator(schema(name)) for name in ("graph", "costs", "plan")}

CLUSTER = Cluster(
    "pair",
    (Memory("ram", 1000), Memory("gram", 1000)),
    (Device("cpu", "cpu", "llvm", 0, 0), Device("gpu", "cuda", "cuda", 0, 1)),
    (Link("up", 0, 1, 10**9, 100, "pcie"), Link("down", 1, 0, 10**9, 100, "pcie")),
    0,
)


def diamond(**changes):
    """A graph file of three tasks, with top-level keys replaced."""
    value = {
        "schema_version": 1,
        "name": "diamond",
        "tasks": [
            {"name": "a", "op": "conv", "weight_bytes": "1 KiB", "times_ns": {"cpu": 5, "gpu": 2}},
            {"name": "b", "together": "bc", "times_ns": {"cpu": 7, "gpu": None}},
            {"name": "c", "together": "bc", "devices": ["cpu"], "times_ms": {"cpu": 0.001}},
        ],
        "tensors": [
            {"name": "x", "consumers": ["a"], "shape": [2, 3], "dtype": "float32"},
            {"producer": "a", "consumers": ["b", "c"], "bytes": 4096},
            {"producer": "b", "consumers": ["c"], "bytes": "1 KiB"},
            {"producer": "c", "name": "y", "bytes": 8},
        ],
        "outputs": ["y"],
    }
    value.update(changes)
    return value


def diamond_with(list_name, index, **changes):
    value = diamond()
    item = value[list_name][index]
    item.update(changes)
    value[list_name][index] = {key: entry for key, entry in item.items() if entry != "REMOVE"}
    return value


def test_graph_and_times_are_read():
    read = graph_from_json(diamond())
    graph = read.graph
    assert [task.name for task in graph.tasks] == ["a", "b", "c"]
    assert [task.op for task in graph.tasks] == ["conv", "b", "c"]
    assert graph.tasks[0].weight_bytes == 1024
    assert (graph.tasks[2].devices, graph.tasks[2].together) == (("cpu",), "bc")
    assert [tensor.name for tensor in graph.tensors] == ["x", "a.0", "b.0", "y"]
    assert [tensor.bytes for tensor in graph.tensors] == [24, 4096, 1024, 8]
    assert [tensor.consumers for tensor in graph.tensors] == [(0,), (1, 2), (2,), ()]
    assert read.times == {
        "a": {"cpu": 5, "gpu": 2},
        "b": {"cpu": 7, "gpu": None},
        "c": {"cpu": 1000},
    }


def test_file_without_times_gives_none():
    value = diamond()
    for task in value["tasks"]:
        task.pop("times_ns", None)
        task.pop("times_ms", None)
    assert graph_from_json(value).times is None


def test_all_faults_of_a_graph_are_reported_at_once():
    value = diamond(outputs=["z"])
    value["tasks"][1]["weigth_bytes"] = 1
    value["tasks"][1]["flops"] = -1
    value["tensors"][1]["consumers"] = ["b", "cc"]
    value["tensors"][2].pop("bytes")
    with pytest.raises(GraphError) as fault:
        graph_from_json(value, "net.json")
    assert str(fault.value).splitlines() == [
        "net.json: 5 faults",
        "  $.tasks[1].flops: expected a whole number >= 0, got -1",
        '  $.tasks[1]: unknown key "weigth_bytes"; did you mean "weight_bytes"?',
        '  $.tensors[1].consumers[1]: no task is called "cc"; did you mean "c"?',
        '  $.tensors[2]: expected "bytes", or both "shape" and "dtype"',
        '  $.outputs[0]: no tensor is called "z"',
    ]


GRAPH_FORM_FAULTS = {
    "both times": (diamond_with("tasks", 0, times_ms={}), 'has both "times_ns" and "times_ms"'),
    "negative time": (diamond_with("tasks", 0, times_ns={"cpu": -1}), r"times_ns\.cpu: expected a"),
    "fraction of ns": (diamond_with("tasks", 0, times_ns={"c p": 1.5}), r'ns\["c p"\]: expected'),
    "times list": (diamond_with("tasks", 0, times_ns=[]), "times_ns: expected an object"),
    "times_ms text": (diamond_with("tasks", 2, times_ms={"cpu": "1"}), "expected a number >= 0"),
    "no task name": (diamond_with("tasks", 0, name="REMOVE"), r'tasks\[0\]: the key "name" is'),
    "devices text": (diamond_with("tasks", 0, devices="cpu"), "devices: expected a list of names"),
    "size without unit": (diamond_with("tensors", 1, bytes="4096"), "bytes: expected a size"),
    "input without name": (diamond_with("tensors", 0, name="REMOVE"), r'key "name" is missing'),
    "negative extent": (diamond_with("tensors", 0, shape=[-1]), "shape: expected a list of whole"),
    "no outputs": ({k: v for k, v in diamond().items() if k != "outputs"}, 'key "outputs" is mis'),
    "tasks object": (diamond(tasks={}), r"\$\.tasks: expected a list"),
}
GRAPH_MEANING_FAULTS = {
    "task twice": (diamond_with("tasks", 1, name="a"), r"tasks\[1\]: an earlier task is called"),
    "tensor twice": (diamond_with("tensors", 3, name="x"), "an earlier tensor is called 'x' too"),
    "producer": (diamond_with("tensors", 2, producer="q"), r"tensors\[2\]\.producer: no task is"),
    "cycle": (diamond_with("tensors", 3, consumers=["a"]), "graph: graph 'diamond' has a cycle"),
}


@pytest.mark.parametrize("case", GRAPH_FORM_FAULTS)
def test_graph_reader_and_schema_refuse_the_same_forms(case):
    value, message = GRAPH_FORM_FAULTS[case]
    with pytest.raises(GraphError, match=message):
        graph_from_json(value)
    assert not VALIDATORS["graph"].is_valid(value)


@pytest.mark.parametrize("case", GRAPH_MEANING_FAULTS)
def test_graph_faults_of_meaning_are_refused(case):
    value, message = GRAPH_MEANING_FAULTS[case]
    with pytest.raises(GraphError, match=message):
        graph_from_json(value)
    VALIDATORS["graph"].validate(value)


def test_many_faults_are_cut_off():
    value = diamond(tasks=[{"name": ""}] * 80)
    with pytest.raises(GraphError, match=r"graph: \d+ faults") as fault:
        graph_from_json(value)
    lines = str(fault.value).splitlines()
    assert len(lines) == 52
    assert lines[-1].startswith("  and ")


NAMES = st.text(min_size=1, max_size=5)


def random_name(random):
    """Of letters, quotes, spaces, control characters and what needs two or four bytes."""
    return "".join(
        random.choices("ab0 .\"'\\/\n\t\x00\x7fé漢\ud7ff\ufffe😀", k=random.randint(1, 5))
    )


@corpus
def graphs(random):
    """Any graph made by the builder: tasks in any order of adding, several outputs per task."""

    def size():
        return random.choice([0, 1, random.randint(0, 99), random.randint(0, 2**40), 2**40])

    builder = TaskGraphBuilder(random_name(random))
    names = list(dict.fromkeys(random_name(random) for _ in range(random.randint(0, 6))))
    tensors = [builder.add_input(f"in{i}", num_bytes=size()) for i in range(random.randint(0, 2))]
    tasks = []
    for name in names:
        reads = random.choices(tensors, k=random.randint(0, 3)) if tensors else []
        words = ["", *(random_name(random) for _ in range(2))]
        task = Task(
            name,
            random.choice(words),
            tuple(random.choices(words, k=random.randint(0, 2))),
            size(),
            size(),
            size(),
            random.choice([None, tuple(words[1 : random.randint(1, 3)])]),
            random.choice([None, words[1]]),
        )
        tasks.append((task, reads))
        for index in range(random.randint(0, 2)):
            shape = tuple(random.randint(0, 9) for _ in range(random.randint(0, 3)))
            label = f"{name}/{index}"
            size_or_none = random.choice([None, size()])
            tensors.append(builder.add_tensor(name, shape, "float32", size_or_none, label))
    for task, reads in random.sample(tasks, len(tasks)):
        builder.add_task(task, reads)
    return builder.finalize(random.choices(tensors, k=random.randint(0, 3)) if tensors else [])


TIMES = st.dictionaries(NAMES, st.none() | st.integers(0, 10**15), max_size=3)


@exact_cases(50)
@given(graphs(), st.data())
def test_saved_graph_is_read_back_equal(graph, data):
    times = {task.name: data.draw(TIMES) for task in graph.tasks}
    value = json.loads(json.dumps(graph_to_json(graph, times)))
    read = graph_from_json(value)
    assert read.graph == graph
    assert read.graph.digest() == graph.digest()
    assert read.times == (times or None)
    VALIDATORS["graph"].validate(value)


def test_save_graph_then_load(tmp_path):
    read = graph_from_json(diamond())
    save_graph(read.graph, tmp_path / "net.json", read.times)
    assert load_graph(tmp_path / "net.json") == read
    with pytest.raises(GraphError, match=r"graph 'diamond' has not: \['d'\]"):
        save_graph(read.graph, tmp_path / "net.json", {"d": {}})


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


@pytest.fixture
def read():
    return graph_from_json(diamond())


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
    assert not VALIDATORS["costs"].is_valid(value)
    with pytest.raises(CostMismatchError, match="expected one of measured, given, scaled"):
        costs_from_json(value, read.graph, CLUSTER)


def test_a_negative_error_is_refused(read):
    value = costs_to_json(costs_from_times(read.graph, CLUSTER, read.times), read.graph, CLUSTER)
    value["costs"]["a"]["cpu"] = {"source": "scaled", "ns": 4, "error": -0.1}
    assert not VALIDATORS["costs"].is_valid(value)
    with pytest.raises(CostMismatchError, match=r"costs.a.cpu.error: expected a number >= 0"):
        costs_from_json(value, read.graph, CLUSTER)


def make_plan(graph):
    steps = (Copy(0, 0, 1, (0,)), Run(0, 1), Copy(1, 1, 0, (1,)), Run(1, 0), Run(2, 0))
    return Plan(graph.digest(), CLUSTER.digest(), steps, "by hand", ("fast", "only cpu", "pinned"))


def test_saved_plan_is_read_back_equal(read, tmp_path):
    plan = make_plan(read.graph)
    save_plan(plan, read.graph, CLUSTER, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json", read.graph, CLUSTER) == plan
    value = json.loads((tmp_path / "plan.json").read_text())
    assert value["steps"][0] == {"copy": "x", "from": "ram", "to": "gram", "via": ["up"]}
    VALIDATORS["plan"].validate(value)


@exact_cases(50)
@given(graphs(), st.data())
def test_any_plan_is_read_back_equal(graph, data):
    steps = []
    items = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    if graph.tasks:
        tasks = st.integers(0, len(graph.tasks) - 1)
        steps.append(st.builds(Run, tasks, st.integers(0, 1), items))
    if graph.tensors:
        ids = st.integers(0, len(graph.tensors) - 1)
        memory = st.integers(0, 1)
        route = st.lists(st.integers(0, 1), min_size=1, max_size=3).map(tuple)
        steps.append(st.builds(Copy, ids, memory, memory, route, items))
    chosen = tuple(data.draw(st.lists(st.one_of(steps), max_size=6))) if steps else ()
    plan = Plan(graph.digest(), CLUSTER.digest(), chosen, data.draw(st.text(max_size=3)), (), 4)
    value = json.loads(json.dumps(plan_to_json(plan, graph, CLUSTER)))
    assert plan_from_json(value, graph, CLUSTER) == plan
    VALIDATORS["plan"].validate(value)


def test_plan_of_two_items_is_read_back_equal(read):
    steps = (Copy(0, 0, 1, (0,), (0, 1)), Run(0, 1, (0, 1)), Run(1, 0))
    plan = Plan(read.graph.digest(), CLUSTER.digest(), steps, "by hand", items=2)
    value = plan_to_json(plan, read.graph, CLUSTER)
    assert value["items"] == 2
    assert [step["items"] for step in value["steps"]] == [[0, 1], [0, 1], [0]]
    VALIDATORS["plan"].validate(value)
    assert plan_from_json(value, read.graph, CLUSTER) == plan


def test_plan_of_one_item_does_not_mention_items(read):
    assert '"items"' not in json.dumps(plan_to_json(make_plan(read.graph), read.graph, CLUSTER))


def test_steps_of_a_plan_of_two_items_must_say_which(read):
    value = {**plan_to_json(make_plan(read.graph), read.graph, CLUSTER), "items": 2}
    with pytest.raises(PlanError, match=r'\$\.steps\[0\]: the key "items" is missing'):
        plan_from_json(value, read.graph, CLUSTER)


def test_all_faults_of_a_plan_are_reported_at_once(read):
    value = plan_to_json(make_plan(read.graph), read.graph, CLUSTER)
    value["steps"][0].update(via=["upp"], to="gramm")
    value["steps"][1] = {"run": "a", "at": "gpu"}
    value["reasons"] = ["one"]
    with pytest.raises(PlanError) as fault:
        plan_from_json(value, read.graph, CLUSTER, "p.json")
    assert str(fault.value).splitlines() == [
        "p.json: 5 faults",
        "  $.reasons: has 1 texts; expected one per task: 3",
        '  $.steps[0].to: no memory is called "gramm"; did you mean "gram"?',
        '  $.steps[0].via[0]: no link is called "upp"; did you mean "up"?',
        '  $.steps[1]: the key "on" is missing',
        '  $.steps[1]: unknown key "at"; known keys: items, copy, run, on',
    ]
    assert not VALIDATORS["plan"].is_valid(value)


def test_plan_of_another_cluster_is_refused(read, tmp_path):
    other = Cluster("one", CLUSTER.memories, CLUSTER.devices, CLUSTER.links)
    plan = make_plan(read.graph)
    with pytest.raises(PlanError, match="the plan: made for a cluster with digest"):
        save_plan(plan, read.graph, other, tmp_path / "plan.json")
    save_plan(plan, read.graph, CLUSTER, tmp_path / "plan.json")
    with pytest.raises(PlanError, match=r"plan\.json: made for a cluster with digest"):
        load_plan(tmp_path / "plan.json", read.graph, other)


@pytest.mark.parametrize("name", VALIDATORS)
def test_schemas_are_valid(name):
    assert Draft202012Validator(Draft202012Validator.META_SCHEMA).is_valid(VALIDATORS[name].schema)
