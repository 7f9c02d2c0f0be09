"""Tree ensembles of ai.onnx.ml: the leaves, labels and scores of onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx

pytestmark = pytest.mark.relay

ML = "ai.onnx.ml"
DEPTH, NUM_TREES, NUM_FEATURES = 3, 4, 5
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]
MODES = ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"]


def rows(dtype: str = "float32") -> np.ndarray:
    """Whole numbers, so that thresholds are met exactly, with some NaN."""
    rng = np.random.default_rng(5)
    data = rng.integers(-2, 3, (24, NUM_FEATURES)).astype(dtype)
    if data.dtype.kind == "f":
        data[rng.random(data.shape) < 0.15] = np.nan
    return data


def trees(modes: list[str], tracks: bool = True) -> dict[str, list[Any]]:
    """The nodes of some full trees; the leaves of one tree have the numbers from 2**DEPTH - 1."""
    rng = np.random.default_rng(3)
    nodes: dict[str, list[Any]] = {
        name: []
        for name in (
            *("treeids", "nodeids", "featureids", "values", "modes", "truenodeids"),
            *("falsenodeids", "missing_value_tracks_true", "hitrates"),
        )
    }
    first_leaf = 2**DEPTH - 1
    for tree in range(NUM_TREES):
        for node in range(2 * first_leaf + 1):
            is_leaf = node >= first_leaf
            nodes["treeids"].append(tree)
            nodes["nodeids"].append(node)
            nodes["featureids"].append(0 if is_leaf else int(rng.integers(NUM_FEATURES)))
            nodes["values"].append(0.0 if is_leaf else float(rng.integers(-2, 3)))
            nodes["modes"].append("LEAF" if is_leaf else f"BRANCH_{rng.choice(modes)}")
            nodes["truenodeids"].append(0 if is_leaf else 2 * node + 1)
            nodes["falsenodeids"].append(0 if is_leaf else 2 * node + 2)
            flag = 0 if is_leaf else int(tracks and rng.integers(2))
            nodes["missing_value_tracks_true"].append(flag)
            nodes["hitrates"].append(1.0)
    return {f"nodes_{name}": values for name, values in nodes.items()}


def leaf_weights(kind: str, columns: list[int], least: float) -> dict[str, list[Any]]:
    """Weights of each leaf for each of some columns."""
    rng = np.random.default_rng(1)
    keys = [
        (tree, leaf, column)
        for tree in range(NUM_TREES)
        for leaf in range(2**DEPTH - 1, 2 ** (DEPTH + 1) - 1)
        for column in columns
    ]
    return {
        f"{kind}_treeids": [tree for tree, _, _ in keys],
        f"{kind}_nodeids": [leaf for _, leaf, _ in keys],
        f"{kind}_ids": [column for _, _, column in keys],
        f"{kind}_weights": rng.uniform(least, 0.25, len(keys)).astype("float32").tolist(),
    }


def classifier(num_classes: int, columns: list[int], least: float, **attributes: Any) -> Any:
    given = {**trees(["LEQ"]), **leaf_weights("class", columns, least), **attributes}
    labels = {"classlabels_int64s": list(range(10, 10 + num_classes))}
    return om.node("TreeEnsembleClassifier", "x", "label scores", domain=ML, **labels, **given)


def regressor(modes: list[str], columns: list[int], **attributes: Any) -> Any:
    given = {**trees(modes), **leaf_weights("target", columns, 0.01), **attributes}
    return om.node("TreeEnsembleRegressor", "x", "y", domain=ML, n_targets=len(columns), **given)


def model_of(node: onnx.NodeProto, x: np.ndarray, version: int = 3) -> onnx.ModelProto:
    model = om.typed_model([node], {"x": x}, list(node.output), domains=[ML])
    model.opset_import[-1].version = version
    return onnx.shape_inference.infer_shapes(model)


def imported(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    found = from_onnx(model, simplify=False)
    return om.run_tvm(found.mod, found.params, {"x": x}, opt_level=3)


def check(node: onnx.NodeProto, x: np.ndarray | None = None) -> None:
    """Compare with onnxruntime: integers exactly, floats to rounding."""
    x = rows() if x is None else x
    model = model_of(node, x)
    for ours, theirs in zip(imported(model, x), om.run_onnxruntime(model, {"x": x}), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype.kind == "i":
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_nodes_of_all_modes_lead_to_the_same_leaves() -> None:
    check(regressor(MODES, [0]))


@pytest.mark.costly(4)
@pytest.mark.parametrize("mode", MODES)
def test_nodes_of_one_mode_lead_to_the_same_leaves(mode: str) -> None:
    check(regressor([mode], [0]))


@pytest.mark.costly(5)
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("columns", [[0], [0, 1, 2]])
def test_trees_are_aggregated(aggregate: str, columns: list[int]) -> None:
    base = [0.5, -0.25, 0.125][: len(columns)]
    check(regressor(["LEQ"], columns, aggregate_function=aggregate, base_values=base))


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_scores_of_several_targets_are_transformed(name: str) -> None:
    check(regressor(["LEQ"], [0, 1], post_transform=name))


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_labels_and_scores_of_a_classifier(name: str) -> None:
    check(classifier(3, [0, 1, 2], 0.01, post_transform=name))


def test_two_classes_with_scores_of_their_own_are_as_in_the_reference() -> None:
    x = np.nan_to_num(rows())
    model = model_of(classifier(2, [0, 1], -0.25, post_transform="SOFTMAX"), x)
    label, scores = ReferenceEvaluator(model).run(None, {"x": x})
    found = imported(model, x)
    np.testing.assert_array_equal(found[0], label)
    np.testing.assert_allclose(found[1], scores, rtol=1e-5)


@pytest.mark.costly(7)
@pytest.mark.parametrize("least", [0.0, -0.25])
@pytest.mark.parametrize("name", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_one_score_stands_for_two_classes(name: str, least: float) -> None:
    check(classifier(2, [0], least, post_transform=name, base_values=[0.125]))


@pytest.mark.costly(2)
@pytest.mark.parametrize("columns", [[0, 2], [1, 2]])
def test_a_class_without_weights_never_wins(columns: list[int]) -> None:
    check(classifier(3, columns, -0.5))


@pytest.mark.costly(3)
@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_other_types_of_data(dtype: str) -> None:
    check(classifier(3, [0, 1, 2], 0.01), rows(dtype))


def ensemble(**attributes: Any) -> onnx.NodeProto:
    """A TreeEnsemble: x0 in {1, 2}, else x1 <= 0; else a leaf of its own; and x0 <= 0."""
    tensors = {
        "nodes_modes": np.array([6, 0, 0], "uint8"),
        "nodes_splits": np.array([0, 0, 0], "float32"),
        "leaf_weights": np.array([0.5, 1.5, -2.0, 0.25], "float32"),
        "membership_values": np.array([1, 2, np.nan], "float32"),
    }
    lists = {
        "tree_roots": [0, 2],
        "nodes_featureids": [0, 1, 0],
        "nodes_truenodeids": [0, 1, 3],
        "nodes_trueleafs": [1, 1, 1],
        "nodes_falsenodeids": [1, 2, 2],
        "nodes_falseleafs": [0, 1, 1],
        "leaf_targetids": [0, 1, 0, 1],
        "n_targets": 2,
    }
    given = {name: numpy_helper.from_array(value) for name, value in tensors.items()}
    return om.node("TreeEnsemble", "x", "y", domain=ML, **given, **lists, **attributes)


@pytest.mark.parametrize("aggregate", [0, 1])
def test_a_tree_ensemble_with_sets_is_as_its_definition(aggregate: int) -> None:
    x = np.nan_to_num(rows(), nan=1.0)
    model = model_of(ensemble(aggregate_function=aggregate), x, version=5)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    (found,) = imported(model, x)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_forest_takes_a_step_for_each_level() -> None:
    """Not for each of its nodes."""
    x = rows()
    (mod, _) = from_onnx(model_of(regressor(["LEQ"], [0]), x), simplify=False)
    text = mod["main"].astext(show_meta_data=False)
    assert text.count("less_equal(") == DEPTH


def broken(**changes: Any) -> onnx.NodeProto:
    node = regressor(["LEQ"], [0])
    kept = [attribute for attribute in node.attribute if attribute.name not in changes]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(*change) for change in changes.items())
    return node


def test_a_damaged_forest_is_refused() -> None:
    count = NUM_TREES * (2 ** (DEPTH + 1) - 1)
    for changes, words in (
        ({"nodes_featureids": [9] * count}, "read features 9 to 9, and its operand has 5"),
        ({"nodes_truenodeids": [99] * count}, "leads to no node: 99"),
        ({"target_ids": [5] * (NUM_TREES * 2**DEPTH)}, "weights are for targets"),
        ({"aggregate_function": "MEDIAN"}, "aggregate_function 'MEDIAN' is not known"),
        ({"post_transform": "CUBE"}, "post_transform 'CUBE' is not known"),
    ):
        with pytest.raises(FrontendError, match=words):
            from_onnx(model_of(broken(**changes), rows()), simplify=False)
