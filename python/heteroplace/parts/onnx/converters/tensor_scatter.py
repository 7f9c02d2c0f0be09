"""TensorScatter ==> rows written into a cache, or a choice at each place.

ONNX operator specification, TensorScatter.
"""

from __future__ import annotations

import numpy as np
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, const
from heteroplace.relay.cache.op import write_rows

_WRITTEN = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")
"""Types of caches of which rows are written by an op of ours."""


def tensor_scatter(call: OnnxCall) -> relay.Expr:
    """Convert TensorScatter: (cache, update, first place of each item) -> the new cache."""
    shape, axis = call.shape(0), int(call.number("axis", -2)) % len(call.shape(0))
    size, length = shape[axis], call.shape(1)[axis]
    mode = call.text("mode", "linear")
    if axis == 0 or mode not in ("linear", "circular"):
        raise FrontendError(f"axis={axis} with mode='{mode}' is not known")
    if mode == "linear" and axis == len(shape) - 2 == 2 and call.dtype(0) in _WRITTEN:
        zeros = const(np.zeros(shape[0]), "int32")
        start = relay.cast(call.operand(2), "int32") if call.has(2) else zeros
        return write_rows(call.operand(0), call.operand(1), start)
    places = relay.arange(const(size, "int32"), dtype="int32")
    offsets = relay.broadcast_to(places, [shape[0], size])
    if call.has(2):
        starts = relay.cast(call.operand(2), "int32")
        offsets = relay.subtract(offsets, relay.reshape(starts, [shape[0], 1]))
    if mode == "circular":
        offsets = relay.floor_mod(offsets, const(size, "int32"))
    is_new = relay.logical_and(
        relay.greater_equal(offsets, const(0, "int32")), relay.less(offsets, const(length, "int32"))
    )
    along = [shape[0], *(size if i == axis else 1 for i in range(1, len(shape)))]
    index = relay.reshape(relay.clip(offsets, 0, length - 1), along)
    moved = relay.gather(call.operand(1), axis, relay.broadcast_to(index, shape))
    return relay.where(relay.reshape(is_new, along), moved, call.operand(0))
