"""Rare ops of ONNX that are compiled: equal to the standard's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx

pytestmark = pytest.mark.relay

_RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape).astype(np.float32)


def check(
    node: onnx.NodeProto, inputs: dict[str, Any], opset: int = 22, domains: list[str] | None = None
) -> None:
    model = om.typed_model([node], inputs, ["y"], {}, opset, domains or [])
    (expected,) = ReferenceEvaluator(model).run(None, inputs)
    (result,) = om.run_imported(model, inputs)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("operands", "attributes"),
    [
        ("x w o", {"pads": [1, 0, 1, 0], "strides": [2, 1]}),
        pytest.param(
            *("x w o b m", {"offset_group": 2, "group": 2, "dilations": [1, 2]}),
            marks=pytest.mark.costly,
        ),
    ],
)
def test_a_deformed_convolution(operands: str, attributes: dict[str, Any]) -> None:
    parts, groups = attributes.get("offset_group", 1), attributes.get("group", 1)
    rows, columns = (4, 5) if "pads" in attributes else (5, 4)
    inputs = {"x": floats(2, 4, 6, 6), "w": floats(4, 4 // groups, 2, 2)}
    inputs |= {"o": 3 * floats(2, 2 * 4 * parts, rows, columns), "b": floats(4)}
    inputs |= {"m": floats(2, 4 * parts, rows, columns)}
    chosen = {name: inputs[name] for name in operands.split()}
    check(om.node("DeformConv", operands, "y", **attributes), chosen)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_an_update_of_a_cache(mode: str) -> None:
    inputs = {"x": floats(3, 2, 5, 4), "u": floats(3, 2, 2, 4), "at": np.array([0, 3, 1])}
    if mode == "circular":
        inputs["at"][1] = 4
    check(om.node("TensorScatter", "x u at", "y", mode=mode), inputs, 24)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("lengths", [(1, 1, 0), (1, 2, 0), (2, 2, 3)])
def test_counts_of_words(mode: str, lengths: tuple[int, int, int]) -> None:
    node = om.node(
        "TfIdfVectorizer", "x", "y", mode=mode, ngram_counts=[0, 3], ngram_indexes=[2, 0, 1, 4, 3],
        pool_int64s=[2, 3, 5, 2, 3, 3, 5], weights=[0.5, 2.0, 3.0, 0.25, 4.0],
        min_gram_length=lengths[0], max_gram_length=lengths[1], max_skip_count=lengths[2],
    )  # fmt: skip
    words = np.array([[2, 3, 3, 5, 7, 2, 3], [3, 2, 5, 3, 0, 5, 5]], np.int64)
    check(node, {"x": words}, 9)


def test_counts_of_strings_are_refused() -> None:
    node = om.node("TfIdfVectorizer", "x", "y", mode="TF", ngram_counts=[0], ngram_indexes=[0],
                   pool_strings=["a"], min_gram_length=1, max_gram_length=1,
                   max_skip_count=0)  # fmt: skip
    model = om.typed_model([node], {"x": np.array([1], np.int64)}, ["y"], {}, 9)
    with pytest.raises(FrontendError, match="n-grams of strings are not supported"):
        from_onnx(model, simplify=False)


def test_an_attention_with_changed_scores() -> None:
    domain = "ai.onnx.preview"
    kind, shape = TensorProto.FLOAT, ["B", "H", "L", "S"]
    values = [helper.make_tensor_value_info(name, kind, shape) for name in ("s", "t")]
    body = helper.make_graph([om.node("Tanh", "s", "t")], "body", values[:1], values[1:])
    node = om.node("FlexAttention", "q k v", "y", domain=domain, score_mod=body)
    q, k, v = floats(1, 4, 3, 8), floats(1, 2, 5, 8), floats(1, 2, 5, 6)
    scores = np.tanh(np.repeat(k, 2, 1) @ np.swapaxes(q, 2, 3) / np.sqrt(8)).swapaxes(2, 3)
    shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    inputs = {"q": q, "k": k, "v": v}
    model = om.make_model([node], {n: a.shape for n, a in inputs.items()}, ["y"], {}, 26, [domain])
    (result,) = om.run_imported(model, inputs)
    np.testing.assert_allclose(result, shares @ np.repeat(v, 2, 1), rtol=1e-4, atol=1e-5)
