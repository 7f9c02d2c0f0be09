"""Which ops keep items apart when they run together, by their kind and attributes.

Most faults show in the shapes: a reduction over the items has a result that does not grow. The
rules here are for those that do not show. Ops that are not named here are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relay
from tvm.ir import Op

from heteroplace.relay.expressions import static_shape

Axes = tuple["int | None", ...]
"""For each tensor the axis that holds the items; None: it does not depend on them."""

_BROADCAST = 1
"""TOpPattern: up to this each element of the result is made of the elements at its place."""

_BY_SHAPE_NAMES = (
    "reshape broadcast_to strided_slice transpose squeeze expand_dims layout_transform nn.pad "
    "nn.dense nn.matmul nn.batch_matmul nn.batch_flatten nn.bias_add nn.prelu sum mean max min "
    "prod all any variance argmax argmin logsumexp"
)
_BY_SHAPE = frozenset(_BY_SHAPE_NAMES.split())
"""Whatever would mix items has a result whose shape shows it, or does not type-check."""

_BY_AXIS_NAMES = (
    "nn.softmax nn.log_softmax nn.fast_softmax nn.layer_norm nn.lrn nn.l2_normalize concatenate "
    "split stack cumsum cumprod reverse sort argsort topk repeat take"
)
_BY_AXIS = frozenset(_BY_AXIS_NAMES.split())
"""They work along the axes that their attribute `axis` names, and leave all others alone."""

_BY_LAYOUT = (
    "nn.conv",
    "nn.max_pool",
    "nn.avg_pool",
    "nn.global_",
    "nn.adaptive_",
    "nn.upsampling",
    "image.resize",
    "nn.depth_to_space",
    "nn.space_to_depth",
    "nn.contrib_conv2d_NCHWc",
    "nn.contrib_depthwise_conv2d_NCHWc",
)
"""They treat the axis "N" of their layout as items."""

_ITEMS_FIRST = frozenset(("nn.instance_norm", "nn.group_norm", "nn.batch_norm"))
"""They treat axis 0 as items (batch norm, which has learnt its figures, any but its own axis)."""


def item_fault(call: relay.Call, axes: Axes, ranks: Sequence[int], outs: Axes) -> str:
    """Return why a call may mix items; "" if it keeps them apart.

    Parameters
    ----------
    call
        The call for one item, typed.
    axes, ranks
        For each tensor that it reads, the axis that holds the items, and its rank.
    outs
        For each tensor that it makes, the axis that is `batch` times as long as before.
    """
    name = call.op.name
    if name == "nn.batch_norm":
        outs = outs[:1]  # the other results are the learnt mean and variance
    if None in outs:
        return "it mixes the items: its result does not grow with their number"
    if name in _BY_SHAPE:
        return ""
    if name in _BY_AXIS:
        return _axis_fault(call, axes, ranks)
    if name in _ITEMS_FIRST:
        return "" if axes[0] == 0 and outs[0] == 0 else f"it has its items along axis {axes[0]}"
    if name.startswith(_BY_LAYOUT):
        attrs = call.attrs
        layout = str(attrs["data_layout" if "data_layout" in set(attrs.keys()) else "layout"])
        place = layout.find("N")
        is_apart = axes[0] == place and outs[0] == place and set(axes[1:]) <= {None}
        return "" if is_apart else f"its items are along axis {axes[0]} of its layout {layout}"
    if _pattern(call.op) <= _BROADCAST:
        return _broadcast_fault(call, axes, ranks, outs)
    return "it is not known whether it keeps items apart"


def _pattern(op: Op) -> int:
    pattern = op.get_attr("TOpPattern")
    return _BROADCAST + 1 if pattern is None else int(pattern)


def _axis_fault(call: relay.Call, axes: Axes, ranks: Sequence[int]) -> str:
    """A fault if the call works along an axis that holds items."""
    given = call.attrs["axis"]
    if given is None:
        return "it works on all axes at once"
    if call.op.name == "take" and axes[0] is None:
        return ""  # the items are indices into a table
    if call.op.name == "take" and axes[1] is not None:
        return "both what it takes and where from depend on the items"
    worked = [int(axis) for axis in given] if hasattr(given, "__iter__") else [int(given)]
    rank = ranks[0] + (call.op.name == "stack")
    for axis, of in zip(axes, ranks, strict=True):
        if call.op.name == "stack":
            continue  # its axis is a new one
        if axis is not None and axis in {one % of for one in worked}:
            return f"it works along axis {axis} of {rank}, which holds the items"
    return ""


def _broadcast_fault(call: relay.Call, axes: Axes, ranks: Sequence[int], outs: Axes) -> str:
    """A fault if the result is no broadcast of the operands, or they hold items elsewhere."""
    shape = static_shape(call.checked_type)
    operands = [static_shape(argument.checked_type) for argument in call.args]
    if np.broadcast_shapes(*operands) != shape:  # tile is of this pattern too
        return "its result is no broadcast of its operands"
    for axis, rank in zip(axes, ranks, strict=True):
        if axis is not None and axis + len(shape) - rank != outs[0]:
            return f"its operands hold the items along different axes: {axes} for {outs[0]}"
    return ""
