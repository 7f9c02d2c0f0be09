"""--json: every command says versions and processor, and calls layers by the model's names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import heteroplace
from heteroplace.cli.environment import times_json
from heteroplace.cli.main import main
from heteroplace.model.solution import Solution
from tests.unit.questions.worked import diamond_solution


@pytest.fixture
def solution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Solution:
    """The diamond with a layer in each task, saved in the current folder as solution.json."""
    monkeypatch.chdir(tmp_path)
    solution = diamond_solution()
    tasks = tuple(
        replace(task, members=(f"layer.{task.name}:op",)) for task in solution.graph.tasks
    )
    graph = replace(solution.graph, tasks=tasks)
    plan = replace(solution.plan, graph_digest=graph.digest())
    solution = replace(solution, graph=graph, plan=plan)
    solution.save("solution.json")
    return solution


@pytest.mark.parametrize(
    "command",
    [
        ["explain", "solution.json", "--op", "*"],
        ["diff", "solution.json", "solution.json"],
        ["simulate", "solution.json", "--scale-link", "*=2", "--solve", "--solver", "heft"],
        ["report", "solution.json"],
        ["check", "solution.json"],
    ],
    ids=lambda words: str(words[0]),
)
def test_a_command_says_versions_and_processor(
    solution: Solution, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["versions"]["heteroplace"] == heteroplace.__version__
    assert set(value["versions"]) == {"heteroplace", "tvm", "python"}
    assert isinstance(value["processor"], str)


def test_plans_and_answers_name_layers(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = {task.name: [f"layer.{task.name}"] for task in solution.graph.tasks}
    assert main(["report", "solution.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["solution"]["layers"] == layers
    change = ["--scale-link", "*=2", "--solve", "--solver", "heft"]
    assert main(["simulate", "solution.json", *change, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["solved"]["layers"] == layers
    assert main(["explain", "solution.json", "--op", "*", "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert {task["task"]: task["layers"] for task in tasks} == layers


def test_measured_times_have_percentiles() -> None:
    assert times_json(range(1, 102)) == {
        "median": 51,
        "p90": 91,
        "p99": 100,
        "min": 1,
        "max": 101,
        "runs": 101,
    }
