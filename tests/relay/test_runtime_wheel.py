"""The wheel heteroplace-runtime, without TVM, solvers and all that compiles."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from c_programs import convolutions, sorting

import heteroplace as hp
import heteroplace._core as _core
from tools.runtime_wheel import MAX_BYTES, main, runtime_files, runtime_metadata, write_wheel

pytestmark = pytest.mark.relay
PACKAGE = Path(hp.__file__).parent
METADATA = """Name: heteroplace
License: Apache-2.0
Requires-Dist: msgspec>=0.18
Requires-Dist: ortools>=9.10
Provides-Extra: serve
Requires-Dist: uvicorn>=0.30; extra == "serve"
Provides-Extra: dev
Requires-Dist: uvicorn>=0.30; extra == "dev"

# heteroplace
"""
RUNS = """
import sys
import numpy as np
import heteroplace
executor = heteroplace.load(sys.argv[1])
inputs = np.load(sys.argv[2])
np.savez(sys.argv[3], *executor.run(dict(inputs)))
print(executor)
assert not {"tvm", "ortools", "scipy", "psutil", "onnx"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of what is installed here."""
    path = tmp_path_factory.mktemp("large") / "heteroplace-0.1.0-cp312-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in PACKAGE.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, Path("heteroplace") / file.relative_to(PACKAGE))
        core = Path(_core.__file__)
        archive.write(core, f"heteroplace/{core.name}")
        archive.writestr("heteroplace-0.1.0.data/scripts/heteroplace-run", b"\x7fELF")
        archive.writestr("heteroplace-0.1.0.dist-info/METADATA", METADATA)
    return path


@pytest.fixture(scope="module")
def folder(large: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the small wheel, numpy and msgspec, and nothing else."""
    assert main([str(large)]) == 0
    small = large.with_name("heteroplace_runtime-0.1.0-cp312-abi3-linux_x86_64.whl")
    assert small.stat().st_size < MAX_BYTES
    environment = tmp_path_factory.mktemp("environment")
    with zipfile.ZipFile(small) as archive:
        archive.extractall(environment)
    for name in ("numpy", "msgspec"):
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        for installed in Path(spec.origin).parents[1].glob(f"{name}*"):
            (environment / installed.name).symlink_to(installed)
    return environment


def run_python(folder: Path, program: str, *arguments: str | Path) -> subprocess.CompletedProcess:
    """Run a program that sees this folder and the standard library."""
    seen = f"import sys; sys.path.append({str(folder)!r})\n{program}"
    command = [sys.executable, "-I", "-S", "-c", seen, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_compiled_file_gives_the_bytes_of_the_whole_package(folder: Path, tmp_path: Path) -> None:
    file, inputs = convolutions(tmp_path)
    np.savez(tmp_path / "in.npz", **inputs)
    done = run_python(folder, RUNS, file, tmp_path / "in.npz", tmp_path / "out.npz")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Executor" in done.stdout
    with np.load(tmp_path / "out.npz") as outputs:
        computed = [outputs[name].tobytes() for name in outputs.files]
    assert computed == [output.tobytes() for output in hp.load(file).run(inputs)]


def test_what_it_lacks_says_which_package_has_it(folder: Path, tmp_path: Path) -> None:
    file, _ = sorting(tmp_path)
    for call in ("heteroplace.compile", "heteroplace.relay", f"heteroplace.load({str(file)!r})"):
        done = run_python(folder, f"import heteroplace\n{call}")
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert "pip install heteroplace" in last or "no TVM" in last or "no attribute" in last


def test_its_commands_are_those_that_run_files(folder: Path, tmp_path: Path) -> None:
    start = "from heteroplace.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    listed = run_python(folder, start, "--help")
    assert listed.returncode == 0, listed.stderr
    for name in ("serve", "show", "generate"):
        assert f"\n  {name} " in listed.stdout
    assert "\n  compile " not in listed.stdout
    file, _ = convolutions(tmp_path)
    shown = run_python(folder, start, "show", file)
    assert shown.returncode == 0 and "input x float32" in shown.stdout


def test_a_wheel_lists_each_of_its_files_with_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "heteroplace_runtime-1-py3-none-any.whl"
    files = {"heteroplace/__init__.py": b"", "heteroplace-1.data/scripts/heteroplace-run": b"x"}
    write_wheel(path, files, "", "1", "py3-none-any")
    with zipfile.ZipFile(path) as archive:
        record = archive.read("heteroplace_runtime-1.dist-info/RECORD").decode().splitlines()
        assert [line.split(",")[0] for line in record] == archive.namelist()
        mode = archive.getinfo("heteroplace_runtime-1.data/scripts/heteroplace-run").external_attr
        assert mode >> 16 == 0o100755  # else pip would install no program
    assert "heteroplace_runtime-1.data/scripts/heteroplace-run" in record[1]
    digest = "sha256=LXEWQrcmsEQBYnyp-6wy9chTD7GQPMTbAiWHF5IaSIE"
    assert record[1].split(",")[1:] == [digest, "1"]


def test_modules_that_import_what_is_not_allowed_stay_away() -> None:
    files = {
        "heteroplace/__init__.py": b"",
        "heteroplace/loading.py": b"from heteroplace.a import f\nX = 'heteroplace.late:f'",
        "heteroplace/a.py": b"import json, numpy\ndef f(): pass\n",
        "heteroplace/late.py": b"from heteroplace.deep import g",
        "heteroplace/deep.py": b"import tvm\ndef g(): pass\n",
        "heteroplace/apart.py": b"",
    }
    names = ("__init__", "a", "loading")
    assert sorted(runtime_files(files)) == [f"heteroplace/{name}.py" for name in names]


def test_it_requires_what_the_large_wheel_does_of_what_it_needs() -> None:
    lines = runtime_metadata(METADATA, "0.1.0").splitlines()
    assert lines[1:3] == ["Name: heteroplace-runtime", "Version: 0.1.0"]
    assert lines[4:] == [
        "License: Apache-2.0",
        "Requires-Dist: msgspec>=0.18",
        "Provides-Extra: serve",
        'Requires-Dist: uvicorn>=0.30; extra == "serve"',
    ]
