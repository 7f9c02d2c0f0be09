"""Rare forms of common ops, each of which TVM's importer gets wrong or refuses: the numbers of
onnxruntime, also where its own simplification does not help."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx import TensorProto, helper

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.expressions import static_shape

pytestmark = pytest.mark.relay

_RNG = np.random.default_rng(0)
LOW, HIGH = np.float32(-0.5), np.float32(0.4)


def assert_equals_onnxruntime(model: onnx.ModelProto) -> None:
    inputs = om.random_inputs(model)
    expected = om.run_onnxruntime(model, inputs)
    for simplify in (True, False):
        imported = from_onnx(model, simplify=simplify)
        actual = om.run_tvm(imported.mod, imported.params, inputs)
        for mine, reference in zip(actual, expected, strict=True):
            assert (mine.dtype, mine.shape) == (reference.dtype, reference.shape)
            np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-6)


CLIPS = {
    "no lower bound": ("x - high", []),
    "no upper bound": ("x low", []),
    "no bound": ("x", []),
    "the upper bound is computed": (
        "x low high_now",
        [om.node("ReduceMax", "x", "high_now", keepdims=0)],
    ),
    "the lower bound is computed": (
        "x low_now high",
        [om.node("ReduceMin", "x", "low_now", keepdims=0)],
    ),
    "the bounds are the wrong way round": ("x high low", []),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clip_keeps_each_of_its_bounds(name: str) -> None:
    operands, nodes = CLIPS[name]
    model = om.make_model(
        [*nodes, om.node("Clip", operands, "y")], {"x": [3, 5]}, ["y"], {"low": LOW, "high": HIGH}
    )
    assert_equals_onnxruntime(model)


@pytest.mark.parametrize("axis", [-3, -2, -1, 0, 1, 2])
@pytest.mark.parametrize("op_type", ["Gather", "GatherElements"])
def test_places_from_the_back_along_an_axis_from_the_back(op_type: str, axis: int) -> None:
    sizes = [2, 7, 5]
    shape = [3, 7, 5][:2] if op_type == "Gather" else [2, 7, 5]
    indices = np.random.default_rng(0).integers(-sizes[axis], sizes[axis], shape)
    node = om.node(op_type, "x indices", "y", axis=axis)
    assert_equals_onnxruntime(om.make_model([node], {"x": sizes}, ["y"], {"indices": indices}))


@pytest.mark.parametrize("axis", [-3, 1, 2])
def test_places_of_a_corner_of_the_data(axis: int) -> None:
    sizes = [3, 7, 5]
    indices = np.random.default_rng(0).integers(-sizes[axis], sizes[axis], [2, 3, 4])
    node = om.node("GatherElements", "x indices", "y", axis=axis)
    assert_equals_onnxruntime(om.make_model([node], {"x": sizes}, ["y"], {"indices": indices}))


@pytest.mark.parametrize("axis", [-1, 1])
def test_places_that_are_computed_count_from_the_back_too(axis: int) -> None:
    nodes = [
        om.node("ArgMax", "x", "found", axis=1, keepdims=0),
        om.node("Sub", "found size", "place"),
        om.node("Gather", "x place", "y", axis=axis),
    ]
    model = om.make_model(nodes, {"x": [2, 7]}, ["y"], {"size": np.array(7)})
    assert_equals_onnxruntime(model)


def test_mean_of_operands_that_are_broadcast() -> None:
    weights = {"row": np.float32([1, 2, 3]), "one": np.float32(4)}
    node = om.node("Mean", "x row one", "y")
    assert_equals_onnxruntime(om.make_model([node], {"x": [2, 3]}, ["y"], weights))


TRANSPOSED: dict[str, tuple[int, int, dict[str, Any]]] = {
    "dilated": (2, 1, {"dilations": [2, 3], "strides": [2, 1], "pads": [1, 0, 2, 1]}),
    "dilated, one axis": (1, 1, {"dilations": [2], "strides": [3]}),
    "dilated groups": (2, 2, {"dilations": [2, 2]}),
    "groups, one axis": (1, 2, {"strides": [2], "pads": [1, 0]}),
    "groups, three axes": (3, 2, {"strides": [2, 1, 2]}),
    "longer than all": (2, 1, {"strides": [2, 3], "output_shape": [12, 17]}),
    "shorter, odd": (2, 1, {"strides": [2, 2], "output_shape": [8, 6]}),
    "shorter, odd, more at the end": (
        2,
        1,
        {"strides": [2, 2], "output_shape": [8, 6], "auto_pad": "SAME_UPPER"},
    ),
    "output padding beyond the padding": (
        2,
        1,
        {"strides": [3, 3], "pads": [0, 1, 0, 1], "output_padding": [2, 2]},
    ),
    "no padding by name": (2, 1, {"strides": [2, 2], "auto_pad": "VALID"}),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(name: str) -> None:
    rank, group, attributes = TRANSPOSED[name]
    weights = {
        "w": _RNG.standard_normal((4, 3, *[3] * rank), dtype=np.float32),
        "b": _RNG.standard_normal(3 * group, dtype=np.float32),
    }
    node = om.node("ConvTranspose", "x w b", "y", group=group, **attributes)
    assert_equals_onnxruntime(om.make_model([node], {"x": [1, 4, *[5] * rank]}, ["y"], weights))


def test_transposed_convolution_of_which_padding_leaves_nothing() -> None:
    node = om.node("ConvTranspose", "x w", "y", pads=[4, 4])
    model = om.make_model([node], {"x": [1, 1, 2]}, ["y"], {"w": np.ones((1, 1, 3), np.float32)})
    with pytest.raises(FrontendError, match="its padding leaves -4 elements of 4"):
        from_onnx(model, simplify=False)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolution_whose_padding_would_be_less_than_none(auto_pad: str) -> None:
    """The specification and onnxruntime make different sizes, so that either would be wrong."""
    node = om.node("ConvTranspose", "x w", "y", strides=[2], auto_pad=auto_pad)
    model = om.make_model([node], {"x": [1, 1, 3]}, ["y"], {"w": np.ones((1, 1, 1), np.float32)})
    with pytest.raises(FrontendError, match="makes 6 of them, onnxruntime 5"):
        from_onnx(model, simplify=False)


@pytest.mark.parametrize(("mode", "scale"), [("nearest", 0.75), ("linear", 0.75), ("cubic", 0.5)])
def test_resize_to_one_element_takes_the_first(mode: str, scale: float) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": "pytorch_half_pixel"}
    if mode == "nearest":
        attributes["nearest_mode"] = "ceil"
    scales = np.array([1, 1, scale, scale], np.float32)
    node = om.node("Resize", "x - scales", "y", **attributes)
    assert_equals_onnxruntime(
        om.make_model([node], {"x": [1, 1, 2, 2]}, ["y"], {"scales": scales}, 19)
    )


@pytest.mark.parametrize(("data", "slope"), [([], [1]), ([], [3]), ([3], [1, 1]), ([3], [2, 3])])
def test_prelu_whose_slope_decides_the_shape(data: list[int], slope: list[int]) -> None:
    weights = {"slope": np.linspace(0.1, 0.9, int(np.prod(slope)), dtype="float32").reshape(slope)}
    model = om.make_model([om.node("PRelu", "x slope", "y")], {"x": data}, ["y"], weights)
    assert_equals_onnxruntime(model)


def test_prelu_of_no_elements_is_imported() -> None:
    weights = {"slope": np.ones(1, "float32")}
    model = om.make_model([om.node("PRelu", "x slope", "y")], {"x": [2, "n"]}, ["y"], weights)
    imported = from_onnx(model, input_shapes={"x": (2, 0)}, simplify=False)
    assert static_shape(imported.mod["main"].ret_type) == (2, 0)


def test_shrink_of_half_precision_does_not_round_its_attributes() -> None:
    nodes = [
        om.node("Cast", "x", "half", to=onnx.TensorProto.FLOAT16),
        om.node("Shrink", "half", "less", bias=0.1, lambd=0.3),
        om.node("Cast", "less", "y", to=onnx.TensorProto.FLOAT),
    ]
    inputs = om.random_inputs(model := om.make_model(nodes, {"x": [40, 50]}, ["y"]))
    (found,) = om.run_imported(model, inputs)
    half = inputs["x"].astype("float16").astype("float32")
    expected = np.where(np.abs(half) > 0.3, half - np.sign(half) * np.float32(0.1), 0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["add", "mul"])
@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
def test_scatters_that_reduce_booleans(op_type: str, reduction: str) -> None:
    truths = np.array([[True, False, True], [False, True, True]])
    places = np.array([[1, 0, 3], [2, 3, 1]] if op_type == "ScatterElements" else [[3], [1]])
    weights = {"places": places, "new": truths, "zero": np.float32(0)}
    nodes = [
        om.node("Less", "x zero", "before"),
        om.node(op_type, "before places new", "after", reduction=reduction),
        om.node("Cast", "after", "y", to=onnx.TensorProto.FLOAT),
    ]
    assert_equals_onnxruntime(om.make_model(nodes, {"x": [4, 3]}, ["y"], weights, opset=18))


ADDED = ([-2, -1], [2, 0], [-1, 0], [-4, 1], [0, -1, 2], [-3, -1])
TAKEN = ([-1, -3], [-5, 2], [0, -1], [-1, 2, 0])


@pytest.mark.parametrize("opset", [11, 13])
def test_axes_from_the_back_that_are_added_and_taken_away(opset: int) -> None:
    nodes, weights = [om.node("Relu", "x", "a"), om.node("Relu", "z", "t")], {}
    for op_type, name, all_axes in (("Unsqueeze", "a", ADDED), ("Squeeze", "t", TAKEN)):
        for index, axes in enumerate(all_axes):
            result = f"{name}{index}"
            if opset < 13:
                nodes.append(om.node(op_type, name, result, axes=axes))
            else:
                weights[f"{result}_axes"] = np.array(axes)
                nodes.append(om.node(op_type, f"{name} {result}_axes", result))
    outputs = [node.output[0] for node in nodes[2:]]
    shapes = {"x": [2, 3], "z": [1, 2, 1, 3, 1]}
    assert_equals_onnxruntime(om.make_model(nodes, shapes, outputs, weights, opset))


def test_axes_that_are_added_twice_are_refused() -> None:
    node = om.node("Unsqueeze", "x axes", "y")
    model = om.make_model([node], {"x": [2, 3]}, ["y"], {"axes": np.array([3, -1])})
    with pytest.raises(FrontendError, match=r"its axes \[3, -1\] are not 2 different ones"):
        from_onnx(model, simplify=False)


def assert_equal_numbers(
    model: onnx.ModelProto, inputs: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    """Compare what is imported, infinities and NaNs too."""
    imported = from_onnx(model, simplify=False)
    actual = om.run_tvm(imported.mod, imported.params, inputs)
    for mine, reference in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-6)


def scores() -> np.ndarray:
    """Of which a softmax has terms that are no normal numbers, and rows that it makes NaN."""
    x = np.linspace(-3, 3, 24).reshape(2, 3, 4)
    x[0, 0] = [0, -90, -200, 5]
    x[0, 1, 2] = -np.inf
    x[1, :, 3] = -np.inf
    return x.astype(np.float32)


@pytest.mark.parametrize("opset", [11, 13])
def test_logarithms_of_small_probabilities(opset: int) -> None:
    names = ["y0", "y1", "y2", "y3", "default"]
    nodes = [om.node("LogSoftmax", "x", f"y{n}", axis=axis) for n, axis in enumerate((0, 1, 2, -2))]
    nodes.append(om.node("LogSoftmax", "x", "default"))
    model = om.make_model(nodes, {"x": [2, 3, 4]}, names, opset=opset)
    expected = om.run_onnxruntime(model, {"x": scores()})
    assert np.isfinite(expected[2][0, 0]).all()
    assert_equal_numbers(model, {"x": scores()}, expected)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_loss_of_a_small_probability(reduction: str) -> None:
    x = np.array([[0, -200, 3], [1, 2, -150]], np.float32)
    labels = np.array([1, 2])
    node = om.node("SoftmaxCrossEntropyLoss", "x labels", "loss all", reduction=reduction)
    model = om.make_model([node], {"x": x.shape}, ["loss", "all"], {"labels": labels})
    exact = x.astype(float) - x.max(1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    losses = -exact[[0, 1], labels]
    expected = losses if reduction == "none" else losses.mean()
    assert_equal_numbers(model, {"x": x}, [expected, exact])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_round_of_numbers_without_a_fraction(dtype: str) -> None:
    odd = 2.0 ** np.finfo(dtype).nmant + 1
    x = np.array([odd, np.inf, np.nan, 0.5, 1.5, 2.5, np.nextafter(np.array(0.5, dtype), 0)], dtype)
    x = np.concatenate([x, -x])
    model = om.make_model([om.node("Round", "x", "y")], {"x": x.shape}, ["y"])
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    (expected,) = om.run_onnxruntime(model, {"x": x})
    imported = from_onnx(model, simplify=False)
    (actual,) = om.run_tvm(imported.mod, imported.params, {"x": x})
    np.testing.assert_array_equal(actual, expected)
    is_number = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(actual)[is_number], np.signbit(x)[is_number])


def test_what_does_not_count_may_be_infinite() -> None:
    x = np.array([[[[-np.inf, 0.5], [np.inf, 2]]]], np.float32)
    grid = np.array([[[[-3, 0], [2.5, 1], [-1, 4], [0.5, -0.5]]]], np.float32)
    nodes = [
        om.node("ThresholdedRelu", "x", "above", alpha=0.7),
        om.node("GridSample", "x grid", "linear", align_corners=1),
        om.node("GridSample", "x grid", "nearest", align_corners=1, mode="nearest"),
    ]
    names = ["above", "linear", "nearest"]
    model = om.make_model(nodes, {"x": x.shape}, names, {"grid": grid})
    expected = om.run_onnxruntime(model, {"x": x})
    assert not np.isnan(expected[0]).any()
    assert_equal_numbers(model, {"x": x}, expected)


EYES = [((2, 5), 0), ((5, 2), 0), ((3, 3), -1), ((3, 4), 2), ((4, 3), -9), ((2, 3), 3)]


def test_diagonals_that_leave_their_matrix() -> None:
    nodes = [om.node("EyeLike", f"x{n}", f"y{n}", k=k) for n, (_, k) in enumerate(EYES)]
    shapes = {f"x{n}": shape for n, (shape, _) in enumerate(EYES)}
    assert_equals_onnxruntime(om.make_model(nodes, shapes, [f"y{n}" for n in range(len(EYES))]))


@pytest.mark.parametrize(
    "part", [{"end": 0}, {"start": 1, "end": 0}, {"start": 1, "end": -1}, {"end": 9}], ids=str
)
def test_part_of_a_shape(part: dict[str, int]) -> None:
    nodes = [
        om.node("Shape", "x", "sizes", **part),
        om.node("Concat", "all sizes", "shape", axis=0),
        om.node("ConstantOfShape", "shape", "ones"),
        om.node("ReduceSum", "x", "sum", keepdims=0),
        om.node("Add", "ones sum", "y"),
    ]
    model = om.make_model(nodes, {"x": [2, 3, 1]}, ["y"], {"all": np.array([2])})
    assert_equals_onnxruntime(model)


def test_sequences_are_reversed_along_the_first_axis_by_default() -> None:
    node = om.node("ReverseSequence", "x lengths", "y")
    model = om.make_model([node], {"x": [4, 3, 2]}, ["y"], {"lengths": np.array([4, 1, 2])})
    assert_equals_onnxruntime(model)


@pytest.mark.costly(8)
@pytest.mark.parametrize("ignored", [-100, 1, 255])
@pytest.mark.parametrize("op_type", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_loss_of_known_labels_of_which_some_are_ignored(op_type: str, ignored: int) -> None:
    labels = np.array([[0, ignored, 2], [ignored, 3, 0]])
    weights = {"labels": labels, "w": np.float32([1, 2, 3, 4])}
    nodes = [
        om.node(op_type, operands, f"{reduction}_{len(operands)}",
                reduction=reduction, ignore_index=ignored)
        for reduction in ("none", "mean", "sum")
        for operands in ("x labels", "x labels w")
    ]  # fmt: skip
    names = [node.output[0] for node in nodes]
    assert_equals_onnxruntime(om.make_model(nodes, {"x": [2, 4, 3]}, names, weights))


def test_constants_are_computed_as_in_the_run() -> None:
    """TVM's own kernels, by which what numpy leaves is computed at import, are wrong here."""
    data = np.arange(16, dtype=np.float32).reshape(2, 2, 4)  # more would be a parameter
    weights = {"data": data, "new": data[:, :1, :2] + 100, "places": np.array([[[1, 0]], [[0, 1]]])}
    weights |= {"least": np.full((1, 2, 3), -np.inf, "f"), "nan": np.float32([np.nan, -1, 1])}
    weights |= {"zeros": np.zeros((2, 3), np.uint8), "most": np.full((2, 3), np.inf, "f")}
    nodes = [om.node("ScatterElements", "data places new", f"s{n}", axis=n) for n in range(3)]
    nodes += [
        om.node("ArgMax", "least", "first", axis=2),
        om.node("ArgMax", "zeros", "last", axis=1, select_last_index=1),
        om.node("ArgMin", "most", "least_place", axis=0),
        om.node("Hardmax", "least", "one", axis=1),
        om.node("Relu", "nan", "kept"),
    ]
    names = [node.output[0] for node in nodes]
    model = om.typed_model(nodes, {"x": data}, names, weights)
    expected = om.run_onnxruntime(model, {"x": data})
    found = om.run_imported(model, {"x": data})
    for name, mine, reference in zip(names, found, expected, strict=True):
        np.testing.assert_array_equal(mine, reference, name)


_UNCHANGED = {
    "Cast": om.node("Cast", "w", "same", to=onnx.TensorProto.FLOAT),
    "CastLike": om.node("CastLike", "w x", "same"),
    "Identity": om.node("Identity", "w", "same"),
    "Dropout": om.node("Dropout", "w", "same"),
    "Concat": om.node("Concat", "w", "same", axis=0),
    "Expand": om.node("Expand", "w shape", "same"),
    "Reshape": om.node("Reshape", "w shape", "same"),
    "Sum": om.node("Sum", "w", "same"),
    "Max": om.node("Max", "w", "same"),
    "Transpose": om.node("Transpose", "w", "same", perm=[0, 1]),
    "Unsqueeze": om.node("Unsqueeze", "w none", "same"),
}


@pytest.mark.parametrize("op", _UNCHANGED)
def test_a_weight_that_a_node_returns_unchanged_is_bound(op: str) -> None:
    weights = {
        "w": _RNG.standard_normal((2, 3)).astype(np.float32),
        "shape": np.array([2, 3]),
        "none": np.array([], np.int64),
    }
    nodes = [_UNCHANGED[op], om.node("Add", "x same", "y")]
    used = {name: weights[name] for name in _UNCHANGED[op].input if name in weights}
    assert_equals_onnxruntime(om.make_model(nodes, {"x": (2, 3)}, ["y"], used))


def test_outputs_of_bfloat16_that_no_node_computes() -> None:
    kind = TensorProto.BFLOAT16
    values = [helper.make_tensor_value_info(name, kind, [2]) for name in "xw"]
    weight = helper.make_tensor("w", kind, [2], [1.5, 2.5])
    graph = helper.make_graph([], "g", values[:1], values, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    imported = from_onnx(model, simplify=False)
    assert [str(part.dtype) for part in imported.mod["main"].ret_type.fields] == ["bfloat16"] * 2
