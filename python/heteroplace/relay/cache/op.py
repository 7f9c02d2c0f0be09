"""A cache of keys or values, new rows and where they go -> the cache with them, and attention.

    written = write_rows(cache, rows, start)        written[b, :, start[b] + i] = rows[b, :, i]
    result = cached_attention(queries, keys, values, past, options)

Query i of sequence b sees the keys up to place past[b] + i. Their number is known when a kernel
runs, and it reads no others: what a token costs depends on the tokens before it, not on the
capacity. Both ops have kernels for CPUs; `expanded.py` makes plain ops of them for other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relay, te, tir

from heteroplace.errors import LoweringError
from heteroplace.model.op_traits.op_record import WRITE_ROWS_OP
from heteroplace.relay.cache.attention_kernel import AttentionKernel
from heteroplace.relay.cache.attention_tiles import TiledAttention, is_for_tiles
from heteroplace.relay.cache.online_softmax import AttentionOptions
from heteroplace.relay.cache.write_kernel import write_rows_kernel
from heteroplace.relay.expressions import static_shape
from heteroplace.relay.targets import float_lanes
from heteroplace.tvm_bridge import add_relay_op

CACHED_ATTENTION_OP = "heteroplace_cached_attention"


def write_rows(cache: relay.Expr, rows: relay.Expr, start: relay.Expr) -> relay.Call:
    """Return a cache in which some rows are replaced; those outside of it are dropped.

    Parameters
    ----------
    cache
        [batch, heads, capacity, size].
    rows
        [batch, heads, length, size], of the same type.
    start
        int32[batch]: the place of the first row of each sequence.
    """
    register_cache_ops()
    attributes = tvm.ir.make_node("DictAttrs")
    return relay.Call(tvm.ir.Op.get(WRITE_ROWS_OP), [cache, rows, start], attributes)


def cached_attention(
    queries: relay.Expr,
    keys: relay.Expr,
    values: relay.Expr,
    past: relay.Expr,
    options: AttentionOptions,
) -> relay.Call:
    """Return the attention of queries over the tokens so far, float32 [batch, heads, length, size].

    A query that sees no key has the result 0.

    Parameters
    ----------
    queries
        float32 [batch, heads, length, size].
    keys, values
        float32 [batch, groups, capacity, size], with those of the queries' own tokens. Each group
        is that of heads / groups heads, which follow one another.
    past
        int32[batch]: tokens before the first query of each sequence.
    """
    register_cache_ops()
    attributes = tvm.ir.make_node("DictAttrs", **options._asdict())
    operands = [queries, keys, values, past]
    return relay.Call(tvm.ir.Op.get(CACHED_ATTENTION_OP), operands, attributes)


def options_of(attributes: Any) -> AttentionOptions:
    """Return the attributes of a call of the attention."""
    return AttentionOptions(
        float(attributes["scale"]), int(attributes["window"]), float(attributes["softcap"])
    )


def register_cache_ops() -> None:
    """Make the ops known to TVM. Doing so again changes nothing."""
    add_relay_op(
        WRITE_ROWS_OP,
        "A cache in which rows are replaced.",
        {
            "cache": ("Tensor", "[batch, heads, capacity, size]"),
            "rows": ("Tensor", "[batch, heads, length, size]"),
            "start": ("Tensor", "int32[batch]"),
        },
        _type_of_first,
        _write,
        _schedule,
    )
    add_relay_op(
        CACHED_ATTENTION_OP,
        "Attention over the tokens so far.",
        {
            "queries": ("Tensor", "[batch, heads, length, size]"),
            "keys": ("Tensor", "[batch, groups, capacity, size]"),
            "values": ("Tensor", "[batch, groups, capacity, size]"),
            "past": ("Tensor", "int32[batch]"),
        },
        _type_of_first,
        _attend,
        _schedule,
    )


def _type_of_first(arguments: Any, _attributes: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    return relay.TensorType(static_shape(arguments[0]), arguments[0].dtype)


def _write(_attributes: Any, tensors: Sequence[te.Tensor], _type: Any) -> list[te.Tensor]:
    _check_target()
    return [write_rows_kernel(*tensors)]


def _attend(attributes: Any, tensors: Sequence[te.Tensor], _type: Any) -> list[te.Tensor]:
    _check_target()
    return [_attention_kernel(tensors, options_of(attributes))]


def _attention_kernel(tensors: Sequence[te.Tensor], options: AttentionOptions) -> te.Tensor:
    queries, keys = tensors[:2]
    shape = tuple(map(int, queries.shape))
    form = TiledAttention if is_for_tiles(shape, int(keys.shape[1])) else AttentionKernel
    lanes = float_lanes(tvm.target.Target.current())

    def body(ins: Any, outs: Any) -> tir.Stmt:
        return form([*ins, *outs], options, lanes).statement()

    return te.extern([shape], list(tensors), body, name="cached_attention", dtype="float32")


def _schedule(_attributes: Any, outs: Any, _target: Any) -> te.Schedule:
    return te.create_schedule([each.op for each in outs])


def _check_target() -> None:
    target = tvm.target.Target.current()
    if target is None or target.kind.name != "llvm":
        raise LoweringError(
            "a cache of fixed capacity is used by ops that have kernels for CPUs only; apply "
            "`heteroplace.relay.cache.expanded:Expanded()` to the module for other targets"
        )
