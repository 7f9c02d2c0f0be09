"""The attributes of windows that slide over a map (Conv, ConvTranspose, pools) -> checked.

TVM's importer takes strides, dilations, sizes and pads as they come, and computes something of
negative ones. ONNX operator specification of each op, "attributes".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import shape_of

_FILTERS = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "DeformConv": 1, "QLinearConv": 3}
"""The operand of each op that holds its filters, whose sizes are those of the window."""
WINDOW_OPS = frozenset(
    {*_FILTERS, "AveragePool", "LpPool", "MaxPool", "MaxUnpool", "QLinearAveragePool"}
)
_LEAST = {
    **{"kernel_shape": 1, "strides": 1, "dilations": 1, "group": 1},
    **{"pads": 0, "output_padding": 0},
}
"""Of each number of an attribute."""


def check_windows(op_type: str, operands: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    """Check what a node of one of `WINDOW_OPS` says of its windows.

    Raises
    ------
    FrontendError
        A number is too small, there are too few or too many for the axes, or they are not the sizes
        of the filters.
    """
    rank = len(shape_of(operands[0])) - 2
    for name, least in _LEAST.items():
        values = attributes.get(name, ())
        values = values if isinstance(values, Sequence) else [values]
        if any(value < least for value in values):
            raise FrontendError(f"{name} {_text(values)}: none may be below {least}")
        count = {"pads": 2 * rank, "group": 1}.get(name, rank)
        if values and len(values) != count:
            raise FrontendError(
                f"it has {len(values)} {name} ({_text(values)}), expected {count} for {rank} axes"
            )
    if op_type in _FILTERS and attributes.get("kernel_shape"):
        sizes = shape_of(operands[_FILTERS[op_type]])[2:]
        if tuple(attributes["kernel_shape"]) != sizes:
            kernel = _text(attributes["kernel_shape"])
            raise FrontendError(f"its kernel_shape is {kernel}, and its filters are {_text(sizes)}")


def _text(values: Sequence[Any]) -> str:
    return " x ".join(map(str, values))
