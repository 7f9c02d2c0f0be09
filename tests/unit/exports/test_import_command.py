"""Device maps of accelerate become solutions, which are compared with plans; the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heteroplace.cli.main import main
from heteroplace.errors import PlanError
from heteroplace.files.solution_file import load_solution
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.device_map import write_device_map
from heteroplace.parts.exports.importing import import_placement
from tests.placed_layers import chain_solution
from tests.routed_plans import layer_graph

LAYERS = {
    "/embed/Gather": "cpu",
    "/layers.0/attn/MatMul": "cpu",
    "/layers.0/mlp/MatMul": "cpu",
    "/layers.1/attn/MatMul": "cpu",
}
MAP = {"embed": "cpu", "layers": 1, "layers.0.mlp": 0}
PLACED = {
    "/embed/Gather": "cpu",
    "/layers.0/attn/MatMul": "gpu1",
    "/layers.0/mlp/MatMul": "gpu0",
    "/layers.1/attn/MatMul": "gpu1",
}


def free_chain() -> Any:
    """The chain on the CPU, whose tasks may run anywhere."""
    return chain_solution(LAYERS, is_pinned=False)


@pytest.fixture
def map_file(tmp_path: Path) -> Path:
    return tmp_path / "map.json"


def imported(map_file: Path, places: Any, model: Path | None = None) -> Solution:
    """The chain as a device map says."""
    map_file.write_text(json.dumps(places))
    return import_placement(map_file, "device-map", free_chain(), model=model)


def test_the_longest_name_counts(map_file: Path) -> None:
    assert imported(map_file, MAP).layers() == PLACED


def test_what_is_exported_is_imported(map_file: Path) -> None:
    written = json.loads(write_device_map(chain_solution(PLACED)).text)
    assert imported(map_file, written).layers() == PLACED


def test_ops_between_the_modules_of_a_block_need_no_name(map_file: Path) -> None:
    layers = {**LAYERS, "/layers.1/Add": "cpu"}
    map_file.write_text(json.dumps({"embed": "cpu", "layers.0": 1, "layers.1.attn": 1}))
    free = chain_solution(layers, is_pinned=False)
    placed = import_placement(map_file, "device-map", free).layers()
    assert placed["/layers.1/attn/MatMul"] == "gpu1"
    assert set(placed) == set(layers)


def test_modules_are_read_from_the_metadata_of_nodes(map_file: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = tmp_path / "model.onnx"
    nodes = []
    for index, layer in enumerate(LAYERS):
        node = onnx.helper.make_node("Relu", [str(index)], [str(index + 1)], layer)
        scopes = f"['', 'block', 'block.{index}', 'relu']"
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
        nodes.append(node)
    value = onnx.helper.make_tensor_value_info
    x, y = (value(name, onnx.TensorProto.FLOAT, [4]) for name in ("0", "4"))
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y])), model)
    placed = imported(map_file, {"block": "cpu", "block.2": 0}, model).layers()
    assert list(placed.values()) == ["cpu", "cpu", "gpu0", "cpu"]
    with pytest.raises(PlanError, match=r"no place for embed, .* in metadata, give --model"):
        imported(map_file, {"block": "cpu"})


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            {"embed": "cpu"},
            "has no place for layers.0.attn, layers.0.mlp, layers.1.attn; its names",
        ),
        ({"": "disk"}, r"puts '' on 'disk'; expected cpu, 0, 1, the devices of cluster"),
        ({"": 2}, "puts '' on 2; expected cpu, 0, 1"),
        ({"": True}, "puts '' on True; expected"),
    ],
)
def test_maps_of_other_networks_are_refused(
    map_file: Path, places: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=rf"map\.json: the device map .*{message}"):
        imported(map_file, places)


def test_the_command_says_how_long_the_placement_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    free_chain().save("plan.json")
    Path("map.json").write_text(json.dumps(MAP))
    words = ["import", "map.json", "--from", "device-map", "--plan", "plan.json"]
    assert main([*words, "-o", "theirs.json"]) == 0
    assert "x the time of plan.json" in capsys.readouterr().out
    theirs = load_solution("theirs.json")
    assert theirs.layers() == PLACED
    assert main([*words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["expected_ns"] == theirs.expected_ns
    assert shown["ratio"] == pytest.approx(theirs.expected_ns / shown["of_plan_ns"])
    assert main(["diff", "plan.json", "theirs.json"]) == 0
    Path("map.json").write_text("[]")
    assert main(words) == 4
    assert "map.json: expected an object of modules" in capsys.readouterr().err


def test_the_command_names_files_that_it_lacks_or_would_lose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    free_chain().save("plan.json")
    words = ["import", "placed", "--plan", "plan.json", "--from"]
    assert main([*words, "openvino"]) == 4
    assert "openvino needs the model that was placed; give --model" in capsys.readouterr().err
    assert main([*words, "onnxruntime", "-o", "placed.json"]) == 4
    assert "-o would overwrite placed.json, which has the settings" in capsys.readouterr().err
    assert main([*words, "llama"]) == 4
    assert "placed: cannot be read: No such file" in capsys.readouterr().err
    Path("placed").write_bytes(b"\xff")
    assert main([*words, "llama"]) == 4
    assert "placed: is no text in UTF-8" in capsys.readouterr().err


def test_routers_are_refused(map_file: Path) -> None:
    solution = replace(free_chain(), graph=layer_graph())
    with pytest.raises(PlanError, match="has routers, and a placement of another program cannot"):
        import_placement(map_file, "device-map", solution)
