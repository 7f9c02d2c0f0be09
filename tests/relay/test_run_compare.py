"""`heteroplace run`: other programs, percentiles, sizes that a model leaves open."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info
from onnx_models import tiny_cnn

from heteroplace import local_cluster, save_cluster
from heteroplace.cli.main import main
from heteroplace.cli.models.model_cache import CACHE_VARIABLE
from heteroplace.control_groups import processor_name
from heteroplace.costs.store import PATH_VARIABLE
from heteroplace.model.units import format_ns
from heteroplace.report.machine_text import machine_text
from tests.unit.report.test_page import data_of

BUILD = ("--budget", "1", "--runs", "5")
THREADS = len(os.sched_getaffinity(0))
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the current one; compiled models and costs are shared."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, str(cache / "models"))
    monkeypatch.setenv(PATH_VARIABLE, str(cache / "costs.sqlite"))
    return tmp_path


def open_model(*sizes: int | str) -> onnx.ModelProto:
    """A model that doubles x of these sizes."""
    x, y = (make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in "xy")
    return make_model(make_graph([make_node("Add", ["x", "x"], ["y"])], "open", [x], [y]))


@pytest.mark.costly(4)
def test_peers_and_the_best_single_device_run_in_turns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    onnx.save(tiny_cnn(), "cnn.onnx")
    assert main(["run", "cnn.onnx", *BUILD, "--compare", "onnxruntime,single", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    single, peer = value["compared"]
    assert single["name"].startswith("the best single device, cpu.")
    assert single["max_difference"] is None
    assert (peer["name"], peer["precision"]) == ("onnxruntime", "")
    assert re.fullmatch(r"\d+\.\d+\.\d+", peer["version"])
    assert 0 <= peer["max_difference"] < 1e-4
    for each in value["compared"]:
        assert each["num_threads"] == THREADS
        assert min(each["ours_ns"], each["peer_ns"], each["speedup"]) > 0


def test_every_comparison_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(tiny_cnn(), "cnn.onnx")
    assert main(["run", "cnn.onnx", *BUILD, "--compare", "onnxruntime"]) == 0
    text = capsys.readouterr().out
    assert re.search(
        r"^\d+\.\d\dx as fast as onnxruntime [\d.]+ \(median of 15 turns; [\d.]+ [mun]s against "
        r"[\d.]+ [mun]s; \d+ threads? each; outputs differ by at most .* of the largest value\)$",
        text,
        re.MULTILINE,
    )
    measured = r"^measured .* \(p90 .*, p99 .*, 5 runs; [\d,.]+ runs/s\), predicted "
    assert re.search(measured, text, re.MULTILINE)


def test_what_cannot_be_compared_is_refused_before_any_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(tiny_cnn(), "cnn.onnx")
    with pytest.raises(SystemExit):
        main(["run", "cnn.onnx", "--compare", "tensorflow"])
    assert "'tensorflow': expected some of single, onnxruntime, openvino" in capsys.readouterr().err
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "openvino" else real(name)
    )
    assert main(["run", "cnn.onnx", "--compare", "openvino"]) == 5
    assert "openvino, to compare with, is not installed; run: pip" in capsys.readouterr().err


@pytest.mark.costly
def test_an_open_batch_is_one_unless_given(capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(open_model("batch", 4), "open.onnx")
    assert main(["run", "open.onnx", *BUILD]) == 0
    first = capsys.readouterr().out
    assert "compiled for batch 1; --batch N for another" in first
    assert "output y: float32 [1,4]" in first
    assert main(["run", "open.onnx", *BUILD]) == 0
    second = capsys.readouterr().out
    assert "compiled before" in second and "compiled for batch 1" in second
    assert main(["run", "open.onnx", *BUILD, "--batch", "3", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["outputs"]["y"]["shape"] == [3, 4]
    rate = 3e9 / value["measured_ns"]["median"]
    assert value["items_per_second"] == pytest.approx(rate)
    assert not any("batch 1" in note for note in value["notes"])


def test_other_open_sizes_give_a_command_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(open_model("batch", 3, "height", "width"), "open.onnx")
    assert main(["run", "open.onnx", *BUILD]) == 4
    text = capsys.readouterr().err
    assert "leaves sizes of its inputs open: x [batch,3,height,width]" in text
    command = "heteroplace run open.onnx --input x=1,3,224,224"
    assert f"\n  {command} [HP201]" in text
    assert main(["compile", "open.onnx"]) == 4
    assert "heteroplace compile open.onnx --input x=" in capsys.readouterr().err
    assert main(["run", "open.onnx", *BUILD, "--input", "x=1,3,8,8"]) == 0
    assert "output y: float32 [1,3,8,8]" in capsys.readouterr().out


def test_open_sizes_of_many_inputs_are_given_by_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        sums (float[rows, 2, length, 4] a, float[rows, 2, length, 4] b, float[length, 4] c)
          => (float[rows, 2, length, 4] y) { d = Add(a, b)  y = Add(d, c) }
    """)
    onnx.save(model, "many.onnx")
    assert main(["run", "many.onnx", *BUILD]) == 4
    command = "heteroplace run many.onnx --size rows=1 --size length=128"
    assert f"\n  {command} [HP201]" in capsys.readouterr().err
    assert main([*command.split()[1:], *BUILD]) == 0
    assert "output y: float32 [1,2,128,4]" in capsys.readouterr().out


@pytest.mark.costly
def test_a_report_of_a_run_has_predicted_measured_and_peer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    onnx.save(tiny_cnn(), "cnn.onnx")
    command = ["run", "cnn.onnx", *BUILD, "--compare", "onnxruntime", "--report", "run.html"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert text.endswith("\nreport: run.html\n")
    page = Path("run.html").read_text()
    assert f"<title>cnn.onnx on {machine_text(local_cluster(), processor_name())}</title>" in page
    data = data_of(page)
    assert [run["label"] for run in data["runs"]] == ["predicted", "measured"]
    measured = data["measured"]
    (peer,) = measured["peers"]
    assert re.fullmatch(r"onnxruntime \d+\.\d+\.\d+", peer[0])
    assert peer[2] <= peer[1] <= peer[3]
    assert f"{peer[5]:.2f}x as fast as onnxruntime" in text
    own = measured["in_turns"]
    assert f"{format_ns(own[1])} against {format_ns(peer[1])}" in text
    assert measured["others_cores"] >= 0
    used = [name in data["result"]["used"] for name, *_ in data["cluster"]["devices"]]
    assert [peak is not None for peak in data["peaks"]] == used
    assert data["missing"].keys() == {"progress", "peak"}


@pytest.mark.costly
def test_report_and_explain_use_what_run_has_compiled(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(tiny_cnn(), "cnn.onnx")
    assert main(["run", "cnn.onnx", "--runs", "3"]) == 0
    before = sorted((cache / "models").iterdir())
    assert main(["report", "cnn.onnx"]) == 0
    assert main(["explain", "cnn.onnx"]) == 0
    assert main(["diff", "cnn.onnx", "cnn.onnx"]) == 0
    assert sorted((cache / "models").iterdir()) == before
    assert Path("cnn.html").stat().st_size > 10_000
    assert "why: " in capsys.readouterr().out


@pytest.mark.costly
def test_a_cluster_is_for_every_model_of_a_comparison(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(tiny_cnn(), "cnn.onnx")
    cluster = local_cluster(has_gpus=False)
    save_cluster(replace(cluster, devices=cluster.devices[:1]), "one.json")
    assert main(["diff", "cnn.onnx", "cnn.onnx", "--cluster", "one.json"]) == 0
    assert "device cpu." not in capsys.readouterr().out  # neither has a device that the other lacks
    assert main(["report", "cnn.onnx", "--cluster", "one.json", "-o", "one.html"]) == 0
    shown = "heteroplace report cnn.onnx --cluster one.json -o one.html"
    assert data_of(Path("one.html").read_text())["command"] == shown


def test_an_array_fixes_open_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(open_model("batch", "length"), "open.onnx")
    np.save("x.npy", np.ones((2, 5), "float32"))
    command = ["run", "open.onnx", *BUILD, "--input", "x=x.npy", "--compare", "onnxruntime"]
    assert main(command) == 0
    assert "output y: float32 [2,5], 2 .. 2, mean 2" in capsys.readouterr().out
