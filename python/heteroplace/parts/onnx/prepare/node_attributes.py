"""A node of an ONNX model and the name of an attribute -> its value; and what all readers share."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto, helper

AXES_OPERAND = 13
"""The first opset in which the axes of Squeeze, Unsqueeze and ReduceSum are an operand."""

NODE_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What converters and the reference of ONNX raise on a node that they did not expect."""


def attribute_of(node: NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of an attribute, or the default if it is left out."""
    for each in node.attribute:
        if each.name == name:
            return helper.get_attribute_value(each)
    return default
