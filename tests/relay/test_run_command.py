"""`heteroplace run`, `compile` and `place` of an ONNX model: outputs, the cache, what is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info
from onnx_models import random_inputs, run_onnxruntime, tiny_cnn

from heteroplace.cli.main import main
from heteroplace.cli.models.model_cache import CACHE_VARIABLE
from heteroplace.costs.store import PATH_VARIABLE
from heteroplace.files.solution_file import load_solution
from heteroplace.native.compiled_file import read_manifest
from tests.programs import run_python

BUILD = ("--budget", "1")
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with cnn.onnx and its compiled form in a cache, and a store of its costs."""
    found = tmp_path_factory.mktemp("models")
    onnx.save(tiny_cnn(), found / "cnn.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(found / "cache"))
        patch.setenv(PATH_VARIABLE, str(found / "costs.sqlite"))
        assert main(["run", str(found / "cnn.onnx"), *BUILD, "--runs", "3"]) == 0
        yield found


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as the current one, with its cache and store."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv(CACHE_VARIABLE, str(folder / "cache"))
    monkeypatch.setenv(PATH_VARIABLE, str(folder / "costs.sqlite"))
    return folder


def entries(folder: Path) -> set[str]:
    return {path.name for path in (folder / "cache").iterdir()}


@pytest.mark.costly
def test_outputs_of_given_inputs_are_those_of_onnxruntime(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = random_inputs(tiny_cnn())
    options = []
    for name, array in inputs.items():
        np.save(f"{name}.npy", array)
        options += ["--input", f"{name}={name}.npy"]
    before = entries(here)
    assert main(["run", "cnn.onnx", *BUILD, *options, "--runs", "3", "-o", "y.npz"]) == 0
    assert entries(here) == before
    text = capsys.readouterr().out
    for words in ("compiled before", "predicted", "measured", "3 runs", "longest tasks", "reason"):
        assert words in text
    (expected,) = run_onnxruntime(tiny_cnn(), inputs)
    with np.load("y.npz") as found:
        (name,) = found.files
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4)


def test_a_bfloat16_is_given_and_told_by_its_value(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = (make_tensor_value_info(name, TensorProto.BFLOAT16, [4]) for name in "xy")
    onnx.save(
        make_model(make_graph([make_node("Add", ["x", "x"], ["y"])], "g", [x], [y])), "b.onnx"
    )
    np.save("x.npy", np.array([-1, 0, 3, 6], "float32"))
    command = ["run", "b.onnx", *BUILD, "--input", "x=x.npy", "--runs", "3"]
    assert main([*command, "-o", "y.npz"]) == 0
    assert "output y: bfloat16 [4], -2 .. 12, mean 4\n" in capsys.readouterr().out
    with np.load("y.npz") as found:
        assert found["y"].tolist() == [0xC000, 0, 0x40C0, 0x4140]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outputs"]["y"] == {"shape": [4], "dtype": "bfloat16"}


def test_the_second_time_loads_neither_tvm_nor_solvers(here: Path) -> None:
    program = f"""
import sys
from heteroplace.cli.main import main
assert main(["run", "cnn.onnx", {", ".join(map(repr, BUILD))}, "--runs", "3", "--json"]) == 0
print("loaded:", [name for name in ("tvm", "onnx", "ortools", "scipy") if name in sys.modules])
"""
    assert run_python(program).splitlines()[-1] == "loaded: []"


def test_made_up_inputs_follow_the_seed(here: Path) -> None:
    outputs = []
    for seed in ("0", "0", "1"):
        command = ["run", "cnn.onnx", *BUILD, "--input-seed", seed, "--runs", "3"]
        assert main([*command, "-o", "z.npz"]) == 0
        with np.load("z.npz") as found:
            outputs.append(found[found.files[0]])
    assert np.array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])


@pytest.mark.costly
def test_a_compiled_file_runs_as_the_model_does(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "cnn.onnx", *BUILD, "-o", "cnn.so"]) == 0
    assert "next: heteroplace run cnn.so" in capsys.readouterr().out
    assert main(["run", "cnn.so", "--json", "--runs", "3"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measured_ns"]["runs"] == 3
    assert set(told["solution"]["placement"]) == {
        task.name for task in read_manifest("cnn.so").solution.graph.tasks
    }
    assert main(["explain", "cnn.so", "--op", "nn.conv2d"]) == 0
    assert "moving it" in capsys.readouterr().out
    assert main(["run", "cnn.so", "--budget", "3"]) != 0
    assert "--budget for compiling would change nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ("--cluster", "other.json"),
        ("--ignore-annotations",),
        ("--input", "x=1,3,8,8"),
        ("--batch", "2"),
        ("--rebuild",),
        ("--pin", "conv2d*=cpu.0"),
    ],
    ids=" ".join,
)
def test_what_is_compiled_is_not_told_how(
    here: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("built.so").write_bytes(b"\x7fELF")
    assert main(["run", "built.so", *options]) == 4
    given = " ".join(options) if options[0] == "--input" else options[0]
    message = f"built.so: is compiled already; {given} for compiling would change nothing"
    assert message in capsys.readouterr().err


def test_place_takes_the_model_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["place", "cnn.onnx", "--cluster", "local", *BUILD]
    assert main([*command, "-o", "cnn.json", "--exclude", "cpu.all"]) == 0
    text = capsys.readouterr().out
    assert "no plan is faster" in text
    assert "% measured" in text
    solution = load_solution("cnn.json")
    assert "cpu.all" not in solution.devices_used
    assert main(["place", *command[2:]]) != 0
    assert "give either a task graph" in capsys.readouterr().err


@pytest.mark.costly(6)
def test_place_takes_the_options_of_a_model_for_models_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--kernels", "best", "--tuned", "off", "--store", "off"]
    command = ["--cluster", "local", *BUILD, "--exclude", "cpu.all", *options]
    assert main(["place", "cnn.onnx", *command]) == 0
    assert "cpu.0:tvm" in capsys.readouterr().out
    assert main(["place", "--graph", "graph.json", *command]) == 4
    assert "--store, --kernels, --tuned: for ONNX models only" in capsys.readouterr().err


@pytest.mark.costly(6)
def test_devices_that_a_model_names_hold(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--cluster", "local", *BUILD, "--json"]
    pinned = ["--layers", "n_y=cpu.all", "--annotate-onnx", "annotated.onnx"]
    assert main(["place", "cnn.onnx", *command, *pinned]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["place", "annotated.onnx", *command]) == 0
    assert json.loads(capsys.readouterr().out)["placement"] == told["placement"]
    assert told["placement"]["dense.1"] == ["cpu.all"]
    # What is said now goes before what the model says.
    assert main(["place", "annotated.onnx", *command, "--layers", "n_y=cpu.0"]) == 0
    assert json.loads(capsys.readouterr().out)["placement"]["dense.1"] == ["cpu.0"]
    model = onnx.load("annotated.onnx")
    model.configuration[0].device[:] = ["npu"] * len(model.configuration[0].device)
    onnx.save(model, "foreign.onnx")
    assert main(["place", "foreign.onnx", *command]) == 4
    assert "is annotated for device 'npu'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--input", "imput=x.npy"], "no input 'imput'"),
        (["--input", "{}=small.npy"], "has shape [1], expected [1,"),
        (["--input", "{}=text.npy"], "text.npy: cannot be read as an array"),
        (["-o", "nowhere/y.npz"], "folder 'nowhere' does not exist"),
        (["--pin", "conv2d*=gpu9"], "has no device 'gpu9'"),
        (["--input", "{}=-1,3,8,8"], "(-1, 3, 8, 8): sizes must not be negative"),
        (["--input", "{}=0,3,8,8"], "the shape (0, 3, 8, 8), the file says (1, 3, 8, 8)"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    here: Path, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(iter(random_inputs(tiny_cnn())))
    np.save("x.npy", np.zeros(1, "float32"))
    np.save("small.npy", np.zeros(1, "float32"))
    Path("text.npy").write_text("no array")
    given = [option.format(name) for option in options]
    assert main(["run", "cnn.onnx", *BUILD, *given]) in (2, 4)
    captured = capsys.readouterr().err
    assert text in captured
    assert len(captured.splitlines()) == 1


def test_a_file_that_is_no_model_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "lost.onnx"]) != 0
    assert "lost.onnx: there is no such file" in capsys.readouterr().err
    Path("text.onnx").write_text("no model")
    assert main(["run", "text.onnx"]) != 0
    assert "text.onnx" in capsys.readouterr().err
