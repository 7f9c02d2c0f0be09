"""MoE of com.microsoft: the numbers of onnxruntime, or of numpy where it has no kernel; routers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
from numpy_mixtral import layer_of_experts, swish

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.expressions import post_order
from heteroplace.relay.router_ops import routing_kind

pytestmark = pytest.mark.relay

_RNG = np.random.default_rng(0)
EXPERTS, HIDDEN, WIDTH = 3, 8, 12
ORDER = "x scores fc1 b1 fc2 b2 fc3 b3"


def floats(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape).astype("float32")


def weights_of(*names: str, fused: int = 1) -> dict[str, np.ndarray]:
    """Weights and biases of these names."""
    shapes = {
        "fc1": (EXPERTS, fused * WIDTH, HIDDEN), "b1": (EXPERTS, fused * WIDTH),
        "fc2": (EXPERTS, HIDDEN, WIDTH), "b2": (EXPERTS, HIDDEN),
        "fc3": (EXPERTS, WIDTH, HIDDEN), "b3": (EXPERTS, WIDTH),
    }  # fmt: skip
    return {name: floats(*shapes[name]) for name in names}


def experts_model(
    inputs: dict[str, Any], weights: dict[str, Any], **attributes: Any
) -> onnx.ModelProto:
    """A model of one node."""
    names = " ".join(name if name in inputs or name in weights else "-" for name in ORDER.split())
    while names.endswith(" -"):
        names = names[:-2]
    node = om.node("MoE", names, "y", domain="com.microsoft", **attributes)
    return om.typed_model([node], inputs, ["y"], weights, domains=["com.microsoft"])


def inputs_of(*shape: int) -> dict[str, np.ndarray]:
    return {"x": floats(*shape, HIDDEN), "scores": floats(int(np.prod(shape)), EXPERTS)}


def check(inputs: dict[str, Any], weights: dict[str, Any], **attributes: Any) -> None:
    """Compare a node with onnxruntime's."""
    model = experts_model(inputs, weights, **attributes)
    (expected,) = om.run_onnxruntime(model, inputs)
    (result,) = om.run_imported(model, inputs)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "identity"])
@pytest.mark.parametrize("biases", [(), ("b1",), ("b1", "b2")])
def test_an_activation(kind: str, biases: tuple[str, ...]) -> None:
    check(inputs_of(6), weights_of("fc1", "fc2", *biases), activation_type=kind, k=2)


@pytest.mark.costly(3)
@pytest.mark.parametrize("kind", ["gelu", "silu"])
def test_half_precision_is_near_float32(kind: str) -> None:
    def of_type(dtype: str, *groups: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        return [{name: each.astype(dtype) for name, each in own.items()} for own in groups]

    halves = of_type("float16", inputs_of(6), weights_of("fc1", "b1", "fc2"))
    floats_of_halves = of_type("float32", *halves)  # so that both choose the same experts
    attributes = {"activation_type": kind, "k": 2}
    plain = experts_model(*floats_of_halves, **attributes)
    (expected,) = om.run_imported(plain, floats_of_halves[0])
    model = experts_model(*halves, **attributes)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    (result,) = om.run_imported(model, halves[0])
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 1), (1,)])
@pytest.mark.parametrize("normalised", [0, 1])
@pytest.mark.parametrize("k", [1, 2, EXPERTS])
def test_rows_and_how_many_experts(shape: tuple[int, ...], normalised: int, k: int) -> None:
    attributes = {"k": k, "normalize_routing_weights": normalised}
    check(inputs_of(*shape), weights_of("fc1", "fc2"), **attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"activation_alpha": 1.702, "activation_beta": 1.0},
        {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7},
    ],
)
@pytest.mark.parametrize("biases", [(), ("b1", "b2")])
def test_swiglu_of_rows_that_take_turns(
    attributes: dict[str, float], biases: tuple[str, ...]
) -> None:
    weights = weights_of("fc1", "fc2", *biases, fused=2)
    check(inputs_of(6), weights, activation_type="swiglu", swiglu_fusion=1, k=2, **attributes)


@pytest.mark.parametrize(("kind", "fusion"), [("silu", 0), ("swiglu", 0), ("swiglu", 2)], ids=str)
def test_gates_that_onnxruntime_has_no_kernel_for(kind: str, fusion: int) -> None:
    inputs = inputs_of(6)
    weights = weights_of("fc1", "b1", "fc2", "b2", fused=2 if fusion else 1)
    if not fusion:
        weights |= weights_of("fc3", "b3")
    attributes = {"activation_type": kind, "swiglu_fusion": fusion, "k": 2}
    is_swiglu = kind == "swiglu"
    if is_swiglu:
        attributes |= {"activation_alpha": 1.5, "activation_beta": 0.5, "swiglu_limit": 0.75}
    model = experts_model(inputs, weights, **attributes)
    with pytest.raises(Exception, match=r"FC3 is not implemented|interleaved"):
        om.run_onnxruntime(model, inputs)

    def expert(index: int, row: np.ndarray) -> np.ndarray:
        of = {name: data[index].astype("float64") for name, data in weights.items()}
        gate = of["fc1"] @ row + of["b1"]
        gate, linear = np.split(gate, 2) if fusion else (gate, of["fc3"] @ row + of["b3"])
        if is_swiglu:
            inner = swish(np.minimum(gate, 0.75), 1.5) * (np.clip(linear, -0.75, 0.75) + 0.5)
        else:
            inner = swish(gate) * linear
        result: np.ndarray = of["fc2"] @ inner + of["b2"]
        return result

    expected = layer_of_experts(inputs["x"], inputs["scores"], 2, expert, normalised=False)
    (result,) = om.run_imported(model, inputs)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 6])
def test_each_expert_is_a_branch_of_a_router(rows: int) -> None:
    model = experts_model(inputs_of(rows), weights_of("fc1", "fc2"), k=2)
    main = from_onnx(model, simplify=False).mod["main"]
    (router,) = (node for node in post_order(main.body) if routing_kind(node) == "router")
    assert len(router.attrs["counts"]) == EXPERTS
    assert int(router.attrs["top_k"]) == 2


@pytest.mark.parametrize(
    ("attributes", "names", "message"),
    [
        ({"use_sparse_mixer": 1}, "fc1 fc2", "use_sparse_mixer=1 is not supported, only 0"),
        ({"activation_type": "cube"}, "fc1 fc2", "activation_type=cube is not supported, only"),
        ({"k": 6}, "fc1 fc2", "k=6 of 3 experts; expected 1 to 3"),
        ({"activation_type": "swiglu"}, "fc1 fc2", "swiglu_fusion=0 needs fc3_experts_weights"),
        ({}, "fc1 fc2 fc3", ".* with activation_type=relu are not supported, only with silu"),
        (
            {"activation_type": "swiglu", "swiglu_fusion": 1},
            "fc1 fc2",
            r"fc1_experts_weights \(operand 2\) has the shape \[3, 12, 8\]; expected \[3, 24, 8\]",
        ),
        (
            {"activation_type": "swiglu", "swiglu_fusion": 2},
            "fc1 fc2 fc3",
            "swiglu_fusion=2 with fc3_experts_weights .* is not supported; leave them out",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    attributes: dict[str, Any], names: str, message: str
) -> None:
    model = experts_model(inputs_of(6), weights_of(*names.split()), **attributes)
    with pytest.raises(FrontendError, match=f"MoE 'n_y': {message}"):
        from_onnx(model, simplify=False)
