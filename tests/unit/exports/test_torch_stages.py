"""Placements as stages of `torch.distributed.pipelining`; PyTorch is not needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heteroplace.errors import PlanError
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.pipeline_stages import write_pipeline_stages
from tests.placed_layers import chain_solution

LAYERS = {
    "/stem/stem.0/Conv": "cpu",
    "/layers.0/up/MatMul": "cpu",
    "/layers.0/Add": "cpu",
    "/layers.1/up/MatMul": "gpu0",
    "/layers.1/Add": "gpu0",
    "/head/MatMul": "gpu1",
}
MOVED = (
    "{} go to another device than in the plan: each device has one stage, and stages begin and end "
    "with modules, in the order of their calls"
)


def exported(
    layers: dict[str, str], weight_bytes: dict[str, int] | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    written = write_pipeline_stages(chain_solution(layers, weight_bytes))
    return json.loads(written.text), written.warnings


def test_a_stage_begins_with_the_outermost_module() -> None:
    assert exported(LAYERS) == (
        {
            "split_spec": {"layers.1": "BEGINNING", "head": "BEGINNING"},
            "devices": ["cpu", "cuda:0", "cuda:1"],
        },
        (),
    )


def test_a_stage_ends_with_a_module_where_none_begins() -> None:
    layers = {"/a/conv/Conv": "cpu", "/Add": "gpu0", "/b/Conv": "gpu0"}
    document, warnings = exported(layers)
    assert document == {"split_spec": {"a": "END"}, "devices": ["cpu", "cuda:0"]}
    assert warnings == ()


def test_both_ends_of_a_stage_have_a_module_each() -> None:
    layers = {"/z/Conv": "cpu", "/a/Conv": "gpu0", "/Add": "gpu1"}
    document, _ = exported(layers)
    assert document["split_spec"] == {"z": "END", "a": "END"}
    alone = {"/Add": "cpu", "/a/Conv": "gpu0", "/Mul": "gpu1"}
    with pytest.raises(PlanError, match="one stage would be 'a' alone, and PyTorch splits before"):
        exported(alone)


def test_other_plans_become_the_nearest_stages() -> None:
    """The block between two segments of a device has the fewest weights, and moves."""
    layers = {**LAYERS, "/layers.0/up/MatMul": "gpu1", "/layers.0/Add": "gpu1"}
    sizes = {"/stem/stem.0/Conv": 100, "/layers.0/up/MatMul": 50, "/head/MatMul": 100}
    document, warnings = exported(layers, sizes)
    assert document == {"split_spec": {"layers.0": "BEGINNING"}, "devices": ["cpu", "cuda:1"]}
    assert warnings == (MOVED.format("layers.1.up, layers.1"), "no stage for cuda:0")


def test_a_device_without_a_stage_is_a_warning() -> None:
    layers = {"/a/Conv": "cpu", "/b/Conv": "gpu0", "/c/Conv": "cpu"}
    sizes = {"/a/Conv": 9, "/b/Conv": 1, "/c/Conv": 9}
    document, warnings = exported(layers, sizes)
    assert document == {"split_spec": {}, "devices": ["cpu"]}
    assert warnings == (
        MOVED.format("b"),
        "no stage for cuda:0",
        "all modules are in one stage, on cpu",
    )


@pytest.mark.parametrize("second", ["/block/act_1/Relu", "/block_1/Mul"])
def test_a_module_with_two_calls_splits_nothing(second: str) -> None:
    """PyTorch would split at each call."""
    layers = {"/stem/Conv": "cpu", "/block/act/Relu": "gpu0", second: "gpu0"}
    document, _ = exported(layers)
    assert document["split_spec"] == {"stem": "END"}


def test_a_block_whose_activation_is_called_twice_splits() -> None:
    layers = {
        "/stem/Conv": "cpu",
        "/block/conv/Conv": "gpu0",
        "/block/act/Relu": "gpu0",
        "/block/conv2/Conv": "gpu0",
        "/block/act_1/Relu": "gpu0",
    }
    document, _ = exported(layers)
    assert document["split_spec"] == {"block": "BEGINNING"}


def other_devices(**changes: dict[str, Any]) -> Solution:
    """The plan, with other devices under the names of its own."""
    solution = chain_solution(LAYERS)
    devices = [replace(each, **changes.get(each.name, {})) for each in solution.cluster.devices]
    return replace(solution, cluster=replace(solution.cluster, devices=tuple(devices)))


def test_hosts_are_named_where_there_are_several() -> None:
    solution = other_devices(cpu={"host": "a"}, gpu0={"host": "a"}, gpu1={"host": "b"})
    document = json.loads(write_pipeline_stages(solution).text)
    assert document["devices"] == ["cpu", "cuda:0", "cuda:1"]
    assert document["hosts"] == ["a", "a", "b"]


def test_devices_that_pytorch_lacks_are_refused() -> None:
    with pytest.raises(PlanError, match=r"'gpu1' is of the kind 'vulkan', which PyTorch has no"):
        write_pipeline_stages(other_devices(gpu1={"kind": "vulkan"}))
    rocm = json.loads(write_pipeline_stages(other_devices(gpu1={"kind": "rocm"})).text)
    assert rocm["devices"][2] == "cuda:1"


def test_the_model_gives_the_order_of_calls(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    nodes = [
        onnx.helper.make_node("Relu", ["x" if index == 0 else str(index - 1)], [str(index)], name)
        for index, name in enumerate(["/a/Relu", "/b/Relu", "/c/Relu"])
    ]
    value = onnx.helper.make_tensor_value_info
    x, y = (value(name, onnx.TensorProto.FLOAT, [4]) for name in ("x", "2"))
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y])), path)
    solution = chain_solution({"/b/Relu": "gpu0", "/a/Relu": "cpu", "/c/Relu": "gpu0"})
    document = json.loads(write_pipeline_stages(solution, path).text)
    assert document["split_spec"] == {"b": "BEGINNING"}
    other = chain_solution({"/other/Relu": "cpu"})
    with pytest.raises(PlanError, match="none of its 3 nodes is a layer of the plan, whose first"):
        write_pipeline_stages(other, path)
