"""Models of a single op: every kernel has its task, whatever TVM's passes make of the op."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from relay_models import (
    cpu_cluster,
    extraction_of,
    mixed_cluster,
    module,
    random_costs,
    var,
    weights,
)
from test_segments import calls_of
from tvm import relay

import heteroplace

pytestmark = pytest.mark.relay

UINT8, INT8 = onnx.TensorProto.UINT8, onnx.TensorProto.INT8


def one_node(
    node: onnx.NodeProto, element_type: int, shape: Sequence[int], **others: Any
) -> onnx.ModelProto:
    """A model of one node from `x` to `y`, both of one type; `others` are initialisers."""
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", element_type, shape)],
        [helper.make_tensor_value_info("y", element_type, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in others.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8)
    )


def transposed_convolution() -> onnx.ModelProto:
    kernel = np.random.default_rng(0).standard_normal((4, 3, 3, 3), dtype=np.float32)
    node = om.node("ConvTranspose", "x w", "y", strides=[2, 2], group=2)
    return one_node(node, onnx.TensorProto.FLOAT, [1, 4, 5, 5], w=kernel)


def quantised_convolution(element_type: int) -> onnx.ModelProto:
    dtype: Any = np.uint8 if element_type == UINT8 else np.int8
    kernel = np.random.default_rng(0).integers(-100, 100, (8, 4, 3, 3)).astype(np.int8)
    return one_node(
        om.node("QLinearConv", "x xs xz w ws wz ys yz", "y"),
        element_type,
        [1, 4, 5, 5],
        xs=np.float32(0.02),
        xz=dtype(3),
        w=kernel,
        ws=np.float32(0.01),
        wz=np.int8(0),
        ys=np.float32(0.05),
        yz=dtype(2),
    )


def reshape() -> onnx.ModelProto:
    node = om.node("Reshape", "x to", "y")
    return one_node(node, onnx.TensorProto.FLOAT, [3, 4], to=np.array([2, 6]))


@pytest.mark.costly(5)
@pytest.mark.parametrize(
    "model",
    [
        transposed_convolution(),
        quantised_convolution(UINT8),
        quantised_convolution(INT8),
        reshape(),
    ],
    ids=["transposed", "uint8", "int8", "reshape"],
)
def test_model_of_one_op_is_placed_built_and_right(model: onnx.ModelProto, tmp_path: Path) -> None:
    mod, params = heteroplace.frontend.from_onnx(model)
    with tvm.transform.PassContext(opt_level=3):
        executable = heteroplace.build(mod, cpu_cluster(), params, costs=random_costs)
    executable.export_library(tmp_path / "model.so")
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    x = (np.random.default_rng(1).standard_normal(shape) * 50).astype(dtype)
    if dtype.kind == "f":
        (expected,) = om.run_onnxruntime(model, {"x": x})
    else:  # onnxruntime's sums of products of uint8 and int8 saturate without VNNI
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    (found,) = heteroplace.load(tmp_path / "model.so").run(x=x)
    if dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    else:
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1  # a step of rounding


@pytest.mark.costly
def test_kernel_of_an_op_that_was_legalised_belongs_to_the_task_of_the_op() -> None:
    value = var("x")
    for seed in range(2):
        value = relay.nn.conv2d_transpose(
            relay.nn.softmax(value, axis=1),
            weights(4, 4, 3, 3, seed=seed),
            channels=4,
            kernel_size=(3, 3),
            padding=(1, 1),
        )
    mod = module(relay.analysis.free_vars(value), value)
    ops = {task.name: task.op for task in extraction_of(mod).graph.tasks}
    assert len(ops) == 4
    for device in range(2):
        calls = calls_of(mod, mixed_cluster(), device)
        named = [(call.task, calls.kernels[call.kernel].op) for call in calls.calls]
        main = [(task, op) for task, op in named if op != "layout_transform"]
        assert sorted(task for task, _ in main) == sorted(ops)
        assert all(op == ops[task] for task, op in main), named
