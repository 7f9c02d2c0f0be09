"""`heteroplace.place` and `compile`: a model of any kind -> its plan, its executable."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx_models import make_model, node, random_inputs, run_onnxruntime, tiny_cnn
from relay_models import cpu_cluster, mixed_cluster, random_costs, two_branches
from relay_models import random_inputs as relay_inputs
from tvm import relay

import heteroplace
from heteroplace.errors import ClusterError, FrontendError, LoweringError, PlanError, SolverError
from heteroplace.parts.onnx import ImportedModel
from heteroplace.pipeline import place_network

FAST = {"costs": random_costs, "solver": "heft"}


def free_batch() -> onnx.ModelProto:
    """A product of rows, whose number the model leaves open."""
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    return make_model([node("MatMul", "x w", "y")], {"x": ["rows", 3]}, ["y"], {"w": weight})


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("kind", ["str", "path", "proto", "imported", "relay"])
def test_a_model_of_any_kind_is_placed_by_one_pipeline(kind: str, tmp_path: Path) -> None:
    path = saved(tiny_cnn(), tmp_path)
    imported: ImportedModel = heteroplace.frontend.from_onnx(path)
    models = {
        "str": str(path),
        "path": path,
        "proto": tiny_cnn(),
        "imported": imported,
        "relay": imported.mod,
    }
    params = {"params": imported.params} if kind == "relay" else {}
    solution = heteroplace.place(models[kind], cpu_cluster(), **params, **FAST)
    expected = place_network(imported.mod, cpu_cluster(), {"params": imported.params, **FAST})
    assert isinstance(solution, heteroplace.Solution)
    assert solution.plan.steps == expected.plan.steps
    assert solution.cluster == cpu_cluster()


@pytest.mark.costly
def test_a_compiled_model_computes_what_onnxruntime_computes(tmp_path: Path) -> None:
    model = tiny_cnn()
    executable = heteroplace.compile(saved(model, tmp_path), cpu_cluster(), **FAST)
    inputs = random_inputs(model)
    outputs = heteroplace.Executor(executable).run(**inputs)
    for actual, expected in zip(outputs, run_onnxruntime(model, inputs), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert executable.source.opt_level == 3


@pytest.mark.costly
def test_the_cluster_is_this_machine_unless_it_is_named() -> None:
    solution = heteroplace.place(two_branches(), costs="estimate", solver="heft")
    assert solution.cluster.digest() == heteroplace.local_cluster().digest()
    assert heteroplace.place(two_branches(), "cpu-two-gpus", **FAST).cluster.name == "cpu-two-gpus"


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_free_batch_is_1_and_a_warning_says_so(
    in_memory: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = free_batch() if in_memory else saved(free_batch(), tmp_path)
    with caplog.at_level(logging.WARNING, "heteroplace"):
        solution = heteroplace.place(model, cpu_cluster(), **FAST)
    assert [solution.graph.tensors[tensor].shape for tensor in solution.graph.outputs] == [(1, 2)]
    name = "the model" if in_memory else str(model)
    expected = (
        f"{name} leaves its batch size open and is imported for batch 1; batch=N is for others"
    )
    assert expected in caplog.messages


@pytest.mark.parametrize(
    "sizes",
    [{"batch": 4}, {"input_shapes": {"x": (4, 3)}}, {"input_shapes": {"x": (-1, 3)}, "batch": 4}],
)
def test_a_batch_that_is_given_holds_without_a_warning(
    sizes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    solution = heteroplace.place(free_batch(), cpu_cluster(), **sizes, **FAST)
    assert [solution.graph.tensors[tensor].shape for tensor in solution.graph.outputs] == [(4, 2)]
    assert not caplog.records


def test_an_input_with_a_value_is_no_input_any_more() -> None:
    model = make_model([node("Add", "x y", "z")], {"x": [2], "y": ["free"]}, ["z"])
    values = {"y": np.ones(2, "float32")}
    solution = heteroplace.place(model, cpu_cluster(), input_values=values, **FAST)
    assert len(solution.graph.inputs) == 1


def test_a_placed_module_keeps_its_plan() -> None:
    placed = relay.transform.HeteroPlace(cpu_cluster(), **FAST)(two_branches())
    carried = heteroplace.read_solution(placed)
    assert carried is not None
    assert heteroplace.place(placed).plan == carried.plan
    assert heteroplace.place(placed, cpu_cluster()).plan == carried.plan
    with pytest.raises(PlanError, match="placed on cluster 'cpu' already"):
        heteroplace.place(placed, mixed_cluster())
    executable = heteroplace.compile(placed)
    assert executable.solution.plan == carried.plan
    inputs = relay_inputs(two_branches())
    assert len(heteroplace.Executor(executable).run(**inputs)) == len(carried.graph.outputs)


def test_options_of_the_pass_context_hold() -> None:
    with tvm.transform.PassContext(opt_level=3, config={"relay.HeteroPlace.solver": "single"}):
        solution = heteroplace.place(two_branches(), cpu_cluster(), costs=random_costs)
    assert "single" in solution.plan.origin


@pytest.mark.parametrize("function", [heteroplace.place, heteroplace.compile])
@pytest.mark.parametrize(
    ("model", "arguments", "error", "text"),
    [
        ("nowhere.onnx", {}, FrontendError, "nowhere.onnx: there is no such file"),
        (
            7,
            {},
            FrontendError,
            "model is of type int; expected the path of a model, a Relay",
        ),
        ("relay", {"batch": 2}, FrontendError, "batch: a Relay module has its sizes already"),
        ("proto", {"params": {}}, LoweringError, "params are the weights of a Relay module"),
        ("proto", {"batch": "two"}, FrontendError, "batch is 'two', of type str"),
        (
            "proto",
            {"input_shapes": 5},
            FrontendError,
            "input_shapes is 5, of type int; expected a map",
        ),
        ("proto", {"input_shapes": {"x": 5}}, FrontendError, "input_shapes['x'] is 5, of type int"),
        ("proto", {"input_values": [1]}, FrontendError, "input_values is of type list; expected"),
        ("proto", {"batch": 0}, FrontendError, "batch=0; expected a number of rows"),
        ("proto", {"cluster": "nowhere"}, ClusterError, "nowhere"),
        (
            "proto",
            {"time_limt": 5},
            SolverError,
            'HeteroPlace has no option time_limt; did you mean "time_limit"? It has: solver,',
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_slow(
    function: Any, model: Any, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    models = {"relay": two_branches(), "proto": free_batch()}
    with pytest.raises(error) as caught:
        function(models.get(model, model), **{"cluster": cpu_cluster(), **arguments})
    assert text in str(caught.value)


@pytest.mark.parametrize("make", [relay.transform.HeteroPlace, heteroplace.HeteroPlace])
def test_a_misspelt_option_of_the_pass_is_named(make: Any) -> None:
    with pytest.raises(SolverError, match='no option pins; did you mean "pin"'):
        make(cpu_cluster(), pins={})
    with pytest.raises(SolverError, match='no option sover; did you mean "solver"'):
        heteroplace.build(two_branches(), cpu_cluster(), sover="heft")
    with pytest.raises(SolverError, match="no option xyzzy; it has: solver"):
        make(cpu_cluster(), xyzzy=1)


@pytest.mark.costly(8)
def test_the_program_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    weight = np.ones((4, 3, 1, 1), np.float32)
    conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="conv1")
    model = make_model([conv], {"x": ["rows", 3, 4, 4]}, ["y"], {"w": weight})
    saved(model, tmp_path)
    heteroplace.save_cluster(heteroplace.local_cluster(), tmp_path / "cluster.json")
    guide = Path(__file__).resolve().parents[2] / "docs" / "guide" / "placing.md"
    (program,) = re.findall(r"```python\n(.*?)```", guide.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    values: dict[str, Any] = {"heteroplace": heteroplace, "x": np.ones((8, 3, 4, 4), np.float32)}
    exec(program, values)
    assert "<html" in (tmp_path / "plan.html").read_text()
    assert (tmp_path / "plan.png").stat().st_size > 0
    assert values["solution"].placement["conv1"] in values["solution"].devices_used
    np.testing.assert_array_equal(values["outputs"][0], np.full((8, 4, 4, 4), 3.0, np.float32))
    assert values["executor"].is_closed
