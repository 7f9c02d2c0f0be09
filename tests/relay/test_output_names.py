"""Outputs of an ONNX model keep their names; those of other modules are numbered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import ModelProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from relay_models import cpu_cluster
from tvm import relay

import heteroplace
from heteroplace.cli.main import main
from heteroplace.model.demands import layers_of
from heteroplace.parts.onnx import from_onnx
from heteroplace.relay.output_names import port_names, read_output_names
from heteroplace.run.array_files import write_arrays

NAMES = ("scores/top 1", "file", 'größe"\\', "x.npy")
"""Unusual names; numpy's own function to write arrays has a parameter `file`."""


def model_of(names: tuple[str, ...]) -> ModelProto:
    nodes = [
        make_node("Add", ["x", "x"], ["double"]),
        *(make_node("Mul", ["double", f"c{n}"], [name]) for n, name in enumerate(names)),
    ]
    constants = [
        onnx.numpy_helper.from_array(np.array(n + 1, "float32"), f"c{n}") for n in range(len(names))
    ]
    ports = [make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in names]
    x = make_tensor_value_info("x", TensorProto.FLOAT, [2])
    graph = make_graph(nodes, "several outputs", [x], ports, constants)
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


def built(names: tuple[str, ...], **options: object) -> heteroplace.Executable:
    mod, params = from_onnx(model_of(names))
    return heteroplace.build(mod, cpu_cluster(), params, costs="estimate", **options)


@pytest.mark.costly
def test_every_reader_of_a_compiled_file_sees_the_names(tmp_path: Path) -> None:
    executable = built(NAMES)
    assert tuple(name for name, _, _ in executable.manifest.outputs) == NAMES
    executable.export_library(tmp_path / "model.so")
    executor = heteroplace.load(tmp_path / "model.so")
    assert tuple(name for name, _, _ in executor.outputs) == NAMES
    outputs = executor.run({"x": np.array([1, 2], "float32")})
    assert [output.tolist() for output in outputs] == [[2, 4], [4, 8], [6, 12], [8, 16]]


def test_a_module_that_is_placed_before_it_is_built_keeps_them() -> None:
    mod, params = from_onnx(model_of(NAMES))
    place = relay.transform.HeteroPlace(cpu_cluster(), params=params, costs="estimate")
    placed = place(mod)
    assert read_output_names(placed) == NAMES
    outputs = heteroplace.build(placed, verify="off").manifest.outputs
    assert tuple(name for name, _, _ in outputs) == NAMES


def test_the_graph_of_an_onnx_model_keeps_its_name(tmp_path: Path) -> None:
    executable = built(("y",))
    assert executable.solution.graph.name == "several outputs"
    executable.export_library(tmp_path / "m.so", with_source=True)
    loaded = heteroplace.load(tmp_path / "m.so")
    assert loaded.solution.graph == executable.solution.graph
    main(["show", str(tmp_path / "m.so")])
    loaded.solution.save(tmp_path / "plan.json")
    main(["diff", str(tmp_path / "plan.json"), str(tmp_path / "m.so")])


def test_a_module_from_elsewhere_numbers_its_outputs() -> None:
    x = relay.var("x", shape=(2,))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.Tuple([x + x, relay.exp(x)])))
    executable = heteroplace.build(mod, cpu_cluster(), costs="estimate")
    assert [name for name, _, _ in executable.manifest.outputs] == ["output0", "output1"]


@pytest.mark.parametrize(
    ("names", "taken", "count", "expected"),
    [
        (("a", "a", "a.1"), (), 3, ["a", "a.2", "a.1"]),
        (("x",), ("x",), 1, ["x.1"]),
        (("", "output0"), (), 2, ["output0.1", "output0"]),
        (("a", "b"), (), 1, ["output0"]),
        ((), ("output0",), 2, ["output0.1", "output1"]),
    ],
)
def test_names_of_outputs_are_distinct(
    names: tuple[str, ...], taken: tuple[str, ...], count: int, expected: list[str]
) -> None:
    assert port_names(names, taken, count) == expected


@pytest.mark.costly(3)
def test_run_writes_arrays_under_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HETEROPLACE_CACHE", str(tmp_path / "cache"))
    onnx.save(model_of(NAMES), tmp_path / "model.onnx")
    output = tmp_path / "outputs.npz"
    options = ["--costs", "estimate", "--runs", "1", "-o", str(output)]
    assert main(["run", str(tmp_path / "model.onnx"), *options]) == 0
    assert "output scores/top 1: float32 [2]" in capsys.readouterr().out
    with np.load(output) as arrays:
        assert set(arrays.files) == {*NAMES}
        assert arrays["file"].tolist() == [2 * value for value in arrays["scores/top 1"].tolist()]


@pytest.mark.parametrize("name", ["file", "allow_pickle", "/a/b", "a b", "", "a.npy", "ä", "a:0"])
def test_any_name_is_a_key_of_an_npz_file(tmp_path: Path, name: str) -> None:
    arrays = {name: np.arange(3), "other": np.float32(1)}
    write_arrays(tmp_path / "x.npz", arrays)
    with np.load(tmp_path / "x.npz") as found:
        assert set(found.files) == {name, "other"}
        assert found[name].tolist() == [0, 1, 2]
        assert found["other"].shape == ()


def test_tables_name_the_node_of_a_task_and_unnamed_nodes_by_their_output() -> None:
    executable = built(("a", "b"))
    heads = executable.summary().split("task  ")[-1].splitlines()[0]
    assert "layer" in heads.split()
    layers = {layer for task in executable.solution.graph.tasks for layer in layers_of(task)}
    assert {"double", "a", "b"} >= layers > set()
    assert "layer" in executable.solution._repr_html_()
