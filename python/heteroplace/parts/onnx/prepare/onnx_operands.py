"""An ONNX model -> the inputs of it whose values, not only sizes, must be known to import it.

Shapes are static here, so whatever decides a shape (the sizes of a Reshape, the axes of a
ReduceSum) is read while importing. In most files such operands are constants. Where one is an
input of the model, the caller gives its value (`from_onnx(..., input_values=...)`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from heteroplace.parts.onnx.prepare.onnx_load import (
    all_nodes,
    model_structure,
    subgraphs,
    true_inputs,
)

_ONNX_DOMAINS = ("", "ai.onnx")
_MICROSOFT_DOMAIN = "com.microsoft"
_INTEGERS = (TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8)

READ_AT_IMPORT: Mapping[str, Sequence[int]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""Op -> positions of the operands that must be constants."""

MICROSOFT_READ_AT_IMPORT: Mapping[str, Sequence[int]] = {
    "GatherBlockQuantized": (0, 2, 3),
    "GroupQueryAttention": (6,),
    "MatMulNBits": (1, 2, 3, 4),
    **{name: READ_AT_IMPORT[name] for name in ("Pad", "Range", "Trilu")},
}
"""The same of ops of com.microsoft."""


def operands_read_at_import(node: NodeProto) -> list[str]:
    """Return the names of the operands of `node` that must be constants."""
    if node.domain == _MICROSOFT_DOMAIN:
        positions = MICROSOFT_READ_AT_IMPORT.get(node.op_type, ())
    elif node.domain in _ONNX_DOMAINS:
        is_reduction = node.op_type.startswith("Reduce")
        positions = (1,) if is_reduction else READ_AT_IMPORT.get(node.op_type, ())
    else:
        return []
    return [node.input[i] for i in positions if i < len(node.input) and node.input[i]]


def inputs_read_at_import(model: ModelProto) -> tuple[str, ...]:
    """Return the inputs of a model that need values in `from_onnx(..., input_values=...)`.

    An input counts if such an operand is made of it: it is the input, or comes from it by other
    nodes than those that look at its shape only.
    """
    nodes = all_nodes(model.graph)
    return _inputs_behind(model.graph, [n for node in nodes for n in operands_read_at_import(node)])


def inputs_fixed_in(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the inputs of a model that a run with given values fixes when it is compiled.

    These are `inputs_read_at_import`, and single integers and booleans that decide a branch of an
    `If`: its branches may then differ in their shapes.
    """
    graph = model_structure(path).graph
    conditions = [node.input[0] for node in all_nodes(graph) if node.op_type == "If"]
    single = {value.name for value in true_inputs(graph) if _is_single_integer(value)}
    deciding = [name for name in _inputs_behind(graph, conditions) if name in single]
    return (*inputs_read_at_import(ModelProto(graph=graph)), *deciding)


def _is_single_integer(value: ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    is_integer = tensor.elem_type in _INTEGERS and tensor.HasField("shape")
    return is_integer and all(dim.dim_value == 1 for dim in tensor.shape.dim)


def _inputs_behind(graph: GraphProto, names: Iterable[str]) -> tuple[str, ...]:
    """Return the inputs that some values are made of, by other nodes than those of sizes."""
    producers = {name: node for node in all_nodes(graph) for name in node.output}
    pending = list(names)
    needed: set[str] = set()
    while pending:
        name = pending.pop()
        if name in needed:
            continue
        needed.add(name)
        producer = producers.get(name)
        if producer is not None and producer.op_type not in ("Shape", "Size"):
            pending += [operand for operand in producer.input if operand]
            pending += [value.name for body in subgraphs(producer) for value in body.output]
    filled = {tensor.name for tensor in graph.initializer}
    return tuple(
        value.name for value in graph.input if value.name in needed and value.name not in filled
    )
