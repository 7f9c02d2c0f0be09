"""Large weights that no change reads do not travel to onnxruntime, and come back unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.checker
import pytest

from heteroplace.parts.onnx import from_onnx
from heteroplace.parts.onnx.prepare import onnx_process, onnx_simplify
from heteroplace.parts.onnx.prepare.onnx_simplify import simplify_offline
from tests.relay import onnx_models as om

pytestmark = pytest.mark.relay

SIZE = 256


def weight(seed: int, *shape: int) -> np.ndarray:
    """Numbers whose products stay small."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) / 16


def joined(*before: onnx.NodeProto, **weights: Any) -> onnx.ModelProto:
    """x times a matrix, plus another value that the nodes before it make."""
    nodes = [*before, om.node("MatMul", "x w", "xw"), om.node("Add", "xw z", "y")]
    return om.make_model(nodes, {"x": [4, SIZE]}, ["y"], {"w": weight(1, SIZE, SIZE), **weights})


def convolved(*behind: onnx.NodeProto, **weights: Any) -> onnx.ModelProto:
    """A convolution of x, and what reads its result z."""
    nodes = [om.node("Conv", "x f", "z"), *behind]
    filters = {"f": weight(1, SIZE, SIZE, 1, 1), **weights}
    return om.make_model(nodes, {"x": [1, SIZE, 3, 5]}, ["y"], filters)


LEFT: dict[str, tuple[onnx.ModelProto, set[str]]] = {
    "product": (joined(om.node("Gemm", "x v b", "z"), v=weight(2, SIZE, SIZE),
                       b=weight(3, SIZE)), {"w", "v"}),
    # What is known is folded there, and is smaller.
    "known look-up": (joined(om.node("Gather", "v ids", "z"), v=weight(2, 300, SIZE),
                             ids=np.array([7, 1, 299, 0])), {"w"}),
    "known behind a node": (
        joined(om.node("Mul", "two two", "i"), om.node("Gather", "v i", "z"),
               v=weight(2, 300, SIZE), two=np.array([2])),
        {"w"},
    ),
    "transposed": (joined(om.node("Transpose", "v", "t"), om.node("MatMul", "x t", "z"),
                          v=weight(2, SIZE, SIZE)), {"w"}),
    "convolution": (convolved(om.node("Relu", "z", "y")), {"f"}),
    "two convolutions": (convolved(om.node("Conv", "z g", "y"), g=weight(2, SIZE, SIZE, 1, 1)),
                         {"f", "g"}),
    "limited convolution": (convolved(om.node("Clip", "z low", "y"), low=np.float32(0)), {"f"}),
    "residual": (convolved(om.node("Add", "z x", "y")), {"f"}),
    # These fuse into the filter.
    "scaled convolution": (convolved(om.node("Mul", "z s", "y"), s=weight(2, SIZE, 1, 1)), set()),
    "norm": (convolved(om.node("BatchNormalization", "z s b m v", "y"), s=weight(2, SIZE),
                       b=weight(3, SIZE), m=weight(4, SIZE), v=1 + weight(5, SIZE) ** 2), set()),
    # They are a sixth of all weights.
    "few": (joined(om.node("Transpose", "v", "t"), om.node("MatMul", "x t", "u"),
                   om.node("ReduceMean", "u", "z"), v=weight(2, 5 * SIZE, SIZE)),
            set()),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_numbers_are_those_of_onnxruntime(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, left = LEFT[name]
    travelled: list[onnx.ModelProto] = []

    def run(command: str, content: bytes) -> onnx.ModelProto:
        travelled.append(onnx.ModelProto.FromString(content))
        return onnx_process.run_on_model(command, content)

    monkeypatch.setattr(onnx_simplify, "run_on_model", run)
    imported = from_onnx(model)
    names = {tensor.name for tensor in travelled[0].graph.initializer}
    assert names == {tensor.name for tensor in model.graph.initializer} - left
    inputs = om.random_inputs(model)
    (expected,) = om.run_onnxruntime(model, inputs)
    (found,) = om.run_tvm(imported.mod, imported.params, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_an_output_and_what_a_body_may_read_travel() -> None:
    model = joined(om.node("MatMul", "x v", "z"), v=weight(2, SIZE, SIZE))
    model.graph.output.append(om.helper.make_tensor_value_info("v", om.FLOAT, [SIZE, SIZE]))
    assert onnx_simplify._weights_that_stay(model.graph) == {"w"}
    body = om.helper.make_graph([om.node("MatMul", "x w", "b")], "body", [], [])
    model.graph.node.append(om.node("If", "x", "c", then_branch=body, else_branch=body))
    assert not onnx_simplify._weights_that_stay(model.graph)


def test_weights_come_back_bit_for_bit_and_unused_ones_do_not() -> None:
    model = joined(om.node("Identity", "x", "z"), v=weight(2, SIZE, SIZE))
    simplified, report = simplify_offline(model)
    assert "simplified" in report[0]
    (tensor,) = simplified.graph.initializer
    assert tensor.SerializeToString() == model.graph.initializer[0].SerializeToString()
    assert [value.name for value in simplified.graph.input] == ["x"]


def test_the_checker_is_left_out_in_the_thread_that_imports_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[object] = []
    monkeypatch.setattr(onnx.checker, "check_model", checked.append)
    from_onnx(om.tiny_cnn())
    assert not checked
    onnx.checker.check_model(None)
    assert checked == [None]
