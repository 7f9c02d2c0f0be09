"""Placements as device maps of accelerate, and what its own checks say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx.parser import parse_model

from heteroplace.errors import FrontendError
from heteroplace.parts.exports.device_map import write_device_map
from tests.placed_layers import chain_solution

LAYERS = {
    "/embed/Gather": "cpu",
    "/layers.0/attn/MatMul": "gpu0",
    "/layers.0/Add": "gpu0",
    "/layers.1/attn/MatMul": "gpu0",
    "/layers.1/mlp/MatMul": "gpu1",
    "/head/MatMul": "gpu1",
}


def exported(layers: dict[str, str], **weights: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    sizes = {f"/{name.replace('__', '/')}": size for name, size in weights.items()}
    written = write_device_map(chain_solution(layers, sizes))
    return json.loads(written.text), written.warnings


def test_modules_are_joined_where_their_layers_share_a_device() -> None:
    places, warnings = exported(LAYERS)
    assert places == {
        "embed": "cpu",
        "layers.0": 0,
        "layers.1.attn": 0,
        "layers.1.mlp": 1,
        "head": 1,
    }
    (blocks,) = warnings
    assert blocks.startswith("layers.1 are split between devices")


def test_a_network_on_one_device_is_one_key() -> None:
    assert exported(dict.fromkeys(LAYERS, "gpu1")) == ({"": 1}, ())


def test_a_module_without_children_goes_to_the_device_of_most_weights() -> None:
    layers = {"/a/MatMul": "gpu0", "/a/Add": "cpu", "/a/MatMul_1": "gpu1", "/b/Conv": "cpu"}
    places, warnings = exported(layers, a__MatMul=5, a__MatMul_1=7)
    assert places == {"a": 1, "b": "cpu"}
    (split,) = warnings
    assert split.startswith("a run on several devices")


def test_parameters_of_a_module_with_children_are_named() -> None:
    _, warnings = exported({"/a/Conv": "gpu0", "/Add": "gpu0", "/b/Conv": "cpu"}, Add=64)
    (bare,) = warnings
    assert bare.startswith("the model read parameters that are in no submodule")


def test_modules_are_read_from_the_metadata_of_nodes(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    two (float[4] x) => (float[4] y) { h = Relu(x)  y = Neg(h) }
    """
    model = parse_model(text)
    for node, name, scopes in zip(
        model.graph.node,
        ("node_relu", "node_neg"),
        ("['', 'act', 'relu']", "['', 'neg']"),
        strict=True,
    ):
        node.name = name
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    solution = chain_solution({"node_relu": "gpu1", "node_neg": "gpu0"})
    assert json.loads(write_device_map(solution, path).text) == {"": 1}
    model.graph.node[0].metadata_props[0].value = "relu"
    onnx.save(model, path)
    with pytest.raises(FrontendError, match="expected a list of names, as torch"):
        write_device_map(solution, path)


@pytest.mark.slow
def test_accelerate_takes_the_map_of_a_decoder() -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    accelerate = pytest.importorskip("accelerate", exc_type=ImportError)
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4
    )
    with accelerate.init_empty_weights():
        model = transformers.LlamaForCausalLM(config)
    layers = {}
    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            block = next((int(step) for step in name.split(".") if step.isdecimal()), 0)
            layers[f"/{_path(name)}/MatMul"] = "cpu" if block < 2 else f"gpu{block - 2}"
    written = write_device_map(chain_solution(layers))
    places = json.loads(written.text)
    assert {key: places[key] for key in places if "layers" in key} == {
        "model.layers.0": "cpu",
        "model.layers.1": "cpu",
        "model.layers.2": 0,
        "model.layers.3": 1,
    }
    accelerate.utils.check_device_map(model, places)
    here = transformers.LlamaForCausalLM(config)
    tokens = torch.arange(6)[None]
    expected = here(tokens).logits
    # There is no GPU here: the CPU stands for all, with the hooks of each module in place.
    on_cpu = dict.fromkeys(places, "cpu")
    placed = accelerate.dispatch_model(here, on_cpu, main_device="cpu", force_hooks=True)
    assert torch.equal(placed(tokens).logits, expected)


def _path(module: str) -> str:
    """The module as the TorchScript exporter writes it: a number stays with its list."""
    path: list[str] = []
    for step in module.split("."):
        path[-1:] = [f"{path[-1]}.{step}"] if step.isdecimal() else [*path[-1:], step]
    return "/".join(path)
