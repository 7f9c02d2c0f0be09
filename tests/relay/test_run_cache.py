"""`heteroplace run`: the numbers of models in its cache, and the folders that it writes into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from heteroplace.cli.main import main
from heteroplace.cli.models.model_cache import CACHE_VARIABLE
from heteroplace.costs.store import PATH_VARIABLE
from heteroplace.errors import LoweringError
from tests.programs import environment, files_of_at_most, run_python

RUN = ("--input", "x=x.npy", "--runs", "1", "--budget", "1")
PACKAGE = Path(__file__).resolve().parents[2] / "python" / "heteroplace"
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


def save_product(folder: Path, weight: float) -> None:
    """Write net.onnx, the product of x and a matrix of one number in net.onnx_data."""
    folder.mkdir(exist_ok=True)
    (folder / "net.onnx_data").unlink(missing_ok=True)  # onnx writes no other data into it
    weights = numpy_helper.from_array(np.full((3, 3), weight, "float32"), "w")
    x, y = (make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    graph = make_graph([make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    model = make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)
    onnx.save(
        model,
        folder / "net.onnx",
        save_as_external_data=True,
        location="net.onnx_data",
        size_threshold=0,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, so that the product is measured once."""
    return tmp_path_factory.mktemp("store") / "costs.sqlite"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an input x.npy of ones and an empty cache of models."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "models"))
    monkeypatch.setenv(PATH_VARIABLE, str(store))
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones((2, 3), "float32"))
    return tmp_path


def first_output(model: str, *options: str) -> float:
    """Run a model by the command line."""
    assert main(["run", model, *RUN, "-o", "y.npz", *options]) == 0
    with np.load("y.npz") as outputs:
        return float(outputs[outputs.files[0]][0, 0])


@pytest.mark.costly(3)
def test_checkpoints_of_one_architecture_have_their_own_numbers(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_product(here / "A", 1)
    save_product(here / "B", 2)
    assert (here / "A/net.onnx").read_bytes() == (here / "B/net.onnx").read_bytes()
    assert first_output("A/net.onnx") == 3
    assert first_output("B/net.onnx") == 6
    capsys.readouterr()
    assert first_output("A/net.onnx") == 3
    assert "compiled before" in capsys.readouterr().out


@pytest.mark.costly
def test_weights_overwritten_within_one_tick_have_their_own_numbers(here: Path) -> None:
    save_product(here, 1)
    weights = here / "net.onnx_data"
    stamp = weights.stat()
    assert first_output("net.onnx") == 3
    save_product(here, 2)
    os.utime(weights, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert weights.stat().st_size == stamp.st_size
    assert first_output("net.onnx") == 6


def test_weights_that_change_while_they_are_compiled_are_an_error(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = pytest.importorskip("heteroplace.cli.models.model_builder")
    legal_inputs = builder.legal_inputs

    def change(main_function: object) -> object:
        save_product(here, 2)
        return legal_inputs(main_function)

    save_product(here, 1)
    monkeypatch.setattr(builder, "legal_inputs", change)
    assert main(["run", "net.onnx", *RUN]) == 4
    assert "net.onnx: the model or its weights changed while" in capsys.readouterr().err
    monkeypatch.undo()


@pytest.mark.costly(2)
@pytest.mark.parametrize("num_bytes", [0, -1000])
def test_a_truncated_compiled_model_is_compiled_again(
    here: Path, num_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    save_product(here, 1)
    assert first_output("net.onnx") == 3
    (compiled,) = Path(os.environ[CACHE_VARIABLE]).glob("*/model.so")
    compiled.write_bytes(compiled.read_bytes()[:num_bytes])
    capsys.readouterr()
    assert first_output("net.onnx") == 3
    assert "net.onnx: compiled in" in capsys.readouterr().out
    assert first_output("net.onnx") == 3
    assert "compiled in" not in capsys.readouterr().out, "the new file is whole"


@pytest.mark.costly(2)
def test_a_full_disk_stops_neither_run_nor_compile(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No file may be as large as a store, which has some tables of some pages."""
    save_product(here, 1)
    monkeypatch.setenv(PATH_VARIABLE, str(here / "costs.sqlite"))
    with files_of_at_most(64 * 1024):
        assert first_output("net.onnx") == 3
        assert caplog.text.count("Measured costs are not stored") == 1
        assert main(["compile", "net.onnx", "--budget", "1"]) == 0
    assert caplog.text.count("Measured costs are not stored") == 2
    assert not (here / "costs.sqlite").exists()


def test_the_command_to_run_a_compiled_file_can_be_typed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "it's a $(touch x).so"
    save_product(here, 1)
    assert main(["compile", "net.onnx", "--budget", "1", "-o", name]) == 0
    _, _, command = capsys.readouterr().out.strip().partition("; next: ")
    printed = subprocess.run(
        ["sh", "-c", command.replace("heteroplace", "printf '%s\\n'", 1)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == f"run\n{name}\n"


@pytest.mark.costly(6)
def test_kernels_are_made_once_for_all_options(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_product(here, 1)
    assert first_output("net.onnx") == 3
    assert [path.name for path in here.glob("models/*.sqlite")] == ["kernels.sqlite"]

    def fail(*_: object) -> None:
        raise LoweringError("it is made again")

    monkeypatch.setattr("heteroplace.lower.library.lower_kernel", fail)
    assert first_output("net.onnx", "--objective", "throughput") == 3
    assert "compiled in" in capsys.readouterr().out
    assert main(["run", "net.onnx", *RUN, "--rebuild"]) == 4
    assert "it is made again" in capsys.readouterr().err


@pytest.mark.costly(2)
def test_profile_goes_on_without_a_store(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_product(here, 1)
    (here / "file").write_text("")
    monkeypatch.delenv(PATH_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "file"))
    assert main(["profile", "net.onnx", "--cluster", "local", "-o", "costs.json"]) == 0
    assert "store: none, nothing is kept\n" in capsys.readouterr().out
    assert caplog.text.count("Measured costs are not stored") == 1
    assert (here / "costs.json").is_file()


def heteroplace(*arguments: str, prefix: tuple[str, ...] = (), **variables: str | None) -> str:
    """What a command prints; it must end well."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "heteroplace.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(HETEROPLACE_COSTS=None, HETEROPLACE_MODELS=None, **variables),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.costly(4)
def test_run_writes_into_its_own_cache_folder_only(here: Path) -> None:
    """TVM writes into the current folder and the home, and onnxruntime into the cache folder."""
    save_product(here, 1)
    home, cache = here / "home", here / "cache"
    home.mkdir()
    cache.mkdir()
    before = set(here.rglob("*"))
    text = heteroplace(
        *("run", "net.onnx", *RUN, "--verify", "on"),
        HOME=str(home),
        XDG_CACHE_HOME=str(cache),
        ORT_DISABLE_TELEMETRY=None,
    )
    assert "compiled in" in text
    assert not list(home.iterdir())
    assert [path.name for path in cache.iterdir()] == ["heteroplace"]
    assert {path for path in here.rglob("*") if cache not in path.parents} == before


@pytest.mark.costly(4)
def test_a_user_without_a_home_runs_a_model_in_a_read_only_folder(here: Path) -> None:
    """As OpenShift starts containers: with a user id that is in no list of users."""
    arbitrary_user = ("unshare", "--user", "--map-user=12345", "--map-group=0")
    if shutil.which("unshare") is None or subprocess.run([*arbitrary_user, "true"]).returncode:
        pytest.skip("this machine lets nobody take another user id")
    save_product(here, 1)
    here.chmod(0o555)
    try:
        assert subprocess.run([*arbitrary_user, "touch", "file"]).returncode
        nowhere = {"HOME": None, "XDG_CACHE_HOME": None}
        text = heteroplace("run", "net.onnx", *RUN, prefix=arbitrary_user, **nowhere)
    finally:
        here.chmod(0o755)
    assert "net.onnx: compiled in" in text
    assert "not kept: there is no cache folder" in text
    assert "output y: float32 [2,3], 3 .. 3, mean 3" in text
    assert sorted(path.name for path in here.iterdir()) == ["net.onnx", "net.onnx_data", "x.npy"]


def test_onnxruntime_is_loaded_without_telemetry(here: Path) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(PACKAGE / "parts" / "onnx" / "prepare")!r})
from onnx_child import load_onnxruntime  # without its package, which loads TVM
load_onnxruntime()
print(os.environ["ORT_DISABLE_TELEMETRY"])
"""
    cache = here / "cache"
    cache.mkdir()
    places = {"HOME": str(cache), "XDG_CACHE_HOME": str(cache)}
    assert run_python(program, ORT_DISABLE_TELEMETRY=None, **places) == "1\n"
    assert not list(cache.iterdir())
    assert run_python(program, ORT_DISABLE_TELEMETRY="0", **places) == "0\n"


def test_onnxruntime_is_imported_in_one_place() -> None:
    importing = [
        path.name
        for path in PACKAGE.rglob("*.py")
        if any(
            line.split()[:2] in (["import", "onnxruntime"], ["from", "onnxruntime"])
            for line in path.read_text().splitlines()
        )
    ]
    assert importing == ["onnx_child.py"]
