"""Integers of 4 and 2 bits ==> integers of 8 bits that hold the same numbers.

    Constant int4 [..]              ==>  Constant int8 [..]
    input x: uint4                  ==>  input x: uint8
    Cast (x, to=int4)               ==>  Cast (x, to=int32), the low four bits with their sign
    QuantizeLinear (..) to int4     ==>  QuantizeLinear (..) to int8, Clip (-8, 7)

TVM has no kernels for narrower integers. ONNX defines no arithmetic on them: ops that only move
elements, DequantizeLinear and casts give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from heteroplace.parts.onnx.prepare.onnx_load import all_nodes
from heteroplace.parts.onnx.prepare.onnx_process import infer_shapes
from heteroplace.parts.onnx.prepare.onnx_tensors import all_tensors

_BITS: dict[int, int] = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
}
_WIDE: dict[int, int] = {
    TensorProto.INT4: TensorProto.INT8,
    TensorProto.UINT4: TensorProto.UINT8,
    TensorProto.INT2: TensorProto.INT8,
    TensorProto.UINT2: TensorProto.UINT8,
}
_ZERO_POINT = 2
"""Operand of QuantizeLinear."""


def widen_small_integers(model: ModelProto) -> list[str]:
    """Store integers of 4 and 2 bits in 8 bits.

    Parameters
    ----------
    model
        Is changed in place.

    Returns
    -------
    A line that says so, if there are such integers.
    """
    if not any(kind in _WIDE for kind in _types(model)):
        return []
    types = _types_of_values(model)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        nodes += _widened(node, types)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(copies)
    tensors = [tensor for tensor in all_tensors(model) if tensor.data_type in _WIDE]
    for tensor in tensors:
        wide = helper.tensor_dtype_to_np_dtype(_WIDE[tensor.data_type])
        tensor.CopyFrom(numpy_helper.from_array(_array(tensor).astype(wide), tensor.name))
    ports = []
    for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            if _type(value) in _WIDE:
                value.type.tensor_type.elem_type = _WIDE[_type(value)]
                ports.append(f"{kind} '{value.name}'")
    ports_text = f"; so are {', '.join(ports)}" if ports else ""
    return [f"integers of 4 or 2 bits are stored in 8 bits{ports_text}"]


def _types(model: ModelProto) -> Iterator[int]:
    """Yield the element types of tensors, inputs, outputs and casts."""
    for tensor in all_tensors(model):
        yield tensor.data_type
    for value in (*model.graph.input, *model.graph.output):
        yield _type(value)
    for node in all_nodes(model.graph):
        yield from (entry.i for entry in node.attribute if entry.name in ("to", "output_dtype"))


def _type(value: ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)


def _types_of_values(model: ModelProto) -> dict[str, int]:
    graph = infer_shapes(model).graph
    types = {value.name: _type(value) for value in (*graph.value_info, *graph.input, *graph.output)}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _array(tensor: TensorProto) -> np.ndarray:
    array: np.ndarray = numpy_helper.to_array(tensor)
    return array


def _widened(node: NodeProto, types: dict[str, int]) -> Sequence[NodeProto]:
    """Return the nodes in place of one whose result is narrow, or the node itself."""
    narrow = _result_type(node, types)
    if narrow not in _WIDE:
        return [node]
    wide, bits, output = _WIDE[narrow], _BITS[narrow], node.output[0]
    result = f"{output}__wide"
    is_signed = wide == TensorProto.INT8
    if node.op_type == "QuantizeLinear":
        for entry in node.attribute:
            if entry.name == "output_dtype":
                entry.i = wide
        node.output[0] = result
        low = -(1 << (bits - 1)) if is_signed else 0
        limits = [_constant(f"{output}__low", low, wide)]
        limits += [_constant(f"{output}__high", low + (1 << bits) - 1, wide)]
        names = [result, f"{output}__low", f"{output}__high"]
        return [node, *limits, helper.make_node("Clip", names, [output], name=node.name)]
    # Low bits, and their sign: (x + half) mod 2^bits - half. Of int32, as narrower casts saturate.
    half = (1 << (bits - 1)) if is_signed else 0
    value = f"{output}__int"
    steps = [
        helper.make_node("Cast", [node.input[0]], [value], name=node.name, to=TensorProto.INT32)
    ]
    parts = [("Add", half), ("Mod", 1 << bits), ("Sub", half)]
    for op_type, number in parts:
        steps.append(_constant(f"{output}__{op_type}_by", number, TensorProto.INT32))
        steps.append(
            helper.make_node(op_type, [value, f"{output}__{op_type}_by"], [f"{output}__{op_type}"])
        )
        value = f"{output}__{op_type}"
    return [*steps, helper.make_node("Cast", [value], [output], to=wide)]


def _constant(name: str, value: int, data_type: int) -> NodeProto:
    tensor = helper.make_tensor(name, data_type, [], [value])
    return helper.make_node("Constant", [], [name], value=tensor)


def _result_type(node: NodeProto, types: dict[str, int]) -> int:
    """Return the element type that a cast or a quantisation gives; 0: another op."""
    given = {entry.name: entry.i for entry in node.attribute}
    if node.op_type == "Cast":
        return int(given.get("to", 0))
    if node.op_type == "CastLike":
        return types.get(node.input[1], 0)
    if node.op_type == "QuantizeLinear":
        has_zero = len(node.input) > _ZERO_POINT and node.input[_ZERO_POINT]
        zero = types.get(node.input[_ZERO_POINT], 0) if has_zero else 0
        return int(zero or given.get("output_dtype", 0))
    return 0
