"""Windows over a map, and what is put around one: onnxruntime's numbers, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_models as om
import pytest

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx

pytestmark = pytest.mark.relay

NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "Conv": ("x w", {}),
    "ConvTranspose": ("x w", {"strides": [2]}),
    "AveragePool": ("x", {"kernel_shape": [2]}),
    "LpPool": ("x", {"kernel_shape": [2]}),
    "MaxPool": ("x", {"kernel_shape": [2]}),
}
FAULTS = [
    ({"strides": [0]}, "strides 0: none may be below 1"),
    ({"strides": [-1]}, "strides -1: none may be below 1"),
    ({"dilations": [0]}, "dilations 0: none may be below 1"),
    ({"kernel_shape": [-2]}, "kernel_shape -2: none may be below 1"),
    ({"pads": [0, -1]}, "pads 0 x -1: none may be below 0"),
    ({"pads": [1]}, r"1 pads \(1\), expected 2 for 1 axes"),
    ({"strides": [1, 1]}, r"2 strides \(1 x 1\), expected 1 for 1 axes"),
]


@pytest.mark.parametrize("op_type", NODES)
@pytest.mark.parametrize(("wrong", "message"), FAULTS)
def test_windows_that_are_none_are_refused(
    op_type: str, wrong: dict[str, list[int]], message: str
) -> None:
    operands, attributes = NODES[op_type]
    filters = {"w": np.ones((2, 2, 3), np.float32)} if "w" in operands else {}
    node = om.node(op_type, operands, "y", **{**attributes, **wrong})
    with pytest.raises(FrontendError, match=message):
        from_onnx(om.make_model([node], {"x": [1, 2, 7]}, ["y"], filters), simplify=False)


def test_filters_of_another_size_than_the_window_are_refused() -> None:
    node = om.node("ConvTranspose", "x w", "y", kernel_shape=[2])
    model = om.make_model([node], {"x": [1, 2, 7]}, ["y"], {"w": np.ones((2, 2, 3), np.float32)})
    with pytest.raises(FrontendError, match="kernel_shape is 2, and its filters are 3"):
        from_onnx(model, simplify=False)


@pytest.mark.parametrize(
    "size", [1, *(pytest.param(size, marks=pytest.mark.costly(9)) for size in (2, 3))]
)
@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_pads_that_cut_more_than_is_there(mode: str, size: int) -> None:
    for begin in range(-4, 4):
        for end in range(-4, 4):
            pads = {"p": np.array([0, begin, 0, end])}
            node = om.node("Pad", "x p", "y", mode=mode)
            model = om.make_model([node], {"x": [2, size]}, ["y"], pads, 18)
            kept = size + min(begin, 0) + min(end, 0)
            if size + begin + end < 0 or (mode != "constant" and kept <= 0):
                with pytest.raises(FrontendError, match=r"cut more than|no elements to pad with"):
                    from_onnx(model, simplify=False)
            elif size + begin + end > 0:
                imported = from_onnx(model, simplify=False)
                given = {"x": np.arange(1, 2 * size + 1, dtype=np.float32).reshape(2, size)}
                (found,) = om.run_tvm(imported.mod, imported.params, given)
                np.testing.assert_array_equal(found, om.run_onnxruntime(model, given)[0])
