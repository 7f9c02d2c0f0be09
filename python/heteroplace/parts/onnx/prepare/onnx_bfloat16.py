"""An ONNX model in bfloat16 -> the same in float32, rounded wherever it was rounded before.

    y = Exp(x)  ==>  y = RoundToBFloat16(Exp(x)), all in float32

TVM's kernels do not compute in bfloat16, and its code generator fails on many that only read it.
The values are the same to the bit where the op itself is rounded once; inputs and outputs stay
bfloat16. `RoundToBFloat16` is an op of ours.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.prepare.onnx_process import infer_shapes

ROUND = "RoundToBFloat16"
_BFLOAT16 = TensorProto.BFLOAT16
_MAX_ROUNDED = 4
"""A rounding reads its operand four times, so the code of a kernel grows by four with each."""
_MOVING = frozenset(
    {
        *("Compress", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Expand", "Flatten"),
        *("Gather", "GatherElements", "GatherND", "Identity", "MaxPool", "Max", "Min", "Pad"),
        *("Relu", "Reshape", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND"),
        *("Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu"),
        *("Unsqueeze", "Where"),
    }
)
"""Ops whose results are among their operands: nothing to round."""
_TYPES = frozenset({"dtype", "output_datatype", "output_dtype", "stash_type", "to"})
"""Attributes that name an element type; in others 16 is a number."""


def widen_bfloat16(model: ModelProto) -> list[str]:
    """Compute in float32 what `model` computes in bfloat16; changes it in place.

    Returns
    -------
    One line that says so, or none where there is no bfloat16.

    Raises
    ------
    FrontendError
        More values are computed in bfloat16 than can be compiled.
    """
    graph = model.graph
    if not names_bfloat16(model):
        return []
    narrow = _bfloat16_values(model)
    inputs = {value.name for value in graph.input} & narrow
    outputs = [value.name for value in graph.output if value.name in narrow - inputs]
    for tensor in graph.initializer:
        if tensor.data_type == _BFLOAT16:
            tensor.CopyFrom(_widened(tensor))
            if tensor.name in outputs:
                tensor.name = f"{tensor.name}__float32"
    nodes = []
    for name in sorted(inputs):
        nodes.append(_cast(name, f"{name}__float32", TensorProto.FLOAT))
    for node in graph.node:
        nodes += _widened_node(node, narrow, inputs, set(outputs))
    rounded = [node.output[0] for node in nodes if node.op_type == ROUND]
    if len(rounded) > _MAX_ROUNDED:
        makers = {name: node.op_type for node in graph.node for name in node.output}
        name = rounded[_MAX_ROUNDED].removesuffix("__float32")
        raise FrontendError(
            f"{makers[name]} '{name}' and {len(rounded) - 1} more nodes compute in bfloat16, which "
            f"TVM's kernels do not; more than {_MAX_ROUNDED} roundings in a row take it hours to "
            f"compile. Convert the model to float32 or float16"
        )
    for name in outputs:
        source = f"{name}__float32"
        nodes.append(_cast(source, name, _BFLOAT16))
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(copies)
    return [f"{len(narrow)} values of bfloat16 are computed in float32, and rounded"]


def _widened_node(
    node: NodeProto, narrow: set[str], inputs: set[str], outputs: set[str]
) -> list[NodeProto]:
    """Return what stands for one node."""
    replaced = inputs | outputs
    copy = NodeProto.FromString(node.SerializeToString())
    for position, name in enumerate(copy.input):
        if name in replaced:
            copy.input[position] = f"{name}__float32"
    for attribute in copy.attribute:
        if attribute.HasField("t") and attribute.t.data_type == _BFLOAT16:
            attribute.t.CopyFrom(_widened(attribute.t))
        elif attribute.name in _TYPES and attribute.i == _BFLOAT16:
            attribute.i = TensorProto.FLOAT
    rounds = []
    for position, name in enumerate(copy.output):
        if name not in narrow:
            continue
        result = f"{name}__float32" if name in outputs else name
        copy.output[position] = result
        if node.op_type not in _MOVING:
            copy.output[position] = f"{name}__exact"
            rounds.append(helper.make_node(ROUND, [f"{name}__exact"], [result], name=result))
    return [copy, *rounds]


def names_bfloat16(model: ModelProto) -> bool:
    """Tell whether some value can be bfloat16: one that is given is, or an attribute says so."""
    graph = model.graph
    types = {tensor.data_type for tensor in graph.initializer}
    types |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                types.add(attribute.t.data_type)
            elif attribute.name in _TYPES:
                types.add(attribute.i)
    return _BFLOAT16 in types


def _bfloat16_values(model: ModelProto) -> set[str]:
    """Return the names of the values that are bfloat16."""
    graph = infer_shapes(model).graph
    narrow = {tensor.name for tensor in graph.initializer if tensor.data_type == _BFLOAT16}
    narrow |= {
        value.name
        for value in (*graph.input, *graph.output, *graph.value_info)
        if value.type.tensor_type.elem_type == _BFLOAT16
    }
    return narrow


def _cast(source: str, target: str, data_type: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=target, to=data_type)


def _widened(tensor: TensorProto) -> TensorProto:
    array = numpy_helper.to_array(tensor).astype(np.float32)
    return numpy_helper.from_array(array, tensor.name)
