"""Small ONNX models for tests: a few nodes each, with exactly the form that a test is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import helper, numpy_helper
from tvm import relay
from tvm.contrib import graph_executor

from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.tvm_bridge import require_tvm

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


QUICK = "llvm -opt-level=0"
"""Target of what runs once: LLVM takes longer to make code quicker."""


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Build a model of float inputs; initialisers keep the dtype of their arrays."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnx.shape_inference.infer_shapes(model)  # gives the outputs their shapes


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Build a node named like its first output; names are separated by blanks, "-" is none."""
    names = ["" if name == "-" else name for name in inputs.split()]
    results = outputs.split()
    return helper.make_node(op_type, names, results, name=f"n_{results[0]}", **attributes)


def tiny_cnn(opset: int = 17) -> onnx.ModelProto:
    """A convolution, a reshape and a product: four nodes."""
    rng = np.random.default_rng(3)
    return make_model(
        [
            node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
            node("Relu", "c", "r"),
            node("Reshape", "r shape", "flat"),
            node("MatMul", "flat dense", "y"),
        ],
        {"x": [1, 3, 8, 8]},
        ["y"],
        {
            "w": rng.standard_normal((4, 3, 3, 3), dtype=np.float32),
            "b": rng.standard_normal(4, dtype=np.float32),
            "shape": np.array([1, -1]),
            "dense": rng.standard_normal((256, 5), dtype=np.float32),
        },
        opset,
    )


def random_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, Any]:
    """Random values for the inputs of a model whose sizes are fixed."""
    rng = np.random.default_rng(seed)
    filled = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: rng.standard_normal(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim], dtype=np.float32
        )
        for value in model.graph.input
        if value.name not in filled
    }


def run_onnxruntime(
    model: onnx.ModelProto, inputs: Mapping[str, Any], *, optimizes: bool = True
) -> list[Any]:
    """The reference: onnxruntime on one thread.

    `optimizes`: it may multiply bytes, whose sums of two saturate at 16 bits without VNNI.
    """
    options = onnxruntime.SessionOptions()
    if not optimizes:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    results: list[Any] = session.run(None, dict(inputs))
    return results


def built_by_tvm(
    mod: tvm.IRModule,
    params: Mapping[str, Any],
    opt_level: int = 1,
    target: str | tvm.target.Target = QUICK,
) -> Callable[[Mapping[str, Any]], list[Any]]:
    """Compile by stock `relay.build` for one CPU; return what runs inputs."""
    require_tvm()  # no look-up of tuned schedules on the network
    with tvm.transform.PassContext(opt_level=opt_level):
        library = relay.build(mod, target=target, params=dict(params))
    module = graph_executor.GraphModule(library["default"](tvm.cpu(0)))

    def outputs(inputs: Mapping[str, Any]) -> list[Any]:
        module.run(**inputs)
        return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]

    return outputs


def run_tvm(
    mod: tvm.IRModule,
    params: Mapping[str, Any],
    inputs: Mapping[str, Any],
    opt_level: int = 1,
    target: str | tvm.target.Target = QUICK,
) -> list[Any]:
    """Compile by stock `relay.build` for one CPU, and run."""
    return built_by_tvm(mod, params, opt_level, target)(inputs)


def typed_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Build a model whose inputs are like these arrays; the types of its outputs follow."""
    model = make_model(nodes, {}, [], weights, opset, domains)
    for name, array in inputs.items():
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(helper.make_tensor_value_info(name, dtype, array.shape))
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs)
    return onnx.shape_inference.infer_shapes(model)


def run_imported(
    model: onnx.ModelProto, inputs: Mapping[str, Any], opt_level: int = 1
) -> list[Any]:
    """Import without onnxruntime's help, and run by `run_tvm`."""
    imported = from_onnx(model, simplify=False)
    given = {name: inputs[name] for name in imported.inputs}
    return run_tvm(imported.mod, imported.params, given, opt_level)
