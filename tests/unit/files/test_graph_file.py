"""Graph files: round trips, faults with their paths, agreement with the schemas."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from heteroplace.errors import GraphError
from heteroplace.files.graph_file import graph_from_json, graph_to_json, load_graph, save_graph
from tests.unit.files.graph_files import VALIDATORS, diamond, diamond_with, graphs


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
    value = diamond(outputs=[""])
    value["tasks"][1]["weigth_bytes"] = 1
    value["tasks"][1]["flops"] = -1
    value["tensors"][2].pop("bytes")
    with pytest.raises(GraphError) as fault:
        graph_from_json(value, "net.json")
    assert str(fault.value).splitlines() == [
        "net.json: 4 faults",
        "  $.tasks[1].flops: expected a whole number >= 0, got -1",
        '  $.tasks[1]: unknown key "weigth_bytes"; did you mean "weight_bytes"?',
        '  $.tensors[2]: expected "bytes", or both "shape" and "dtype", got {"producer": "b", '
        '"consumers": ["c"]}',
        '  $.outputs[0]: expected a name (text that is not empty), got ""',
    ]


def test_all_faults_across_records_of_a_graph_are_reported_at_once():
    value = diamond(outputs=["z"])
    value["tasks"][0]["weight_bytes"] = "9999999999 TiB"
    value["tensors"][0]["dtype"] = "float8x8"
    value["tensors"][1]["consumers"] = ["b", "cc"]
    with pytest.raises(GraphError) as fault:
        graph_from_json(value, "net.json")
    assert str(fault.value).splitlines() == [
        "net.json: 4 faults",
        "  $.tensors[0]: expected a data type of one number, its bits, and a size in bytes that 63 "
        'bits hold, got [[2, 3], "float8x8"]',
        '  $.tensors[1].consumers[1]: no task is called "cc"; did you mean "c"?',
        '  $.outputs[0]: no tensor is called "z"',
        '  $.tasks[0].weight_bytes: expected a size such as "16 GiB" or "800 MB", or a number of '
        'bytes that 63 bits hold, got "9999999999 TiB"',
    ]


GRAPH_FORM_FAULTS = {
    "both times": (
        diamond_with("tasks", 0, times_ms={}),
        'expected one of "times_ns" and "times_ms"',
    ),
    "negative time": (diamond_with("tasks", 0, times_ns={"cpu": -1}), r"times_ns\.cpu: expected a"),
    "fraction of ns": (diamond_with("tasks", 0, times_ns={"c p": 1.5}), r'ns\["c p"\]: expected'),
    "times list": (diamond_with("tasks", 0, times_ns=[]), "times_ns: expected an object"),
    "times_ms text": (diamond_with("tasks", 2, times_ms={"cpu": "1"}), "expected a number >= 0"),
    "no task name": (diamond_with("tasks", 0, name="REMOVE"), r'tasks\[0\]: the key "name" is'),
    "devices text": (diamond_with("tasks", 0, devices="cpu"), "devices: expected a list, got"),
    "size without unit": (diamond_with("tensors", 1, bytes="4096"), "bytes: expected a size"),
    "input without name": (diamond_with("tensors", 0, name="REMOVE"), r'a "name" or a "producer"'),
    "negative extent": (
        diamond_with("tensors", 0, shape=[-1]),
        r"shape\[0\]: expected a whole number",
    ),
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
TIMES = st.dictionaries(NAMES, st.none() | st.integers(0, 10**15), max_size=3)


@pytest.mark.costly
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


@pytest.mark.parametrize("name", VALIDATORS)
def test_schemas_are_valid(name):
    assert Draft202012Validator(Draft202012Validator.META_SCHEMA).is_valid(VALIDATORS[name].schema)
