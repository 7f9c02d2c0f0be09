"""Ops of com.microsoft and ai.onnx.ml: the numbers of onnxruntime for each of their attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx

pytestmark = pytest.mark.relay

_RNG = np.random.default_rng(0)
HEADS, HEAD = 2, 4
WIDTH = HEADS * HEAD


def attention(op_type: str, **attributes: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Attention of floats, or of bytes, over sequences one of which is masked in part."""
    weights: dict[str, Any] = {"b": _RNG.standard_normal(3 * WIDTH).astype("float32")}
    weights["m"] = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32")
    if op_type == "Attention":
        operands = "x w b m"
        x = _RNG.standard_normal((2, 5, WIDTH)).astype("float32")
        weights["w"] = _RNG.standard_normal((WIDTH, 3 * WIDTH)).astype("float32")
    else:
        operands = "x w b xs ws m xz wz"
        x = _RNG.integers(0, 128, (2, 5, WIDTH)).astype("uint8")
        weights["w"] = _RNG.integers(-64, 64, (WIDTH, 3 * WIDTH)).astype("int8")
        weights |= {"xs": np.float32(0.02), "ws": np.float32(0.03)}
        weights |= {"xz": np.uint8(60), "wz": np.int8(0)}
    node = om.node(op_type, operands, "y", domain="com.microsoft", num_heads=HEADS, **attributes)
    return om.typed_model([node], {"x": x}, ["y"], weights, domains=["com.microsoft"]), {"x": x}


@pytest.mark.costly(5)
@pytest.mark.parametrize("attributes", [{}, {"scale": 0.1}, {"scale": 2.0, "unidirectional": 1}])
@pytest.mark.parametrize("op_type", ["Attention", "QAttention"])
def test_attention_scales_its_products(op_type: str, attributes: dict[str, Any]) -> None:
    model, inputs = attention(op_type, **attributes)
    (expected,) = om.run_onnxruntime(model, inputs)
    (found,) = om.run_imported(model, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op_type", ["Attention", "QAttention"])
def test_attention_with_what_it_cannot_have_is_refused(op_type: str) -> None:
    for name, value, words in (
        ("do_rotary", 1, "do_rotary=1 is not supported, only 0"),
        ("past_present_share_buffer", 1, "past_present_share_buffer=1 is not supported, only 0"),
        ("mask_filter_value", -1.0, "mask_filter_value=-1.0 is not supported"),
    ):
        with pytest.raises(FrontendError, match=f"{op_type} 'n_y': {words}"):
            from_onnx(attention(op_type, **{name: value})[0], simplify=False)


@pytest.mark.parametrize("targets", [1, 2, 3])
@pytest.mark.parametrize("name", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
def test_scores_of_a_linear_regressor_are_transformed(name: str, targets: int) -> None:
    coefficients = [0.7, -0.4, 0.1, 0.5, 0, 0][: 2 * targets]
    attributes = {"intercepts": [0.3, 0.0, 0.0][:targets], "post_transform": name}
    node = om.node("LinearRegressor", "x", "y", domain="ai.onnx.ml", targets=targets,
                   coefficients=coefficients, **attributes)  # fmt: skip
    x = np.array([[0.2, 0.5], [-1, 2], [0, 0], [0.1, 0.9]], np.float32)
    model = om.typed_model([node], {"x": x}, ["y"], domains=["ai.onnx.ml"])
    (expected,) = om.run_onnxruntime(model, {"x": x})
    (found,) = om.run_imported(model, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_transform_that_is_not_known_is_refused() -> None:
    node = om.node("LinearRegressor", "x", "y", domain="ai.onnx.ml", coefficients=[1.0],
                   post_transform="CUBE")  # fmt: skip
    model = om.typed_model([node], {"x": np.ones((2, 1), np.float32)}, ["y"],
                           domains=["ai.onnx.ml"])  # fmt: skip
    with pytest.raises(FrontendError, match=r"LinearRegressor 'n_y': .* 'CUBE' is not known"):
        from_onnx(model, simplify=False)
