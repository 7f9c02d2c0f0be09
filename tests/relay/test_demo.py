"""The demo on a tiny network: its text, its files, its figures."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.demo.command import main, run_demo
from benchmarks.demo.report import predictions
from benchmarks.run.comparison import CHOSEN, CORES
from heteroplace import load
from heteroplace.demo.networks import small_cnn
from heteroplace.model.plan import Plan
from heteroplace.model.solution import RunTime, Solution
from heteroplace.progress import Screen
from heteroplace.solve.list.single import single_plan
from heteroplace.solve.problem import Problem
from zoo.models.catalogue import Model

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.costly(1)  # each: together they share one run

KEYS = {
    "name", "tasks", "devices_used", "copies", "simulated_bound_ms", "simulated_ms",
    "predicted_ms", "measured_ms",
    "single_device_ms", "all_cores_ms", "stock_all_threads_ms", "core_to_core_ns", "stock_tvm_ms",
    "onnxruntime_ms", "max_abs_diff_tvm", "compile_s", "stock_compile_s",
}  # fmt: skip


def tiny_model() -> Model:
    network = small_cnn()
    image = np.random.default_rng(0).standard_normal(network.input_shapes["image"])
    return Model("tiny", network.mod, network.params, {"image": image.astype(np.float32)})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the demo printed, and the folder of its files."""
    folder = tmp_path_factory.mktemp("demo")
    text = io.StringIO()
    made = [("A [tiny] network", tiny_model)]
    run_demo(made, made, folder, 2, 1.0, Screen(text))
    return text.getvalue(), folder


def test_figures_are_complete_and_consistent(finished: tuple[str, Path]) -> None:
    (row,) = json.loads((finished[1] / "summary.json").read_text())["models"]
    assert set(row) >= KEYS
    assert row["max_abs_diff_tvm"] < 1e-5
    assert row["onnxruntime_ms"] is None
    assert row["copies"] == 0
    assert 0 < row["simulated_bound_ms"] <= row["simulated_ms"]
    assert row["predicted_ms"] > 0
    assert row["all_cores_ms"] in row["single_device_ms"].values()


def test_model_that_is_only_placed_has_its_plan_in_the_summary(
    finished: tuple[str, Path],
) -> None:
    summary = json.loads((finished[1] / "summary.json").read_text())
    (row,) = summary["placed_only"]
    assert row["tasks"] == summary["models"][0]["tasks"]
    assert row["simulated_ms"] <= min(row["simulated_single_device_ms"].values())


def test_file_can_be_loaded_and_run(finished: tuple[str, Path]) -> None:
    model = tiny_model()
    executor = load(finished[1] / "tiny.so")
    (output,) = executor.run(**model.inputs)
    assert output.shape == (1, 8, 16, 16)


def test_trace_has_both_timelines_of_every_kernel(finished: tuple[str, Path]) -> None:
    events = json.loads((finished[1] / "tiny.trace.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["measured", "predicted"]
    steps = {
        label: {e["name"] for e in events if e["ph"] == "X" and names[e["pid"]] == label}
        for label in names.values()
    }
    assert steps["measured"] and steps["measured"] <= steps["predicted"]


def test_placement_file_gives_a_reason_for_every_task(finished: tuple[str, Path]) -> None:
    text = (finished[1] / "tiny.placement.txt").read_text()
    reasons = text.split("Why:\n\n")[1].splitlines()
    (row,) = json.loads((finished[1] / "summary.json").read_text())["models"]
    assert len(reasons) == row["tasks"]
    assert all(reason.partition(": ")[2] for reason in reasons)


def test_text_says_what_matters(finished: tuple[str, Path]) -> None:
    text = finished[0]
    for part in (
        "A [tiny] network",
        "lower bound",
        "measured",
        "chosen plan",
        "largest difference",
    ):
        assert part in text


def test_the_readme_of_the_demo_names_its_files(finished: tuple[str, Path]) -> None:
    readme = (ROOT / "benchmarks" / "demo" / "README.md").read_text()
    written = {path.name.replace("tiny", "MODEL") for path in finished[1].iterdir()}
    assert sorted(name for name in written if f"`{name}`" not in readme) == []


def test_no_round_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--rounds", "0"])
    assert caught.value.code == 2
    assert "--rounds must be at least 1" in capsys.readouterr().err


def test_predicted_times_of_a_table_are_of_one_kind(finished: tuple[str, Path]) -> None:
    placed = load(finished[1] / "tiny.so").solution
    first, second = placed.cluster.devices[0].name, placed.cluster.devices[-1].name
    alone = on_one_device(placed, first)
    times = ((first, RunTime(700, 700, 700)), (second, RunTime(900, 900, 900)))
    chosen = replace(placed, expected=RunTime(600, 500, 800), single_times=times)
    # What was simulated for the single device is no time to stand next to expected ones.
    assert predictions({CHOSEN: chosen, first: alone}) == {CHOSEN: 600, first: 700}
    simulated = replace(placed, expected=None)
    assert predictions({CHOSEN: simulated, CORES: chosen, first: alone}) == {
        CHOSEN: placed.predicted_ns,
        CORES: placed.predicted_ns,
        first: alone.predicted_ns,
    }
    unknown = replace(chosen, single_times=())
    assert predictions({CHOSEN: unknown, first: alone}) == {CHOSEN: 600}


def on_one_device(solution: Solution, device: str) -> Solution:
    problem = Problem(solution.graph, solution.cluster, solution.costs)
    plan = single_plan(problem, solution.cluster.device_id(device))
    assert isinstance(plan, Plan)
    return replace(solution, plan=plan, predicted_ns=12345, expected=None, single_times=())
