"""`benchmarks prediction` on a tiny network: plans, rows, tables, files."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.command import main
from benchmarks.prediction import command as prediction
from benchmarks.prediction import options as prediction_options
from benchmarks.prediction.command import Row, predict_model, prediction_cluster
from benchmarks.prediction.options import PredictionOptions
from benchmarks.prediction.table import prediction_table, scatter_groups
from heteroplace.demo.networks import small_cnn
from heteroplace.errors import HeteroPlaceError, SolverError
from heteroplace.machine.local import local_cluster
from zoo.models.catalogue import Model

pytestmark = [pytest.mark.relay, pytest.mark.costly]

OPTIONS = PredictionOptions(plans=3, budget_s=0.05, rounds=1, turn_ns=1_000_000, explain=True)
REQUIRED = {
    "model",
    "plan",
    "devices",
    "predicted_ms",
    "measured_ms",
    "predicted_peak_bytes",
    "measured_peak_bytes",
}


def tiny_model(name: str = "tiny", seed: int = 0) -> Model:
    network = small_cnn()
    image = np.random.default_rng(seed).standard_normal(network.input_shapes["image"])
    return Model(name, network.mod, network.params, {"image": image.astype(np.float32)})


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def rows(said: list[str]) -> list[Row]:
    cluster = prediction_cluster(local_cluster(), all_devices=False)
    return predict_model(tiny_model(), cluster, OPTIONS, said.append)


def test_every_plan_has_a_row_with_what_readers_rely_on(rows: list[Row]) -> None:
    assert json.loads(json.dumps(rows)) == rows
    names = {device.name for device in prediction_cluster(local_cluster(), False).devices}
    for row in rows:
        assert row.keys() >= REQUIRED
        assert row["model"] == "tiny"
        assert row["devices"] and set(row["devices"]) <= names  # type: ignore[arg-type]
        assert float(str(row["predicted_ms"])) > 0
        assert float(str(row["measured_ms"])) > 0
        assert int(str(row["predicted_peak_bytes"])) > 0
        assert int(str(row["measured_peak_bytes"])) > 0
        assert row["rounds_counted"] == 1
    assert len({row["plan"] for row in rows}) == len(rows)


def test_random_and_single_plans_are_there_and_solvers_where_they_differ(
    rows: list[Row],
) -> None:
    kinds = [row["kind"] for row in rows]
    assert kinds.count("random") == 3
    assert kinds.count("single") == len(prediction_cluster(local_cluster(), False).devices)
    plans = " = ".join(str(row["plan"]) for row in rows)
    assert "single cpu" in plans and "heft" in plans


def test_all_plans_compute_the_same(rows: list[Row]) -> None:
    assert {row["max_abs_diff"] for row in rows} == {0.0}


def test_progress_tells_what_remains(rows: list[Row], said: list[str]) -> None:
    assert "round 1 of 1, 0 s remain" in said


def test_table_keeps_the_paper_apart(rows: list[Row]) -> None:
    ours, theirs = prediction_table(rows).split("From the paper on DistIR")
    assert [line.split()[:3] for line in ours.splitlines() if line.startswith("tiny")] == [
        ["tiny", "random", "3"],
        ["tiny", "all", str(len(rows))],
    ]
    assert "GPT-2 175B" in theirs and "GPT-2 175B" not in ours


def test_table_warns_of_times_that_were_never_undisturbed(rows: list[Row]) -> None:
    calm = [row | {"rounds_undisturbed": 1} for row in rows]
    assert "say little" not in prediction_table(calm)
    disturbed = [calm[0] | {"rounds_undisturbed": 0}, *calm[1:]]
    assert f"1 of {len(rows)} plans were only measured" in prediction_table(disturbed)


def test_plot_has_a_point_for_every_plan(rows: list[Row]) -> None:
    (group,) = scatter_groups(rows)
    assert group.name == "tiny" and f"{len(rows)} plans" in group.note
    assert [x for x, _ in group.points] == [row["measured_ms"] for row in rows]


def test_command_line_writes_json_and_plot(
    rows: list[Row],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(prediction, "load_model", tiny_model)
    out, plot = tmp_path / "rows.json", tmp_path / "plot.svg"
    arguments = ["--only", "^squeezenet$", "--plans", "1", "--budget", "0", "--rounds", "1"]
    assert main(["prediction", *arguments, "--json", str(out), "--plot", str(plot)]) == 0
    found = json.loads(out.read_text())
    assert list(found) == ["rows"]
    assert {row["model"] for row in found["rows"]} == {"squeezenet"}
    assert found["rows"][0].keys() == rows[0].keys()
    assert "<svg" in plot.read_text()
    assert "Spearman" in capsys.readouterr().out


def test_explanation_names_the_worst_plans(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = prediction_cluster(local_cluster(), all_devices=False)
    predict_model(tiny_model(), cluster, replace(OPTIONS, budget_s=0, plans=2))
    text = capsys.readouterr().out
    assert text.count("tiny, ") == 3
    assert "pauses predicted" in text


def test_plot_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    options = replace(OPTIONS, only="^resnet50$", plot=tmp_path / "no" / "plot.svg")
    said: list[str] = []
    with pytest.raises(HeteroPlaceError, match=r"plot\.svg: No such file"):
        list(prediction.run(options, said.append))
    assert said == []


def test_all_devices_include_that_of_all_cores() -> None:
    local = local_cluster()
    assert prediction_cluster(local, all_devices=True) == local
    parts = [device.name for device in prediction_cluster(local, all_devices=False).devices]
    assert parts == ([d.name for d in local.devices if d.name != "cpu.all"] or ["cpu.all"])


@pytest.mark.parametrize(
    "arguments", [["--plans", "-1"], ["--budget", "-1"], ["--rounds", "0"], ["--seed", "-3"]]
)
def test_numbers_out_of_range_are_refused(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    prediction_options.add_arguments(parser)
    given = parser.parse_args(arguments)
    given.only = ""
    with pytest.raises(SolverError, match=f"{arguments[0]} is out of range"):
        prediction_options.read_arguments(given)
