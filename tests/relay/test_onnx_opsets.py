"""Forms whose meaning is decided by the opset of their model: defaults, broadcasting, modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx.reference import ReferenceEvaluator

from heteroplace.errors import FrontendError
from heteroplace.relay.expressions import static_shape
from heteroplace.relay.frontend.importer import from_onnx

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
