"""Graph files: the reader of plain files gives what the other reader gives, or nothing."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import GraphError
from heteroplace.files.graph_file import (
    GraphFile,
    graph_from_json,
    graph_to_json,
    load_graph,
    read_plain_graph,
    save_graph,
)
from heteroplace.files.reader import read_json
from tests.routed_plans import layer_graph
from tests.strategies import exact_cases
from tests.unit.files.test_graph_file import NAMES, TIMES, diamond, graphs


def plain(text):
    """What the fast reader makes of a text."""
    return read_plain_graph(text if isinstance(text, bytes) else text.encode())


def thorough(data, folder):
    """What the other reader makes of it; None: it finds faults."""
    path = folder / "graph.json"
    path.write_bytes(data)
    try:
        return graph_from_json(read_json(path, GraphError), str(path))
    except GraphError:
        return None


@exact_cases(50)
@given(graphs(), st.data())
def test_saved_graphs_are_plain(graph, data):
    times = {task.name: data.draw(TIMES) for task in graph.tasks}
    text = json.dumps(graph_to_json(graph, times), ensure_ascii=False)
    assert plain(text) == GraphFile(graph, times or None)


PLAIN_CHANGES = [
    (("tasks", 0, "name"), st.sampled_from(["a", "b", "", 1, None, "x"])),
    (("tasks", 0, "op"), st.sampled_from(["", "x", None, 3])),
    (("tasks", 0, "flops"), st.sampled_from([0, 2**70, 1.0, 1.5, -1, True, "1"])),
    (("tasks", 0, "weight_bytes"), st.sampled_from([0, "2 KiB", "2", "x", 1.0, -1, None])),
    (("tasks", 1, "members"), st.sampled_from([[], ["a", ""], [1], "ab", None])),
    (("tasks", 1, "devices"), st.sampled_from([[], ["cpu"], [""], None])),
    (("tasks", 1, "together"), st.sampled_from(["t", "", None])),
    (("tasks", 2, "times_ms"), st.dictionaries(NAMES, st.floats() | st.integers() | st.none())),
    (("tasks", 2, "times_ns"), TIMES),
    (("tasks", 2, "unknown"), st.integers()),
    (("tensors", 0, "name"), st.sampled_from(["x", "y", "", None])),
    (("tensors", 1, "producer"), st.sampled_from(["a", "b", "c", "q", None])),
    (("tensors", 1, "consumers"), st.lists(st.sampled_from(["a", "b", "c", "c", "q", ""]))),
    (("tensors", 1, "shape"), st.lists(st.integers(-1, 3), max_size=2) | st.just([1.0])),
    (("tensors", 1, "dtype"), st.sampled_from(["", "float32", None])),
    (("tensors", 1, "bytes"), st.sampled_from([0, 7, "7 B", "7", 7.0, -7, None])),
    (("tensors", 3, "consumers"), st.just(["a"])),
    (("outputs",), st.lists(st.sampled_from(["y", "b.0", "z", ""]), max_size=3)),
    (("schema_version",), st.sampled_from([1, 1.0, 2, True, "1"])),
    (("name",), st.sampled_from(["", "n", "\ud800", 1])),
    (("description",), st.sampled_from(["", "text: more", None])),
    (("$schema",), st.sampled_from(["https://x", None])),
]


@st.composite
def changed_files(draw):
    """The text of a small graph file with some values changed or removed."""
    value = copy.deepcopy(diamond())
    for path, values in draw(st.lists(st.sampled_from(PLAIN_CHANGES), max_size=3)):
        at = value
        for key in path[:-1]:
            at = at[key]
        if draw(st.booleans()):
            at[path[-1]] = draw(values)
        else:
            at.pop(path[-1], None)
    is_ascii = draw(st.booleans())
    text = json.dumps(value, ensure_ascii=is_ascii, indent=draw(st.none() | st.just(1)))
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.costly
@given(changed_files())
def test_both_readers_agree_on_changed_files(tmp_path_factory, data):
    found = plain(data)
    if found is not None:
        assert found == thorough(data, tmp_path_factory.getbasetemp())


@exact_cases(50)
@given(changed_files(), st.data())
def test_both_readers_agree_on_damaged_text(tmp_path_factory, data, draws):
    at = draws.draw(st.integers(0, len(data)))
    piece = draws.draw(
        st.sampled_from(
            ['"name": "z",', '"flops": 1,', " ", "0", ",", '"', "[", "}", ":", "\ufeff"]
        )
    )
    length = draws.draw(st.integers(0, 3))
    damaged = data[:at] + piece.encode() + data[at + length :]
    found = plain(damaged)
    if found is not None:
        assert found == thorough(damaged, tmp_path_factory.getbasetemp())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"weight_bytes"', '"op": "conv", "weight_bytes"'),
        ('"bytes": 4096', '"bytes": 4096, "bytes"  : 4096'),
        ('"cpu": 5', '"cpu": 5, "cpu": 5'),
        ('"cpu": 5', '"cpu": 5, "c\\u0070u": 5'),
        ('"schema_version": 1', '"schema_version": 1, "schema_version": 1'),
        ('"op": "conv"', '"op": "\\u003a", "op": "conv"'),
    ],
)
def test_a_repeated_key_is_left_to_the_other_reader(tmp_path, old, new):
    text = json.dumps(diamond())
    assert plain(text) is not None
    repeated = text.replace(old, new)
    assert repeated != text
    assert plain(repeated) is None
    (tmp_path / "graph.json").write_text(repeated)
    with pytest.raises(GraphError, match="occurs twice in one object"):
        load_graph(tmp_path / "graph.json")


@pytest.mark.parametrize("left_out", [(), ("quantum",), ("overflow", "quantum")], ids="-".join)
def test_a_repeated_key_is_found_where_a_router_leaves_others_out(tmp_path, left_out):
    value = graph_to_json(layer_graph())
    (router,) = value["routers"]
    router["quantum"] = 1
    for key in left_out:
        del router[key]
    text = json.dumps(value)
    assert plain(text) == thorough(text.encode(), tmp_path) == GraphFile(layer_graph(), None)
    repeated = text.replace('"top_k": 2', '"top_k": 2, "top_k": 2')
    assert repeated != text
    assert plain(repeated) is None


def test_tasks_in_another_order_are_sorted_by_the_other_reader(tmp_path):
    value = diamond()
    value["tasks"].reverse()
    assert plain(json.dumps(value)) is None
    (tmp_path / "graph.json").write_text(json.dumps(value))
    assert [task.name for task in load_graph(tmp_path / "graph.json").graph.tasks] == [
        "a",
        "b",
        "c",
    ]


def test_a_graph_that_is_saved_is_read_by_the_fast_reader(tmp_path):
    graph = graph_from_json(diamond()).graph
    save_graph(graph, tmp_path / "graph.json")
    assert plain((tmp_path / "graph.json").read_bytes()) == GraphFile(graph, None)


@given(graphs(), graphs())
def test_equal_graphs_have_equal_digests_and_others_not(one, other):
    assert (one.digest() == other.digest()) == (one == other)


def test_an_input_in_a_routed_buffer_is_refused():
    value = graph_to_json(layer_graph())
    entry = next(tensor for tensor in value["tensors"] if tensor.get("producer") is None)
    entry["buffer"] = "nosuch"
    with pytest.raises(GraphError, match="nosuch"):
        graph_from_json(value, "graph.json")
