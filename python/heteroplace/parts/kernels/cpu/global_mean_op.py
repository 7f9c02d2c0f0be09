"""Means of the maps of blocks of channels: an op of Relay for CPUs, computed and scheduled.

TVM's global pooling adds up one element of a channel after the other. Here a vector goes over the
channels of a block, and some columns are summed up apart from each other, so that no sum waits for
the one before:

    x[n, blocks, height, width, lanes] -> mean[n, blocks, 1, 1, lanes]

Elementwise ops are fused behind it. TVM's own op stays where a map is not in blocks of channels.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tvm
from tvm import relay, te
from tvm.topi import tag

from heteroplace.parts.kernels.cpu.fused_schedules import largest_divisor, schedule_by_tag
from heteroplace.relay.expressions import function_pass, rebuilt, static_shape
from heteroplace.tvm_bridge import add_relay_op

GLOBAL_MEAN_OP = "heteroplace_global_mean"

_TAG = "heteroplace_global_mean"
_SUMS = 8
"""That are made side by side; an addition takes four cycles."""
_BLOCKED = re.compile(r"NCHW\d+c")
_OPS = ("nn.global_avg_pool2d",)
_DTYPES = ("float16", "float32")


def GlobalMeans() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass that puts the op in place of `nn.global_avg_pool2d` of blocks of channels.

    It goes behind AlterOpLayout. Types are not inferred.
    """

    def run(function: relay.Function) -> relay.Function:
        def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
            is_blocked = _BLOCKED.fullmatch(str(old.attrs.layout)) is not None
            # The mean of integers is rounded as TVM says, and 64 bits want a factor of as many.
            if not is_blocked or str(old.checked_type.dtype) not in _DTYPES:
                return new
            mean = global_mean(new.args[0])
            return relay.Call(mean.op, mean.args, mean.attrs, None, old.span)

        return rebuilt(function, rewrite, ops=_OPS)

    return function_pass("GlobalMeans", run, ops=_OPS)


def global_mean(data: relay.Expr) -> relay.Call:
    """Return a call of the op: the mean over height and width of `data`, in blocks of channels."""
    add_relay_op(
        GLOBAL_MEAN_OP,
        "The mean of each channel.",
        {"data": ("Tensor", "[n, blocks, height, width, lanes]")},
        _type_of,
        _compute,
        _schedule,
        is_fusable=True,
    )
    return relay.Call(tvm.ir.Op.get(GLOBAL_MEAN_OP), [data], tvm.ir.make_node("DictAttrs"))


def _type_of(arguments: Any, _attrs: Any) -> tvm.ir.Type | None:
    (data,) = arguments
    if not isinstance(data, relay.TensorType):
        return None
    n, blocks, _, _, lanes = static_shape(data)
    return relay.TensorType((n, blocks, 1, 1, lanes), data.dtype)


def _compute(_attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    (data,) = tensors
    n, blocks, height, width, lanes = (int(extent) for extent in data.shape)
    num = largest_divisor(width, _SUMS)
    y, x = te.reduce_axis((0, height), "y"), te.reduce_axis((0, width // num), "x")
    sums = te.compute(
        (n, blocks, num, lanes),
        lambda i, c, part, lane: te.sum(data[i, c, y, x * num + part, lane], axis=[y, x]),
        name="sums",
    )
    part = te.reduce_axis((0, num), "part")
    total = te.compute(
        (n, blocks, 1, 1, lanes),
        lambda i, c, _y, _x, lane: te.sum(sums[i, c, part, lane], axis=part),
        name="total",
        tag=_TAG,
    )
    factor = tvm.tir.const(np.float32(1 / (height * width)), data.dtype)
    return [te.compute(total.shape, lambda *at: total(*at) * factor, name="mean", tag=tag.ELEMWISE)]


def _schedule(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    return schedule_by_tag(outs, {_TAG: _schedule_sums})


def _schedule_sums(schedule: te.Schedule, total: te.Tensor, result: te.Tensor) -> None:
    (sums,) = total.op.input_tensors
    whole = schedule[result]
    block = whole.fuse(*whole.op.axis[:2])
    whole.parallel(block)
    whole.vectorize(whole.op.axis[4])
    schedule[total].compute_at(whole, block)
    schedule[total].vectorize(schedule[total].op.axis[4])
    schedule[sums].compute_at(whole, block)
    _, _, part, lane = schedule[sums].op.axis
    schedule[sums].reorder(*schedule[sums].op.reduce_axis, part, lane)
    schedule[sums].unroll(part)
    schedule[sums].vectorize(lane)
