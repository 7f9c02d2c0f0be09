"""State of sessions in a memory of its own: it is used there, and no call copies it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import make_model, node
from relay_models import cpu_cluster, mixed_cluster, random_costs
from test_memory_by_lifetime import needs_two_cores, two_memories

import heteroplace as hp
from heteroplace.errors import InfeasibleError, SolverError
from heteroplace.lower.program import Program
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.native.compiled_file import read_manifest
from heteroplace.run.executor import Executor
from tests.tiny_decoders import greedy_tokens, onnx_decoder

pytestmark = pytest.mark.relay

SIZE = 24
"""Elements of the state, and of nothing else in the model."""
WIDE_BYTES = 1 << 16
FAR = {"pin": {"*": "cpu.1"}}


def recurrent() -> onnx.ModelProto:
    """hn = tanh(h + x w), y = hn v, cn = c + h: x has 4 elements, h and c have SIZE."""
    nodes = [
        node("MatMul", "x w", "a"),
        node("Add", "h a", "b"),
        node("Tanh", "b", "hn"),
        node("MatMul", "hn v", "y"),
        node("Add", "c h", "cn"),
    ]
    random = np.random.default_rng(0)
    constants = {
        "w": random.standard_normal((4, SIZE)).astype("float32"),
        "v": random.standard_normal((SIZE, 5)).astype("float32"),
    }
    inputs = {"x": [1, 4], "h": [1, SIZE], "c": [1, SIZE]}
    return make_model(nodes, inputs, ["y", "hn", "cn"], constants)


def wide() -> onnx.ModelProto:
    """hn = h + x, with a state of a page: memory of a host is counted in pages."""
    nodes = [node("Add", "h x", "hn"), node("ReduceSum", "hn axis", "y", keepdims=0)]
    inputs = {"x": [1, 1], "h": [1, WIDE_BYTES // 4]}
    return make_model(nodes, inputs, ["y", "hn"], {"axis": np.array([1])})


def compiled(model: onnx.ModelProto, cluster: hp.Cluster, **options: Any) -> hp.Executable:
    settings: dict[str, Any] = {"costs": random_costs, "solver": "heft", "verify": "off"}
    return hp.compile(model, cluster, **{"state": "auto", **settings, **options})


def copied_sizes(program: Program) -> list[int]:
    """Elements of each tensor that an instruction copies."""
    sizes = []
    for queue in program.queues:
        for at in queue.instructions:
            if at.kind == "copy":
                sizes += [int(np.prod(program.tensors[int(each)].shape)) for each in at.fields]
    return sizes


def state_memories(executable: hp.Executable) -> dict[str, str]:
    """The memory of each input that sessions keep."""
    program = executable.lowered.program
    inputs = [program.inputs[position] for position, _ in program.kept_states]
    return {name: program.spaces[program.tensors[tensor].space].name for name, tensor in inputs}


@needs_two_cores
@pytest.mark.parametrize("options", [FAR, {}, {"solver": "search", "iterations": 200}], ids=str)
def test_sessions_have_the_values_of_plain_calls(options: dict[str, Any]) -> None:
    executable = compiled(recurrent(), two_memories(2**30), **options)
    assert SIZE not in copied_sizes(executable.lowered.program)
    if options == FAR:
        assert set(state_memories(executable).values()) == {"ram1"}
    plain = Executor(compiled(recurrent(), two_memories(2**30), state={}, **options))
    with Executor(executable) as executor, plain:
        session = executor.session()
        other = executor.session()
        h = c = np.zeros((1, SIZE), "float32")
        for seed in range(5):
            x = np.random.default_rng(seed).standard_normal((1, 4)).astype("float32")
            expected, h, c = plain.run(x=x, h=h, c=c)
            (y,) = session.run(x=x)
            np.testing.assert_array_equal(y, expected)
            np.testing.assert_array_equal(session.state["h"], h)
            np.testing.assert_array_equal(session.state["c"], c)
        results = executor.run(x=x, h=h, c=c)
        for each, expected in zip(results, plain.run(x=x, h=h, c=c), strict=True):
            np.testing.assert_array_equal(each, expected)
        assert not other.state["h"].any()


@needs_two_cores
def test_forks_and_files_go_on_from_the_state(tmp_path: Path) -> None:
    x = np.ones((1, 4), "float32")
    with Executor(compiled(recurrent(), two_memories(2**30), **FAR)) as executor:
        session = executor.session(initial={"h": np.full((1, SIZE), 0.5, "float32")})
        session.run(x=x)
        session.save(tmp_path / "state.npz")
        fork, loaded = session.fork(), executor.session()
        loaded.load(tmp_path / "state.npz")
        (expected,) = session.run(x=x)
        for each in (fork, loaded):
            np.testing.assert_array_equal(each.run(x=x)[0], expected)
        fork.reset()
        np.testing.assert_array_equal(fork.state["h"], np.full((1, SIZE), 0.5, "float32"))


@pytest.mark.costly
@needs_two_cores
def test_a_cache_is_written_where_it_lies_in_another_memory() -> None:
    executable = compiled(onnx_decoder(1), two_memories(2**30), **FAR)
    assert set(state_memories(executable).values()) == {"ram1"}
    with Executor(executable) as executor:
        prompt = [3, 1, 4]
        assert list(executor.session().generate(prompt, max_new_tokens=6)) == greedy_tokens(
            prompt, 6
        )


def test_a_gpu_keeps_state_in_its_memory() -> None:
    executable = compiled(recurrent(), mixed_cluster(), pin={"*": "gpu0"})
    assert set(state_memories(executable).values()) == {"gpu-memory"}
    assert SIZE not in copied_sizes(executable.lowered.program)
    inputs = [
        executable.solution.graph.tensors[tensor].name
        for tensor in executable.solution.graph.inputs
    ]
    assert inputs == ["x"]


def test_the_plan_is_used_again_and_stays(tmp_path: Path) -> None:
    cluster = mixed_cluster()
    first = compiled(recurrent(), cluster)
    first.export_library(tmp_path / "first.so")
    again = compiled(recurrent(), cluster, solver="auto", plan_in=tmp_path / "first.so")
    assert again.solution.plan.steps == first.solution.plan.steps
    assert state_memories(again) == state_memories(first)


def test_devices_of_one_state_must_agree() -> None:
    with pytest.raises(SolverError, match="state 'h' and 'c' is kept in the memory of one device"):
        compiled(recurrent(), mixed_cluster(), pin={"add.1": "gpu0", "dense.1": "cpu.0"})


def test_costs_are_those_without_the_option() -> None:
    tables: list[CostTable] = []

    def costs(graph: TaskGraph, cluster: hp.Cluster) -> CostTable:
        tables.append(random_costs(graph, cluster))
        return tables[-1]

    for state in ({}, "auto"):
        compiled(recurrent(), mixed_cluster(), state=state, costs=costs)
    assert tables[0] == tables[-1]


@pytest.mark.parametrize("cluster", [cpu_cluster(), mixed_cluster()], ids=["one", "two"])
def test_memory_is_counted_for_all_sessions(cluster: hp.Cluster) -> None:
    pin = {"*": cluster.devices[-1].name}
    one, many = (compiled(wide(), cluster, pin=pin, max_sessions=sessions) for sessions in (1, 11))
    more = 10 * WIDE_BYTES
    used, most = (sum(use.values_bytes for use in executable.memory) for executable in (one, many))
    assert most - used == more
    counted, all_counted = (
        sum(task.weight_bytes for task in executable.solution.graph.tasks)
        for executable in (one, many)
    )
    assert all_counted - counted == more


def test_sessions_that_do_not_fit_are_refused_before_anything_is_measured() -> None:
    limits = {"max_memory": {"gpu0": 20 * WIDE_BYTES}, "pin": {"*": "gpu0"}}
    compiled(wide(), mixed_cluster(), max_sessions=4, **limits)

    def unused(graph: TaskGraph, cluster: hp.Cluster) -> CostTable:
        pytest.fail("costs were wanted")

    with pytest.raises(InfeasibleError, match=r"gpu0|gpu-memory"):
        compiled(wide(), mixed_cluster(), max_sessions=40, **limits, costs=unused)


def test_a_file_says_how_many_sessions_it_counts(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    compiled(recurrent(), cpu_cluster(), max_sessions=3).export_library(path)
    manifest = read_manifest(path)
    assert manifest.max_sessions == 3
    assert manifest.properties["sessions"] == "memory is counted for 3"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_sessions": 0}, "max_sessions=0; expected a number of sessions, >= 1"),
        ({"max_sessions": 2, "state": {}}, "max_sessions=2 is given without state"),
    ],
)
def test_wrong_numbers_of_sessions(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SolverError, match=message):
        compiled(recurrent(), cpu_cluster(), **options)
