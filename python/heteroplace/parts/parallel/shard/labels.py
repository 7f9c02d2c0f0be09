"""Which axes of the operands and the result of an op belong together, in the manner of einsum.

An axis of the operands that has the label of a cut axis must be cut like it. If the result has the
label too, it is cut there; if not, the op adds up over that axis, and what the shards make of
their parts are the summands of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from heteroplace.model.op_traits.op_table import rules_by_op
from heteroplace.parts.parallel.shard.sharded_network import Node
from heteroplace.relay.axes.rules import is_broadcast

_QUANTIZED = "qnn."
"""Ops that have scales along an axis that their shapes do not tell."""

Axes = tuple[str, ...]
"""A label for each axis of a tensor; "": it cannot be cut."""


class Labels(NamedTuple):
    """The labels of one call."""

    operands: tuple[Axes, ...]
    """For each tensor that it reads."""
    result: Axes
    groups: int | None = None
    """Parts of axis "g" are whole groups of it, of which there are so many."""
    is_product: bool = False
    """It multiplies its operands and adds up: what has weights worth sharing."""


LabelMaker = Callable[[Node], Labels | None]
"""Of a call; None: its axes cannot be told apart so."""


def register_labels(op: str, make: LabelMaker) -> None:
    """Say which axes of an op's operands and result belong together, or replace what was said.

    An op without labels is cut as the table of ops that keep parts apart allows (`axes.rules`), or
    each shard does all of it.

    Examples
    --------
    >>> def rows_of_first(call):
    ...     return Labels((("row", ""), ("", "")), ("row", ""))
    >>> register_labels("my.op", rows_of_first)  # doctest: +SKIP
    """
    LABELS[op] = make


def labels_of(call: Node) -> Labels | None:
    """Return the labels of a call; None: of its op only the axes that keep apart are known.

    A result of several tensors has none.
    """
    if not call.is_tensor:
        return None
    make = LABELS.get(call.op)
    if make is not None:
        return make(call)
    if call.op.startswith(_QUANTIZED):
        return None
    return _broadcast(call) if is_broadcast(call.expr) else None


def _rows(count: int) -> Axes:
    return tuple(f"row{axis}" for axis in range(count))


def _dense(call: Node) -> Labels:
    rows = _rows(len(call.operand_shapes[0]) - 1)
    return Labels(((*rows, "k"), ("n", "k")), (*rows, "n"), is_product=True)


def _matmul(call: Node) -> Labels:
    rows = _rows(len(call.operand_shapes[0]) - 1)
    left: Axes = (*rows[:-1], "k", rows[-1]) if call.expr.attrs.transpose_a else (*rows, "k")
    right = ("n", "k") if call.expr.attrs.transpose_b else ("k", "n")
    return Labels((left, right), (*rows, "n"), is_product=True)


def _batch_matmul(call: Node) -> Labels:
    left = ("k", "m") if call.expr.attrs.transpose_a else ("m", "k")
    right = ("n", "k") if call.expr.attrs.transpose_b else ("k", "n")
    batches = ["" if shape[0] == 1 else "batch" for shape in call.operand_shapes]
    operands = ((batches[0], *left), (batches[1], *right))
    return Labels(operands, ("batch", "m", "n"), is_product=True)


def _convolution(call: Node) -> Labels | None:
    """Channels, in and out or in groups; the map is never cut (parts would overlap)."""
    attrs = call.expr.attrs
    data, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
    result = str(attrs.out_layout) or data
    groups = int(attrs.groups)
    is_plain = all(len(layout) == len(set(layout)) for layout in (data, kernel, result))
    if not (is_plain and (data + kernel + result).isupper()):
        return None
    if groups == 1:
        names = ({"N": "row", "C": "c"}, {"O": "o", "I": "c"}, {"N": "row", "C": "o"})
        kept_axes = None
    else:
        # The kernel of a transposed one holds its groups along the channels that it reads.
        side = "I" if call.op.endswith("transpose") else "O"
        names = ({"N": "row", "C": "g"}, {side: "g"}, {"N": "row", "C": "g"})
        kept_axes = groups
    axes = [
        tuple(of.get(letter, "") for letter in layout)
        for layout, of in zip((data, kernel, result), names, strict=True)
    ]
    return Labels((axes[0], axes[1]), axes[2], kept_axes, is_product=True)


def _reduced(call: Node) -> tuple[set[int], Axes]:
    """The axes that a reduction leaves out, and the labels of its result."""
    rank, attrs = len(call.operand_shapes[0]), call.expr.attrs
    reduced = set(range(rank)) if attrs.axis is None else {int(axis) % rank for axis in attrs.axis}
    if attrs.exclude:
        reduced = set(range(rank)) - reduced
    ends = "" if attrs.keepdims else None
    labels = [ends if axis in reduced else f"axis{axis}" for axis in range(rank)]
    return reduced, tuple(label for label in labels if label is not None)


def _sum(call: Node) -> Labels:
    _, result = _reduced(call)
    return Labels((tuple(f"axis{axis}" for axis in range(len(call.operand_shapes[0]))),), result)


def _variance(call: Node) -> Labels:
    """Of data and its mean, whose reduced axes have one element."""
    reduced, result = _reduced(call)
    axes = range(len(call.operand_shapes[0]))
    operand = tuple("" if axis in reduced else f"axis{axis}" for axis in axes)
    return Labels((operand, operand), result)


def _along_axis(call: Node) -> Labels:
    """A tensor, and a vector along one of its axes."""
    rank = len(call.operand_shapes[0])
    data = tuple(f"axis{axis}" for axis in range(rank))
    return Labels((data, (data[int(call.expr.attrs.axis) % rank],)), data)


def _trilu(call: Node) -> Labels:
    """The last two axes make the triangles, and are whole."""
    rank = len(call.operand_shapes[0])
    data = (*(f"axis{axis}" for axis in range(rank - 2)), "", "")
    return Labels((data, *((),) * (len(call.operand_shapes) - 1)), data)


def _broadcast(call: Node) -> Labels:
    (shape,) = call.shapes
    result = tuple(f"axis{axis}" for axis in range(len(shape)))
    operands = [
        tuple(
            "" if extent == 1 and shape[axis] != 1 else result[axis]
            for axis, extent in enumerate(operand, len(shape) - len(operand))
        )
        for operand in call.operand_shapes
    ]
    return Labels(tuple(operands), result)


LABELS: dict[str, LabelMaker] = rules_by_op(
    lambda op: op.labels,
    {
        "convolution": _convolution,
        "dense": _dense,
        "matmul": _matmul,
        "batch_matmul": _batch_matmul,
        "sum": _sum,
        "variance": _variance,
        "vector": _along_axis,
        "trilu": _trilu,
    },
)
"""By op; `register_labels` adds to them."""
