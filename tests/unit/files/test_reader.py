"""reader: what JSON may not hold, and that finding it takes no longer than reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import ClusterError, HeteroPlaceError
from heteroplace.files import faults
from heteroplace.files.cluster_file import cluster_from_json, load_cluster
from heteroplace.files.faults import show
from heteroplace.files.fields.kinds import read_known_file
from heteroplace.files.graph_file import graph_from_json, load_graph
from heteroplace.files.reader import _unique_keys, parse_json
from heteroplace.files.solution_file import load_solution


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', 'the key "a" occurs twice'),
        ('["\\ud800"]', r"holds '\\ud800', half of a surrogate pair"),
        ('{"\\uDC00x": 1}', "half of a surrogate pair"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "integer string conversion"),
    ],
)
def test_what_json_may_not_hold(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_whole_pairs_and_escaped_backslashes_are_texts() -> None:
    assert parse_json(r'["\ud83d\ude00", "\\ud800"]') == ["😀", "\\ud800"]


class CountingKey(str):
    """A key that counts how often it is compared."""

    num_compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountingKey.num_compared += 1
        return str.__eq__(self, other)


def test_a_repeated_key_among_many_is_found_without_comparing_all_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountingKey, "num_compared", 0)
    pairs = [(CountingKey(f"k{number}"), number) for number in range(20_000)]
    with pytest.raises(ValueError, match='the key "k19999" occurs twice'):
        _unique_keys([*pairs, (CountingKey("k19999"), 0)])
    assert CountingKey.num_compared < 5 * len(pairs)


def test_only_the_first_unknown_keys_are_compared_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []
    nearest = did_you_mean
    monkeypatch.setattr(
        faults, "did_you_mean", lambda name, names: (compared.append(name), nearest(name, names))[1]
    )
    value = {"schema_version": 1, "name": "c", **{f"k{number}": 0 for number in range(5000)}}
    with pytest.raises(ClusterError, match="5001 faults") as caught:
        cluster_from_json(value)
    assert "and 4951 more" in str(caught.value)
    assert len(compared) <= 10


def test_many_links_of_one_name_are_one_fault() -> None:
    devices = [
        {"name": f"d{i}", "target": "llvm", "device": "cpu:0", "memory": "1 GiB"} for i in range(99)
    ]
    link = {"bandwidth": "1 GB/s", "latency": "1 us", "name": "l"}
    links = [{"src": f"d{i}", "dst": f"d{j}", **link} for i in range(99) for j in range(i)]
    value = {"schema_version": 1, "name": "c", "devices": devices, "links": links}
    with pytest.raises(ClusterError, match="4851 links are called 'l'; give them a 'name' each"):
        cluster_from_json(value)


def test_a_value_nested_as_deeply_as_can_be_read_is_shown() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert show(value) == "something nested deeply"


@pytest.mark.parametrize("read", [load_cluster, load_graph, load_solution, read_known_file])
def test_a_path_with_a_zero_byte_is_refused(read: Callable[[str], object]) -> None:
    with pytest.raises(HeteroPlaceError, match=r"a\\x00b\.json"):
        read("a\0b.json")


@pytest.mark.parametrize("read", [read_known_file, load_graph, load_cluster, load_solution])
def test_of_a_file_that_is_not_there_the_nearest_is_named(
    read: Callable[[str], object], tmp_path: Path
) -> None:
    (tmp_path / "graph.json").write_text("{}")
    with pytest.raises(HeteroPlaceError, match=r'cannot be read: .*; did you mean "graph.json"'):
        read(str(tmp_path / "grpah.json"))


def test_a_file_of_another_kind_is_called_by_its_kind() -> None:
    cluster = {"schema_version": 1, "name": "c", "devices": []}
    with pytest.raises(HeteroPlaceError, match=r"^g: is a cluster file; expected a graph file$"):
        graph_from_json(cluster, "g")
    with pytest.raises(HeteroPlaceError, match=r"^c: is a solution file; expected a cluster file$"):
        cluster_from_json({"placement_version": 1, "tasks": []}, "c")
