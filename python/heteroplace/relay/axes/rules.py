"""Which ops keep the parts of a followed axis apart, by their kind and attributes.

An axis that is followed is made of parts, one after another, each in one piece: the items that run
together (`tasks.rebatch`), or what each shard has of a tensor (`parts/parallel/shard`). An op keeps
them apart if its result on the whole is what it makes of the parts, put together again.

Most faults show in the shapes: a reduction over the parts has a result that does not grow with
them. The rules here are for those that do not show. An op's record (`parts`, in
`model/op_traits`) names its rule. Ops without one are refused, unless they broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import relay
from tvm.ir import Op

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.expressions import static_shape

Axes = tuple["int | None", ...]
"""For each tensor the axis that holds the parts; None: it is the same for all of them."""


@dataclass(frozen=True)
class Followed:
    """What lies along the followed axis."""

    one: str
    """What a part belongs to, for messages."""
    many: str
    """Its plural."""
    has_channels: bool
    """The channels of a layout may be parts, not only the axis "N"."""


ITEMS = Followed("item", "items", has_channels=False)
SHARDS = Followed("shard", "shards", has_channels=True)

_BROADCAST = 1
"""TOpPattern: up to this each element of the result is made of the elements at its place."""

_VECTOR_AXES = ("axis", "axes", "lhs_axis", "rhs_axis")
"""Attributes that say along which axes of the data an op has its vectors."""


def apart_fault(
    call: relay.Call, axes: Axes, ranks: Sequence[int], outs: Axes, followed: Followed
) -> str:
    """Return why a call may mix the parts of an axis; "" if it keeps them apart.

    Parameters
    ----------
    call
        The call for one part, typed.
    axes, ranks
        For each tensor that it reads, the axis that holds the parts, and its rank.
    outs
        For each tensor that it makes, the axis that is longer for the whole than for a part.
    followed
        What the parts are.
    """
    name, many = call.op.name, followed.many
    if name == "nn.batch_norm":
        outs = outs[:1]  # the other results are the learnt mean and variance
    if None in outs:
        return f"it mixes the {many}: its result does not grow with their number"
    if name in ("nn.batch_flatten", "layout_transform"):
        return _order_fault(call, axes[0], many)
    parts = traits_of(name).parts
    if parts == "shape":  # a mix would show in the shape of the result, or not type-check
        return ""
    if parts == "place":
        return _place_fault(axes, ranks, outs, many)
    if parts == "axis":
        return _axis_fault(call, axes, ranks, many)
    if parts == "items":
        is_apart = axes[0] == 0 and outs[0] == 0
        return "" if is_apart else f"it has its {many} along axis {axes[0]}"
    if parts == "layout":
        return _layout_fault(call, axes, outs, followed)
    if _pattern(call.op) <= _BROADCAST:
        return _broadcast_fault(call, axes, ranks, outs, many)
    return f"it is not known whether it keeps {many} apart"


def is_broadcast(call: relay.Call) -> bool:
    """Say whether each element of the result is made of those at its place in the operands."""
    if _pattern(call.op) > _BROADCAST:
        return False
    operands = [static_shape(argument.checked_type) for argument in call.args]
    shape = static_shape(call.checked_type)
    try:
        # An op that tiles is of this pattern too.
        is_by_shapes = np.broadcast_shapes(*operands) == shape
    except ValueError:
        return False  # vectors along another axis than the last
    return is_by_shapes and not _has_vectors_elsewhere(call, operands, len(shape))


def _has_vectors_elsewhere(call: relay.Call, operands: Sequence[Sequence[int]], rank: int) -> bool:
    """Say whether operands are vectors along other axes than the last, though their sizes fit."""
    if not any(len(operand) < rank and prod(operand) > 1 for operand in operands):
        return False
    for name in _VECTOR_AXES:
        given = getattr(call.attrs, name, None)
        if given is not None:
            axes = [axis % rank for axis in _one_or_more(given)]
            if axes != list(range(rank - len(axes), rank)):
                return True
    return False


def _pattern(op: Op) -> int:
    pattern = op.get_attr("TOpPattern")
    is_by_place = traits_of(op.name).parts == "place"
    return _BROADCAST + 1 if pattern is None or is_by_place else int(pattern)


def _place_fault(axes: Axes, ranks: Sequence[int], outs: Axes, many: str) -> str:
    """A fault unless the parts are along an axis before the last two, which make the triangles."""
    axis = axes[0]
    is_apart = axis is not None and axis < ranks[0] - 2 and outs[0] == axis
    return "" if is_apart else f"it keeps a triangle of axis {axis}, which holds the {many}"


def _order_fault(call: relay.Call, axis: int | None, many: str) -> str:
    """A fault if parts would not come one after another in the result, whose shape hides it."""
    assert axis is not None  # or the result would not grow
    if call.op.name == "nn.batch_flatten":
        shape = static_shape(call.args[0].checked_type)
        is_first = axis <= 1 or prod(shape[1:axis]) == 1
        return "" if is_first else f"it joins the {many}, axis {axis} of {shape}, with axes before"
    src, dst = str(call.attrs.src_layout), str(call.attrs.dst_layout)
    letter = [character for character in src if character.isalpha()][axis]
    is_whole = letter.isupper() and letter.lower() not in src + dst
    return "" if is_whole else f"it cuts axis {letter} of {src}, which holds the {many}, in blocks"


def _layout_fault(call: relay.Call, axes: Axes, outs: Axes, followed: Followed) -> str:
    """A fault if the parts are along an axis of the layout that the call works on."""
    attrs = call.attrs
    layout = str(attrs["data_layout" if "data_layout" in set(attrs.keys()) else "layout"])
    places = [layout.find("N")]
    if followed.has_channels and "c" not in layout and traits_of(call.op.name).has_single_channels:
        places.append(layout.find("C"))
    is_apart = axes[0] in places and outs[0] == axes[0] and set(axes[1:]) <= {None}
    return (
        "" if is_apart else f"its {followed.many} are along axis {axes[0]} of its layout {layout}"
    )


def _axis_fault(call: relay.Call, axes: Axes, ranks: Sequence[int], many: str) -> str:
    """A fault if the call works along an axis that holds parts."""
    given = call.attrs["axis"]
    if given is None:
        return "it works on all axes at once"
    if call.op.name == "take" and axes[0] is None:
        return ""  # the parts are indices into a table
    if call.op.name == "take" and axes[1] is not None:
        return f"both what it takes and where from depend on the {many}"
    worked = _one_or_more(given)
    rank = ranks[0] + (call.op.name == "stack")
    for axis, of in zip(axes, ranks, strict=True):
        if call.op.name == "stack":
            continue  # its axis is a new one
        if axis is not None and axis in {one % of for one in worked}:
            return f"it works along axis {axis} of {rank}, which holds the {many}"
    return ""


def _one_or_more(given: Any) -> list[int]:
    """The axes of an attribute that is one or several; TVM's arrays have no iterator."""
    return [int(axis) for axis in given] if hasattr(given, "__len__") else [int(given)]


def _broadcast_fault(
    call: relay.Call, axes: Axes, ranks: Sequence[int], outs: Axes, many: str
) -> str:
    """A fault if the result is no broadcast of the operands, or they hold parts elsewhere."""
    shape = static_shape(call.checked_type)
    if not is_broadcast(call):
        return "its result is no broadcast of its operands"
    for axis, rank in zip(axes, ranks, strict=True):
        if axis is not None and axis + len(shape) - rank != outs[0]:
            return f"its operands hold the {many} along different axes: {axes} for {outs[0]}"
    return ""
