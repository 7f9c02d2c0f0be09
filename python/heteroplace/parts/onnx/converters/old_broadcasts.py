"""Ops of two operands before opset 7 ==> the same with operands that broadcast as numpy's do.

ONNX operator specification, Add-6 and PRelu-6. With `broadcast` the second operand has some
neighbouring axes of the first one: those from `axis` on, or the last ones. A slope is of each
channel. TVM's converters know neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import shape_of

FIRST_AS_NUMPY = 7
"""The opset from which on all of them broadcast as numpy does."""
OLD_BROADCASTS = frozenset(
    {
        *("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "PRelu", "Pow", "Sub", "Xor"),
    }
)
_CHANNELS = 1
"""The axis of a slope."""


def with_numpy_axes(
    op_type: str, operands: Sequence[Any], attributes: Mapping[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the operands of one of `OLD_BROADCASTS`, the second one with axes of one element
    behind its own, and the attributes that are left.

    Raises
    ------
    FrontendError
        The second operand has not the sizes of the first one where it lies.
    """
    left = {name: value for name, value in attributes.items() if name not in ("axis", "broadcast")}
    first, second = (shape_of(operand) for operand in operands)
    axis = attributes.get("axis") if attributes.get("broadcast", 0) else None
    if op_type == "PRelu" and len(second) == 1 and second != (1,):
        axis = _CHANNELS
    if axis is None or not second:
        return operands, left
    axis = int(axis) + (len(first) if axis < 0 else 0)
    covered = first[axis : axis + len(second)]
    if len(covered) != len(second) or any(
        own not in (size, 1) for own, size in zip(second, covered, strict=True)
    ):
        raise FrontendError(
            f"its second operand {second} does not lie in the first one {first} from axis {axis} "
            f"on; expected the sizes {covered}"
        )
    behind = [1] * (len(first) - axis - len(second))
    kind: Any = type(operands)
    return kind([operands[0], relay.reshape(operands[1], [*second, *behind])]), left
