"""A package of someone else plugs in: it is installed in a folder; no file of ours changes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import environment, run_python

TOY = Path(__file__).resolve().parent
PAGE = TOY.parents[1] / "docs" / "guide" / "plugins.md"
GRAPH = {
    "schema_version": 1,
    "name": "fork",
    "tasks": [
        {"name": name, "op": "nn.dense", "times_ns": {"cpu.0": 300, "cpu.1": 200}} for name in "abc"
    ],
    "tensors": [{"producer": name, "bytes": 1000} for name in "abc"],
    "outputs": ["a.0", "b.0", "c.0"],
}
CLUSTER = {
    "schema_version": 1,
    "name": "two-cores",
    "host": "ram",
    "memories": [{"name": "ram", "size": "1 GiB"}],
    "devices": [
        {"name": f"cpu.{i}", "target": "llvm", "device": "cpu:0", "memory": "ram", "cores": [i]}
        for i in range(2)
    ],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package, and the files of a graph and a cluster."""
    folder = tmp_path_factory.mktemp("site")
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    subprocess.run([sys.executable, "-m", "pip", *install, folder, TOY], check=True, timeout=300)
    (folder / "graph.json").write_text(json.dumps(GRAPH))
    (folder / "cluster.json").write_text(json.dumps(CLUSTER))
    return folder


def run(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command `heteroplace` where the package is installed."""
    variables = environment()
    variables["PYTHONPATH"] = os.pathsep.join([str(site), variables["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, "-m", "heteroplace.cli.main", *words],
        cwd=site,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_program(site: Path, program: str) -> str:
    """Return what a Python program prints where the package is installed."""
    return run_python(f"import sys\nsys.path.insert(0, {str(site)!r})\n{program}", "-W", "ignore")


@pytest.mark.costly(3)
def test_its_solver_places_everything_on_one_device(site: Path) -> None:
    words = ["--graph", "graph.json", "--cluster", "cluster.json", "--json"]
    placed = run(site, "place", "--solver", "fastest-device", *words)
    assert placed.returncode == 0, placed.stderr
    solution = json.loads(placed.stdout)
    assert solution["solver"] == "fastest-device"
    assert solution["objective_ns"] == 600


@pytest.mark.costly(3)
def test_the_nearest_name_may_be_one_of_its(site: Path) -> None:
    words = ["--graph", "graph.json", "--cluster", "cluster.json"]
    assert (
        'did you mean "fastest-device"?'
        in run(site, "place", "--solver", "fastest-devise", *words).stderr
    )
    assert 'did you mean "count-tasks"?' in run(site, "count-task").stderr


@pytest.mark.costly(3)
def test_its_command_is_listed_and_runs(site: Path) -> None:
    assert "count the tasks of a graph file" in run(site, "--help").stdout
    assert "count-tasks" in run(site, "completion", "bash").stdout
    assert run(site, "count-tasks", "graph.json").stdout == "3\n"


@pytest.mark.relay
@pytest.mark.costly(3)
def test_its_cost_model_says_what_tasks_cost(site: Path) -> None:
    pytest.importorskip("tvm.relay")
    program = """
import numpy as np
import tvm
from tvm import relay
import heteroplace
from heteroplace.relay.annotate.annotation_reader import read_solution
x = relay.var("x", shape=(1, 8))
dense = relay.nn.dense(x, relay.const(np.ones((10, 8), "float32")))
mod = tvm.IRModule.from_expr(relay.Function([x], dense))
options = {"costs": "flops", "solver": "fastest-device"}
placed = relay.transform.HeteroPlace("local", **options)(mod)
print(read_solution(placed).costs.run_ns(0, 0))
try:
    relay.transform.HeteroPlace("local", costs="flops", missing="predict")
except heteroplace.HeteroPlaceError as err:
    print(err)
"""
    cost_ns, message = run_program(site, program).splitlines()
    assert int(cost_ns) == 1 + 2 * 8 * 10 // 10
    assert "costs='flops' is none" in message


MODEL = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 4), float32]) { nn.relu(negative(negative(%x))) }
"""


@pytest.mark.relay
@pytest.mark.costly(11)
def test_its_front_end_reads_a_file_and_its_kernels_run(site: Path) -> None:
    pytest.importorskip("tvm.relay")
    (site / "model.relay").write_text(MODEL)
    words = ["model.relay", "--cluster", "local", "--costs", "flops"]
    compiled = run(site, "compile", *words, "-o", "model.so")
    assert compiled.returncode == 0, compiled.stderr
    refused = run(site, "place", *words, "--annotate-onnx", "placed.onnx")
    assert "model.relay: this format has no place for devices" in refused.stderr
    program = """
import numpy as np
import heteroplace
executor = heteroplace.load("model.so")
print(*executor.run(x=np.float32([[-1, 0, 2, 3]])))
library = open("model.so", "rb").read()
print(b"nn_relu_" in library, b"negative_" in library)
"""
    begin = f"import os\nos.chdir({str(site)!r})\n"
    numbers, kernels = run_program(site, begin + program).splitlines()
    assert numbers == "[[0. 0. 2. 3.]]"
    assert kernels == "True False"


@pytest.mark.costly(3)
def test_the_doctor_names_the_package_of_each_plugin(site: Path) -> None:
    rows = {each["name"]: each for each in json.loads(run(site, "doctor", "--json").stdout)}
    for name in (
        "fastest-device in heteroplace.solvers",
        "count-tasks in heteroplace.commands",
        "relay-text in heteroplace.frontends",
        "no-double-negation in heteroplace.kernel_providers",
    ):
        assert (rows[name]["state"], rows[name]["found"]) == ("ok", "heteroplace-toy 1.0")


WRONG = {
    "two": ("solvers", "heft = heteroplace_toy.solver:FastestDeviceSolver"),
    "lost": ("commands", "lost = no_such_module:add_commands"),
    "typo": ("solver", "mine = heteroplace_toy.solver:FastestDeviceSolver"),
    "raises": ("cost_models", "raises = raises_on_import:Costs"),
}


@pytest.fixture(scope="module")
def wrong_site(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with packages whose entry points are wrong, next to the one that is right."""
    folder = tmp_path_factory.mktemp("wrong")
    for package, (seam, entry) in WRONG.items():
        about = folder / f"{package}-0.1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
        (about / "entry_points.txt").write_text(f"[heteroplace.{seam}]\n{entry}\n")
    (folder / "raises_on_import.py").write_text("raise ValueError('not today')\n")
    for name in ("graph.json", "cluster.json"):
        (folder / name).write_text((site / name).read_text())
    (folder / "heteroplace_toy").symlink_to(site / "heteroplace_toy")
    return folder


@pytest.mark.costly(3)
def test_a_name_of_ours_is_refused_with_the_package(wrong_site: Path) -> None:
    words = ["--graph", "graph.json", "--cluster", "cluster.json"]
    placed = run(wrong_site, "place", *words)
    lost = run(wrong_site, "lost")
    assert placed.returncode == lost.returncode == 4
    assert "the entry point 'lost' of the group 'heteroplace.commands'" in lost.stderr
    assert "FastestDeviceSolver of the package two 0.1 is registered as 'heft'" in placed.stderr
    assert placed.stderr.startswith("error: ")
    assert len(placed.stderr.splitlines()) == 1


@pytest.mark.costly(3)
def test_the_doctor_says_why_a_plugin_cannot_be_used(wrong_site: Path) -> None:
    rows = {each["name"]: each for each in json.loads(run(wrong_site, "doctor", "--json").stdout)}
    for name, reason in (
        ("heft in heteroplace.solvers", "heteroplace has its own 'heft'"),
        ("lost in heteroplace.commands", "package lost 0.1: ModuleNotFoundError: No module named"),
        ("mine in heteroplace.solver", 'does not read; did you mean "solvers"?'),
        ("raises in heteroplace.cost_models", "ValueError: not today"),
    ):
        assert rows[name]["state"] == "broken"
        assert reason in rows[name]["found"]
    assert rows["lost in heteroplace.commands"]["remedy"] == "pip uninstall lost"


@pytest.mark.costly(3)
def test_placing_reads_the_entry_points_of_all_packages_once(site: Path) -> None:
    program = f"""
import importlib.metadata as metadata
import os
os.chdir({str(site)!r})
calls, read = [], metadata.entry_points
metadata.entry_points = lambda **group: calls.append(group) or read(**group)
import heteroplace
from heteroplace.cli.main import main
assert not calls
main(["place", "--graph", "graph.json", "--cluster", "cluster.json", "--solver", "heft"])
print(calls)
"""
    assert run_program(site, program).splitlines()[-1] == "[{}]"


def test_the_page_shows_the_files_of_the_package() -> None:
    blocks = re.findall(r"^```(?:toml|python)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    files = [path.read_text() for path in TOY.rglob("*.py")] + [
        (TOY / "pyproject.toml").read_text()
    ]
    assert len(blocks) == 6
    for block in blocks:
        assert any(block in text for text in files), block
