"""`run --compare` with models that another runtime takes in part, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heteroplace import frontend
from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.peer_runtimes import FREE_SIZES, ONNXRUNTIME


def branch(name: str, rows: int) -> onnx.GraphProto:
    """Return a branch that multiplies x by a matrix of so many rows, all ones."""
    weights = numpy_helper.from_array(np.ones((rows, 2), "float32"), f"{name}_weights")
    output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
    node = helper.make_node("MatMul", ["x", weights.name], [output.name])
    return helper.make_graph([node], name, [], [output], [weights])


def two_widths() -> onnx.ModelProto:
    """Return a model whose branches take x of 4 and of 5 columns."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "columns"]),
        helper.make_tensor_value_info("is_narrow", TensorProto.BOOL, []),
    ]
    branches = {"then_branch": branch("narrow", 4), "else_branch": branch("wide", 5)}
    node = helper.make_node("If", ["is_narrow"], ["y"], **branches)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "two_widths", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def test_a_branch_that_does_not_run_may_contradict_the_sizes(tmp_path: Path) -> None:
    path = tmp_path / "two_widths.onnx"
    onnx.save(two_widths(), path)
    x = np.arange(4, dtype="float32").reshape(1, 4)
    cores = sorted(os.sched_getaffinity(0))[:1]
    program = ONNXRUNTIME.load(path, {"x": x, "is_narrow": True}, cores)
    try:
        assert program.version.endswith(f"({FREE_SIZES})")
        (y,) = program.run()
    finally:
        program.close()
    np.testing.assert_array_equal(y, [[6, 6]])
    model = frontend.from_onnx(
        path, input_shapes={"x": (1, 4)}, input_values={"is_narrow": np.array(True)}
    )
    assert model.inputs == {"x": ((1, 4), "float32")}


def test_a_model_that_a_runtime_refuses_is_an_error_that_says_so(tmp_path: Path) -> None:
    model = two_widths()
    model.graph.node[0].domain = "nobody"
    model.opset_import.append(helper.make_opsetid("nobody", 1))
    path = tmp_path / "nobody.onnx"
    onnx.save(model, path)
    with pytest.raises(FrontendError, match=r"onnxruntime does not load the model: .*nobody"):
        ONNXRUNTIME.load(path, {"x": np.ones((1, 4), "float32"), "is_narrow": True}, [0])
