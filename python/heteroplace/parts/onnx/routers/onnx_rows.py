"""Which ONNX nodes compute each row (axis 0) of their results from that row of their operands.

By a table of op types, and for each the operands and attributes that could break it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto

from heteroplace.parts.onnx.prepare.node_attributes import attribute_of

Sizes = tuple["int | None", ...]
"""Extents of a value; None: not known."""

_ELEMENTWISE = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "BitShift",
        "Cast",
        "Ceil",
        "Clip",
        "Cos",
        "Div",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mish",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "PRelu",
        "Pow",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Sub",
        "Sum",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
        "Where",
        "Xor",
    ]
)
_FIRST_IS_ROWS = frozenset(
    [
        "AveragePool",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "MaxPool",
        "InstanceNormalization",
    ]
)
"""They treat axis 0 of their first operand as items; the others are weights."""
_COERCES_TO_MATRIX = 13
"""Before this opset Softmax works on all axes from `axis` (1) on at once."""


def row_fault(
    node: NodeProto,
    is_row: Sequence[bool],
    sizes: Mapping[str, Sizes],
    constants: Mapping[str, np.ndarray],
    opset: int,
) -> str:
    """Return why a node may mix rows, in words that go on after its name; "" if it does not.

    Parameters
    ----------
    node
        It reads rows.
    is_row
        For each operand whether it holds rows along axis 0.
    sizes
        Of values.
    constants
        Values that are known.
    opset
        Of the model.
    """
    kind = node.op_type
    rank = len(sizes.get(node.input[is_row.index(True)], ()))
    if not rank:
        return "reads rows of unknown rank"
    if kind in _ELEMENTWISE:
        return _broadcast_fault(node, is_row, sizes, rank)
    if any(is_row[1:]) or not is_row[0]:
        if kind == "Concat" and all(is_row):
            return "" if attribute_of(node, "axis", 0) % rank else "joins along the rows"
        return "may mix rows"
    if kind in _FIRST_IS_ROWS:
        return _batch_fault(node)
    if kind == "MatMul":
        second = sizes.get(node.input[1], ())
        is_weight = len(second) in (1, 2) or (len(second) <= rank and second[0] == 1)
        return "" if rank > 1 and is_weight else "multiplies by another matrix for each row"
    if kind == "Gemm":
        is_plain = not attribute_of(node, "transA", 0)
        bias = sizes.get(node.input[2], (None, None)) if len(node.input) > 2 else ()
        is_fit = len(bias) < 2 or bias[0] == 1
        return "" if is_plain and is_fit else "adds up over rows, or adds another number to each"
    return _axis_fault(node, sizes, constants, rank, opset)


def _broadcast_fault(
    node: NodeProto, is_row: Sequence[bool], sizes: Mapping[str, Sizes], rank: int
) -> str:
    """All rows have one rank, and nothing else has an axis that goes along them."""
    for name, row in zip(node.input, is_row, strict=True):
        if not name:
            continue
        other = sizes.get(name)
        if other is None:
            return f"reads '{name}' of unknown sizes"
        if row and len(other) != rank:
            return "reads rows of different ranks"
        if not row and (len(other) > rank or (len(other) == rank and other[0] != 1)):
            return f"reads '{name}', which may be another for each row"
    return ""


def _batch_fault(node: NodeProto) -> str:
    """Of ops that treat axis 0 as items: some forms of theirs look at all items."""
    if node.op_type == "BatchNormalization" and attribute_of(node, "training_mode", 0):
        return "works along the rows: its statistics are those of the batch"
    if node.op_type == "MaxPool" and any(node.output[1:]):
        return "counts its positions over all rows"
    return ""


def _axis_fault(
    node: NodeProto,
    sizes: Mapping[str, Sizes],
    constants: Mapping[str, np.ndarray],
    rank: int,
    opset: int,
) -> str:
    """Of ops that work along axes: none of them is that of the rows."""
    kind = node.op_type
    if kind in ("Softmax", "LogSoftmax", "LayerNormalization"):
        default = 1 if opset < _COERCES_TO_MATRIX and kind != "LayerNormalization" else -1
        return "" if attribute_of(node, "axis", default) % rank else "works along the rows"
    if kind in ("Split", "Flatten"):
        axis = attribute_of(node, "axis", 0 if kind == "Split" else 1)
        is_fit = axis % rank > 0 if kind == "Split" else axis == 1
        return "" if is_fit else "cuts or joins the rows"
    if kind == "Transpose":
        order = attribute_of(node, "perm", list(reversed(range(rank))))
        return "" if order[0] == 0 else "moves the rows to another axis"
    if kind == "Reshape":
        shape = constants.get(node.input[1])
        rest = sizes[node.input[0]][1:]
        if shape is None or not shape.size or None in rest or (shape[1:] <= 0).any():
            return "has a shape that is computed"
        is_fit = shape[0] in (-1, 0) and np.prod(shape[1:]) == np.prod([int(n or 0) for n in rest])
        return "" if is_fit else "cuts or joins the rows"
    return "is of an op that may mix rows"
