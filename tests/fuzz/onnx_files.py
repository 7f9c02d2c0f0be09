"""Cases of mutated ONNX files: those of the `onnx` wheel's tests, and some of our own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from heteroplace.parts.onnx.importer import from_onnx
from tests.fuzz.onnx_mutations import mutate_onnx

_FOLDERS = ("simple", "pytorch-operator", "pytorch-converted")
_MAX_BYTES = 200_000
_SIMPLIFIED = 0.25
"""How many cases go through onnxruntime, which takes most of their time."""


def _model(nodes: list[Any], x: list[int], weights: dict[str, Any], opset: int = 17) -> ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(
        nodes,
        "fuzz",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _branch(name: str, op_type: str) -> onnx.GraphProto:
    made = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    weight = numpy_helper.from_array(np.ones((2, 6), np.float32), f"{name}_w")
    node = helper.make_node(op_type, ["x", f"{name}_w"], [name])
    return helper.make_graph([node], name, [], [made], [weight])


def _own_models() -> list[ModelProto]:
    node = helper.make_node
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    sliced = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "starts", "ends", "axes", "steps"], ["t"]),
        node("Concat", ["t", "rest"], ["u"], axis=0),
        node("Reshape", ["x", "u"], ["y"]),
    ]
    folded = [
        node("Slice", ["w", "starts", "ends", "axes", "steps"], ["t"]),
        node("Tile", ["t", "reps"], ["u"]),
        node("ConstantOfShape", ["size"], ["z"], value=helper.make_tensor("v", 1, [1], [2.0])),
        node("Add", ["u", "z"], ["v"]),
        node("MatMul", ["x", "v"], ["y"]),
    ]
    cut = {"starts": [0], "ends": [1], "axes": [0], "steps": [1]}
    quantised = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        node("Resize", ["d", "", "scales"], ["y"], mode="linear"),
    ]
    chosen = [
        node("If", ["c"], ["y"], then_branch=_branch("a", "Add"), else_branch=_branch("b", "Mul"))
    ]
    lstm = [
        node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=4),
        node("Squeeze", ["h", "axes"], ["y"]),
    ]
    return [
        _model(
            [
                node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
                node("Relu", ["c"], ["r"]),
                node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
                node("Reshape", ["p", "shape"], ["f"]),
                node("Gemm", ["f", "g"], ["y"]),
            ],
            [1, 3, 8, 8],
            {"w": weight, "shape": [1, -1], "g": np.ones((64, 2), np.float32)},
        ),
        _model(sliced, [1, 2, 6], {**cut, "rest": [-1]}),
        _model(
            folded, [1, 4], {**cut, "w": np.ones((2, 3), np.float32), "reps": [4, 1], "size": [3]}
        ),
        _model(
            quantised,
            [1, 1, 4, 4],
            {
                "scale": np.float32(0.1),
                "zero": np.uint8(3),
                "scales": np.float32([1, 1, 2, 2]),
            },
        ),
        _model(chosen, [2, 6], {"c": np.array(True)}),
        _model(
            lstm,
            [3, 1, 2],
            {
                "w": weight[:1, :2, 0, 0].repeat(8, 1)[:, :, None].repeat(2, 2),
                "r": np.ones((1, 16, 4), np.float32),
                "axes": [0],
            },
        ),
        _model([node("ReduceMean", ["x", "axes"], ["y"])], [2, 3, 4], {"axes": [1, 2]}, 18),
        _model([node("Split", ["x"], ["y", "z"], axis=1, num_outputs=2)], [2, 8], {}, 18),
        _model(
            [node("Pad", ["x", "pads", "", "axes"], ["y"])],
            [2, 3],
            {"pads": [1, 2], "axes": [1]},
            18,
        ),
    ]


@cache
def _good() -> tuple[bytes, ...]:
    """The models before they are damaged; ours are a half of all."""
    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    files = [path for name in _FOLDERS for path in sorted((root / name).glob("*/model.onnx"))]
    found = [path.read_bytes() for path in files if path.stat().st_size < _MAX_BYTES]
    own = [model.SerializeToString() for model in _own_models()]
    return (*found, *(own * (len(found) // len(own))))


def run_case(seed: str, number: int, folder: Path) -> str:
    """Import one damaged model; returns "right", or raises the typed error that refuses it."""
    random = Random(f"{seed} onnx {number}")
    model = ModelProto.FromString(random.choice(_good()))
    path = folder / "damaged.onnx"
    path.write_bytes(mutate_onnx(model, random))
    (folder / "w.bin").write_bytes(bytes(64))
    imported = from_onnx(path, simplify=random.random() < _SIMPLIFIED)
    assert len(imported.outputs) > 0
    assert all(size >= 0 for shape, _ in imported.inputs.values() for size in shape)
    return "right"
