"""Where onnxruntime and the ONNX standard disagree, or the standard leaves a result free."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx_models import make_model, node
from relay_models import cpu_cluster, random_costs
from tvm import relay

import heteroplace as hp
from heteroplace.errors import VerificationError
from heteroplace.model.verification import Verification
from heteroplace.parts.onnx.converters import converter_table
from heteroplace.parts.onnx.converters.call import OnnxCall
from heteroplace.parts.onnx.converters.resize import resize as resize_converter
from heteroplace.parts.onnx.prepare import onnx_process
from heteroplace.parts.onnx.verify.disputes import NodeRun, why_right
from heteroplace.parts.onnx.verify.reference import run_by_evaluator
from heteroplace.parts.onnx.verify.tolerances import choose_tolerance

pytestmark = pytest.mark.relay
EXACT = choose_tolerance((), ())


def verified(model: onnx.ModelProto) -> Verification:
    """Build a model that has to be verified."""
    mod, params = hp.frontend.from_onnx(model)
    with tvm.transform.PassContext(opt_level=3):
        built = hp.build(mod, cpu_cluster(), params, costs=random_costs, solver="heft", verify="on")
    assert built.verification is not None
    return built.verification


def resize(scales: list[float], size: list[int], **attributes: Any) -> onnx.ModelProto:
    nodes = [node("Resize", "x - scales", "r", **attributes), node("Mul", "r three", "y")]
    constants = {"scales": np.array(scales, "float32"), "three": np.float32(3)}
    return make_model(nodes, {"x": size}, ["y"], constants)


@pytest.mark.costly
def test_the_reference_evaluator_decides_about_a_resize() -> None:
    aligned = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    found = verified(resize([1, 1, 1.7, 2.3], [1, 1, 5, 7], **aligned))
    assert found.note == (
        "Resize 'n_r' and what follows it excepted: the ONNX reference evaluator agrees with the "
        "compiled node, onnxruntime does not"
    )
    assert found.max_relative_difference < 1e-4


@pytest.mark.costly(5)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("mode", ["half_pixel", "align_corners"])
def test_nearest_at_ties_and_sizes_that_onnxruntime_rounds_otherwise(
    rounding: str, mode: str
) -> None:
    attributes = {"nearest_mode": rounding, "coordinate_transformation_mode": mode}
    # onnxruntime makes seven of 10 * 0.7, the standard's evaluator and shape inference six.
    found = verified(resize([1, 1, 1.5, 0.7], [1, 1, 6, 10], **attributes))
    assert "the ONNX reference evaluator agrees" in found.note


@pytest.mark.costly
def test_a_wrong_resize_is_still_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(call: OnnxCall) -> relay.Expr:
        return relay.multiply(resize_converter(call), relay.const(0.5, "float32"))

    monkeypatch.setattr(
        converter_table, "CONVERTERS", {**converter_table.CONVERTERS, "Resize": wrong}
    )
    aligned = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    with pytest.raises(VerificationError, match="first node whose output differs is Resize 'n_r'"):
        verified(resize([1, 1, 2, 2], [1, 1, 4, 4], **aligned))


@pytest.mark.parametrize("op", ["MaxPool", pytest.param("ReduceMin", marks=pytest.mark.costly)])
def test_maxima_and_minima_of_nan_are_free(op: str) -> None:
    attributes = {"kernel_shape": [2, 2]} if op == "MaxPool" else {"axes": [3]}
    nodes = [node("Sqrt", "x", "s"), node(op, "s", "m", **attributes), node("Neg", "m", "y")]
    found = verified(make_model(nodes, {"x": [1, 2, 8, 8]}, ["y"]))
    assert found.note.startswith(
        f"{op} 'n_m' and what follows it excepted: its outputs differ only"
    )


def test_the_order_of_an_unsorted_top_k_is_free() -> None:
    nodes = [node("TopK", "x k", "v i", sorted=0), node("Neg", "v", "y")]
    found = verified(make_model(nodes, {"x": [3, 20]}, ["y"], {"k": np.array([7])}))
    assert "TopK 'n_v' and what follows it excepted" in found.note or not found.note


def alone(op: str, inputs: dict[str, Any], ours: list[Any], **attributes: Any) -> str:
    """Say why these outputs of a node are right; "": they are wrong."""
    names = ["v", "i"][: len(ours)]
    one = node(op, " ".join(inputs), " ".join(names), **attributes)
    model = make_model([one], {}, [])
    for name, array in inputs.items():
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, array.shape))
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    expected = run_by_evaluator(model, inputs, names)
    return why_right(
        NodeRun(one, model, inputs, dict(zip(names, ours, strict=True)), expected), EXACT
    )


@pytest.mark.costly(4)
def test_only_what_is_free_may_differ() -> None:
    x = np.array([[3, 1, 2, 0]], "float32")
    k = {"x": x, "k": np.array([2])}
    values, indices = np.array([[2, 3]], "float32"), np.array([[2, 0]])
    assert alone("TopK", k, [values, indices], sorted=0)
    assert not alone("TopK", k, [values, indices], sorted=1)
    assert not alone("TopK", k, [values, indices[:, ::-1]], sorted=0)  # another index's value
    assert not alone("TopK", k, [np.array([[1, 3]], "float32"), np.array([[1, 0]])], sorted=0)
    broken = np.array([[3, np.nan], [1, 2]], "float32")
    assert alone("ReduceMax", {"x": broken}, [np.array([[-7], [2]], "float32")], axes=[1])
    assert not alone("ReduceMax", {"x": broken}, [np.array([[3], [-7]], "float32")], axes=[1])
    assert alone("ArgMax", {"x": broken}, [np.array([[0], [1]])], axis=1)
    assert not alone("ArgMax", {"x": broken}, [np.array([[0], [0]])], axis=1)


@pytest.mark.costly(4)
def test_the_evaluator_answers_none_where_it_fails_or_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx_process, "_SECONDS", 3)
    endless = make_model([node("Loop", "m c", "y", body=_counting())], {}, ["y"])
    del endless.graph.output[:]
    endless.graph.output.append(onnx.ValueInfoProto(name="y"))
    for name, dtype in (("m", onnx.TensorProto.INT64), ("c", onnx.TensorProto.BOOL)):
        endless.graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, []))
    inputs = {"m": np.array(3), "c": np.array(True)}
    assert run_by_evaluator(endless, inputs, ["y"]) is not None
    assert run_by_evaluator(endless, {**inputs, "m": np.zeros(0, "int64")}, ["y"]) is None
    assert run_by_evaluator(endless, {**inputs, "m": np.array(10**12)}, ["y"]) is None


def _counting() -> onnx.GraphProto:
    values = [("i", onnx.TensorProto.INT64), ("c", onnx.TensorProto.BOOL)]
    inputs = [onnx.helper.make_tensor_value_info(name, dtype, []) for name, dtype in values]
    outputs = [onnx.helper.make_tensor_value_info("d", onnx.TensorProto.BOOL, [])]
    outputs.append(onnx.helper.make_tensor_value_info("j", onnx.TensorProto.INT64, []))
    nodes = [node("Identity", "c", "d"), node("Identity", "i", "j")]
    return onnx.helper.make_graph(nodes, "body", inputs, outputs)
