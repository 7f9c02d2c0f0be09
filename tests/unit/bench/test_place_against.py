"""`bench place --auto`: what it says of rows, and one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heteroplace.bench.command import main
from heteroplace.bench.place.against import auto_table, compare


def row(solver: str, makespan: int | None, seconds: float = 1.0, fits: bool = True) -> dict:
    return {
        "graph": "g",
        "tasks": 3,
        "cluster": "c",
        "solver": solver,
        "seconds": seconds,
        "budget_seconds": 1.0,
        "makespan": makespan,
        "memory_ok": fits,
    }


def test_shorter_plans_that_fit_put_auto_behind() -> None:
    rows = [row("auto", 100), row("heft", 90), row("etf", 80, fits=False), row("search", 100)]
    found = compare(rows)
    assert found["behind"] == ["heft"]
    assert (found["best"], found["best_solver"]) == (90, "heft")
    assert found["ratio"] == pytest.approx(100 / 90, abs=1e-6)
    assert "auto is behind on 1 of 1 graphs (g)" in auto_table([found])


def test_plans_for_throughput_are_compared_by_the_time_of_an_item() -> None:
    rows = [row("auto", 100) | {"item_ns": 40}, row("heft", 90) | {"item_ns": 80}]
    found = compare(rows)
    assert (found["auto"], found["best"], found["ratio"], found["behind"]) == (40, 80, 0.5, [])


def test_auto_without_a_plan_is_behind_all_that_have_one() -> None:
    assert compare([row("auto", None), row("heft", 90), row("etf", None)])["behind"] == ["heft"]


def test_a_plan_of_auto_that_does_not_fit_is_none() -> None:
    found = compare([row("auto", 100, fits=False), row("heft", 200)])
    assert (found["auto"], found["ratio"], found["behind"]) == (None, None, ["heft"])


def test_who_takes_longer_than_the_budget_is_late() -> None:
    found = compare([row("auto", 1, 1.2), row("heft", 1, 1.1), row("etf", 1, 7.0)])
    assert found["late"] == {"auto": 1.2, "etf": 7.0}
    assert "late on 1 of 1 graphs (g)" in auto_table([found])


@pytest.mark.costly
def test_the_command_writes_a_row_for_each_graph(tmp_path: Path) -> None:
    path = tmp_path / "auto.json"
    options = ["--only", "rwnn/er10x1$", "--solvers", "heft", "--budget", "0.5"]
    assert main(["place", "--auto", *options, "--json", str(path)]) == 0
    (found,) = json.loads(path.read_text())["rows"]
    assert found["graph"] == "rwnn/er10x1"
    assert found["best_solver"] == "heft"
    assert found["behind"] == []
