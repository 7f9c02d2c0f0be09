"""`heteroplace export`, and its formats that need no other program: JSON and Graphviz."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heteroplace.cli.main import main
from heteroplace.errors import HeteroPlaceError, PlanError
from heteroplace.parts.exports.exporting import export, export_formats
from tests.placed_layers import chain_solution

LAYERS = {"/a/MatMul": "cpu", "/b/MatMul": "gpu0"}
DOT = """\
digraph "chain" {
  node [shape=box, style=filled];
  t0 [label="t0\\ncpu", fillcolor="#8dd3c7"];
  t1 [label="t1\\ngpu0", fillcolor="#ffffb3"];
  t0 -> t1 [label="4 B"];
}
"""


@pytest.fixture
def solution_file(tmp_path: Path) -> Path:
    path = tmp_path / "solution.json"
    chain_solution(LAYERS).save(path)
    return path


def test_json_has_the_times_and_devices_of_tasks(solution_file: Path) -> None:
    document = json.loads(export(solution_file, "json"))
    assert document["heteroplace_placement"] == 1
    assert document["layers"] == LAYERS
    first, second = document["tasks"]
    assert first == {
        "name": "t0",
        "op": "op",
        "layers": ["/a/MatMul"],
        "weight_bytes": 0,
        "runs": [{"device": "cpu", "start_ns": 0, "finish_ns": 10}],
    }
    copy, *_ = document["copies"]
    assert (copy["tensor"], copy["from"], copy["to"]) == ("t0.0", "ram", "gpu0")
    assert first["runs"][0]["finish_ns"] <= copy["start_ns"]
    assert copy["finish_ns"] <= second["runs"][0]["start_ns"]
    assert [device["name"] for device in document["devices"]] == ["cpu", "gpu0", "gpu1"]


def test_dot_colours_tasks_by_device() -> None:
    assert export(chain_solution(LAYERS), "dot") == DOT


def test_the_command_prints_or_writes(
    solution_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(solution_file), "--to", "dot"]) == 0
    assert capsys.readouterr().out == DOT
    output = tmp_path / "plan.dot"
    assert main(["export", str(solution_file), "--to", "dot", "-o", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert output.read_text() == DOT
    assert main(["export", str(solution_file), "--to", "dot", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["format"], shown["text"], shown["files"]) == ("dot", DOT, [])


def test_wrong_use_is_refused(solution_file: Path, tmp_path: Path) -> None:
    with pytest.raises(HeteroPlaceError, match=r"no export format 'png'; choose one of: json, dot"):
        export(solution_file, "png")
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps(json.loads(solution_file.read_text())["graph"]))
    with pytest.raises(PlanError, match="expected a solution or a compiled model, got a graph"):
        export(graph, "json")


def test_formats_are_listed_in_the_order_of_the_guide() -> None:
    names = ("json", "dot", "device-map", "torch-pipelining", "llama")
    assert export_formats()[:5] == names
