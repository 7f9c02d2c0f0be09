"""An ONNX model -> an error that names every value of a type that cannot be compiled.

TVM has no strings, no sequences or optionals at run time, and no floats or integers of less than
eight bits; of 8-bit floats it has no arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.prepare.onnx_load import all_nodes, true_inputs
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node
from heteroplace.terminal import listed

_KNOWN = frozenset(
    {
        *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16),
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
        TensorProto.BOOL,
    }
)
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
"""Attributes that name an element type."""


def check_types(model: ModelProto, where: str) -> None:
    """Raise FrontendError if a value has a type that cannot be compiled; all are named."""
    faults = list(_faults(model.graph))
    if faults:
        raise FrontendError(
            f"{where}: {listed(faults, '; ')}. Only tensors of 8 to 64 bit integers, of bool, and "
            f"of 16 to 64 bit floats can be compiled: cut the model before and after such values."
        )


def _faults(graph: GraphProto) -> Iterator[str]:
    for kind, values in (("input", true_inputs(graph)), ("output", graph.output)):
        for value in values:
            name = _unknown_type(value)
            if name:
                yield f"{kind} '{value.name}' is {name}"
    for tensor in graph.initializer:
        if tensor.data_type not in _KNOWN:
            yield f"initialiser '{tensor.name}' is of {_name(tensor.data_type)}"
    for node in all_nodes(graph):
        for data_type in _types_in(node):
            if data_type not in _KNOWN:
                yield f"{describe_node(node)} makes a tensor of {_name(data_type)}"


def _unknown_type(value: ValueInfoProto) -> str:
    """Return what an input or output is, if that cannot be compiled, else ""."""
    kind = value.type.WhichOneof("value")
    if kind is None:  # an output may leave its type to be inferred
        return ""
    if kind != "tensor_type":
        return f"no tensor but {'an' if kind[0] in 'aeiou' else 'a'} {kind.removesuffix('_type')}"
    data_type = value.type.tensor_type.elem_type
    if data_type in _KNOWN or data_type == TensorProto.UNDEFINED:
        return ""
    return f"a tensor of {_name(data_type)}"


def _types_in(node: NodeProto) -> Iterator[int]:
    """Yield the element types that attributes name; 0 stands for none."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t.data_type
        elif attribute.name == "value_string" or attribute.name == "value_strings":
            yield TensorProto.STRING
        elif attribute.name in _TYPE_ATTRIBUTES and attribute.HasField("i") and attribute.i:
            yield attribute.i


def _name(data_type: int) -> str:
    is_known = data_type in TensorProto.DataType.values()
    return TensorProto.DataType.Name(data_type).lower() if is_known else f"type {data_type}"
