"""`heteroplace show`: every kind of file as text, and what it says of other files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from heteroplace.cli.main import main
from heteroplace.files.cluster_file import cluster_to_json
from heteroplace.files.costs_file import costs_to_json
from heteroplace.files.graph_file import graph_to_json
from heteroplace.files.manifest import Manifest
from heteroplace.files.placement import Placement
from heteroplace.files.plan_file import plan_to_json
from heteroplace.files.solution_file import solution_to_json
from heteroplace.model.cost import Cost, build_table, table_from_rows
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.solution import Solution
from heteroplace.model.text import parse_cluster, parse_graph, parse_plan, print_cluster, print_plan
from tests.compiled_files import NEEDS, PROGRAM, Parts, empty_library
from tests.programs import run_python
from tests.strategies import Instance


def solution_of(diamond: Instance) -> Solution:
    """Task a on the first device, the others on the second."""
    devices = tuple(replace(device, target="cuda") for device in diamond.cluster.devices)
    graph, cluster = diamond.graph, replace(diamond.cluster, devices=devices)
    costs = table_from_rows(graph, cluster, diamond.costs.rows)
    steps = (Run(0, 0), Copy(0, 0, 1, cluster.route(0, 1)), Run(1, 1), Run(2, 1), Run(3, 1))
    plan = Plan(graph.digest(), cluster.digest(), steps, "by hand")
    return Solution(graph, cluster, costs, plan, 8, 7, singles=(("gpu0", 9),))


@pytest.fixture
def solution(diamond: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Solution:
    """What the files of the current folder hold."""
    found = solution_of(diamond)
    graph, cluster = found.graph, found.cluster
    values = {
        "graph": graph_to_json(graph),
        "cluster": cluster_to_json(cluster),
        "costs": costs_to_json(found.costs, graph, cluster),
        "plan": plan_to_json(found.plan, graph, cluster),
    }
    for name, value in values.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    (tmp_path / "solution.json").write_text(solution_to_json(found))
    monkeypatch.chdir(tmp_path)
    return found


@pytest.fixture
def model(solution: Solution) -> Path:
    """A compiled model as `show` sees it: what stands behind the library."""
    path = Path("model.so")
    uses = (MemoryUse(2048, 4096, 0), MemoryUse(0, 0, 0))
    ports = (("x", (1, 4), "float32"),), (("output0", (4,), "int8"),)
    manifest = Manifest("0.0", PROGRAM, Placement.of(solution, uses), *ports)
    parts = Parts(empty_library(), b"", NEEDS, PROGRAM.encode(), manifest.to_json())
    path.write_bytes(parts.sealed().to_bytes())
    return path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 4
    return capsys.readouterr().err


def test_clusters_graphs_and_plans_are_shown_in_their_golden_text(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, cluster = solution.graph, solution.cluster
    assert parse_cluster(shown(capsys, "cluster.json")) == cluster
    assert parse_graph(shown(capsys, "graph.json")) == graph
    text = shown(capsys, "plan.json", "--graph", "graph.json", "--cluster", "cluster.json")
    assert parse_plan(text, graph, cluster) == solution.plan


def test_costs_are_shown_with_their_sources(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    def cost(task: int, device: int) -> Cost:
        if device:
            return Cost.unsupported("no kernel")
        return Cost.measured(1000 + task, 100) if task else Cost.roofline(5000, "by size", 0.25)

    table = build_table(solution.graph, solution.cluster, cost)
    value = costs_to_json(table, solution.graph, solution.cluster)
    Path("costs.json").write_text(json.dumps(value))
    lines = [line.split() for line in shown(capsys, "costs.json").splitlines()]
    assert lines[0] == ["task", "device", "batch", "time", "spread", "source", "error", "reason"]
    assert lines[1] == ["a", "gpu0", "1", "5.00", "us", "-", "roofline", "25", "%", "by", "size"]
    assert lines[2] == ["a", "gpu1", "1", "-", "-", "unsupported", "-", "no", "kernel"]
    assert lines[3] == ["b", "gpu0", "1", "1.00", "us", "100", "ns", "measured", "10", "%"]
    assert lines[-1] == ["costs:", "4", "unsupported,", "3", "measured,", "1", "roofline"]


def test_costs_of_one_task_on_one_device(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = shown(capsys, "costs.json", "--task", "b", "--device", "gpu1").splitlines()
    assert [row.split()[:2] for row in rows[1:-2]] == [["b", "gpu1"]]


def test_a_solution_is_shown_as_cluster_plan_and_headline(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, "solution.json")
    plan = print_plan(solution.graph, solution.cluster, solution.plan)
    assert text.startswith(
        f"{print_cluster(solution.cluster)}\n{plan}\npredicted 1.12x as fast as the best single "
        "device: 8 ns on gpu0+gpu1"
    )
    assert "used / limit" in text


def test_each_reason_is_beside_its_task(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons = tuple(f"reason of {task.name}" for task in solution.graph.tasks)
    solution = replace(solution, plan=replace(solution.plan, reasons=reasons))
    solution.save("solution.json")
    lines = shown(capsys, "solution.json").splitlines()
    assert not any(line.startswith("reason ") for line in lines)
    begin = next(i for i, line in enumerate(lines) if line.startswith("task ")) + 1
    for line, task, reason in zip(
        lines[begin:], solution.graph.tasks, solution.plan.reasons, strict=False
    ):
        assert line.split()[0] == task.name
        assert line.endswith(reason)


def test_a_compiled_model_is_shown_with_its_program_if_asked(
    solution: Solution, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, "model.so")
    assert text.startswith(print_cluster(solution.cluster))
    assert print_plan(solution.graph, solution.cluster, solution.plan) in text
    assert "as fast as the best single device: " in text and "9 ns on gpu0" in text
    assert "memory m0: predicted 6.0 KiB (weights 2.0 KiB, values 4.0 KiB, scratch 0 B)" in text
    assert "input x float32 [1,4]\noutput output0 int8 [4]\ncompiled by TVM 0.0, without" in text
    assert "heteroplace-program" not in text
    assert shown(capsys, "model.so", "--program") == f"{text}\n{PROGRAM}"


def test_several_files_have_their_paths_before_them(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, "graph.json", "cluster.json").splitlines()
    assert [line for line in lines if line.startswith("==>")] == [
        "==> graph.json <==",
        "==> cluster.json <==",
    ]


@pytest.mark.usefixtures("model")
def test_tvm_is_not_loaded() -> None:
    program = """
import sys
from heteroplace.cli.main import main
main(["show", "cluster.json", "graph.json", "costs.json", "solution.json", "model.so"])
print([name for name in ("tvm", "ortools") if name in sys.modules])
"""
    assert run_python(program).splitlines()[-1] == "[]"


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan.json"], "plan.json: a plan file can be shown only with --graph and --cluster"),
        (["graph.json", "--task", "a"], "graph.json: --task would be ignored: this is a"),
        (["graph.json", "--program"], "--program would be ignored: this is a graph file"),
        (["costs.json", "--task", "bb"], "costs.json: has no costs of task 'bb'"),
        (["costs.json", "--device", "gpu"], "has no costs of device 'gpu'; did you mean"),
        (["nothing.json"], "nothing.json: cannot be read: No such file"),
        (["."], ".: cannot be read: Is a directory"),
    ],
)
def test_what_cannot_be_shown_is_an_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("net.onnx", b"\x08\x07\x12", "got an ONNX model; make a task graph of it by `heteroplace"),
        ("a net.onnx", b"\x08", "`heteroplace profile '/.*/a net.onnx' --cluster"),
        (
            "net.bin",
            b"\x08\x07\x12",
            "net.bin: expected a file that heteroplace wrote, got an ONNX",
        ),
        ("other.so", b"\x7fELF", "other.so: no heteroplace footer at its end"),
        ("text", b"hello", "not valid JSON: .*; expected a JSON file or a compiled model that"),
        ("list.json", b"[]", "list.json: cannot tell what it is; expected a compiled model, or an"),
        ("empty.json", b"{}", "got an empty object"),
        ("keys.json", b'{"a": 1, "b": 2}', "got 'a', 'b'"),
        ("two.json", b'{"tasks": [], "devices": []}', "cannot tell what it is"),
        ("c.json", b'{"schema_version": 2, "costs": {}}', 'the key "graph_digest" is missing'),
    ],
)
def test_a_file_of_another_kind_is_an_error(
    name: str, data: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(data)
    error = refused(capsys, str(tmp_path / name))
    assert re.search(message, error), error


@pytest.mark.usefixtures("model")
def test_check_takes_solutions_and_models_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "solution.json"]) == 0
    assert main(["check", "model.so"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("solution.json: solution of graph 'worked' of 4 tasks")
    assert second.startswith("model.so: model of graph 'worked' of 4 tasks")
