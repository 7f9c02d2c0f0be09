"""Plan files: round trips, faults with their paths."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import PlanError
from heteroplace.files.graph_file import GraphFile, graph_from_json, graph_to_json, read_plain_graph
from heteroplace.files.plan_file import load_plan, plan_from_json, plan_to_json, save_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Collective, Copy, Plan, Run
from tests.explicit_plans import explicit_plans
from tests.strategies import exact_cases
from tests.unit.files.graph_files import CLUSTER, VALIDATORS, diamond, graphs


@pytest.fixture
def read():
    return graph_from_json(diamond())


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


@pytest.mark.costly(4)
@exact_cases(50)
@given(explicit_plans())
def test_an_explicit_plan_and_its_graph_are_read_back_equal(case):
    found, plan = case
    value = json.loads(json.dumps(plan_to_json(plan, found.graph, found.cluster)))
    assert plan_from_json(value, found.graph, found.cluster) == plan
    VALIDATORS["plan"].validate(value)
    text = json.dumps(graph_to_json(found.graph))
    assert graph_from_json(json.loads(text)).graph == found.graph
    assert read_plain_graph(text.encode()) == GraphFile(found.graph, None)
    VALIDATORS["graph"].validate(json.loads(text))


def test_faults_of_a_collective_step_are_named():
    graph, cluster = graph_from_json(diamond()).graph, CLUSTER
    plan = Plan(graph.digest(), cluster.digest(), (Collective(0, (0, 1)),), "by hand")
    value = plan_to_json(plan, graph, cluster)
    assert value["steps"] == [{"collective": graph.tasks[0].name, "on": ["cpu", "gpu"]}]
    value["steps"][0] = {"collective": "q", "on": ["cpu", "tpu"]}
    with pytest.raises(PlanError) as caught:
        plan_from_json(value, graph, cluster)
    for fault in ("steps[0].collective", "steps[0].on[1]"):
        assert fault in str(caught.value)
    value["steps"][0] = {"collective": "q", "on": [], "root": -1}
    with pytest.raises(PlanError) as caught:
        plan_from_json(value, graph, cluster)
    for fault in ("steps[0].on: expected a list of at least 1", "steps[0].root"):
        assert fault in str(caught.value)


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
    value["reasons"] = ["one"]
    with pytest.raises(PlanError) as fault:
        plan_from_json(value, read.graph, CLUSTER, "p.json")
    assert str(fault.value).splitlines() == [
        "p.json: 3 faults",
        "  $.reasons: has 1 texts; expected one per task: 3",
        '  $.steps[0].via[0]: no link is called "upp"; did you mean "up"?',
        '  $.steps[0].to: no memory is called "gramm"; did you mean "gram"?',
    ]
    value["steps"][0]["items"] = [0.5]
    value["steps"][1] = {"run": "a", "at": "gpu", "guard": {"router": "", "branch": 0}}
    with pytest.raises(PlanError) as fault:
        plan_from_json(value, read.graph, CLUSTER, "p.json")
    assert str(fault.value).splitlines() == [
        "p.json: 4 faults",
        "  $.steps[0].items[0]: expected a whole number >= 0, got 0.5",
        '  $.steps[1].guard.router: expected a name (text that is not empty), got ""',
        '  $.steps[1]: the key "on" is missing',
        '  $.steps[1]: unknown key "at"; known keys: items, guard, run, on',
    ]
    assert not VALIDATORS["plan"].is_valid(value)


@pytest.mark.parametrize("key", ["items", "guard", "weights_budget"])
def test_a_key_of_a_plan_may_be_absent_but_not_null(read, key):
    value = plan_to_json(make_plan(read.graph), read.graph, CLUSTER)
    (value if key == "weights_budget" else value["steps"][0])[key] = None
    with pytest.raises(PlanError, match=rf"\.{key}: expected .*, got null$"):
        plan_from_json(value, read.graph, CLUSTER)
    assert not VALIDATORS["plan"].is_valid(value)


def test_plan_of_another_cluster_is_refused(read, tmp_path):
    other = Cluster("one", CLUSTER.memories, CLUSTER.devices, CLUSTER.links)
    plan = make_plan(read.graph)
    with pytest.raises(PlanError, match="the plan: made for a cluster with digest"):
        save_plan(plan, read.graph, other, tmp_path / "plan.json")
    save_plan(plan, read.graph, CLUSTER, tmp_path / "plan.json")
    with pytest.raises(PlanError, match=r"plan\.json: made for a cluster with digest"):
        load_plan(tmp_path / "plan.json", read.graph, other)


def test_a_plan_that_was_made_with_pins_says_so(read):
    pinned = [replace(task, devices=("cpu",)) for task in read.graph.tasks]
    graph = replace(read.graph, tasks=tuple(pinned))
    value = plan_to_json(make_plan(graph), graph, CLUSTER)
    with pytest.raises(PlanError, match=r"made with other pins .*-o FILE"):
        plan_from_json(value, read.graph, CLUSTER)
    value["structure_digest"] = "of another one"
    with pytest.raises(PlanError, match="make the plan again"):
        plan_from_json(value, read.graph, CLUSTER)
