"""`heteroplace report`, `place --report`: which files become pages, what is said of others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from heteroplace.cli.main import main
from heteroplace.files.cluster_file import cluster_to_json
from heteroplace.files.costs_file import costs_to_json
from heteroplace.files.graph_file import graph_to_json
from heteroplace.files.plan_file import plan_to_json
from heteroplace.files.solution_file import solution_to_json
from heteroplace.model.cost import table_from_rows
from heteroplace.model.solution import Solution
from heteroplace.solve import Problem, SolveOptions, solve_network
from tests.strategies import Instance

OF_PLAN = ["--graph", "graph.json", "--cluster", "cluster.json", "--costs", "costs.json"]


@pytest.fixture
def solution(diamond: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Solution:
    """What the files of the current folder hold."""
    devices = tuple(replace(device, target="cuda") for device in diamond.cluster.devices)
    cluster = replace(diamond.cluster, devices=devices)
    costs = table_from_rows(diamond.graph, cluster, diamond.costs.rows)
    problem = Problem(diamond.graph, cluster, costs)
    found = solve_network(problem, SolveOptions(iterations=10), solver="heft")
    graph = found.graph
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


def test_a_solution_becomes_a_page_beside_it(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "solution.json"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("predicted 1.20x as fast as the best single device: 10 ns ")
    assert "note: Times came with the graph file" in text
    assert "report: solution.html" in text
    assert Path("solution.html").read_text().startswith("<!doctype html>")


def test_json_has_the_headline_and_the_placement(
    solution: Solution, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "solution.json", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["headline"].startswith("predicted 1.20x as fast as the best single device: 10 ns ")
    assert told["bytes"] == Path(told["report"]).stat().st_size
    assert told["solution"]["objective_ns"] == solution.objective_ns


def test_a_plan_is_judged_by_the_files_that_it_refers_to(solution: Solution) -> None:
    assert main(["report", "plan.json", *OF_PLAN, "-o", "page.html"]) == 0
    assert main(["report", "solution.json", "-o", "other.html"]) == 0
    lead = '<h2 id="verdict">'
    pages = [Path(name).read_text() for name in ("page.html", "other.html")]
    assert pages[0].split(lead)[1][:60] == pages[1].split(lead)[1][:60]


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_what_has_no_name_is_no_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", name]) == 4
    assert f"{name!r} is no file; give a model, a compiled model" in capsys.readouterr().err


def test_place_writes_the_page_of_its_plan(solution: Solution) -> None:
    arguments = ["place", *OF_PLAN, "--iterations", "20", "--report", "page.html"]
    assert main(arguments) == 0
    text = Path("page.html").read_text()
    assert '<h2 id="verdict">Predicted 1.20x as fast' in text
    assert "<title>graph.json on gpus: 2 x cuda</title>" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan.json"], "give --graph FILE and --cluster FILE"),
        (["graph.json"], "expected a plan, a solution or a compiled model, got a graph file"),
        (["solution.json", "--graph", "graph.json"], "--graph is for plan files"),
        (["solution.json", "--measure", "3"], "--measure runs a compiled model"),
        (["solution.json", "--input", "x=1,2"], "--input is for models, and this is none"),
        (["missing.so"], "cannot be read"),
        (["solution.json", "-o", "nowhere/page.html"], "'nowhere' does not exist"),
    ],
)
def test_what_cannot_be_shown_is_told(
    solution: Solution, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["report", *arguments]) == 4
    assert told in capsys.readouterr().err
