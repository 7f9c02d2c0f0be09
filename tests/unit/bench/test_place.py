"""`benchmarks place` end to end on small instances, its catalogue, its growth mode and its plot."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.command import main
from benchmarks.place import command as place
from benchmarks.place import worker as place_worker
from benchmarks.place.growth import (
    growth_rows,
    growth_series,
    growth_table,
)
from benchmarks.place.processes import Processes
from benchmarks.place.table import comparison
from heteroplace.control_groups import usable_cores
from heteroplace.errors import GraphError, SolverError
from heteroplace.model.plan import Plan, Run
from heteroplace.native.core_loads import placement_loads
from heteroplace.native.list import evaluate_order
from heteroplace.solve import SOLVERS, SolveOptions
from heteroplace.solve.problem import OBJECTIVES, Problem, SolveResult
from zoo.graphs.batches import with_batches
from zoo.graphs.catalogue import QUICK, get_instance, instances, layered, select
from zoo.graphs.clusters import LAUNCH_NS
from zoo.graphs.layered import Layered


class Fixed:
    """A solver that returns a given plan, right or wrong."""

    name = "fixed"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        return SolveResult(self._plan, 1, 0, "feasible", self.name, 0.0)


@pytest.mark.costly
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
    assert len(lines) == 3 and "rwnn/er10x1" in lines[1], "without our search nothing is compared"


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
    native_plan = evaluate_order(problem.native, [0] * 200, range(200))
    row = with_plan(monkeypatch, problem, problem.native.plan(native_plan.steps, "all on one"))
    assert row["memory_ok"] is False
    assert row["makespan"] == native_plan.makespan_ns
    assert row["note"] == ""


def test_an_invalid_plan_has_no_makespan(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = get_instance("rwnn/er10x1").build()
    plan = SOLVERS["single"].solve(problem, SolveOptions()).plan
    last = max(i for i, step in enumerate(plan.steps) if isinstance(step, Run))
    short = replace(plan, steps=plan.steps[:last])
    row = with_plan(monkeypatch, problem, short)
    assert row["makespan"] is None
    assert "is never run" in str(row["note"])
    assert row["best_seconds"] is None


REFERENCE: place.Row = {
    "bound": 5, "best_single": 30, "tasks": 1, "cluster": "c", "congestion": "port",
    "item_bound": 3, "best_single_item": 24, "ideal_split_item": 9,
}  # fmt: skip
ANSWER: place.Row = {
    "seconds": 1.0, "cpu_seconds": 1.0, "best_seconds": None, "incumbents": [],
    "build_seconds": 1.0, "peak_mb": 1.0,
    "memory_ok": True, "note": "", "item_ns": None, "item_bound": None, "bound": None,
}  # fmt: skip


def finished(*answers: tuple[str, place.Row], objective: str = "latency") -> list[place.Row]:
    options = place.PlaceOptions(objective=objective)
    return place._finish("g", REFERENCE, [(name, ANSWER | row) for name, row in answers], options)


def test_the_bound_of_a_graph_is_the_best_of_all_solvers() -> None:
    rows = finished(
        ("a", {"makespan": 20, "bound": 6}),
        ("b", {"makespan": 16, "bound": 8}),
        ("c", {"makespan": None, "note": "no"}),
    )
    assert [row["bound"] for row in rows] == [8, 8, 8]
    assert [row["gap"] for row in rows] == [0.6, 0.5, None]
    assert [row["vs_best_single"] for row in rows] == [1.5, 1.875, None]
    assert "no" in place.table(rows).splitlines()[-1]


def test_a_gap_that_is_not_zero_is_not_called_so() -> None:
    times = {"near": 10**7 + 1, "reached": 10**7}
    rows = finished(*((name, {"makespan": ns, "bound": 10**7}) for name, ns in times.items()))
    assert [bool(row["gap"]) for row in rows] == [True, False]
    near, reached = place.table(rows).splitlines()[1:3]
    assert " < 0.01 % " in near and " 0.00 % " in reached


def test_times_per_item_have_a_bound_and_a_yardstick_of_their_own() -> None:
    rows = finished(
        ("a", {"makespan": 20, "bound": 6, "item_ns": 12}),
        ("throughput", {"makespan": 40, "item_bound": 6, "item_ns": 8}),
        objective="throughput",
    )
    assert [(row["bound"], row["item_bound"]) for row in rows] == [(6, 6), (6, 6)]
    assert [row["item_gap"] for row in rows] == [0.5, 0.25]
    assert [row["vs_best_single"] for row in rows] == [2.0, 3.0]
    assert rows[1]["items_per_second"] == 125e6
    assert "items/s" in place.table(rows).splitlines()[0]


def test_where_our_search_is_behind_is_said_below_the_table() -> None:
    behind = finished(
        ("heft", {"makespan": 20}), ("search", {"makespan": 25}), ("sa", {"makespan": 25})
    )
    assert comparison(behind).splitlines() == [
        "search against 2 plans on 1 graphs: 1 faults",
        "  g: heft is 20.000% shorter than search",
    ]
    # One that does not fit in memory is no plan to compare with.
    unfit = finished(("heft", {"makespan": 20, "memory_ok": False}), ("search", {"makespan": 25}))
    assert comparison(unfit) == "search against 0 plans on 1 graphs: never behind"
    worse = finished(("search", {"makespan": 40}))
    assert "behind the best single device" in comparison(worse)
    none = finished(("heft", {"makespan": 20}), ("search", {"makespan": None}))
    assert "search has no plan, heft has" in comparison(none)
    assert comparison(finished(("heft", {"makespan": 20}))) == ""


def test_a_bound_above_a_makespan_is_a_fault() -> None:
    rows = finished(("heft", {"makespan": 20}), ("search", {"makespan": 20, "bound": 21}))
    assert "heft is below the bound" in comparison(rows)


def test_solvers_for_throughput_and_for_several_items_run_where_that_is_asked() -> None:
    plain = place.default_solvers(place.PlaceOptions())
    assert {"search", "heft", "m-sct", "cpsat"} <= set(plain)
    assert not {"throughput", "bheft"} & set(plain)
    rates = place.default_solvers(place.PlaceOptions(objective="throughput"))
    assert set(rates) - set(plain) == {"throughput", "pipeline"}
    several = place.default_solvers(place.PlaceOptions(items=2))
    assert set(several) - set(plain) == {"bmet", "bgreedy", "bheft", "divi"}


def test_a_plan_for_one_item_is_judged_by_its_time_per_item() -> None:
    problem = get_instance("rwnn/er10x1").build()
    options = SolveOptions(objective="throughput", time_limit_s=0.5)
    heft = place_worker.measure(problem, "heft", options)
    ours = place_worker.measure(problem, "throughput", options)
    reference = place_worker.reference_figures(problem, options)
    assert (
        int(str(reference["item_bound"])) <= int(str(ours["item_ns"])) <= int(str(heft["item_ns"]))
    )
    assert int(str(heft["item_ns"])) <= int(str(heft["makespan"]))
    assert ours["bound"] is None and isinstance(ours["item_bound"], int)
    assert int(str(reference["best_single_item"])) >= int(str(ours["item_ns"]))
    assert int(str(reference["ideal_split_item"])) >= int(str(ours["item_ns"]))


def test_where_items_follow_each_other_memory_is_counted_by_the_static_rule() -> None:
    problem = layered(Layered(200))
    plan = SOLVERS["heft"].solve(problem, SolveOptions()).plan
    options = {objective: SolveOptions(objective=objective) for objective in OBJECTIVES}
    assert place_worker.judge(problem, plan, options["latency"])["memory_ok"] is True
    row = place_worker.judge(problem, plan, options["throughput"])
    placement = np.zeros(200, dtype=np.int64)
    for step in plan.steps:
        if isinstance(step, Run):
            placement[step.task] = step.device
    assert not placement_loads(problem.native, placement).fits(problem.cluster)
    assert row["memory_ok"] is False


def test_several_items_are_served_in_batches_or_by_repeating_a_plan() -> None:
    problem = with_batches(get_instance("rwnn/er10x1").build(), 3)
    assert problem.costs.batches == (1, 2)
    one, two = (problem.costs.run_ns(0, 0, batch) for batch in (1, 2))
    assert one is not None and two == 2 * one - LAUNCH_NS
    options = SolveOptions(items=3, time_limit_s=1)
    single = place_worker.measure(problem, "single", options)
    batched = place_worker.measure(problem, "bheft", options)
    reference = place_worker.reference_figures(problem, options)
    assert single["makespan"] == reference["best_single"]
    assert single["bound"] is None, "what one item needs is no bound of what was asked"
    assert (
        int(str(reference["bound"])) <= int(str(batched["makespan"])) < int(str(single["makespan"]))
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (place.PlaceOptions(solvers=("magic",)), "no solver is called 'magic'"),
        (place.PlaceOptions(budget_s=0), "time_limit_s must be > 0"),
        (place.PlaceOptions(jobs=0), "--jobs must be >= 1, got 0"),
        (place.PlaceOptions(items=2, objective="throughput"), "leave out one of the two"),
    ],
)
def test_wrong_options_are_refused_at_once(options: place.PlaceOptions, message: str) -> None:
    with pytest.raises(SolverError, match=message):
        place.place_rows(options, print)


def test_a_process_that_fails_becomes_a_note() -> None:
    options = place.PlaceOptions()
    answer = Processes("no/such", options.worker_arguments, options.budget_s).solve("heft")
    assert answer["makespan"] is None
    assert "its process ended with 1" in str(answer["note"])
    assert "no instance is called 'no/such'" in str(answer["note"])


@pytest.mark.costly(3)
def test_solvers_that_run_at_once_answer_in_their_order_and_share_the_cores() -> None:
    options = place.PlaceOptions("rwnn/er10x1$", ("sa", "heft", "met"), budget_s=0.5, jobs=3)
    rows = list(place.place_rows(options, lambda line: None))
    assert [row["solver"] for row in rows] == ["sa", "heft", "met"]
    assert {row["threads"] for row in rows} == {max(1, usable_cores() // 3)}
    assert all(isinstance(row["makespan"], int) for row in rows)


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


def test_growth_measures_each_size() -> None:
    rows = growth_rows(lambda _: None, sizes=(203, 406), search_s=0.02)
    measured = {(row["family"], row["what"], row["tasks"]) for row in rows}
    parts = ("heft", "etf", "m-etf", "simulator", "search")
    assert measured == {
        (family, what, size)
        for family in ("layered", "transformer")
        for what in parts
        for size in (203, 406)
    }
    assert all(float(str(row["cpu_seconds"])) > 0 for row in rows)
    assert len(growth_table(rows).splitlines()) == 1 + len(rows)
    assert place.table(rows) == growth_table(rows)
    lines = growth_series(rows)
    assert len(lines) == 2 * (len(parts) - 1), "evaluations of the search are not in the plot"
    assert all(len(line.points) == 2 for line in lines)


@pytest.mark.parametrize("json_name", [None, "growth.json"])
def test_growth_is_reached_from_the_command_line(
    json_name: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = {"what": "heft", "family": "layered", "tasks": 1_000, "cpu_seconds": 0.002}
    monkeypatch.setattr(place, "growth_rows", lambda say: [row])
    parser = argparse.ArgumentParser()
    place.add_arguments(parser)
    parser.set_defaults(json=tmp_path / json_name if json_name else None)
    assert place.run(parser.parse_args(["--growth"]), print) == [row]
    assert (tmp_path / "growth.svg").exists() == (json_name is not None)
