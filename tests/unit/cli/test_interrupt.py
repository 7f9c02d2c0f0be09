"""Ctrl-C while `heteroplace place` runs, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

import heteroplace
from heteroplace.cli.main import INTERRUPTED
from heteroplace.files.cluster_file import load_cluster
from heteroplace.files.fields.given_times import costs_from_times
from heteroplace.files.graph_file import load_graph
from heteroplace.files.plan_file import load_plan
from heteroplace.model.check import check_plan
from tests.programs import environment, run_python

NUM_TASKS = 1500
HIDE_CURSOR, WIPE_LINE = "\x1b[?25l", "\x1b[2K"
DEVICES = ("a", "b", "c")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of a problem that no solver proves optimal within the test's time."""
    tasks = [
        {
            "name": f"t{i}",
            "times_ns": {
                name: 1000 + (i * 7919 * (k + 3)) % 5003 for k, name in enumerate(DEVICES)
            },
        }
        for i in range(NUM_TASKS)
    ]
    tensors = [
        {
            "producer": f"t{i}",
            "consumers": [f"t{j}" for j in (i + 1 + i % 7, i + 11) if j < NUM_TASKS],
            "bytes": 1000 + i % 17 * 400,
        }
        for i in range(NUM_TASKS)
    ]
    outputs = [f"t{i}.0" for i in range(NUM_TASKS - 20, NUM_TASKS)]
    graph = {"schema_version": 1, "name": "g", "tasks": tasks, "tensors": tensors}
    devices = [
        {"name": name, "target": "llvm", "device": "cpu:0", "memory": "1 GiB"} for name in DEVICES
    ]
    link = {"bandwidth": "1 GB/s", "latency": "1 us", "bidirectional": True}
    links = [{"src": "a", "dst": "b", **link}, {"src": "b", "dst": "c", **link}]
    cluster = {"schema_version": 1, "name": "c", "devices": devices, "links": links}
    (tmp_path / "graph.json").write_text(json.dumps({**graph, "outputs": outputs}))
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    return tmp_path


def place(
    folder: Path, *arguments: str, stderr: int = subprocess.PIPE, **variables: str
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "heteroplace.cli.main", "place", "--cluster", "cluster.json"]
    return subprocess.Popen(
        [*command, "--graph", "graph.json", "--plan", "plan.json", *arguments],
        cwd=folder,
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts() -> None:
    """Undo what a shell does to all that it starts in the background: they ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def read_until(process: subprocess.Popen[str], mark: str) -> str:
    """Return the lines of stderr up to the first that holds `mark`."""
    assert process.stderr is not None
    text = ""
    for line in process.stderr:
        text += line
        if mark in line:
            return text
    raise AssertionError(f"no {mark!r} in: {text}")


def interrupt(process: subprocess.Popen[str], mark: str) -> tuple[str, str]:
    """Interrupt at the first line of stderr that holds `mark`; return what it says from then on."""
    read_until(process, mark)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out, err


def check(folder: Path) -> None:
    read, cluster = load_graph(folder / "graph.json"), load_cluster(folder / "cluster.json")
    assert read.times is not None
    plan = load_plan(folder / "plan.json", read.graph, cluster)
    check_plan(read.graph, cluster, costs_from_times(read.graph, cluster, read.times), plan)


@pytest.mark.costly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("stage", ["heft:", "search:"])
def test_the_best_plan_so_far_is_written(folder: Path, stage: str) -> None:
    out, err = interrupt(place(folder, "--budget", "100", "-v"), stage)
    assert "note: interrupted; this is the best plan so far" in err
    assert "interrupted after" in out
    check(folder)


@pytest.mark.timeout(120)
def test_an_interrupt_after_the_search_does_not_lose_the_plan(folder: Path) -> None:
    interrupt(place(folder, "--solver", "heft", "-v"), "heft:")
    check(folder)


@pytest.mark.costly
@pytest.mark.timeout(120)
def test_the_second_interrupt_ends_the_program(folder: Path) -> None:
    process = place(folder, "--budget", "100", "-v")
    read_until(process, "search:")
    process.send_signal(signal.SIGINT)
    read_until(process, "note: interrupted")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == INTERRUPTED
    assert err.endswith("interrupted\n")
    assert [path.name for path in folder.iterdir() if path.name.endswith(".tmp")] == []


def wait_until_asleep(process: subprocess.Popen[str]) -> None:
    """Return once the program waits for something, such as a file that it reads.

    A signal on its way there, between Python's last look for signals and the call of the system,
    would not wake it: Python itself has no remedy for that.
    """
    times_asleep = 0
    while times_asleep < 10:
        status = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        times_asleep = times_asleep + 1 if status == "S" else 0
        time.sleep(0.01)


@pytest.mark.timeout(120)
def test_interrupted_without_a_plan(folder: Path) -> None:
    (folder / "graph.json").unlink()
    os.mkfifo(folder / "graph.json")
    process = place(folder)
    with (folder / "graph.json").open("w"):  # It waits here until the program opens it, too.
        wait_until_asleep(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == INTERRUPTED
    assert err == "interrupted\n"
    assert not (folder / "plan.json").exists()


INTERRUPTED_IMPORT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from heteroplace.cli.{command} import main
sys.exit(main([{argument!r}, "--help"]))
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("command", "argument", "module"),
    [
        ("main", "place", "numpy"),
        ("main", "place", "heteroplace.cli.place"),
        pytest.param("tvmc_plugin.tvmc", "compile", "tvm", marks=pytest.mark.relay),
    ],
)
def test_an_interrupt_while_modules_are_loaded_is_one_line(
    command: str, argument: str, module: str
) -> None:
    program = INTERRUPTED_IMPORT.format(command=command, argument=argument, module=module)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        preexec_fn=heed_interrupts,
    )
    assert (done.returncode, done.stderr) == (INTERRUPTED, "interrupted\n")


PACKAGE = Path(heteroplace.__file__).parent
IMPORTED_FIRST = """
import sys
before = set(sys.modules)
import heteroplace.cli.console_scripts
print(*sorted(set(sys.modules) - before))
"""


def test_little_is_imported_before_ctrl_c_is_answered() -> None:
    imported = set(run_python(IMPORTED_FIRST, "-S", PYTHONPATH=str(PACKAGE.parent)).split())
    ours = {name for name in imported if name.startswith("heteroplace")}
    assert ours == {
        "heteroplace",
        "heteroplace.cli",
        "heteroplace.cli.console_scripts",
        "heteroplace.entry",
    }
    assert not imported & {"argparse", "inspect", "logging", "pathlib", "tempfile", "typing"}


INTERRUPTED_START = """
import importlib.metadata, os, runpy, signal, sys
class Interrupt:
    num_modules = 0
    def find_spec(self, name, path=None, target=None):
        first = "heteroplace.cli.main", "heteroplace.cli.tvmc_plugin.tvmc", "heteroplace.interrupts"
        self.num_modules += name in first or self.num_modules > 0
        if self.num_modules == {modules}:
            os.kill(os.getpid(), signal.SIGINT)
sys.argv = [{program!r}, {argument!r}, "--help"]
scripts = importlib.metadata.entry_points(group="console_scripts", name={program!r})
sys.meta_path.insert(0, Interrupt())
if scripts:
    sys.exit(list(scripts)[0].load()())
else:
    runpy.run_module({program!r}, run_name="__main__", alter_sys=True)
"""
"""Ctrl-C comes while the program looks for its second, third, ... module."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("modules", [2, 3, 10, 40])
@pytest.mark.parametrize(
    ("program", "argument"),
    [
        ("heteroplace", "place"),
        ("tvmc", "compile"),
        ("benchmarks", "place"),
        ("benchmarks.demo", "run"),
    ],
)
def test_an_interrupt_at_the_start_is_one_line(program: str, argument: str, modules: int) -> None:
    code = INTERRUPTED_START.format(program=program, argument=argument, modules=modules)
    done = run_interrupted(code)
    assert (done.returncode, done.stderr) == (INTERRUPTED, "interrupted\n")


def test_a_program_that_ignores_ctrl_c_goes_on() -> None:
    code = INTERRUPTED_START.format(program="heteroplace", argument="place", modules=10)
    done = run_interrupted("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + code)
    assert (done.returncode, done.stderr) == (0, "")


def run_interrupted(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        preexec_fn=heed_interrupts,
    )


INTERRUPTED_PASS = """
import signal, sys, time
import onnx
from onnx import helper
from heteroplace.pipeline import place_stages
from heteroplace.cli.{command} import main
signal.signal(signal.SIGINT, signal.default_int_handler)
value = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", value[:1], value[1:])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "m.onnx")
run_stages = place_stages.run_stages
def interrupted(*given):
    signal.raise_signal(signal.SIGINT)
    return run_stages(*given)
place_stages.run_stages = interrupted
sys.exit(main({arguments!r}))
"""
"""HeteroPlace is a callback of TVM, and Ctrl-C comes within."""


@pytest.mark.costly(4)
@pytest.mark.relay
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("main", ["compile", "m.onnx", "-o", "m.so"]),
        ("tvmc_plugin.tvmc", ["compile", "m.onnx", "--placement", "local", "-o", "m.so"]),
    ],
)
def test_an_interrupt_while_tvm_compiles_is_one_line(
    command: str, arguments: list[str], tmp_path: Path
) -> None:
    program = INTERRUPTED_PASS.format(command=command, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment(),
        preexec_fn=heed_interrupts,
    )
    assert done.returncode == INTERRUPTED
    assert done.stderr.endswith("interrupted\n") and "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert not (tmp_path / "m.so").exists()


@pytest.mark.costly
@pytest.mark.timeout(120)
def test_an_interrupt_leaves_the_terminal_as_it_was(folder: Path) -> None:
    ours, theirs = os.openpty()
    before = termios.tcgetattr(ours)
    process = place(folder, "--budget", "100", stderr=theirs, TERM="xterm")
    os.close(theirs)
    drawn = read_terminal(ours, "Placing: best ")
    process.send_signal(signal.SIGINT)
    drawn += read_terminal(ours, "best plan so far")
    process.communicate()
    assert termios.tcgetattr(ours) == before
    assert HIDE_CURSOR not in drawn
    assert f"{WIPE_LINE}note: interrupted; this is the best plan so far" in drawn
    os.close(ours)


def read_terminal(terminal: int, mark: str) -> str:
    """Return what is drawn up to a mark."""
    drawn = b""
    while mark.encode() not in drawn:
        drawn += os.read(terminal, 4096)
    return drawn.decode(errors="replace")
