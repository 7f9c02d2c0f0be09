"""A wheel in an empty environment, as a newcomer meets it: first without TVM, then with it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.newcomer.sandbox import Sandbox
from heteroplace.tvm_wheel import default_cache_dir

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
    """An empty home with an environment that has the wheel and nothing else, and no checkout."""

    def __init__(self, folder: Path) -> None:
        self._sandbox = Sandbox(folder, in_chroot=False, bound=[])
        self.home, self.folder = self._sandbox.home, self._sandbox.home / "work"
        self.types(f"{sys.executable} -m venv {self._sandbox.environment}")

    def types(self, command: str, code: int = 0) -> str:
        """Return what a command prints; it must end with that exit code."""
        done = self._sandbox.types(command, self.folder)
        assert done.code == code, f"{command}\n{done.printed}"
        return done.printed

    def keeps_tvm(self) -> None:
        """Link the TVM wheel that this machine has into the cache of the empty home."""
        cache = self.home / ".cache" / "heteroplace"
        cache.mkdir(parents=True)
        for path in default_cache_dir().glob("*.whl*"):
            (cache / path.name).symlink_to(path)


@pytest.fixture(scope="module")
def newcomer(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    pip_cache = [sys.executable, "-m", "pip", "cache", "dir"]
    cache = subprocess.run(pip_cache, capture_output=True, text=True, check=False)
    with pytest.MonkeyPatch.context() as patch:
        if cache.returncode == 0:  # else pip keeps no downloads here
            patch.setenv("PIP_CACHE_DIR", cache.stdout.strip())
        started = Newcomer(tmp_path_factory.mktemp("newcomer"))
        started.types(f"python -m pip install --quiet {wheel}")
        yield started


def test_the_wheel_is_for_every_python_that_can_load_it(wheel: Path) -> None:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = "cp312-abi3" if sys.version_info >= (3, 12) else f"{python}-{python}"
    assert f"-{tag}-" in wheel.name
    suffix = ".abi3.so" if sys.version_info >= (3, 12) else f".cpython-{python[2:]}-"
    cores = [name for name in zipfile.ZipFile(wheel).namelist() if "/_core." in name]
    assert [suffix in name for name in cores if name.endswith(".so")] == [True]


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
    assert "place a model or a task graph" in newcomer.types("heteroplace --help")
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
    newcomer.keeps_tvm()
    newcomer.types("heteroplace setup-tvm")
    onnx.save(tiny_cnn(), newcomer.folder / "model.onnx")
    assert "measured" in newcomer.types("heteroplace run model.onnx")
    newcomer.types("heteroplace compile model.onnx -o model.so")
    printed = json.loads(newcomer.types("heteroplace run model.so --json --runs 20 2> log"))
    assert printed["solution"]["placement"]
    assert "headline" in newcomer.types("heteroplace report model.so --measure 5 --json")
    assert "moving it" in newcomer.types("heteroplace explain model.so --op nn.conv2d*")


@pytest.mark.relay
def test_large_packages_are_those_that_the_page_names(newcomer: Newcomer) -> None:
    # After the test above: with TVM.
    listed = json.loads(newcomer.types("python -m pip list --format json"))
    names = {entry["name"] for entry in listed}
    assert "tvm-relay" in names
    large = {name for name in names if name == "pandas" or name.startswith(("nvidia", "torch"))}
    page = (ROOT / "docs" / "guide" / "install.md").read_text()
    assert [name for name in large if f"`{name}`" not in page] == []
    assert large <= {"pandas", "nvidia-cuda-runtime-cu12"}
