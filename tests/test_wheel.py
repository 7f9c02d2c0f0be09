"""A wheel in an empty environment, as a newcomer meets it: first without TVM, then with it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_BUILDS = all(importlib.util.find_spec(name) for name in ("scikit_build_core", "nanobind"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _BUILDS, reason="scikit-build-core and nanobind are not installed"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout; only what changed since the last build is compiled."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, check=True, env={**os.environ, "PATH": tools})
    (found,) = folder.glob("*.whl")
    return found


class Newcomer:
    """An environment that has the wheel and nothing else, and a folder that is no checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        kept = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
        programs = f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self._environment = {
            **kept,
            "PATH": programs,
            "HETEROPLACE_COSTS": str(folder / "costs.sqlite"),
        }

    def types(self, command: str, code: int = 0) -> str:
        """Return what a command prints; it must end with that exit code."""
        done = subprocess.run(
            command.split(),
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def newcomer(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    found = Newcomer(tmp_path_factory.mktemp("newcomer"))
    found.types(f"python -m pip install --quiet {wheel}")
    return found


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = ["git", "-C", str(ROOT), "ls-files", "python/heteroplace", "examples"]
    tracked = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    expected = {
        path.removeprefix("python/") if path.startswith("python/") else f"heteroplace/{path}"
        for path in tracked
    }
    assert expected
    assert expected - names == set()
    assert any(name.endswith(".data/data/include/heteroplace.h") for name in names)


def test_without_tvm_it_plans_simulates_and_reports(newcomer: Newcomer) -> None:
    assert "place a task graph" in newcomer.types("heteroplace --help")
    newcomer.types("python -m heteroplace.examples.plan_without_tvm")
    assert "predicted" in newcomer.types("heteroplace report fork.json")
    assert "if it took no time" in newcomer.types("heteroplace explain fork.json --op c")
    changed = "heteroplace simulate fork.json --drop-device gpu1 --solve -o one.json"
    assert "placed again" in newcomer.types(changed)
    assert "tasks on gpu1" in newcomer.types("heteroplace diff fork.json one.json")
    assert "no faults" in newcomer.types("heteroplace check fork.json")
    assert "run `heteroplace setup-tvm`" in newcomer.types("heteroplace doctor", code=5)
    assert "setup-tvm" in newcomer.types("heteroplace setup-tvm --check", code=5)
    assert (newcomer.folder / "fork.html").stat().st_size > 0


@pytest.mark.relay
def test_with_tvm_it_runs_a_model(newcomer: Newcomer, wheel: Path) -> None:
    import onnx

    from tests.relay.onnx_models import tiny_cnn

    newcomer.types(f"python -m pip install --quiet {wheel}[relay]")
    newcomer.types("heteroplace setup-tvm")
    onnx.save(tiny_cnn(), newcomer.folder / "model.onnx")
    newcomer.types("heteroplace compile model.onnx -o model.so")
    told = json.loads(newcomer.types("heteroplace run model.so --json --runs 20"))
    assert told["solution"]["placement"]
    assert "headline" in newcomer.types("heteroplace report model.so --measure 5 --json")
    assert "moving it" in newcomer.types("heteroplace explain model.so --op nn.conv2d*")
