"""Products and convolutions of 8 bits, in the forms that TVM's importer refuses: to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_shapes

from heteroplace.errors import FrontendError
from heteroplace.relay.frontend.importer import from_onnx
from heteroplace.relay.frontend.onnx_process import run_on_model
from heteroplace.relay.frontend.onnx_tensors import serialised

pytestmark = pytest.mark.relay

_RNG = np.random.default_rng(0)


def bytes_of(dtype: str, *shape: int) -> np.ndarray:
    """Numbers over the whole range."""
    info = np.iinfo(dtype)
    return _RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def assert_equals_reference(node: Any, x: np.ndarray, weights: Mapping[str, Any]) -> None:
    """A node of the input "x" and some weights equals ONNX's own evaluation, which is exact.

    Without VNNI onnxruntime's sums of two products of bytes saturate at 16 bits.
    """
    model = _model_of(node, x, weights)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(_output_of(model, x), expected)


def assert_equals_onnxruntime(node: Any, x: np.ndarray, weights: Mapping[str, Any]) -> None:
    """A node of the input "x" and some weights."""
    model = _model_of(node, x, weights)
    (expected,) = om.run_onnxruntime(infer_shapes(model), {"x": x})
    np.testing.assert_array_equal(_output_of(model, x), expected)


def _model_of(node: Any, x: np.ndarray, weights: Mapping[str, Any]) -> onnx.ModelProto:
    used = {name: value for name, value in weights.items() if name in node.input}
    model = om.make_model([node], {"x": x.shape}, ["y"], used)
    model.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    model.graph.output[0].ClearField("type")
    return model


def _output_of(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    imported = from_onnx(model, simplify=False)
    (actual,) = om.run_tvm(imported.mod, imported.params, {"x": x}, opt_level=3)
    return actual


@pytest.mark.parametrize("zeros", ["", " za zb"])
@pytest.mark.parametrize("is_left", [False, True])
def test_a_vector_times_a_stack(is_left: bool, zeros: str) -> None:
    x = bytes_of("int8", 2, 3, 4)
    weights = {
        "v": bytes_of("int8", 3 if is_left else 4),
        "za": np.int8(-128),
        "zb": np.int8(127),
    }
    operands = "v x" if is_left else "x v"
    assert_equals_onnxruntime(om.node("MatMulInteger", operands + zeros, "y"), x, weights)


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "no padding": {},
    "padding": {"pads": [2, 0], "strides": [2], "dilations": [2], "kernel_shape": [3]},
    "same": {"auto_pad": "SAME_UPPER", "strides": [2]},
}


def conv_weights(x_dtype: str, w_dtype: str, rank: int) -> dict[str, Any]:
    """Weights, scales and zero points."""
    return {
        "w": bytes_of(w_dtype, 5, 4, *[3] * rank),
        "xz": np.asarray(99, x_dtype),
        "wz": np.asarray(7, w_dtype),
        "xs": np.float32(0.1),
        "ws": np.float32(0.02),
        "ys": np.float32(3),
        "yz": np.asarray(11, x_dtype),
        "b": np.arange(5, dtype=np.int32) * 500,
    }


@pytest.mark.costly(6)
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtypes", ["uint8 int8", "int8 int8"])
def test_convolutions_along_one_axis(dtypes: str, name: str) -> None:
    x_dtype, w_dtype = dtypes.split()
    x, weights = bytes_of(x_dtype, 2, 4, 9), conv_weights(x_dtype, w_dtype, 1)
    node = om.node("ConvInteger", "x w xz wz", "y", **CONVOLUTIONS[name])
    assert_equals_reference(node, x, weights)
    node = om.node("QLinearConv", "x xs xz w ws wz ys yz b", "y", **CONVOLUTIONS[name])
    assert_equals_reference(node, x, weights)


@pytest.mark.costly(6)
@pytest.mark.parametrize("zeros", ["", " xz", " xz wz"])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_signed_map_with_unsigned_weights(rank: int, zeros: str) -> None:
    x, weights = bytes_of("int8", 1, 4, *[7] * rank), conv_weights("int8", "uint8", rank)
    assert_equals_reference(om.node("ConvInteger", "x w" + zeros, "y"), x, weights)


def test_a_convolution_along_three_axes_says_what_to_write_instead() -> None:
    model = om.make_model(
        [om.node("ConvInteger", "x w", "y")],
        {"x": [1, 4, 5, 5, 5]},
        ["y"],
        {"w": bytes_of("int8", 5, 4, 3, 3, 3)},
    )
    model.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(
        np.dtype("int8")
    )
    with pytest.raises(FrontendError, match=r"3 axes .*; expected 1 or 2. Write it as Dequantize"):
        from_onnx(model, simplify=False)


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_what_moves_behind_numbers_without_a_zero_point_keeps_them(dtype: str) -> None:
    """onnxruntime's optimiser, which runs at import, would round them to uint8."""
    x = np.array([[[-120, 100], [7, -1]]], dtype)
    nodes = [om.node("DequantizeLinear", "x xs", "d"), om.node("Squeeze", "d axes", "y")]
    model = om.make_model(nodes, {"x": x.shape}, ["y"], {"xs": np.float32(0.5), "axes": [0]})
    model.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    imported = from_onnx(infer_shapes(model))
    (actual,) = om.run_tvm(imported.mod, imported.params, {"x": x})
    np.testing.assert_array_equal(actual, x[0].astype("float32") / 2)


def test_weights_of_8_bits_stay_bytes() -> None:
    """Folded to floats they would take four times the memory, and slower kernels."""
    steps = [
        om.node("QuantizeLinear", "x s z", "q"),
        om.node("DequantizeLinear", "q s z", "d"),
        om.node("DequantizeLinear", "w ws z", "v"),
        om.node("Conv", "d v", "c"),
        om.node("QuantizeLinear", "c s z", "p"),
        om.node("DequantizeLinear", "p s z", "y"),
    ]
    filters = bytes_of("int8", 8, 8, 1, 1)
    weights = {"s": np.float32(0.5), "z": np.int8(0), "w": filters, "ws": np.float32(0.25)}
    model = infer_shapes(om.make_model(steps, {"x": (1, 8, 4, 4)}, ["y"], weights))
    simple = run_on_model("simplify", model.SerializeToString())
    assert [each.op_type for each in simple.graph.node].count("DequantizeLinear") == 3


def test_a_model_over_the_limit_is_not_serialised() -> None:
    model = om.tiny_cnn()
    size = model.ByteSize()
    assert serialised(model, size) == model.SerializeToString()
    assert serialised(model, size - 1) is None  # weights and graph
    assert serialised(model, 10) is None  # weights alone
