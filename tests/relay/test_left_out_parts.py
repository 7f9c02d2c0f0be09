"""The core alone: a copy of the package without the folder `parts` compiles, runs and is tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.package_copy import copy_package, run_python
from tests.reached_tests import read_names

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import numpy as np
import tvm
from tvm import relay
import heteroplace
from heteroplace.errors import HeteroPlaceError
from heteroplace.frontends import frontend_of
from heteroplace.measure.remote_host import remote_host
from heteroplace.run.transport import host_transport, launched_transport

x = relay.var("x", shape=(1, 8))
weight = relay.const(np.eye(8, dtype="float32") * 2)
mod = tvm.IRModule.from_expr(relay.Function([x], relay.nn.relu(relay.nn.dense(x, weight))))
executable = heteroplace.build(mod, "local", costs="estimate")
executable.export_library("model.so")
for executor in (heteroplace.Executor(executable), heteroplace.load("model.so")):
    (output,) = executor.run(x=np.full((1, 8), 3.0, "float32"))
    assert (output == 6).all()
assert launched_transport() is None
for refused in (
    lambda: heteroplace.build(mod, "local", costs="estimate", verify="on"),
    lambda: frontend_of("model.onnx"),
    host_transport,
    lambda: remote_host("far", "far.example", 9090),
    lambda: heteroplace.build(mod, "local", costs="estimate", objective="throughput"),
    lambda: heteroplace.build(mod, "local", costs="estimate", items=2),
    lambda: heteroplace.frontend,
    lambda: heteroplace.shard,
):
    try:
        refused()
    except HeteroPlaceError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, but for its parts, and with the compiled core."""
    return copy_package(tmp_path_factory.mktemp("core"), "parts")


@pytest.mark.costly(20)
def test_a_relay_network_compiles_and_runs_without_parts(core: Path, tmp_path: Path) -> None:
    done = run_python([core], ["-c", PROGRAM], tmp_path)
    assert done.returncode == 0, done.stderr
    verify, frontend, transport, remote, throughput, items, *public = done.stdout.splitlines()
    assert verify.startswith("VerificationError verify='on' cannot be done: no installed package")
    assert frontend.startswith("MissingPackageError model.onnx: no installed package reads models")
    assert transport.startswith("MissingPackageError several hosts need a transport")
    assert remote.startswith("MissingPackageError no installed package measures kernels on another")
    assert throughput.startswith("MissingPackageError the objective 'throughput' needs a solver")
    assert items.startswith("MissingPackageError a plan for 2 items needs a solver")
    assert throughput.endswith(part := "install heteroplace with its part `throughput`")
    assert items.endswith(part)
    for line, name in zip(public, ("frontend", "shard"), strict=True):
        assert line.startswith(f"PluginError no installed package registers '{name}'")


def core_test_files() -> list[str]:
    """Return the files of tests/unit that name neither a part, nor the benchmarks, nor docs."""
    files = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if not needs_more(file, set())]


def needs_more(file: Path, seen: set[Path]) -> bool:
    """Tell whether a file of tests, or another one that it imports, names more than the core."""
    seen.add(file)
    names = set(read_names(file.read_text()))
    if any(name.startswith(("heteroplace.parts", "benchmarks", "docs", "zoo")) for name in names):
        return True
    paths = {ROOT / (name.replace(".", "/") + ".py") for name in names if name.startswith("tests")}
    return any(needs_more(path, seen) for path in paths - seen if path.is_file())


def test_most_unit_tests_are_of_the_core() -> None:
    assert len(core_test_files()) > 100


@pytest.mark.slow
def test_the_core_test_files_pass_without_parts(core: Path) -> None:
    chosen = "not slow and not costly and not relay and not parts"
    arguments = ["-m", "pytest", "-n0", "-q", "-m", chosen]
    done = run_python([core], [*arguments, *core_test_files()], ROOT)
    assert done.returncode == 0, done.stdout[-4000:]
