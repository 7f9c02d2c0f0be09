"""Ops of integers that TVM gets wrong or refuses: the numbers of onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_models as om
import pytest
from onnx import helper
from onnx.shape_inference import infer_shapes

from heteroplace.relay.frontend.importer import from_onnx

pytestmark = pytest.mark.relay

X = np.array([[0, 3, 1, 9], [200, 2, 5, 4]])

NODES: dict[str, tuple[str, Any]] = {
    "shrink": ("uint8", om.node("Shrink", "x", "y", bias=0.1, lambd=0.3)),
    "shrink, with a sign": ("int32", om.node("Shrink", "x", "y", bias=-1.5, lambd=2.5)),
    "sign of what has none": ("uint8", om.node("Sign", "x", "y")),
    "norms": ("int32", om.node("ReduceL2", "x", "y", axes=[1])),
    "logarithms of sums": ("int32", om.node("ReduceLogSum", "x", "y", axes=[1])),
}


@pytest.mark.parametrize("name", NODES)
def test_ops_of_integers(name: str) -> None:
    dtype, node = NODES[name]
    x = (X - 3 if dtype == "int32" and "Reduce" not in node.op_type else X).astype(dtype)
    model = om.make_model([node], {"x": x.shape}, ["y"], opset=13)
    model.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    model.graph.output[0].ClearField("type")
    (expected,) = om.run_onnxruntime(infer_shapes(model), {"x": x})
    imported = from_onnx(model, simplify=False)
    (actual,) = om.run_tvm(imported.mod, imported.params, {"x": x})
    np.testing.assert_array_equal(actual, expected)


def test_the_largest_of_short_integers() -> None:
    """onnxruntime has no kernel for them."""
    x = (X - 100).astype("int16")
    model = om.make_model([om.node("TopK", "x k", "y i")], {"x": x.shape}, ["y", "i"], {"k": [2]})
    model.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    imported = from_onnx(model, simplify=False)
    values, places = om.run_tvm(imported.mod, imported.params, {"x": x})
    np.testing.assert_array_equal(values, np.sort(x)[:, ::-1][:, :2])
    np.testing.assert_array_equal(places, np.argsort(-x)[:, :2])
    assert values.dtype == np.int16
