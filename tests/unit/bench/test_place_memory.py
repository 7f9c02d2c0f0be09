"""`bench place --memory`: both rules of memory on one graph, and what is said of the rows."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from heteroplace.bench.command import main
from heteroplace.bench.place.memory import Row, compare_rules, memory_rows, memory_table
from heteroplace.bench.suites.catalogue import layered
from heteroplace.bench.suites.layered import Layered
from heteroplace.errors import SolverError
from heteroplace.model.memory_use.memory import plan_memory_use
from heteroplace.solve import SOLVERS, SolveOptions, SolveResult
from heteroplace.solve.problem import Problem


class Noted:
    """HEFT that remembers what it was asked."""

    name = "noted"

    def __init__(self) -> None:
        self.rules: list[bool] = []
        self.fits_statically: list[bool] = []

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        found = SOLVERS["heft"].solve(problem, options)
        used = plan_memory_use(problem.graph, problem.cluster, found.plan)
        sizes = [memory.bytes for memory in problem.cluster.memories]
        self.rules.append(problem.native.counts_lifetimes)
        self.fits_statically.append(all(u <= size for u, size in zip(used, sizes, strict=True)))
        return found


@pytest.mark.costly
def test_the_rules_take_turns_on_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = Noted()
    monkeypatch.setitem(SOLVERS, "noted", solver)
    row = compare_rules(layered(Layered(200)), "noted", SolveOptions())
    turns = int(str(row["turns"]))
    # One turn that does not count.
    assert solver.rules == [False, True] * (1 + turns)
    assert all(solver.fits_statically[::2])
    assert not any(solver.fits_statically[1::2])
    assert row["ratio"] == pytest.approx(row["lifetime"] / row["static"], abs=1e-6)
    assert row["slowdown"] > 0 and row["note"] == ""


class Slow(Noted):
    """Takes all the time there is."""

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        time.sleep(options.time_limit_s)
        return super().solve(problem, options)


def test_what_the_limit_ends_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = Slow()
    monkeypatch.setitem(SOLVERS, "noted", solver)
    row = compare_rules(layered(Layered(200)), "noted", SolveOptions(time_limit_s=0.01))
    assert len(solver.rules) == 2 and row["static"] and row["lifetime"]
    assert (row["ratio"], row["slowdown"]) == (None, None)
    assert row["note"] == "static: ended by the limit of 0.01 s"


def row(solver: str, static: int | None, lifetime: int | None, slowdown: float | None) -> Row:
    ratio = None if static is None or lifetime is None else lifetime / static
    seconds = None if ratio is None else 1.0
    return {
        "graph": "g",
        "tasks": 3,
        "solver": solver,
        "static": static,
        "lifetime": lifetime,
        "ratio": ratio,
        "static_seconds": seconds,
        "lifetime_seconds": seconds,
        "slowdown": slowdown,
        "turns": 3,
        "note": "",
    }


def test_longer_plans_lost_ones_and_slow_solvers_are_named() -> None:
    rows = [
        row("a", 100, 90, 1.1),
        row("b", 100, 101, 1.2),
        row("c", 100, 100, 1.3),
        row("d", 100, None, None),
        row("e", None, 100, None),
    ]
    assert memory_table(rows).splitlines()[-1] == (
        "by lifetime, of 3 solves: 1 (b on g) longer, 1 (d on g) without a plan that the static "
        "rule has, 1 (c on g) more than 1.2 x slower"
    )


def test_a_solver_that_does_not_exist_is_told_before_anything_is_run() -> None:
    with pytest.raises(SolverError, match="no solver is called 'hefd'"):
        memory_rows("rwnn/er10x1$", ["hefd"], 0, lambda line: None)


def test_the_command_writes_a_row_for_each_solver(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    options = ["--only", "rwnn/er10x1$", "--solvers", "heft", "--json", str(path)]
    assert main(["place", "--memory", *options]) == 0
    (found,) = json.loads(path.read_text())["rows"]
    assert (found["graph"], found["solver"], found["tasks"]) == ("rwnn/er10x1", "heft", 12)
