"""`bench place` end to end on small instances, its catalogue, its growth mode and its plot."""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from heteroplace.bench import place, place_worker
from heteroplace.bench.__main__ import main
from heteroplace.bench.line_plot import Series, log_log_svg
from heteroplace.bench.place_growth import growth_rows, growth_table, write_growth_plot
from heteroplace.bench.suites.catalogue import QUICK, get_instance, instances, layered, select
from heteroplace.bench.suites.layered import Layered
from heteroplace.errors import GraphError, SolverError
from heteroplace.model.plan import Plan, Run
from heteroplace.solve import SOLVERS, SolveOptions
from heteroplace.solve.base import Problem, SolveResult


class Fixed:
    """A solver that returns a given plan, right or wrong."""

    name = "fixed"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        return SolveResult(self._plan, 1, 0, "feasible", self.name, 0.0)


def test_a_row_per_graph_and_solver_with_the_keys_that_readers_rely_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    arguments = ["place", "--only", "er10x1$", "--solvers", "single,heft", "--budget", "1"]
    assert main([*arguments, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [(row["graph"], row["solver"]) for row in rows] == [
        ("rwnn/er10x1", "single"),
        ("rwnn/er10x1", "heft"),
    ]
    for row in rows:
        assert list(row)[: len(place.COLUMNS)] == list(place.COLUMNS)
        assert (row["tasks"], row["cluster"], row["memory_ok"]) == (12, "divi-node", True)
        assert 0 < row["bound"] <= row["makespan"]
        assert row["gap"] == pytest.approx(1 - row["bound"] / row["makespan"], abs=1e-5)
        assert row["seconds"] > 0 and row["peak_mb"] > 1
    single, heft = rows
    assert single["vs_best_single"] == 1.0
    assert heft["vs_best_single"] == pytest.approx(single["makespan"] / heft["makespan"], abs=1e-3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and "rwnn/er10x1" in lines[1]


def test_a_refusal_becomes_a_row_that_says_why() -> None:
    problem = layered(Layered(200))
    row = place_worker.measure(problem, "single", SolveOptions(time_limit_s=1))
    assert row["makespan"] is None and row["memory_ok"] is None
    assert str(row["note"]).startswith("InfeasibleError: graph 'layered200' does not fit")


def with_plan(monkeypatch: pytest.MonkeyPatch, problem: Problem, plan: Plan) -> dict[str, object]:
    monkeypatch.setitem(SOLVERS, "fixed", Fixed(plan))
    return place_worker.measure(problem, "fixed", SolveOptions())


def test_the_simulator_decides_the_makespan_and_not_the_solver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = get_instance("rwnn/er10x1").build()
    found = SOLVERS["heft"].solve(problem, SolveOptions())
    row = with_plan(monkeypatch, problem, found.plan)
    assert row["makespan"] == found.objective_ns > 1


def test_a_plan_over_the_memory_is_shown_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered(Layered(200))
    draft = problem.native.evaluate([0] * 200, range(200))
    row = with_plan(monkeypatch, problem, problem.native.plan(draft.steps, "all on one"))
    assert row["memory_ok"] is False
    assert row["makespan"] == draft.makespan_ns
    assert row["note"] == ""


def test_an_invalid_plan_has_no_makespan(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = get_instance("rwnn/er10x1").build()
    plan = SOLVERS["single"].solve(problem, SolveOptions()).plan
    last = max(i for i, step in enumerate(plan.steps) if isinstance(step, Run))
    short = replace(plan, steps=plan.steps[:last])
    row = with_plan(monkeypatch, problem, short)
    assert row["makespan"] is None
    assert "is never run" in str(row["note"])


def test_the_bound_of_a_graph_is_the_best_of_all_solvers() -> None:
    facts: place.Row = {
        "bound": 5, "best_single": 30, "tasks": 1, "cluster": "c", "congestion": "port"
    }  # fmt: skip
    answer: place.Row = {
        "seconds": 1.0, "cpu_seconds": 1.0, "build_seconds": 1.0, "peak_mb": 1.0,
        "memory_ok": True, "note": "",
    }  # fmt: skip
    refused = answer | {"makespan": None, "bound": None, "note": "no"}
    found = [
        ("a", answer | {"makespan": 20, "bound": 6}),
        ("b", answer | {"makespan": 16, "bound": 8}),
        ("c", refused),
    ]
    rows = place._finish("g", facts, found)
    assert [row["bound"] for row in rows] == [8, 8, 8]
    assert [row["gap"] for row in rows] == [0.6, 0.5, None]
    assert [row["vs_best_single"] for row in rows] == [1.5, 1.875, None]
    assert "no" in place.table(rows).splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (place.PlaceOptions(solvers=("magic",)), "no solver is called 'magic'"),
        (place.PlaceOptions(budget_s=0), "time_limit_s must be > 0"),
    ],
)
def test_wrong_options_are_refused_at_once(options: place.PlaceOptions, message: str) -> None:
    with pytest.raises(SolverError, match=message):
        place.place_rows(options, print)


def test_a_process_that_fails_becomes_a_note() -> None:
    answer = place._solve("no/such", "heft", place.PlaceOptions())
    assert answer["makespan"] is None
    assert "its process ended with 1" in str(answer["note"])
    assert "no instance is called 'no/such'" in str(answer["note"])


def test_without_a_pattern_a_small_set_of_each_family_is_run() -> None:
    assert [instance.name for instance in select(None)] == list(QUICK)
    families = {name.split("/")[0] for name in instances()} - {"published"}
    assert {name.split("/")[0] for name in QUICK} == families
    assert len(select(".")) == len(instances())
    assert [instance.name for instance in select("af2-3.2b")] == [
        "moirai/af2-3.2b/inter",
        "moirai/af2-3.2b/intra",
    ]


def test_building_an_instance_twice_gives_the_same() -> None:
    for name in ("moirai/gpt3-330m/inter", "rwnn/er10x5-wdep3", "layered/1000"):
        first, again = get_instance(name).build(), get_instance(name).build()
        assert first.costs == again.costs


def test_unknown_instance_is_refused_by_name() -> None:
    with pytest.raises(GraphError, match="no instance is called 'x'"):
        get_instance("x")


def test_growth_measures_each_size_and_draws_a_plot(tmp_path: Path) -> None:
    rows = growth_rows(lambda _: None, sizes=(100, 400))
    measured = {(row["what"], row["tasks"]) for row in rows}
    assert {(what, size) for what in ("heft", "simulator") for size in (100, 400)} <= measured
    assert all(int(str(row["ns_per_task"])) > 0 for row in rows)
    assert len(growth_table(rows).splitlines()) == 1 + len(rows)
    assert place.table(rows) == growth_table(rows)
    write_growth_plot(rows, tmp_path / "growth.svg")
    root = ElementTree.fromstring((tmp_path / "growth.svg").read_text())
    assert root.tag.endswith("svg")
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len({row["what"] for row in rows})


def test_growth_is_reached_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "growth_rows", lambda say: [{"what": "heft"}])
    parser = argparse.ArgumentParser()
    place.add_arguments(parser)
    parser.add_argument("--json", default=None)
    assert place.run(parser.parse_args(["--growth"]), print) == [{"what": "heft"}]


def test_a_plot_keeps_points_inside_its_frame_and_escapes_names() -> None:
    text = log_log_svg([Series("a<b", ((1e3, 0.002), (2e5, 7.0), (0.0, 1.0)))], "t", "x", "y")
    root = ElementTree.fromstring(text)
    points = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(points) == 2
    assert all(80 <= float(point.attrib["cx"]) <= 590 for point in points)
    assert all(40 <= float(point.attrib["cy"]) <= 400 for point in points)
    assert "a&lt;b" in text


def test_a_plot_without_points_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to plot"):
        log_log_svg([Series("empty", ((0.0, 1.0),))], "t", "x", "y")
