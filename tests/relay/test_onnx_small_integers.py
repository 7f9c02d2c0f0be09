"""Integers of 4 and 2 bits: stored in 8 bits, with the same numbers as the ONNX reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import make_model, node, run_tvm

from heteroplace.parts.onnx.importer import from_onnx

pytestmark = pytest.mark.relay


@pytest.mark.parametrize("name", ["int4", "uint4"])
@pytest.mark.parametrize(("axis", "block"), [(0, 0), (1, 0), (1, 2), (0, 3)])
def test_weights_of_four_bits_are_dequantised(name: str, axis: int, block: int) -> None:
    rng = np.random.default_rng(0)
    low = -8 if name == "int4" else 0
    shape = (6, 4)
    scales = [shape[axis]]
    if block:
        scales = [n // block if i == axis else n for i, n in enumerate(shape)]
    attributes = {"axis": axis, **({"block_size": block} if block else {})}
    model = make_model(
        [
            node("DequantizeLinear", "w s z", "d", **attributes),
            node("MatMul", "x d", "y"),
        ],
        {"x": [2, 6]},
        ["y"],
        {"s": rng.random(scales).astype("float32")},
        21,
    )  # fmt: skip
    for tensor, size in (("w", shape), ("z", scales)):
        numbers = rng.integers(low, low + 16, size).astype(getattr(ml_dtypes, name))
        model.graph.initializer.append(numpy_helper.from_array(numbers, tensor))
    model.ir_version = 10
    x = rng.standard_normal((2, 6)).astype("float32")
    imported = from_onnx(model)
    assert any("stored in 8 bits" in line for line in imported.report)
    (found,) = run_tvm(imported.mod, imported.params, {"x": x})
    # Not onnxruntime, which rounds x to bytes for such weights.
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "UINT2"])
def test_casts_keep_the_low_bits_and_quantisation_saturates(name: str) -> None:
    kind = getattr(TensorProto, name)
    model = make_model(
        [
            node("Cast", "x", "c", to=kind),
            node("Cast", "c", "y", to=TensorProto.FLOAT),
            node("QuantizeLinear", "x s", "q", output_dtype=kind),
            node("DequantizeLinear", "q s", "z"),
        ],
        {"x": [31]},
        ["y", "z"],
        {"s": np.float32(1)},
        25,
    )
    model.ir_version = 13
    x = np.arange(-15, 16).astype("float32")
    imported = from_onnx(model, simplify=False)
    found = run_tvm(imported.mod, imported.params, {"x": x})
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_inputs_and_outputs_of_four_bits_are_of_eight() -> None:
    graph = helper.make_graph(
        [node("Transpose", "x", "y")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT4, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.INT4, [3, 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    imported = from_onnx(model)
    assert imported.inputs == {"x": ((2, 3), "int8")}
    assert any("input 'x', output 'y'" in line for line in imported.report)
