"""The transformers that are made in place: valid ONNX, and the numbers of onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_models as om
import pytest

from heteroplace.errors import GraphError
from zoo.models.catalogue import load_model, random_inputs
from zoo.models.transformers import bert_onnx, gpt_onnx

pytestmark = pytest.mark.relay


@pytest.mark.costly(11)
@pytest.mark.parametrize("name", ["bert_small", pytest.param("gpt2_small", marks=pytest.mark.slow)])
def test_transformer_computes_what_onnxruntime_computes(name: str) -> None:
    model = load_model(name)
    assert model.onnx_model is not None
    expected = om.run_onnxruntime(model.onnx_model, model.inputs)
    actual = om.run_tvm(model.mod, model.params, model.inputs, opt_level=3)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert np.abs(theirs).max() > 1e-3
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("make", [bert_onnx, gpt_onnx])
def test_transformer_without_weights_is_valid_and_small(make) -> None:  # type: ignore[no-untyped-def]
    model = make(layers=2, hidden=1024, heads=16, seed=None)
    onnx.checker.check_model(model, full_check=True)
    assert not model.graph.initializer
    assert model.ByteSize() < 2**20


def test_bert_has_the_weights_of_bert_base_but_for_the_embeddings() -> None:
    model = bert_onnx(vocabulary=0, seed=None)
    shapes = [
        [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in model.graph.input
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    ]
    # 85,054,464 in the blocks, 590,592 in the pooler; 130 rows of positions and kinds, a norm.
    assert sum(int(np.prod(shape)) for shape in shapes) == 85_054_464 + 590_592 + 132 * 768


def test_gpt_graph_has_about_forty_nodes_a_layer() -> None:
    model = gpt_onnx(layers=24)
    assert 800 < sum(node.op_type != "Constant" for node in model.graph.node) < 1200


def test_later_tokens_do_not_reach_earlier_ones_in_gpt() -> None:
    model = load_model("gpt2_small")
    assert model.onnx_model is not None
    ids = model.inputs["ids"].copy()
    before = om.run_onnxruntime(model.onnx_model, {"ids": ids})[0]
    ids[0, -1] = (ids[0, -1] + 1) % 100
    after = om.run_onnxruntime(model.onnx_model, {"ids": ids})[0]
    np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
    assert np.abs(before[:, -1] - after[:, -1]).max() > 1e-3


def test_masked_tokens_do_not_change_the_others_in_bert() -> None:
    model = load_model("bert_small")
    assert model.onnx_model is not None
    inputs = {name: value.copy() for name, value in model.inputs.items()}
    inputs["mask"][:] = 1
    inputs["mask"][0, -1] = 0
    before = om.run_onnxruntime(model.onnx_model, inputs)[0]
    inputs["ids"][0, -1] = (inputs["ids"][0, -1] + 1) % 100
    after = om.run_onnxruntime(model.onnx_model, inputs)[0]
    np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
    assert np.abs(before[:, -1] - after[:, -1]).max() > 1e-3


def test_equal_seeds_give_equal_weights() -> None:
    sizes = {"layers": 1, "hidden": 16, "heads": 2, "tokens": 4, "vocabulary": 10}
    first, again, other = (bert_onnx(**sizes, seed=seed) for seed in (3, 3, 4))
    assert first.SerializeToString() == again.SerializeToString()
    assert first.SerializeToString() != other.SerializeToString()


def test_random_token_ids_are_in_range() -> None:
    arrays = random_inputs({"ids": ((1, 1000), "int64"), "x": ((2,), "float32")}, {"ids": 7}, 0)
    assert arrays["ids"].dtype == np.int64
    assert set(arrays["ids"].ravel().tolist()) == set(range(7))
    assert arrays["x"].dtype == np.float32


def test_integers_without_a_bound_are_refused() -> None:
    with pytest.raises(GraphError, match="input 'ids' is int64: give bounds"):
        random_inputs({"ids": ((1, 4), "int64")}, {}, 0)


@pytest.mark.parametrize("make", [bert_onnx, gpt_onnx])
def test_heads_must_divide_the_width(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(GraphError, match="5140"):
        make(hidden=5140, heads=40 - 1)
