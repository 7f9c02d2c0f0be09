"""Linear models, machines, features and encoders of ai.onnx.ml: the numbers of onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx import helper, numpy_helper

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx

pytestmark = pytest.mark.relay

ML = "ai.onnx.ml"
X = np.array([[0.2, 0.5, -1], [-1, 2, 3], [0, 0, 0], [0.1, 0.9, np.nan]], np.float32)
FULL = np.array([[0.2, 0.5, -1], [-1, 2, 3], [0, 0, 0], [0.1, 0.9, 0.4]], np.float32)
_RNG = np.random.default_rng(2)


def node(op_type: str, outputs: str = "y", inputs: str = "x", **attributes: Any) -> onnx.NodeProto:
    return om.node(op_type, inputs, outputs, domain=ML, **attributes)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    outputs: list[str],
    version: int = 1,
    weights: dict[str, Any] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def imported(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    found = from_onnx(model, simplify=False)
    return om.run_tvm(found.mod, found.params, inputs, opt_level=3)


def check(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    outputs: list[str],
    version: int = 1,
    weights: dict[str, Any] | None = None,
) -> None:
    model = model_of(nodes, inputs, outputs, version, weights)
    results = zip(imported(model, inputs), om.run_onnxruntime(model, inputs), strict=True)
    for ours, theirs in results:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_features_are_scaled_imputed_and_cut() -> None:
    """Several ops in one program, so that it is compiled once."""
    nodes = [
        node("Scaler", "scaled", offset=[0.5, 0.0, 1.0], scale=[2.0, 3.0, 0.1]),
        node("Scaler", "moved", offset=[0.5], scale=[2.0]),
        node("Imputer", "filled", imputed_value_floats=[1.0, 2.0, 3.0],
             replaced_value_float=float("nan")),
        node("Imputer", "zeros", imputed_value_floats=[7.0], replaced_value_float=0.0),
        node("Binarizer", "bits", "z", threshold=0.3),
        node("FeatureVectorizer", "joined", "x x", inputdimensions=[2, 5]),
        node("ArrayFeatureExtractor", "taken", "x places"),
    ]  # fmt: skip
    names = ["scaled", "moved", "filled", "zeros", "bits", "joined", "taken"]
    check(nodes, {"x": X, "z": FULL}, names, weights={"places": np.array([2, 0, 2])})


def test_rows_are_divided_by_their_norms() -> None:
    names = ["MAX", "L1", "L2"]
    check([node("Normalizer", name, norm=name) for name in names], {"x": FULL}, names)


def test_keys_are_mapped_to_values() -> None:
    keys = np.array([[3, 1, 8], [1, 5, 3]])
    nodes = [
        node("LabelEncoder", "whole", "k", keys_int64s=[1, 3, 5], values_int64s=[10, 30, 50]),
        node("LabelEncoder", "float", "k", keys_int64s=[1, 3], values_floats=[0.5, -1.5],
             default_float=9.0),
        node("LabelEncoder", "back", keys_floats=[0.5, 0.0],
             values_int64s=[1, 3], default_int64=-7),
    ]  # fmt: skip
    check(nodes, {"x": X, "k": keys}, ["whole", "float", "back"], version=2)


def test_each_category_has_an_element() -> None:
    nodes = [
        node("OneHotEncoder", "hot", "k", cats_int64s=[8, 1, 3], zeros=1),
        node("OneHotEncoder", "cold", "z", cats_int64s=[0, 2, -1], zeros=1),
    ]
    inputs = {"k": np.array([[3, 1, 8], [1, 5, 3]]), "z": FULL}
    check(nodes, inputs, ["hot", "cold"], version=2)


def test_keys_of_opset_4_are_tensors() -> None:
    given = {
        "keys_tensor": np.array([0.2, 3.0]),
        "values_tensor": np.array([5, 6], "int16"),
        "default_tensor": np.array([-9], "int16"),
    }
    tensors = {name: numpy_helper.from_array(value) for name, value in given.items()}
    data = np.array([0.2, 1.0, 3.0])
    model = model_of([node("LabelEncoder", **tensors)], {"x": data}, ["y"], version=4)
    (found,) = imported(model, {"x": data})
    np.testing.assert_array_equal(found, np.array([5, -9, 6], "int16"))


@pytest.mark.costly(2)
@pytest.mark.parametrize("labels", [[4, 9], [4, 9, 2]])
def test_labels_and_scores_of_linear_models(labels: list[int]) -> None:
    count = len(labels)
    weights = _RNG.uniform(0.0, 0.3, 3 * count).astype("float32").tolist()
    names = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]
    nodes = [
        node("LinearClassifier", f"label{index} scores{index}", coefficients=weights,
             intercepts=[0.1, -0.2, 0.05][:count], classlabels_ints=labels, post_transform=name)
        for index, name in enumerate(names)
    ]  # fmt: skip
    check(nodes, {"x": FULL}, [result for one in nodes for result in one.output])


def test_one_linear_score_stands_for_two_classes() -> None:
    names = ["NONE", "LOGISTIC", "SOFTMAX"]
    nodes = [
        node("LinearClassifier", f"label{index} scores{index}", coefficients=[0.7, -0.4, 0.1],
             intercepts=[0.1], classlabels_ints=[5, 3], post_transform=name)
        for index, name in enumerate(names)
    ]  # fmt: skip
    check(nodes, {"x": FULL}, [result for one in nodes for result in one.output])


KERNELS = {
    "LINEAR": [0.0, 0.0, 0.0],
    "POLY": [0.5, 0.25, 3.0],
    "RBF": [0.5, 0.0, 0.0],
    "SIGMOID": [0.2, 0.1, 0],
}


def machine(op_type: str, outputs: str, kernel: str, **attributes: Any) -> onnx.NodeProto:
    vectors = np.random.default_rng(4).standard_normal((5, 3)).astype("float32")
    return node(op_type, outputs, kernel_type=kernel, kernel_params=KERNELS[kernel],
                support_vectors=vectors.reshape(-1).tolist(), **attributes)  # fmt: skip


def test_support_vectors_of_one_kernel_each() -> None:
    """The cheap one of these: both ops in one program."""
    coefficients = [0.5, -1.0, 0.25, 2.0, -0.3]
    nodes = [
        machine("SVMRegressor", "y", "RBF", n_supports=5, coefficients=coefficients, rho=[0.2]),
        machine("SVMClassifier", "label scores", "LINEAR", coefficients=coefficients, rho=[0.1],
                vectors_per_class=[2, 3], classlabels_ints=[3, 1]),
    ]  # fmt: skip
    check(nodes, {"x": FULL}, ["y", "label", "scores"])


@pytest.mark.costly(3)
def test_regressors_by_support_vectors() -> None:
    given = {"n_supports": 5, "coefficients": [0.5, -1.0, 0.25, 2.0, -0.3], "rho": [0.2]}
    nodes = [machine("SVMRegressor", kernel, kernel, **given) for kernel in KERNELS]
    nodes.append(machine("SVMRegressor", "side", "RBF", one_class=1, **given))
    nodes.append(
        node(
            "SVMRegressor",
            "flat",
            kernel_type="LINEAR",
            kernel_params=[0.0, 0.0, 0.0],
            coefficients=[0.5, -1.0, 2.0],
            rho=[0.2],
        )
    )
    check(nodes, {"x": FULL}, [*KERNELS, "side", "flat"])


@pytest.mark.costly(5)
@pytest.mark.parametrize("sizes", [[2, 3], [2, 1, 2]])
def test_classifiers_by_support_vectors(sizes: list[int]) -> None:
    count = len(sizes)
    weights = np.random.default_rng(6).standard_normal(5 * (count - 1)).astype("float32").tolist()
    nodes = [
        machine("SVMClassifier", f"label{kernel} scores{kernel}", kernel, coefficients=weights,
                rho=[0.1, -0.2, 0.3][: count * (count - 1) // 2], vectors_per_class=sizes,
                classlabels_ints=[3, 1, 2][:count])
        for kernel in KERNELS
    ]  # fmt: skip
    check(nodes, {"x": FULL}, [result for one in nodes for result in one.output])


def classifier(**attributes: Any) -> onnx.NodeProto:
    return node("LinearClassifier", "label scores", coefficients=[0.5, -1, 0.2, 1, 0, -0.3],
                intercepts=[0.1, 0.2], **attributes)  # fmt: skip


def test_names_of_classes_become_their_numbers() -> None:
    names = ["low", "high"]
    nodes = [
        classifier(classlabels_strings=names),
        node("ZipMap", "maps", "scores", classlabels_strings=names),
        om.node("Identity", "label", "same"),
        node("LabelEncoder", "codes", "label", keys_strings=names, values_int64s=[70, 80]),
    ]
    model = model_of(nodes, {"x": FULL}, [], version=2)
    for name, kind in (("same", onnx.TensorProto.STRING), ("codes", onnx.TensorProto.INT64)):
        model.graph.output.append(helper.make_tensor_value_info(name, kind, [4]))
    model.graph.output.append(onnx.ValueInfoProto(name="maps"))
    labels, codes, maps = om.run_onnxruntime(model, {"x": FULL})
    found = from_onnx(model, simplify=False)
    ours = om.run_tvm(found.mod, found.params, {"x": FULL}, opt_level=3)
    np.testing.assert_array_equal(ours[0], [names.index(label) for label in labels])
    np.testing.assert_array_equal(ours[1], codes)
    np.testing.assert_allclose(ours[2], [[row[name] for name in names] for row in maps], rtol=1e-5)
    report = "\n".join(found.report)
    assert "output 'same' is the number of a string (int64): 0 'low', 1 'high'" in report
    assert "output 'maps' is a tensor [rows, classes]" in report
    assert "'low', 'high'" in report


def test_an_op_that_looks_into_names_is_refused() -> None:
    nodes = [
        classifier(classlabels_strings=["low", "high"]),
        om.node("StringNormalizer", "label", "y"),
    ]
    with pytest.raises(FrontendError, match=r"StringNormalizer 'n_y' reads strings"):
        from_onnx(model_of(nodes, {"x": FULL}, ["y"]), simplify=False)


def test_probabilities_of_machines_are_refused() -> None:
    given = {"coefficients": [0.1] * 5, "rho": [0.1], "vectors_per_class": [2, 3]}
    one = machine("SVMClassifier", "label scores", "LINEAR", prob_a=[0.5], prob_b=[0.1],
                  classlabels_ints=[0, 1], **given)  # fmt: skip
    with pytest.raises(FrontendError, match="iteration whose length depends on values"):
        from_onnx(model_of([one], {"x": FULL}, ["label", "scores"]), simplify=False)


def test_a_cast_to_the_same_type_is_no_op() -> None:
    cast = om.node("Cast", "x", "same", to=onnx.TensorProto.FLOAT)
    negative = om.node("Neg", "same", "y")
    mod, _ = from_onnx(om.typed_model([cast, negative], {"x": FULL}, ["y"]), simplify=False)
    assert "cast(" not in mod["main"].astext(show_meta_data=False)
