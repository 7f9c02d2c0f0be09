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
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.onnx.prepare.onnx_process import run_on_model
from heteroplace.parts.onnx.prepare.onnx_tensors import serialised
from heteroplace.relay.expressions import post_order

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


def ties(dtype: str) -> np.ndarray:
    """All bytes: half of them lie between two steps of 2."""
    info = np.iinfo(dtype)
    return np.arange(info.min, info.max + 1).astype(dtype)


ROUNDED: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "QLinearConv": ("x xs xz w ws wz ys yz", (1, 1, 1, 256), {}),
    "QLinearMatMul": ("x xs xz m xs xz ys yz", (256, 1), {}),
    "QGemm": ("x xs xz m xs xz - ys yz", (256, 1), {}),
    "QLinearAdd": ("x xs xz none xs xz ys yz", (256,), {}),
    "QLinearMul": ("x xs xz one xs xz ys yz", (256,), {}),
    "QLinearLeakyRelu": ("x xs xz ys yz", (256,), {"alpha": 0.5}),
    "QLinearConcat": ("ys yz x xs xz one xs xz none ys yz", (256,), {"axis": 0}),
    "QLinearAveragePool": ("x xs xz ys yz", (1, 1, 1, 256), {"kernel_shape": [1, 1]}),
    "QLinearGlobalAveragePool": ("x xs xz ys yz", (1, 256, 1, 1), {}),
}


@pytest.mark.costly(5)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_ties_between_two_steps_are_those_of_onnxruntime(dtype: str) -> None:
    x = ties(dtype)
    weights = {
        **{"xs": np.float32(1), "xz": np.asarray(0, dtype), "ys": np.float32(2)},
        **{"yz": np.asarray(3, dtype), "one": np.ones(1, dtype), "none": np.zeros(1, dtype)},
        **{"m": np.ones((1, 1), dtype), "w": np.ones((2, 1, 1, 1), dtype)},
        **{"ws": np.float32([1, 0.5]), "wz": np.zeros(2, dtype)},
    }
    nodes = []
    for op_type, (operands, shape, attributes) in ROUNDED.items():
        weights[f"{op_type}_shape"] = np.array(shape)
        nodes.append(om.node("Reshape", f"x {op_type}_shape", f"{op_type}_x"))
        names = ["" if name == "-" else name for name in operands.split()]
        names = [f"{op_type}_x" if name == "x" else name for name in names]
        if op_type not in ("QLinearConv", "QLinearMatMul"):
            attributes = {**attributes, "domain": "com.microsoft"}
        nodes.append(helper.make_node(op_type, names, [op_type], name=op_type, **attributes))
    model = om.typed_model(nodes, {"x": x}, [*ROUNDED], weights, domains=["com.microsoft"])
    expected = om.run_onnxruntime(model, {"x": x})
    found = om.run_imported(model, {"x": x}, opt_level=3)
    for op_type, mine, reference in zip(ROUNDED, found, expected, strict=True):
        np.testing.assert_array_equal(mine, reference, op_type)
        assert mine.dtype == dtype


@pytest.mark.parametrize("x", [[0, 0.5, 2.5, 255], [-1, 509, 2, 6], [0, 0], [1, 2], [-1, -0.3]])
def test_what_is_quantised_by_its_range_is_rounded_half_to_even(x: list[float]) -> None:
    data = np.float32(x)
    names = ["y", "scale", "zero"]
    model = om.typed_model(
        [om.node("DynamicQuantizeLinear", "x", "y scale zero")], {"x": data}, names
    )
    expected = om.run_onnxruntime(model, {"x": data})
    for mine, reference in zip(om.run_imported(model, {"x": data}, 3), expected, strict=True):
        np.testing.assert_array_equal(mine, reference)
        assert mine.dtype == reference.dtype


def test_pools_of_another_order_of_axes_are_refused() -> None:
    weights = {"s": np.float32(1), "z": np.uint8(0)}
    x = bytes_of("uint8", 1, 4, 4, 2)
    for op_type, attributes in (
        ("QLinearGlobalAveragePool", {}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2]}),
    ):
        node = om.node(
            op_type, "x s z s z", "y", channels_last=1, domain="com.microsoft", **attributes
        )
        model = om.typed_model([node], {"x": x}, ["y"], weights, domains=["com.microsoft"])
        with pytest.raises(FrontendError, match="channels_last=1 is not supported"):
            from_onnx(model, simplify=False)


SOFTMAXES = [{"opset": 12, "axis": 1}, {"opset": 12}, {"opset": 11, "axis": 0}, {"opset": 13}]


@pytest.mark.parametrize("attributes", [*SOFTMAXES, {"opset": 13, "axis": 1}], ids=str)
def test_softmax_of_bytes_is_over_the_axes_of_its_opset(attributes: dict[str, int]) -> None:
    x = bytes_of("uint8", 2, 3, 4)
    weights = {"xs": np.float32(0.02), "xz": np.uint8(9)}
    weights |= {"ys": np.float32(1 / 256), "yz": np.uint8(0)}
    node = om.node("QLinearSoftmax", "x xs xz ys yz", "y", domain="com.microsoft", **attributes)
    model = om.typed_model([node], {"x": x}, ["y"], weights, domains=["com.microsoft"])
    (expected,) = om.run_onnxruntime(model, {"x": x})
    (found,) = om.run_imported(model, {"x": x})
    np.testing.assert_allclose(found.astype(int), expected.astype(int), atol=1)


def test_slope_of_a_leaky_relu_of_bytes_that_is_not_given() -> None:
    x = bytes_of("int8", 50)
    weights = {"xs": np.float32(1), "xz": np.int8(3), "ys": np.float32(0.1), "yz": np.int8(0)}
    node = om.node("QLinearLeakyRelu", "x xs xz ys yz", "y", domain="com.microsoft")
    model = om.typed_model([node], {"x": x}, ["y"], weights, domains=["com.microsoft"])
    (expected,) = om.run_onnxruntime(model, {"x": x})
    (found,) = om.run_imported(model, {"x": x})
    np.testing.assert_array_equal(found, expected)


def assert_multiplies_bytes(node: Any, x: np.ndarray, weights: Mapping[str, Any]) -> None:
    """The products of a node are of uint8 by int8, which processors have an instruction for."""
    imported = from_onnx(_model_of(node, x, weights), simplify=False)
    calls = [each for each in post_order(imported.mod["main"].body) if isinstance(each, relay.Call)]
    products = [call for call in calls if call.op.name in ("nn.dense", "nn.conv2d", "qnn.conv2d")]
    large = [call for call in products if call.args[1].checked_type.shape[0] > 1]
    types = [tuple(each.checked_type.dtype for each in call.args) for call in large]
    assert types == [("uint8", "int8")]


@pytest.mark.parametrize("x_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("w_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("zero_shape", [None, (), (1,), (5,)])
@pytest.mark.parametrize("rows", [(3,), (2, 3)])
def test_a_product_with_constant_weights_multiplies_bytes(
    x_dtype: str, w_dtype: str, zero_shape: tuple[int, ...] | None, rows: tuple[int, ...]
) -> None:
    x, w = bytes_of(x_dtype, *rows, 8), bytes_of(w_dtype, 8, 5)
    info = np.iinfo(w_dtype)
    w[0, 0], w[1, 0] = info.min, info.max  # less a zero point they do not fit into 8 bits
    weights = {"w": w, "xz": np.asarray(info.max // 2, w_dtype).astype(x_dtype)}
    if zero_shape is not None:
        weights["wz"] = np.full(zero_shape, 119, w_dtype)
    node = om.node("MatMulInteger", "x w xz" + (" wz" if zero_shape is not None else ""), "y")
    assert_equals_reference(node, x, weights)
    assert_multiplies_bytes(node, x, weights)


def test_a_product_whose_zero_points_differ_much_is_exact() -> None:
    weights = {
        "w": bytes_of("uint8", 64, 2),
        "xz": np.uint8(255),
        "wz": np.array([0, 255], "uint8"),
    }
    node = om.node("MatMulInteger", "x w xz wz", "y")
    assert_equals_reference(node, bytes_of("uint8", 3, 64), weights)


@pytest.mark.parametrize("x_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("w_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("zeros", ["", " xz", " xz wz"])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [2, 0, 1, 3]])
def test_a_convolution_with_constant_weights_multiplies_bytes(
    x_dtype: str, w_dtype: str, zeros: str, pads: list[int]
) -> None:
    x = bytes_of(x_dtype, 1, 4, 7, 6)
    weights = conv_weights(x_dtype, w_dtype, 2)
    weights["wz"] = np.asarray(119, w_dtype)
    node = om.node("ConvInteger", f"x w{zeros}", "y", pads=pads, strides=[2, 1])
    assert_equals_reference(node, x, weights)
    assert_multiplies_bytes(node, x, weights)
