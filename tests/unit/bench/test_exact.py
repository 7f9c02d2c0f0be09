"""`exact`: its cases, its rows on small graphs, and how the papers' numbers are marked."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.command import USAGE, main
from benchmarks.exact import command as exact
from benchmarks.exact import fusion
from benchmarks.exact import paper as exact_paper
from benchmarks.exact.cases import (
    COARSE,
    LATENCY,
    PUBLISHED,
    SPLIT,
    STEPS,
    TABLES,
    Case,
    all_cases,
)
from benchmarks.exact.command import ExactOptions, exact_rows, select_cases
from benchmarks.exact.table import paper_text, tables
from benchmarks.place import command as place
from benchmarks.place import processes
from benchmarks.place import worker as place_worker
from heteroplace.errors import SolverError
from heteroplace.solve.problem import Problem, ProgressReport
from tests.published_graphs import write_stand_ins
from zoo.graphs.catalogue import GRAPHS_VARIABLE, get_instance
from zoo.graphs.clusters import LAUNCH_NS, celeritas_node, divi_nodes
from zoo.graphs.coarse import coarse_problem
from zoo.graphs.decoder import decoder_graph
from zoo.graphs.training import training_costs
from zoo.graphs.training_networks import holography
from zoo.graphs.transformer import TRANSFORMERS

NO_FILES = [case for case in all_cases() if case.table != PUBLISHED]


def silent(_line: str) -> None:
    """Drop a line."""


def work_here(arguments: Sequence[str], _limit_s: float | None) -> subprocess.CompletedProcess[str]:
    """What a worker says, without a process of its own."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = place_worker.main(arguments)
    return subprocess.CompletedProcess(arguments, code, said.getvalue(), "")


def small(
    monkeypatch: pytest.MonkeyPatch, *cases: Case, budget_s: float = 0.3
) -> tuple[list[processes.Row], list[str]]:
    """Rows and messages of cases of their own."""
    said: list[str] = []
    monkeypatch.setattr(exact, "all_cases", lambda: list(cases))
    monkeypatch.setattr(processes, "run_worker", work_here)
    return list(exact_rows(ExactOptions(".", budget_s=budget_s), said.append)), said


@pytest.mark.costly
def test_rows_are_those_of_place_with_their_own_columns_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    arguments = ["exact", "--only", "divi-latency/rwnn/er10x10$", "--solvers", "single,heft"]
    assert main([*arguments, "--budget", "1", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [(row["graph"], row["solver"]) for row in rows] == [
        ("rwnn/er10x10", "single"),
        ("rwnn/er10x10", "heft"),
    ]
    for row in rows:
        assert list(row)[: len(place.COLUMNS)] == list(place.COLUMNS)
        assert row["table"] == LATENCY
        assert row["vs_bound"] == pytest.approx(row["makespan"] / row["bound"], abs=1e-4)
    assert rows[1]["paper"] == {"ms": 99.9, "bound_ms": 80.1, "vs_bound": 1.247}
    title, header, single, heft = capsys.readouterr().out.splitlines()
    assert title.startswith("divi-latency: DiviML, table I")
    at = header.index("paper")
    assert single[at:].startswith("211.7 ms, bound 80.1 ms, 2.643x bound")
    assert heft[at:].startswith("99.9 ms, bound 80.1 ms, 1.247x bound")
    assert "measured s" in header[:at] and "simulated ms" in header[:at]
    assert "99.9" not in heft[:at]


def test_only_selects_by_table_and_graph_and_without_it_a_part_of_each_table_is_run() -> None:
    assert {case.table for case in select_cases("wdep2")} == {
        LATENCY,
        SPLIT,
        "divi-throughput",
        "divi-quality",
    }
    assert [case.instance for case in select_cases("^divi-gpt3/.*six")] == ["gpt3-decode/six-nodes"]
    assert len(select_cases("^moirai-coarse/coarse/")) == 2 * len(TRANSFORMERS)
    assert select_cases("no such graph") == []
    quick = {case.table for case in select_cases(None)}
    assert quick == set(TABLES) - (set() if GRAPHS_VARIABLE in os.environ else {PUBLISHED})
    with pytest.raises(SystemExit) as end:
        main(["exact", "--only", "no such graph"])
    assert end.value.code == USAGE


def test_all_tables_have_their_papers_sizes() -> None:
    sizes = {table: sum(case.table == table for case in NO_FILES) for table in TABLES}
    assert sizes == {
        LATENCY: 7, SPLIT: 6, "divi-throughput": 7, "divi-module": 6, "divi-module-items": 6,
        "divi-zoo": 9, "divi-zoo-items": 9, "divi-quality": 3,
        "divi-gpt3": 2, COARSE: 44, STEPS: 4, PUBLISHED: 0,
    }  # fmt: skip
    # The mean of the ratios of Moirai's times, coarse over original: the paper says 71.87 %.
    ratios = [
        coarse.seconds["moirai"] / original.seconds["moirai"]
        for original, coarse in exact_paper.MOIRAI_TIMES.values()
    ]
    assert sum(ratios) / len(ratios) == pytest.approx(0.7187, abs=1e-4)
    split = {case.instance: case.paper for case in NO_FILES if case.table == SPLIT}
    assert split["rwnn/er10x20-wdep2"]["divi"]["split_speed_up"] == pytest.approx(395, abs=0.5)


def test_every_case_names_a_graph_that_there_is() -> None:
    for case in all_cases():
        assert get_instance(case.instance).name == case.instance


def test_solvers_that_are_not_there_are_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(LATENCY, "rwnn/er10x1", ("heft", "no-such"))
    rows, said = small(monkeypatch, case)
    assert [row["solver"] for row in rows] == ["heft"]
    assert said[0] == "solver no-such is not registered: its rows are left out"
    assert rows[0]["paper"] is None


def test_unknown_solvers_of_the_command_line_are_refused() -> None:
    with pytest.raises(SolverError, match="no table has nobody; in the tables are: auto, bgreedy"):
        exact_rows(ExactOptions("er10x10$", ("nobody",)), silent)


def test_split_is_compared_by_the_time_to_the_best_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "SPLIT_SOLVER", "heft")
    case = Case(SPLIT, "rwnn/er10x1", ("heft", "cpsat"))
    rows, _ = small(monkeypatch, case)
    heft, cpsat = rows
    assert heft["split_speed_up"] == 1.0
    assert 0 < heft["best_seconds"] <= heft["seconds"]
    ratio = cpsat["best_seconds"] / heft["best_seconds"]
    assert cpsat["split_speed_up"] == pytest.approx(ratio, abs=0.06)
    assert "measured split speed-up" in tables(rows)
    rows[0]["gap"] = 1e-7  # what is not 0 is not called so
    assert " < 0.01 % " in tables(rows)


def test_the_time_to_the_best_plan_is_when_the_solver_told_of_it() -> None:
    latest = place_worker._Latest(time.perf_counter() - 5.0)
    assert latest.seconds_to(10, 7.0) == 7.0, "it told of nothing"
    latest.note(ProgressReport("search", 0.0, 12, 0))
    assert latest.seconds_to(10, 7.0) == 7.0, "it told of a longer plan"
    latest.note(ProgressReport("search", 0.0, 10, 0))
    told = latest.seconds_to(10, 7.0)
    assert 5.0 <= told < 7.0
    latest.note(ProgressReport("proof", 0.0, 10, 10))
    assert latest.seconds_to(10, 7.0) == told, "a proof finds no better plan"


def test_several_items_become_rates_of_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"bheft": {"items_per_second": 6.3, "bound": 9.9, "of_bound": 0.636}}
    case = Case("divi-gpt3", "rwnn/er10x1", ("bheft",), items=2, replicas=3, paper=rates)
    (row,), _ = small(monkeypatch, case)
    assert row["items"] == 2
    assert row["items_per_second"] == pytest.approx(6e9 / row["makespan"], abs=1e-3)
    assert row["of_bound"] == pytest.approx(row["bound"] / row["makespan"], abs=1e-3)
    text = tables([row])
    assert "simulated items/s" in text and text.endswith("6.3/s, bound 9.9/s, 63.6%")


def test_speed_ups_are_over_the_baselines_on_the_same_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fine = Case(COARSE, "rwnn/er10x1", ("m-sct", "heft"), original="rwnn/er10x1")
    rows, _ = small(monkeypatch, fine)
    sct, heft = rows
    assert sct["vs_m_sct"] == 1.0
    assert heft["vs_m_sct"] == pytest.approx(sct["makespan"] / heft["makespan"], abs=1e-3)
    assert heft["vs_getf"] is None, "getf was not run"
    assert (heft["original"], heft["original_tasks"]) == ("rwnn/er10x1", 12)


def test_files_under_the_published_names_are_a_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Small files of ours: the best plan of four tasks takes 5.5 ms, the paper's sample 30."""
    monkeypatch.setenv(GRAPHS_VARIABLE, str(write_stand_ins(tmp_path)))
    monkeypatch.setattr(processes, "run_worker", work_here)
    assert PUBLISHED in {case.table for case in select_cases(None)}
    options = ExactOptions("published/example-1", ("single", "cpsat"), budget_s=60)
    single, cpsat = exact_rows(options, silent)
    assert (cpsat["makespan"], cpsat["gap"]) == (5_500_000, 0)
    assert cpsat["vs_paper"] == pytest.approx(30 / 5.5, abs=1e-3)
    assert single["makespan"] is None, "no device has room for all four tasks"


@pytest.mark.costly(7)
@pytest.mark.skipif(GRAPHS_VARIABLE not in os.environ, reason=f"{GRAPHS_VARIABLE} is not set")
def test_published_files_stand_beside_their_references() -> None:
    options = ExactOptions("published/example-1", ("cpsat",), budget_s=60)
    (row,) = exact_rows(options, silent)
    assert (row["makespan"], row["gap"], row["vs_paper"]) == (30_000_000, 0, 1.0)
    assert row["paper"] == {"ms": 30.0, "what": "published model, proven optimum"}


def test_a_cell_of_the_paper_names_its_units() -> None:
    assert paper_text(None) == "-"
    assert paper_text({"tasks": 3682, "seconds": 14.4}) == "3682 ops, 14.4 s"
    assert paper_text({"seconds": 2.0, "split_speed_up": 37}) == "2.0 s, split 37x faster"
    keys = {key for case in all_cases() for paper in case.paper.values() for key in paper}
    assert keys <= set(exact.exact_table._PAPER_FORMS)


def test_fused_kernels_save_launches_and_their_inner_tensors() -> None:
    fine = get_instance("roomy/gpt3-330m/inter").build()
    coarse = coarse_problem(fine)
    model = TRANSFORMERS["gpt3-330m"]
    # Three biases of each head; of each layer those of the projection and of fc2, and the GELU.
    saved = model.layers * (3 * model.heads + 3)
    assert len(coarse.graph.tasks) == len(fine.graph.tasks) - saved
    assert coarse.cluster == fine.cluster
    for device in range(4):
        before = int(fine.native.run_ns[:, device].sum())
        assert int(coarse.native.run_ns[:, device].sum()) == before - saved * LAUNCH_NS


def test_nodes_of_the_study_have_pairs_of_equal_devices() -> None:
    cluster = divi_nodes(2)
    assert [device.model for device in cluster.devices[:5]] == [
        device.model for device in cluster.devices[5:]
    ]
    assert cluster.devices[1].model == cluster.devices[2].model
    inside = cluster.links[cluster.route(1, 2)[0]].bytes_per_second
    across = cluster.links[cluster.route(3, 8)[0]].bytes_per_second
    assert (inside, across) == (12_500_000_000, 12_500_000_000)
    assert len(decoder_graph(3).tasks) == 36
    problem = get_instance("gpt3-decode/one-node").build()
    assert isinstance(problem, Problem) and len(problem.cluster.devices) == 5


def test_celeritas_graphs_are_fused_and_measured() -> None:
    problem = fusion_problem()
    row = fusion.fusion_row(problem)
    assert row["tasks"] == len(problem.graph.tasks) > 5 * int(str(row["fused_tasks"]))
    assert float(str(row["fused_ccr"])) < float(str(row["ccr"]))
    for column in fusion.MEASURING_ORDERS.values():
        # Four devices hold it: no order needs more than the steps one after the other.
        assert row[f"{column}_excess_gib"] == 0 and float(str(row[f"{column}_ms"])) > 0
    text = fusion.fusion_table([row | {"paper": {"tasks": 1, "ccr": 2.5}}])
    assert "tasks 1, ccr 2.5" in text


def fusion_problem() -> Problem:
    """A small training step on Celeritas' node."""
    graph, cluster = holography(2, 4), celeritas_node()
    return Problem(graph, cluster, training_costs(graph, cluster))


def test_fusion_takes_no_graphs_or_solvers(capsys: pytest.CaptureFixture[str]) -> None:
    for extra in (["--only", "x"], ["--solvers", "heft"], ["--symmetry"]):
        assert main(["exact", "--fusion", *extra]) == 1
        assert "leave out the rest" in capsys.readouterr().err
