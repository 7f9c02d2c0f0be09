"""All entries of a model placed together: its placement, its executable, and the commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import make_model, node
from relay_models import cpu_cluster
from test_memory_by_lifetime import needs_two_cores, two_memories

import heteroplace as hp
from heteroplace.cli.main import main
from heteroplace.errors import ClusterError, FrontendError, InfeasibleError, SolverError
from heteroplace.files.cluster_file import save_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from tests.tiny_decoders import onnx_decoder

pytestmark = pytest.mark.relay

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "state.md"
WIDTH = 256
MATRIX_BYTES = 4 * WIDTH**2
LAYERS = 3
ENTRIES = {"token": {"n": 1}, "prompt": {"n": 16}}
WORKLOAD = {"token": 20, "prompt": 2}
SMALL_BYTES = 64
"""More than all single numbers take, which count for each task that reads them."""
TIGHT = 5 * MATRIX_BYTES // 2
"""Room for two matrices and all else, but not for three."""
STATE = {"h": "hn"}
OPTIONS: dict[str, Any] = {"iterations": 300, "verify": "off"}


def layers() -> onnx.ModelProto:
    """y = relu(relu(x W0) W1) W2 - h, hn = h / 2 + mean of the rows of y."""
    random = np.random.default_rng(0)
    constants: dict[str, Any] = {
        f"w{layer}": random.standard_normal((WIDTH, WIDTH)).astype("float32") / 16
        for layer in range(LAYERS)
    }
    nodes = [
        node("MatMul", "x w0", "a"),
        node("Relu", "a", "b"),
        node("MatMul", "b w1", "c"),
        node("Relu", "c", "d"),
        node("MatMul", "d w2", "e"),
        node("Sub", "e h", "y"),
        node("ReduceMean", "y", "m", axes=[0], keepdims=1),
        node("Mul", "h half", "g"),
        node("Add", "g m", "hn"),
    ]
    inputs = {"x": ["n", WIDTH], "h": [1, WIDTH]}
    return make_model(nodes, inputs, ["y", "hn"], {**constants, "half": np.float32(0.5)})


class Expected:
    """The same in numpy."""

    def __init__(self) -> None:
        arrays = {
            each.name: onnx.numpy_helper.to_array(each) for each in layers().graph.initializer
        }
        self.weights = [arrays[f"w{layer}"] for layer in range(LAYERS)]
        self.h = np.zeros((1, WIDTH), "float32")

    def run(self, x: np.ndarray) -> np.ndarray:
        """Return y."""
        value = x @ self.weights[0]
        for weights in self.weights[1:]:
            value = np.maximum(value, 0) @ weights
        y = value - self.h
        self.h = self.h / 2 + y.mean(0, keepdims=True)
        return y


def check_sessions(executor: hp.Executor) -> None:
    """A session goes on through both entries with the values of numpy."""
    session, expected = executor.session(), Expected()
    for seed, count in enumerate([16, 1, 1, 16, 1]):
        x = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype("float32")
        (y,) = session.run(x=x)
        np.testing.assert_allclose(y, expected.run(x), rtol=1e-4, atol=1e-4)


def a_core_for_each_entry(graph: TaskGraph, cluster: Cluster) -> CostTable:
    """One row is quick on cpu.1, and many rows on cpu.0."""
    rows = max(graph.tensors[tensor].shape[0] for tensor in graph.inputs)
    quick = "cpu.1" if rows == 1 else "cpu.0"
    return build_table(
        graph,
        cluster,
        lambda _, device: Cost.given(
            100_000 if cluster.devices[device].name == quick else 1_000_000
        ),
    )


def placed(cluster: Cluster, **options: Any) -> hp.WorkloadSolution:
    settings = {"costs": a_core_for_each_entry, "entries": ENTRIES, "workload": WORKLOAD}
    return hp.place_workload(layers(), cluster, **{**settings, **OPTIONS, **options})


@pytest.mark.costly
def test_weights_that_entries_share_count_once() -> None:
    solution = placed(cpu_cluster(), costs="estimate")
    assert 0 <= solution.weight_bytes["ram"] - LAYERS * MATRIX_BYTES < SMALL_BYTES
    text = str(solution)
    assert "\nmemory ram: 768.0 KiB of weights and state, " in text
    assert "\nentry token: 20 calls, " in text
    assert text.startswith("predicted ")
    tokens, prompts = (each.predicted_ns for each in solution.solutions.values())
    assert solution.objective_ns == 20 * tokens + 2 * prompts
    assert solution.bound_ns <= solution.objective_ns


@pytest.mark.costly
@needs_two_cores
def test_a_tight_memory_gives_a_placement_over_both() -> None:
    solution = placed(two_memories(TIGHT), state=STATE)
    assert all(solution.weight_bytes.values())
    for name, num_bytes in solution.weight_bytes.items():
        assert num_bytes + solution.value_bytes[name] <= TIGHT
    assert sum(solution.weight_bytes.values()) >= LAYERS * MATRIX_BYTES + 4 * WIDTH
    roomy = placed(two_memories(2**30), state=STATE)
    assert roomy.objective_ns < solution.objective_ns


@pytest.mark.costly
@needs_two_cores
def test_an_executable_runs_entries_with_different_plans() -> None:
    executable = hp.compile(
        layers(),
        two_memories(2**30),
        costs=a_core_for_each_entry,
        state=STATE,
        entries=ENTRIES,
        workload=WORKLOAD,
        **OPTIONS,
    )
    programs = [executable, *executable.entries.values()]
    used = [program.solution.devices_used for program in programs]
    assert ["cpu.1" in used[0], "cpu.0" in used[1]] == [True, True]
    assert used[0] != used[1]
    with hp.Executor(executable) as executor:
        check_sessions(executor)


@needs_two_cores
def test_an_executable_for_tight_memories_runs() -> None:
    executable = hp.compile(
        layers(),
        two_memories(2 * TIGHT),
        costs=a_core_for_each_entry,
        state=STATE,
        entries=ENTRIES,
        **OPTIONS,
    )
    with hp.Executor(executable) as executor:
        check_sessions(executor)


@needs_two_cores
def test_more_memory_says_what_a_workload_would_take() -> None:
    solution = placed(two_memories(TIGHT), state=STATE)
    more = solution.more_memory("ram1", "1 MiB")
    assert (more.memory, more.was_bytes, more.now_bytes) == ("ram1", TIGHT, TIGHT + 2**20)
    assert more.before_ns == solution.objective_ns
    assert more.bound_ns <= more.objective_ns < more.before_ns
    roomy = placed(two_memories(2**30), state=STATE)
    assert more.bound_ns <= roomy.objective_ns
    text = str(more)
    assert text.startswith("changed: memory ram1: 1.6 MiB instead of 640.0 KiB\n")
    assert "lower bound" in text
    assert "\nplaced again" in text
    assert "\nmemory ram1: " in text
    less = solution.more_memory("cpu.1", "-100 KiB", time_limit=5)
    assert less.memory == "ram1"
    assert less.objective_ns >= less.bound_ns >= solution.bound_ns


@needs_two_cores
def test_wrong_questions_about_memory_are_refused() -> None:
    solution = placed(two_memories(TIGHT))
    with pytest.raises(ClusterError, match="no memory or device 'ram2'; did you mean \"ram"):
        solution.more_memory("ram2", "1 MiB")
    with pytest.raises(ClusterError, match="expected a size such as"):
        solution.more_memory("ram1", "much")
    with pytest.raises(ClusterError, match="would leave nothing; take away less"):
        solution.more_memory("ram1", "-1 MiB")
    with pytest.raises(InfeasibleError):
        solution.more_memory("ram1", -TIGHT + 1024)
    lost = hp.WorkloadSolution(
        solution.solutions, solution.calls, 0, solution.weight_bytes, solution.value_bytes
    )
    assert lost.solved is None
    with pytest.raises(SolverError, match="lost what it was solved from"):
        lost.more_memory("ram1", "1 MiB")


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"token": 1, "promt": 2}, "no entry 'promt'; did you mean \"prompt\""),
        ({"token": 1}, "does not say how often 'prompt' is called"),
        ({"token": 0, "prompt": 1}, "expected at least 1 call, got 0"),
        ({"token": "1", "prompt": 1}, "expected a number of calls, such as 8, or a text"),
        ({"token": 1.5, "prompt": 1}, "of type float; expected a number of calls"),
        ([1], "workload is of type list"),
    ],
)
def test_wrong_workloads_are_refused(workload: Any, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        placed(cpu_cluster(), workload=workload)


def test_a_workload_needs_entries() -> None:
    with pytest.raises(FrontendError, match="entries"):
        hp.compile(layers(), cpu_cluster(), workload=WORKLOAD)


@pytest.mark.costly(15)
def test_the_program_of_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    free = onnx_decoder("sequence_length", capacity=512, has_free_sizes=True)
    onnx.save(free, "model.onnx")
    _, _, section = GUIDE.read_text().partition("## Place all entries together\n")
    blocks = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], flags=re.DOTALL)
    assert len(blocks) == 2
    exec("import heteroplace\n" + "".join(blocks), {"__name__": "program"})
    text = capsys.readouterr().out
    assert "\nentry token: 128 calls, " in text
    assert "\nchanged: memory gpu0: " in text


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the model and two tight memories, made the current one."""
    monkeypatch.chdir(tmp_path)
    onnx.save(layers(), "model.onnx")
    save_cluster(two_memories(TIGHT), "cluster.json")
    return tmp_path


COMMON = ["--cluster", "cluster.json", "--costs", "estimate", "--iterations", "300"]
COMMON += ["--entry", "token:n=1", "--entry", "prompt:n=16"]


@pytest.mark.costly
@needs_two_cores
def test_the_command_place_prints_all_entries(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = ["--workload", "token=20", "--workload", "prompt=20 tokens"]
    command = ["place", "model.onnx", *COMMON, *calls, "--more-memory", "ram0=1MiB"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert text.startswith("predicted ")
    assert "\nentry token: 20 calls, " in text
    assert "\n\nchanged: memory ram0: 1.6 MiB instead of 640.0 KiB\n" in text
    assert main([*command, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["calls"] == {"token": 20, "prompt": 2}
    assert value["bound_ns"] <= value["objective_ns"]
    times = {name: each["simulated_ns"] for name, each in value["entries"].items()}
    assert value["objective_ns"] == 20 * times["token"] + 2 * times["prompt"]
    assert value["memory"]["ram0"]["bytes"] == TIGHT
    assert sum(each["weight_bytes"] for each in value["memory"].values()) >= LAYERS * MATRIX_BYTES
    placement = value["entries"]["prompt"]["placement"].values()
    assert {name for names in placement for name in names} <= {"cpu.0", "cpu.1"}
    (more,) = value["more_memory"]
    assert more["bound_ns"] <= more["objective_ns"] <= more["before_ns"]


@pytest.mark.costly(4)
@needs_two_cores
def test_the_command_compile_places_all_entries_together(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_cluster(two_memories(2 * TIGHT), "cluster.json")
    command = ["compile", "model.onnx", "-o", "model.so", "--state", "h=hn", *COMMON]
    assert main([*command, "--stages"]) == 0
    text = capsys.readouterr().out
    assert "\nworkload " in text
    assert "\nentry prompt: 1 call, " in text
    assert "\nmemory ram0: " in text
    with hp.load("model.so") as executor:
        assert list(executor.entries) == ["token", "prompt"]
        check_sessions(executor)
    calls = ["--workload", "token=3", "--workload", "prompt=1"]
    assert main([*command, *calls, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert list(value["entries"]) == ["prompt"]
    workload = value["workload"]
    assert workload["calls"] == {"token": 3, "prompt": 1}
    assert 0 <= workload["gap"] <= 1
    assert set(workload["memory"]) == {"ram0", "ram1"}


@pytest.mark.parametrize("flags", [["-o", "plan.json"], ["--trace", "t.json"], ["--plan", "p"]])
def test_files_of_one_plan_are_refused_with_entries(
    files: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["place", "model.onnx", *COMMON, *flags]) == 4
    assert "makes a plan for each entry" in capsys.readouterr().err
