"""`heteroplace explain`, `diff`, `simulate`: what they read, print and write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from heteroplace.cli.main import main
from heteroplace.cli.questions import longest_task
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.solution_file import load_solution
from heteroplace.model.plan import Run
from heteroplace.model.solution import Solution
from tests.unit.questions.worked import diamond_solution


@pytest.fixture
def solution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Solution:
    """The diamond, saved in the current folder as solution.json."""
    monkeypatch.chdir(tmp_path)
    found = diamond_solution()
    found.save("solution.json")
    return found


def said(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(list(command)) == 0
    return capsys.readouterr().out


def test_explain_prints_what_python_says(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "explain", "solution.json", "--op", "c") == f"{solution.explain('c')[0]}\n"
    (answer,) = json.loads(said(capsys, "explain", "solution.json", "--op", "c", "--json"))["tasks"]
    assert answer["devices"] == ["gpu1"]
    assert [choice["change_ns"] for choice in answer["choices"]] == [2, 0]


def test_explain_means_the_longest_task_where_none_is_named(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    times = solution.timeline.step_times
    lengths = {
        solution.graph.tasks[step.task].name: times[index][1] - times[index][0]
        for index, step in enumerate(solution.plan.steps)
        if isinstance(step, Run)
    }
    longest = max(lengths, key=lambda name: lengths[name])
    assert said(capsys, "explain", "solution.json") == f"{solution.explain(longest)[0]}\n"


def test_a_plan_that_runs_nothing_has_nothing_to_explain(solution: Solution) -> None:
    empty = replace(solution, plan=replace(solution.plan, steps=()))
    with pytest.raises(HeteroPlaceError, match="the plan runs no task"):
        longest_task(empty)


def test_simulate_writes_a_solution_that_diff_reads(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", "solution.json", "--drop-device", "gpu1"]
    solved = [*command, "--solve", "--solver", "heft", "-o", "alone.json"]
    assert "it has tasks on gpu1" in said(capsys, *command)
    assert "solution: alone.json" in said(capsys, *solved)
    assert load_solution("alone.json").predicted_ns == 12
    told = json.loads(said(capsys, *solved, "--json"))
    assert (told["before_ns"], told["same_ns"], told["solved"]["objective_ns"]) == (10, None, 12)
    assert told["solved"]["placement"]["c"] == ["gpu0"]
    text = said(capsys, "diff", "solution.json", "alone.json")
    assert "device gpu1 is gone" in text
    told = json.loads(said(capsys, "diff", "solution.json", "alone.json", "--json"))
    assert [move["task"] for move in told["moved"]] == ["c"]


def test_place_writes_a_solution_that_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cores = [
        {"name": f"cpu.{i}", "target": "llvm", "device": "cpu:0", "memory": "ram", "cores": [i]}
        for i in range(2)
    ]
    cluster = {"schema_version": 1, "name": "two", "host": "ram", "devices": cores}
    cluster["memories"] = [{"name": "ram", "size": "1 GiB"}]
    tasks = [{"name": name, "times_ns": {"cpu.0": 100, "cpu.1": 100}} for name in "ab"]
    tensors = [{"producer": name, "bytes": 1} for name in "ab"]
    graph = {"schema_version": 1, "name": "pair", "tasks": tasks, "tensors": tensors}
    Path("cluster.json").write_text(json.dumps(cluster))
    Path("graph.json").write_text(json.dumps(graph | {"outputs": ["a.0", "b.0"]}))
    problem = ["--graph", "graph.json", "--cluster", "cluster.json"]
    place = ["place", *problem, "--solver", "heft", "-o", "s.json", "--plan", "plan.json"]
    said(capsys, *place)
    text = said(capsys, "explain", "s.json", "--op", "b")
    # The plan alone needs what it refers to, and then says the same.
    assert main(["explain", "plan.json", "--op", "b"]) != 0
    assert "place ... -o FILE" in capsys.readouterr().err
    assert said(capsys, "explain", "plan.json", "--op", "b", *problem) == text
    assert main(["explain", "s.json", "--op", "b", *problem]) != 0
    assert "--graph, --cluster are for plan files" in capsys.readouterr().err
    assert main(["explain", "graph.json", "--op", "b"]) != 0
    assert "got a graph file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--scale-link", "0-1"], "expected NAME=FACTOR, such as 'pcie=0.5', got '0-1'"),
        (["--scale-link", "0-1=fast"], "expected NAME=FACTOR"),
        (["--add-device", "gpu9"], "expected NAME=LIKE, such as 'gpu1=gpu0', got 'gpu9'"),
        (["--memory", "gpu0"], "expected NAME=SIZE, such as 'gpu0=8GiB', got 'gpu0'"),
    ],
)
def test_wrong_usage_is_told_with_an_example(
    solution: Solution, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "solution.json", *options])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_an_output_without_solving_is_refused(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "solution.json", "--batch", "2", "-o", "x.json"]) != 0
    assert "add --solve" in capsys.readouterr().err
    assert not Path("x.json").exists()


def test_how_to_solve_is_refused_without_solving(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", "solution.json", "--batch", "2", "--solver", "heft", "--budget", "60"]
    assert main(command) == 4
    assert "--solver, --budget: how --solve places the network again" in capsys.readouterr().err


def test_a_trace_is_written(solution: Solution) -> None:
    solution.trace("trace.json")
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "X"} >= set("abcd")
