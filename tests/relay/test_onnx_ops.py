"""Ops of ONNX that have converters of our own: equal to the standard's reference, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from relay_models import cpu_cluster
from tvm import relay, transform

import heteroplace as hp
from benchmarks.conformance.worker import turn_by_turn
from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.onnx.prepare.onnx_operands import inputs_read_at_import

pytestmark = pytest.mark.relay


def assert_equals_reference(
    model: onnx.ModelProto, inputs: dict[str, Any] | None = None, **options: Any
) -> None:
    """Compare the numbers of the import, without onnxruntime's help, with the reference's."""
    given = om.random_inputs(model) if inputs is None else inputs
    expected = ReferenceEvaluator(model).run(None, given)
    imported = from_onnx(model, simplify=False, **options)
    actual = om.run_tvm(
        imported.mod, imported.params, {name: given[name] for name in imported.inputs}
    )
    for mine, reference in zip(actual, expected, strict=True):
        assert (mine.dtype, mine.shape) == (reference.dtype, reference.shape)
        np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-6)


# --- Resize -----------------------------------------------------------------------------------

RESIZES: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "linear 1.5 of 7 x 9": ((7, 9), {"mode": "linear", "scales": 1.5}),
    "linear 0.5 of odd sizes": ((7, 9), {"mode": "linear", "scales": 0.5}),
    "linear asymmetric": (
        (5, 7),
        {"mode": "linear", "scales": 1.3, "coordinate_transformation_mode": "asymmetric"},
    ),
    "cubic": ((7, 5), {"mode": "cubic", "scales": 1.7}),
    "cubic align_corners": (
        (6, 5),
        {"mode": "cubic", "sizes": (9, 4), "coordinate_transformation_mode": "align_corners"},
    ),
    "nearest half_pixel": (
        (7, 9),
        {"mode": "nearest", "scales": 0.6, "coordinate_transformation_mode": "half_pixel"},
    ),
    "nearest asymmetric round_prefer_ceil": (
        (4, 6),
        {
            "mode": "nearest",
            "scales": 2.0,
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "round_prefer_ceil",
        },
    ),
    "linear antialias": ((9, 7), {"mode": "linear", "scales": 0.45, "antialias": 1}),
}


def resize_model(size: tuple[int, int], options: dict[str, Any]) -> onnx.ModelProto:
    attributes = {k: v for k, v in options.items() if k not in ("scales", "sizes")}
    if "sizes" in options:
        weights = {"sizes": np.array([1, 2, *options["sizes"]])}
        node = om.node("Resize", "x - - sizes", "y", **attributes)
    else:
        scale = options["scales"]
        weights = {"scales": np.array([1, 1, scale, scale], np.float32)}
        node = om.node("Resize", "x - scales", "y", **attributes)
    return om.make_model([node], {"x": [1, 2, *size]}, ["y"], weights, 19)


@pytest.mark.costly(10)
@pytest.mark.parametrize("name", sorted(RESIZES))
def test_resize_is_exact_whatever_its_scale(name: str) -> None:
    assert_equals_reference(resize_model(*RESIZES[name]))


# --- layers -----------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_recurrent_layer_runs_backward_over_the_length_of_each_sequence(op_type: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((2, gates * 3, 5), dtype=np.float32),
        "r": rng.standard_normal((2, gates * 3, 3), dtype=np.float32),
        "lengths": np.array([4, 2], np.int32),
    }
    node = om.node(op_type, "x w r - lengths", "y h", hidden_size=3, direction="bidirectional")
    model = om.make_model([node], {"x": [4, 2, 5]}, ["y", "h"], weights)
    # The reference has no lengths; onnxruntime has.
    inputs = om.random_inputs(model)
    expected = om.run_onnxruntime(model, inputs)
    imported = from_onnx(model, simplify=False)
    actual = om.run_tvm(imported.mod, imported.params, inputs)
    for mine, reference in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.costly(9)
def test_a_layer_of_many_steps_that_runs_backward_is_imported() -> None:
    weights = {"w": np.ones((1, 16, 4), np.float32), "r": np.ones((1, 16, 4), np.float32)}
    node = om.node("LSTM", "x w r", "y", hidden_size=4, direction="reverse")
    model = om.make_model([node], {"x": [600, 1, 4]}, ["y"], weights)
    imported = from_onnx(model, simplify=False)
    assert imported.mod["main"].checked_type.ret_type.shape[:] == [600, 1, 1, 4]


def test_maximum_of_nothing_but_minus_infinity_is_minus_infinity() -> None:
    model = om.make_model([om.node("ReduceMax", "x axes", "y")], {"x": [2, 3]}, ["y"],
                          {"axes": np.array([1])}, 18)  # fmt: skip
    data = np.array([[-np.inf] * 3, [1, -np.inf, 2]], np.float32)
    assert_equals_reference(model, {"x": data})


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("shape", [[4, 32, 33], [3, 1367], [1, 4096]])
def test_the_extreme_of_a_large_tensor(op_type: str, keepdims: int, shape: list[int]) -> None:
    model = om.make_model([om.node(op_type, "x", "y", keepdims=keepdims)], {"x": shape}, ["y"])
    data = np.random.default_rng(3).standard_normal(shape, dtype=np.float32)
    assert_equals_reference(model, {"x": data})
    assert_equals_reference(model, {"x": np.full_like(data, np.inf)})
    assert_equals_reference(model, {"x": np.full_like(data, -np.inf)})


def test_quantization_rounds_half_to_even() -> None:
    weights = {"scale": np.array(2, np.float32), "zero": np.array(3, np.uint8)}
    model = om.make_model([om.node("QuantizeLinear", "x scale zero", "y")], {"x": [6]}, ["y"],
                          weights)  # fmt: skip
    assert_equals_reference(model, {"x": np.array([1, 3, 5, 7, -1, 1000], np.float32)})


def test_known_loop_is_unrolled() -> None:
    body = helper.make_graph(
        [
            om.node("Identity", "go", "go_on"),
            om.node("Add", "state x", "new"),
            om.node("Mul", "new x", "product"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("new", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("product", TensorProto.FLOAT, [3]),
        ],
    )
    node = om.node("Loop", "count go_in x", "last all", body=body)
    model = om.make_model(
        [node], {"x": [3]}, ["last", "all"], {"count": np.array(3), "go_in": np.array(True)}
    )
    assert_equals_reference(model)


@pytest.mark.parametrize(
    "ways", [{"scan_input_directions": [0, 1]}, {"scan_input_axes": [0, 1]}], ids=str
)
def test_scan_may_read_one_tensor_in_two_ways(ways: dict[str, Any]) -> None:
    names = ["sum", "first", "second", "new", "out"]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in names]
    nodes = [om.node("Sub", "first second", "out"), om.node("Add", "sum out", "new")]
    body = helper.make_graph(nodes, "body", infos[:3], infos[3:])
    node = om.node("Scan", "h x x", "last all", body=body, num_scan_inputs=2, **ways)
    weights = {"h": np.zeros(3, np.float32)}
    model = om.make_model([node], {"x": [3, 3]}, ["last", "all"], weights)
    inputs = om.random_inputs(model)
    for mine, reference in zip(
        om.run_imported(model, inputs), om.run_onnxruntime(model, inputs), strict=True
    ):
        np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-6)


def conditional(condition: np.ndarray | None) -> onnx.ModelProto:
    """Relu or Neg of x, by a constant or by an input."""
    branches = {
        name: helper.make_graph(
            [om.node(op_type, "x", f"{name}_y")], name, [],
            [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4])],
        )
        for name, op_type in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }  # fmt: skip
    weights = {} if condition is None else {"c": condition}
    model = om.make_model([om.node("If", "c", "y", **branches)], {"x": [4]}, ["y"], weights)
    if condition is None:
        model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    return model


@pytest.mark.parametrize("condition", [True, False])
def test_known_branch_is_taken(condition: bool) -> None:
    assert_equals_reference(conditional(np.array(condition)))


def test_branch_of_an_input_is_taken_by_its_given_value() -> None:
    model = conditional(None)
    assert inputs_read_at_import(model) == ()
    imported = from_onnx(model, input_values={"c": np.array(False)})
    assert list(imported.inputs) == ["x"]
    assert "put the known course in place of 1 If" in imported.report


@pytest.mark.costly
def test_casts_to_bfloat16_round() -> None:
    nodes = [
        om.node("Cast", "x", "narrow", to=TensorProto.BFLOAT16),
        om.node("Neg", "narrow", "less"),
        om.node("Cast", "less", "y", to=TensorProto.FLOAT),
    ]
    assert_equals_reference(om.make_model(nodes, {"x": [64]}, ["y"]))


def test_a_number_16_is_no_element_type() -> None:
    model = conditional(None)
    model.graph.node.append(om.node("Conv", "maps w", "out", group=16))
    for values, name in ((model.graph.input, "maps"), (model.graph.output, "out")):
        values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 16]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((16, 1, 1), np.float32), "w"))
    assert len(from_onnx(model, simplify=False).outputs) == 2


# --- what needs no kernel ---------------------------------------------------------------------


@pytest.mark.costly
def test_constants_and_inputs_are_just_returned_from_a_placed_program() -> None:
    model = om.make_model(
        [om.node("Identity", "w", "v"), om.node("Relu", "x", "y")],
        {"x": [3]},
        ["y", "v", "w", "x"],
        {"w": np.array([np.nan, -0.0, 5], np.float32)},
    )
    x = np.array([-1, 2, 3], np.float32)
    for imported in (from_onnx(model), from_onnx(model, simplify=False)):
        place = relay.transform.HeteroPlace(
            cpu_cluster(), params=imported.params, costs=turn_by_turn, solver="heft"
        )
        with transform.PassContext(opt_level=3):
            executor = hp.Executor(hp.build(place(imported.mod)))
        y, v, w, same = executor.run(x=x)
        np.testing.assert_array_equal(y, np.maximum(x, 0))
        np.testing.assert_array_equal(v, np.array([np.nan, -0.0, 5], np.float32))
        np.testing.assert_array_equal(np.signbit(w), [False, True, False])
        np.testing.assert_array_equal(same, x)


# --- what is refused --------------------------------------------------------------------------


def message(model: onnx.ModelProto, **options: Any) -> str:
    with pytest.raises(FrontendError) as caught:
        from_onnx(model, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "op_type", ["RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"]
)
def test_random_numbers_are_refused_by_name(op_type: str) -> None:
    model = om.make_model([om.node(op_type, "x", "r"), om.node("Identity", "r", "y")],
                          {"x": [2, 3]}, ["y"])  # fmt: skip
    text = message(model)
    assert "draws random numbers" in text
    assert "'n_r'" in text or "'r'" in text


def test_strings_are_refused_by_name() -> None:
    model = om.make_model([om.node("Identity", "s", "y")], {}, ["y"])
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.STRING, [2]))
    assert "input 's' is a tensor of string" in message(model)


def test_an_output_that_is_no_tensor_is_refused_by_name() -> None:
    model = om.make_model([om.node("SequenceConstruct", "x", "y")], {"x": [2]}, [])
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    model.graph.output.append(helper.make_value_info("y", kind))
    assert "output 'y' is no tensor but a sequence" in message(model)


def test_narrow_types_are_refused_by_the_node_that_makes_them() -> None:
    nodes = [
        om.node("Cast", "x", "narrow", to=TensorProto.FLOAT8E4M3FN),
        om.node("Cast", "narrow", "y", to=TensorProto.FLOAT),
    ]
    text = message(om.make_model(nodes, {"x": [2]}, ["y"], opset=19))
    assert "Cast 'n_narrow' makes a tensor of float8e4m3fn" in text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"q": np.zeros(2, np.float32)}, "names 'q', which is no input; those are x"),
        ({"x": np.zeros(2)}, "gives 'x' an array of float64, the file says float32"),
        ({"x": np.zeros(3, np.float32)}, "gives 'x' the shape (3,), the file says (2)"),
    ],
)
def test_wrong_input_values(values: dict[str, Any], words: str) -> None:
    model = om.make_model([om.node("Relu", "x", "y")], {"x": [2]}, ["y"])
    assert words in message(model, input_values=values)


def test_an_operand_that_must_be_constant_is_named_with_the_cure() -> None:
    model = om.make_model([om.node("TopK", "x k", "y i")], {"x": [4]}, ["y", "i"])
    model.graph.input.append(helper.make_tensor_value_info("k", TensorProto.INT64, [1]))
    text = message(model)
    assert "TopK 'n_y': its k (operand 1) is computed at run time" in text
    assert "input_values" in text
    assert inputs_read_at_import(model) == ("k",)
    assert list(from_onnx(model, input_values={"k": np.array([2])}).inputs) == ["x"]


def test_strings_that_a_node_reads_are_refused() -> None:
    nodes = [om.node("Relu", "x", "y"), om.node("Shape", "words", "n")]
    model = om.make_model(nodes, {"x": [2]}, ["y", "n"])
    model.graph.initializer.append(
        numpy_helper.from_array(np.array(["a", "b"], dtype=object), "words")
    )
    assert "Shape 'n_n' reads strings" in message(model)


@pytest.mark.parametrize("zeros", ["", " za", " - zb", " za zb"])
def test_integer_matrix_product_with_and_without_zero_points(zeros: str) -> None:
    weights = {
        "b": np.arange(-6, 6, dtype=np.int8).reshape(4, 3),
        "za": np.uint8(7),
        "zb": np.array([-2, 0, 5], np.int8),
    }
    node = om.node("MatMulInteger", "a b" + zeros, "y")
    used = {name: weights[name] for name in weights if name in ("b" + zeros).split()}
    model = om.make_model([node], {"a": [2, 4]}, ["y"], used)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    values = {"a": np.array([[0, 1, 200, 255], [9, 8, 7, 6]], np.uint8)}
    (expected,) = om.run_onnxruntime(model, values)
    imported = from_onnx(model, simplify=False)
    (found,) = om.run_tvm(imported.mod, imported.params, values)
    np.testing.assert_array_equal(found, expected)
