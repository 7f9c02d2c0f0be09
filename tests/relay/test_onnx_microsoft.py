"""Ops of com.microsoft: the numbers of onnxruntime for each of their attributes and operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_models as om
import pytest
from tvm.target import Target

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.targets import multiplies_integers
from heteroplace.tvm_bridge import llvm_cpu_target

pytestmark = pytest.mark.relay

_RNG = np.random.default_rng(0)
F = "float32"


def floats(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape).astype(F)


def check(
    op: str,
    operands: dict[str, Any],
    weights: dict[str, Any] | None = None,
    outputs: str = "y",
    tolerance: float = 1e-4,
    order: str = "",
    domain: str = "com.microsoft",
    **attributes: Any,
) -> None:
    """Compare a node with onnxruntime's."""
    weights = weights or {}
    names = order or " ".join([*operands, *weights])
    node = om.node(op, names, outputs, domain=domain, **attributes)
    node.output[:] = ["" if name == "-" else name for name in outputs.split()]
    results = [name for name in outputs.split() if name != "-"]
    model = om.typed_model([node], operands, results, weights, domains=["com.microsoft"])
    expected = om.run_onnxruntime(model, operands)
    found = om.run_imported(model, operands)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("attributes", [{}, {"alpha": 0.5}])
def test_quick_gelu(attributes: dict[str, Any]) -> None:
    check("QuickGelu", {"x": floats(3, 4)}, **attributes)


@pytest.mark.parametrize("attributes", [{}, {"alpha": 2.0}, {"transA": 1}, {"transB": 1}])
def test_fused_mat_mul(attributes: dict[str, Any]) -> None:
    left = floats(2, 4, 3) if attributes.get("transA") else floats(2, 3, 4)
    right = floats(2, 5, 4) if attributes.get("transB") else floats(2, 4, 5)
    check("FusedMatMul", {"a": left, "b": right}, **attributes)


@pytest.mark.parametrize("trans", [0, 1])
def test_fused_mat_mul_with_its_batch_inside(trans: int) -> None:
    left = floats(4, 2, 3) if trans else floats(3, 2, 4)
    right = floats(5, 2, 4) if trans else floats(4, 2, 5)
    check("FusedMatMul", {"a": left, "b": right}, transA=trans, transB=trans,
          transBatchA=1, transBatchB=1)  # fmt: skip


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("", []),
        ("Relu", []),
        ("Tanh", []),
        ("Sigmoid", []),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.1, 0.3]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
@pytest.mark.parametrize("has_sum", [False, True])
def test_fused_conv(activation: str, parameters: list[float], has_sum: bool) -> None:
    operands = {"x": floats(1, 2, 5, 5)}
    weights = {"w": floats(3, 2, 3, 3), "b": floats(3)}
    attributes: dict[str, Any] = {"pads": [1, 1, 1, 1], "strides": [2, 2]}
    if activation:
        attributes["activation"] = activation
    if parameters:
        attributes["activation_params"] = parameters
    if has_sum:
        operands["z"] = floats(1, 3, 3, 3)
    check("FusedConv", operands, weights, order="x w b z" if has_sum else "x w b", **attributes)


def test_an_activation_that_is_not_known_is_refused() -> None:
    node = om.node("FusedConv", "x w", "y", domain="com.microsoft", activation="Cube")
    model = om.typed_model([node], {"x": floats(1, 2, 5, 5)}, ["y"], {"w": floats(3, 2, 3, 3)},
                           domains=["com.microsoft"])  # fmt: skip
    with pytest.raises(FrontendError, match="FusedConv 'n_y': activation 'Cube' is not known"):
        from_onnx(model, simplify=False)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("outputs", ["y", "y - - s"])
@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
def test_skipped_norms(op: str, has_bias: bool, outputs: str, skip: tuple[int, ...]) -> None:
    operands = {"x": floats(2, 3, 8), "k": floats(*skip)}
    weights = {"g": floats(8), "b": floats(8)}
    order = "x k g" if "Simplified" in op else "x k g b"
    if has_bias:
        weights["c"] = floats(8)
        order += " c"
    if "Simplified" in op:
        del weights["b"]
    check(op, operands, weights, outputs, order=order, epsilon=1e-3)


@pytest.mark.parametrize("axis", [-1, 1])
def test_a_norm_without_a_mean(axis: int) -> None:
    shape = (8,) if axis == -1 else (3, 8)
    check("SimplifiedLayerNormalization", {"x": floats(2, 3, 8)}, {"g": floats(*shape)},
          domain="", axis=axis, epsilon=1e-3)  # fmt: skip


def lstm_weights(directions: int, kind: str, is_wide: bool) -> dict[str, Any]:
    """Weights of a layer of 5 inputs and 3 states.

    Without VNNI, onnxruntime saturates sums of two products of signed ones, so they have 7 bits.
    """
    limits = np.iinfo(kind)
    halves = 2 if limits.min and not multiplies_integers(Target(llvm_cpu_target())) else 1
    least, most = limits.min // halves, limits.max // halves
    sizes = (directions, 12) if is_wide else (directions,)
    found: dict[str, Any] = {
        "w": _RNG.integers(least, most, (directions, 5, 12)).astype(kind),
        "r": _RNG.integers(least, most, (directions, 3, 12)).astype(kind),
        "b": floats(directions, 24),
    }
    for name in ("w", "r"):
        found[f"{name}s"] = (0.01 * _RNG.random(sizes)).astype(F)
        zeros = np.zeros(sizes) if is_wide else _RNG.integers(-2, 3, sizes) % (limits.max + 1)
        found[f"{name}z"] = zeros.astype(kind)
    return found


LSTM = "x w r b - - - - ws wz rs rz"


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize(
    "direction",
    [
        "forward",
        pytest.param("reverse", marks=pytest.mark.costly(12)),
        pytest.param("bidirectional", marks=pytest.mark.costly(12)),
    ],
)
@pytest.mark.parametrize("is_wide", [False, True])
def test_a_quantised_lstm(kind: str, direction: str, is_wide: bool) -> None:
    weights = lstm_weights(1 + (direction == "bidirectional"), kind, is_wide)
    check("DynamicQuantizeLSTM", {"x": floats(2, 1, 5)}, weights, "y h c", order=LSTM,
          hidden_size=3, direction=direction, tolerance=5e-3)  # fmt: skip


@pytest.mark.costly(13)
@pytest.mark.parametrize(
    ("extra", "attributes"),
    [
        ("hc", {}),
        ("hc", {"input_forget": 1}),
        ("hc", {"clip": 0.5}),
        ("p", {}),
        ("l", {}),
        ("", {"activations": ["Sigmoid", "Relu", "Tanh"]}),
    ],
)
def test_a_quantised_lstm_with_what_it_may_have(extra: str, attributes: dict[str, Any]) -> None:
    weights = lstm_weights(1, "int8", False)
    order = LSTM.split()
    operands: dict[str, Any] = {"x": floats(4, 2, 5)}
    if "l" in extra:
        operands["l"] = np.array([3, 2], "int32")
        order[4] = "l"
    if "h" in extra:
        operands |= {"h0": floats(1, 2, 3), "c0": floats(1, 2, 3)}
        order[5:7] = ["h0", "c0"]
    if "p" in extra:
        weights["p"] = floats(1, 9)
        order[7] = "p"
    check("DynamicQuantizeLSTM", operands, weights, "y h c", order=" ".join(order), hidden_size=3,
          tolerance=5e-3, **attributes)  # fmt: skip


B, S, H, D = 2, 3, 2, 16


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("form", ["flat", "heads", "part"])
@pytest.mark.parametrize("places", ["each", "first"])
def test_rotary_embedding(interleaved: int, form: str, places: str) -> None:
    attributes: dict[str, Any] = {"interleaved": interleaved}
    x, rotary = (floats(B, H, S, D) if form == "heads" else floats(B, S, H * D)), D
    if form == "part":
        attributes |= {"num_heads": H, "rotary_embedding_dim": 2}
        rotary = 2
    ids = np.array([2]) if places == "first" else np.array([[0, 1, 2], [3, 4, 6]])
    tables = {"cos": floats(8, rotary // 2), "sin": floats(8, rotary // 2)}
    check("RotaryEmbedding", {"x": x, "ids": ids}, tables, **attributes)


QKV = {"q": (B, S, H * D), "k": (B, S, H * D), "v": (B, S, H * D)}


@pytest.mark.parametrize("attributes", [{}, {"scale": 0.3}, {"unidirectional": 1}])
@pytest.mark.parametrize("has_bias", [False, True])
def test_multi_head_attention(attributes: dict[str, Any], has_bias: bool) -> None:
    operands = {name: floats(*shape) for name, shape in QKV.items()}
    weights = {"b": floats(3 * H * D)} if has_bias else {}
    check("MultiHeadAttention", operands, weights, num_heads=H, **attributes)


@pytest.mark.parametrize("mask", ["lengths", "keys", "rows"])
@pytest.mark.parametrize("filtered", [{}, {"mask_filter_value": -2.0}])
def test_multi_head_attention_with_masked_keys(mask: str, filtered: dict[str, Any]) -> None:
    operands: dict[str, Any] = {name: floats(*shape) for name, shape in QKV.items()}
    operands["m"] = {
        "lengths": np.array([3, 2], "int32"),
        "keys": np.array([[1, 1, 1], [1, 0, 1]], "int32"),
        "rows": np.tril(np.ones((B, S, S), "int32")),
    }[mask]
    check("MultiHeadAttention", operands, order="q k v - m", num_heads=H, **filtered)


@pytest.mark.costly
def test_multi_head_attention_with_a_bias_of_scores() -> None:
    operands = {name: floats(*shape) for name, shape in QKV.items()}
    for shape in ((B, H, S, S), (1, H, S, S), (B, 1, S, S)):
        bias = floats(*shape)
        check("MultiHeadAttention", {**operands, "s": bias}, order="q k v - - s", num_heads=H)


@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention_with_a_past(causal: int) -> None:
    operands = {name: floats(*shape) for name, shape in QKV.items()}
    operands |= {"pk": floats(B, H, 5, D), "pv": floats(B, H, 5, D)}
    check("MultiHeadAttention", operands, {"b": floats(3 * H * D)}, "y k2 v2",
          order="q k v b - - pk pv", num_heads=H, unidirectional=causal)  # fmt: skip


def test_multi_head_attention_of_other_sources() -> None:
    cross = {"q": floats(B, S, H * D), "k": floats(B, H, 5, D), "v": floats(B, H, 5, D)}
    check("MultiHeadAttention", cross, num_heads=H)
    wide = {"q": floats(B, S, H * D), "k": floats(B, 5, H * D), "v": floats(B, 5, H * 6)}
    check("MultiHeadAttention", wide, num_heads=H)


def test_multi_head_attention_refuses_packed_operands() -> None:
    node = om.node("MultiHeadAttention", "q", "y", domain="com.microsoft", num_heads=H)
    model = om.typed_model([node], {"q": floats(B, S, H, 3, D)}, ["y"], domains=["com.microsoft"])
    with pytest.raises(FrontendError, match="packed queries, keys and values are not supported"):
        from_onnx(model, simplify=False)


KV = 1


def groups(batch: int, length: int) -> dict[str, Any]:
    return {
        "q": floats(batch, length, H * D),
        "k": floats(batch, length, KV * D),
        "v": floats(batch, length, KV * D),
    }


FIRST, NEXT, SEVERAL = (2, 3, 0), (2, 1, 5), (1, 3, 5)
"""Sequences, new tokens of each, tokens of the past: forms that onnxruntime takes."""


def group_query(
    form: tuple[int, int, int], order: str = "", is_packed: bool = False, **attributes: Any
) -> None:
    """Compare GroupQueryAttention with onnxruntime's; the last sequence is a token shorter."""
    batch, length, past = form
    total = past + length
    operands = groups(batch, length)
    names = ["q", "k", "v", "-", "-", "e", "t", *order.split()]
    if is_packed:
        operands, names[1:3] = {"q": floats(batch, length, (H + 2 * KV) * D)}, ["-", "-"]
    if past:
        operands |= {"pk": floats(batch, KV, past, D), "pv": floats(batch, KV, past, D)}
        names[3:5] = ["pk", "pv"]
    ends = [total - 1] * batch
    if form == NEXT:
        ends[-1] -= 1
    operands["e"] = np.array(ends, "int32")
    weights: dict[str, Any] = {"t": np.array(total, "int32")}
    more = {"cos": (16, D // 2), "sin": (16, D // 2), "sink": (H,)}
    weights |= {name: floats(*size) for name, size in more.items() if name in names}
    if "s" in names:
        operands["s"] = floats(batch, H, length, total)
    check("GroupQueryAttention", operands, weights, "y k2 v2", order=" ".join(names),
          num_heads=H, kv_num_heads=KV, **attributes)  # fmt: skip


@pytest.mark.parametrize("form", [FIRST, NEXT, SEVERAL])
def test_group_query_attention(form: tuple[int, int, int]) -> None:
    group_query(form)


@pytest.mark.costly(8)
@pytest.mark.parametrize("form", [FIRST, SEVERAL])
@pytest.mark.parametrize(
    "attributes",
    [{"scale": 0.4}, {"softcap": 0.7}, {"local_window_size": 2}, {"smooth_softmax": 1}],
)
def test_group_query_attention_by_attributes(
    form: tuple[int, int, int], attributes: dict[str, Any]
) -> None:
    group_query(form, **attributes)


@pytest.mark.costly(14)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("form", [FIRST, NEXT])
def test_group_query_attention_rotates(
    interleaved: int, is_packed: bool, form: tuple[int, int, int]
) -> None:
    group_query(form, "cos sin", is_packed, do_rotary=1, rotary_interleaved=interleaved)


@pytest.mark.costly
@pytest.mark.parametrize("order", ["- - - s", "- - - - sink"])
def test_group_query_attention_with_a_bias_or_sinks(order: str) -> None:
    group_query(FIRST, order)


def test_group_query_attention_refuses_a_cache_of_few_bits() -> None:
    node = om.node("GroupQueryAttention", "q k v - - e t", "y k2 v2", domain="com.microsoft",
                   num_heads=H, kv_num_heads=KV, kv_cache_bit_width=4)  # fmt: skip
    operands = groups(2, 3)
    operands["e"] = np.array([2, 2], "int32")
    model = om.typed_model([node], operands, ["y", "k2", "v2"], {"t": np.array(3, "int32")},
                           domains=["com.microsoft"])  # fmt: skip
    with pytest.raises(FrontendError, match="kv_cache_bit_width=4 is not supported, only 0"):
        from_onnx(model, simplify=False)
