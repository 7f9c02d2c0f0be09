"""Forms whose meaning is decided by the opset of their model: defaults, broadcasting, modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx.reference import ReferenceEvaluator

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.expressions import static_shape

pytestmark = pytest.mark.relay

_RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return _RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(("opset", "axis"), [(17, 1), (20, 2)])
def test_transform_without_an_axis_is_along_the_one_of_its_opset(opset: int, axis: int) -> None:
    x = floats(2, 3, 5, 1)
    model = om.make_model([om.node("DFT", "x", "y")], {"x": x.shape}, ["y"], opset=opset)
    found = om.run_imported(model, {"x": x})[0]
    expected = np.fft.fft(x[..., 0], axis=axis)
    np.testing.assert_allclose(found, np.stack([expected.real, expected.imag], -1), atol=1e-5)


GROUP_NORMS = {18: 2, 21: 4}
"""Opset -> the scales of two groups of two channels."""


@pytest.mark.costly
@pytest.mark.parametrize("opset", GROUP_NORMS)
def test_scales_of_a_group_norm_are_of_groups_or_of_channels(opset: int) -> None:
    sizes = GROUP_NORMS[opset]
    weights = {"s": np.arange(1, sizes + 1, dtype=np.float32), "b": floats(sizes)}
    node = om.node("GroupNormalization", "x s b", "y", num_groups=2)
    x = floats(2, 4, 3)
    model = om.make_model([node], {"x": x.shape}, ["y"], weights, opset)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(om.run_imported(model, {"x": x})[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [13, 20, 22])
def test_a_gelu_of_single_ops_is_imported_in_every_opset(opset: int) -> None:
    """Since opset 20 onnxruntime puts the op Gelu in their place."""
    nodes = [
        om.node("Div", "x root", "scaled"),
        om.node("Erf", "scaled", "erf"),
        om.node("Add", "erf one", "above"),
        om.node("Mul", "x above", "product"),
        om.node("Mul", "product half", "y"),
    ]
    values = {"root": np.sqrt(2), "one": 1, "half": 0.5}
    weights = {name: np.array(value, np.float32) for name, value in values.items()}
    x = floats(3, 8)
    model = om.make_model(nodes, {"x": x.shape}, ["y"], weights, opset)
    imported = from_onnx(model)
    assert any("onnxruntime" in line for line in imported.report)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    (output,) = om.run_tvm(imported.mod, imported.params, {"x": x}, 1)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


OLD: dict[str, Any] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Greater": np.greater,
    "Less": np.less,
}


@pytest.mark.costly
def test_operands_of_old_opsets_lie_where_their_axis_says() -> None:
    """No version of onnxruntime knows them."""
    x, b = np.abs(floats(2, 3, 3, 4)), floats(3, 3)
    # Of equal sizes, so that from the last axis on it would be taken too.
    nodes = [om.node(op, "x b", op, axis=1, broadcast=1) for op in OLD]
    nodes += [om.node(op, "Greater last", op, axis=2, broadcast=1) for op in ("And", "Xor")]
    nodes += [
        om.node("Add", "x row", "behind", broadcast=1),
        om.node("Mul", "x one", "single", broadcast=1),
        om.node("Sub", "x x", "same"),
        om.node("PRelu", "x slope", "PRelu"),
    ]
    weights = {
        "b": b,
        "row": floats(4),
        "one": np.float32(3),
        "slope": floats(3),
        "last": _RNG.random((3, 4)) < 0.5,
    }
    names = [node.output[0] for node in nodes]
    model = om.typed_model(nodes, {"x": x}, names, weights, opset=6)
    found = dict(zip(names, om.run_imported(model, {"x": x}), strict=True))
    spread = b[..., None]
    expected = {op: function(x, spread) for op, function in OLD.items()}
    expected |= {
        "And": expected["Greater"] & weights["last"],
        "Xor": expected["Greater"] ^ weights["last"],
        "behind": x + weights["row"],
        "single": x * weights["one"],
        "same": x - x,
        "PRelu": np.where(x < 0, x * weights["slope"][:, None, None], x),
    }
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=name)


def test_an_operand_of_an_old_opset_that_lies_nowhere_is_refused() -> None:
    node = om.node("Add", "x b", "y", axis=1, broadcast=1)
    model = om.make_model([node], {"x": [2, 3, 4]}, ["y"], {"b": floats(4)}, opset=6)
    with pytest.raises(FrontendError, match=r"\(4,\) does not lie in .* \(2, 3, 4\) from axis 1"):
        from_onnx(model, simplify=False)


def old_norm(outputs: list[str]) -> onnx.ModelProto:
    operands = ["x", "s", "b", "m", "v"]
    node = onnx.helper.make_node("BatchNormalization", operands, outputs, name="norm")
    weights = {name: np.ones(3, np.float32) for name in operands[1:]}
    return om.make_model([node], {"x": [2, 3, 4]}, ["y"], weights, opset=9)


def test_a_norm_that_trains_by_its_results_is_refused() -> None:
    with pytest.raises(FrontendError, match="'norm' is in training mode, as it has 5 results"):
        from_onnx(old_norm(["y", "m2", "v2", "sm", "sv"]), simplify=False)
    for outputs in (["y"], ["y", "", "", "", ""]):
        imported = from_onnx(old_norm(outputs), simplify=False)
        assert static_shape(imported.mod["main"].ret_type) == (2, 3, 4)


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_tensor_is_an_element_whatever_its_rank(shape: tuple[int, ...]) -> None:
    nodes = [om.node("OptionalHasElement", "x", "has"), om.node("OptionalHasElement", "", "none")]
    x = np.ones(shape, np.float32)
    model = om.typed_model(nodes, {"x": x}, ["has", "none"], opset=18)
    assert om.run_onnxruntime(model, {"x": x}) == [True, False]
    assert [bool(found) for found in om.run_imported(model, {"x": x})] == [True, False]


@pytest.mark.parametrize(
    ("own", "asked"),
    [((3, 1), (3, 0)), ((1,), (0,)), ((3, 1), (1, 4)), ((3,), (2, 1, 1)), ((2, 3, 4), (1, 4))],
)
def test_what_is_expanded_has_the_shape_of_both(own: tuple[int, ...], asked: Any) -> None:
    node = om.node("Expand", "x shape", "y")
    model = om.make_model([node], {"x": own}, ["y"], {"shape": np.array(asked)})
    imported = from_onnx(model, simplify=False)
    expected = np.broadcast_shapes(own, asked)
    assert static_shape(imported.mod["main"].ret_type) == expected
