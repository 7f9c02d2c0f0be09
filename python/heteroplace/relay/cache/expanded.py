"""The ops of a cache of fixed capacity ==> plain ops of Relay, which compute all of the capacity.

    write_rows(cache, rows, start)      ==>  where(is_new, gather(rows, ...), cache)
    cached_attention(q, k, v, past)     ==>  batch_matmul, where, softmax, batch_matmul

That is for devices without kernels of the ops, and for training and sharding.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relay

from heteroplace.model.cluster import Cluster
from heteroplace.model.op_traits.op_record import WRITE_ROWS_OP
from heteroplace.relay.cache.op import CACHED_ATTENTION_OP, options_of
from heteroplace.relay.expressions import function_pass, is_op_call, rebuilt, static_shape
from heteroplace.relay.tasks.spans import with_span

_OPS = (WRITE_ROWS_OP, CACHED_ATTENTION_OP)
_LOWEST = float(np.finfo("float32").min)


def expanded_for(mod: tvm.IRModule, cluster: Cluster) -> tvm.IRModule:
    """Return a module without the ops if some device of a cluster has no kernels for them."""
    return Expanded()(mod) if any(each.kind != "cpu" for each in cluster.devices) else mod


def Expanded() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass that replaces calls of the ops."""

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        return with_span(expanded(old, *new.args), set(new.args), old.span)

    return function_pass(
        "ExpandedCaches", lambda function: rebuilt(function, rewrite, ops=_OPS), ops=_OPS
    )


def expanded(call: relay.Call, *operands: relay.Expr) -> relay.Expr:
    """Return plain ops for a typed call of one of the ops.

    Parameters
    ----------
    operands
        In place of its own; none: its own.
    """
    if is_op_call(call, WRITE_ROWS_OP):
        return _written(call, *(operands or call.args))
    return _attention(call, *(operands or call.args))


def _written(
    call: relay.Call, cache: relay.Expr, rows: relay.Expr, start: relay.Expr
) -> relay.Expr:
    batch, heads, capacity, size = static_shape(call.checked_type)
    length = static_shape(call.args[1].checked_type)[2]
    offsets = relay.subtract(_range(capacity), relay.reshape(start, [batch, 1]))
    is_new = relay.logical_and(
        relay.greater_equal(offsets, _const(0)), relay.less(offsets, _const(length))
    )
    along = [batch, 1, capacity, 1]
    index = relay.reshape(relay.clip(offsets, 0, length - 1), along)
    moved = relay.gather(rows, 2, relay.broadcast_to(index, [batch, heads, capacity, size]))
    return relay.where(relay.reshape(is_new, along), moved, cache)


def _attention(
    call: relay.Call, queries: relay.Expr, keys: relay.Expr, values: relay.Expr, past: relay.Expr
) -> relay.Expr:
    batch, heads, length, size = static_shape(call.checked_type)
    _, groups, capacity, _ = static_shape(call.args[1].checked_type)
    options, rows = options_of(call.attrs), heads // groups * length

    def stacked(data: relay.Expr, count: int) -> relay.Expr:
        return relay.reshape(data, [batch * groups, count, size])

    scores = relay.nn.batch_matmul(stacked(queries, rows), stacked(keys, capacity))
    scores = relay.multiply(scores, relay.const(options.scale, "float32"))
    if options.softcap:
        cap = relay.const(options.softcap, "float32")
        scores = relay.multiply(relay.tanh(relay.divide(scores, cap)), cap)
    last = relay.add(
        relay.reshape(past, [batch, 1, 1, 1]), relay.reshape(_range(length), [1, 1, length, 1])
    )
    is_seen = relay.less_equal(_range(capacity), last)
    if options.window >= 0:
        first = relay.subtract(last, _const(options.window))
        is_seen = relay.logical_and(is_seen, relay.greater(_range(capacity), first))
    scores = relay.reshape(scores, [batch, heads, length, capacity])
    scores = relay.where(is_seen, scores, relay.const(_LOWEST, "float32"))
    # A query that sees no key has equal shares of all.
    shares = relay.where(is_seen, relay.nn.softmax(scores, -1), relay.const(0.0, "float32"))
    turned = relay.transpose(stacked(values, capacity), [0, 2, 1])
    result = relay.nn.batch_matmul(relay.reshape(shares, [batch * groups, rows, capacity]), turned)
    return relay.reshape(result, [batch, heads, length, size])


def _const(value: int) -> relay.Expr:
    return relay.const(value, "int32")


def _range(count: int) -> relay.Expr:
    return relay.const(np.arange(count, dtype="int32"))
