"""`place --graph` opens the forms of task graphs that papers were published with."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from heteroplace.cli.main import main
from heteroplace.errors import GraphError
from heteroplace.files.fields.kind_keys import published_form
from heteroplace.files.graph_file import load_graph
from heteroplace.files.published.published_graph import load_published
from heteroplace.files.solution_file import load_solution
from heteroplace.model.check import check_plan
from heteroplace.simulate.simulator import simulate
from tests.published_graphs import DNN, MOIRAI, write
from tests.reference.brute_force import optimal_makespan

ROOMY = MOIRAI | {"device_memory": [10.0, 10.0]}
PLACE = ["place", "--solver", "cpsat", "--budget", "20"]


@pytest.mark.parametrize(
    ("value", "devices"), [(ROOMY, ["device0", "device1"]), (DNN, ["acc0", "acc1", "cpu0"])]
)
def test_a_published_graph_is_placed_on_its_own_devices(
    value: dict[str, Any],
    devices: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, value)
    assert main([*PLACE, "--graph", "graph.json", "-o", "s.json"]) == 0
    found, published = load_solution("s.json"), load_published("graph.json")
    assert published is not None
    assert [device.name for device in found.cluster.devices] == devices
    assert (found.graph, found.costs.rows) == (published.graph, published.costs.rows)
    check_plan(found.graph, found.cluster, found.costs, found.plan)
    best = optimal_makespan(found.graph, found.cluster, found.costs)
    timeline = simulate(found.graph, found.cluster, found.costs, found.plan)
    assert timeline.makespan_ns == best
    assert main(["show", "s.json"]) == 0
    assert devices[0] in capsys.readouterr().out


def test_throughput_is_that_of_the_loads_of_the_paper(tmp_path: Path) -> None:
    path = write(tmp_path, DNN)
    steady = load_published(path, is_steady=True)
    assert steady is not None and {d.copy_engines for d in steady.cluster.devices[:2]} == {0}
    arguments = ["place", "--graph", str(path), "--objective", "throughput", "--budget", "2"]
    assert main([*arguments, "-o", str(tmp_path / "s.json")]) == 0
    assert load_solution(tmp_path / "s.json").cluster == steady.cluster


def test_devices_may_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, MOIRAI | {"device_memory": [100.0, 100.0]})
    arguments = [*PLACE, "--graph", str(path), "--exclude", "device0"]
    assert main([*arguments, "-o", str(tmp_path / "s.json")]) == 0
    found = load_solution(tmp_path / "s.json")
    assert set(found.devices_used) == {"device1"}


def without(value: dict[str, Any], key: str) -> dict[str, Any]:
    rest = copy.deepcopy(value)
    del rest[key]
    return rest


@pytest.mark.parametrize(
    ("value", "options", "says"),
    [
        (MOIRAI, ["--cluster", "local"], "--cluster: graph.json has devices, links and times"),
        (DNN, ["--costs", "c.json"], "--costs: graph.json has devices, links and times"),
        ({"layers": []}, [], "is no task graph; expected one of the forms heteroplace's"),
        ({"layers": []}, ["--cluster", "moirai-inter-server"], 'dnn-partitioning\'s ("nodes", "e'),
        ([1], [], "got list"),
        (without(DNN, "edges"), [], "is no task graph"),
        (DNN | {"edges": [{"sourceId": 0, "destId": 9, "cost": 1}]}, [], "no task with id 9"),
        (MOIRAI | {"device_memory": [1.0]}, [], "one per device"),
        ({"schema_version": 1, "name": "g", "tasks": [{"name": "a", "times_ns": {"d": 1}}],
          "tensors": [{"producer": "a", "bytes": 1}], "outputs": ["a.0"]},
         [], "--cluster is missing: graph.json has tasks and no devices; give"),
    ],
)  # fmt: skip
def test_what_is_missing_or_too_much_is_said(
    value: object,
    options: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, value)
    assert code_of("place", "--graph", "graph.json", *options) in (2, 4)
    assert says in capsys.readouterr().err


def code_of(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as stopped:
        assert isinstance(stopped.code, int)
        return stopped.code


@pytest.mark.parametrize("value", [MOIRAI, DNN])
def test_other_commands_say_how_a_published_graph_is_opened(
    value: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, value)
    with pytest.raises(GraphError, match=f"in the form of {published_form(value)}.*-o "):
        load_graph(path)
    assert main(["check", str(path)]) == 4
    assert f"in the form of {published_form(value)}" in capsys.readouterr().err


def test_a_model_without_a_cluster_is_for_this_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert code_of("place", "model.onnx") == 4
    assert "model.onnx: there is no such file" in capsys.readouterr().err


def test_a_graph_that_only_mentions_a_key_of_another_form_is_a_graph(tmp_path: Path) -> None:
    task = {"name": "maxFPGAs", "times_ns": {"d": 1}}
    tensor = {"producer": "maxFPGAs", "bytes": 1}
    value = {"schema_version": 1, "name": "device_memory", "tasks": [task], "tensors": [tensor]}
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(value | {"outputs": ["maxFPGAs.0"]}))
    assert load_published(path) is None
    assert load_graph(path).graph.name == "device_memory"
