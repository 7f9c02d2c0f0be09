"""MultiHeadAttention and GroupQueryAttention of com.microsoft ==> products and a softmax.

onnxruntime, contributed operators, as its kernels for CPUs compute them. Keys and values of the
past are plain inputs, the present ones plain outputs: buffers that both share are refused. Where
the past has room for the new tokens, GroupQueryAttention is two ops of ours (`relay/cache`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import (
    OnnxCall,
    const,
    constant_value,
    dtype_of,
    shape_of,
)
from heteroplace.parts.onnx.converters.microsoft.microsoft_rotary import rotate
from heteroplace.relay.cache.online_softmax import AttentionOptions
from heteroplace.relay.cache.op import cached_attention, write_rows

_LOWEST = float(np.finfo("float32").min)
_FILTER = -10000.0


@dataclass(frozen=True)
class _Scores:
    """What happens to products of queries and keys before the softmax."""

    scale: float
    softcap: float = 0.0
    "0: none."
    bias: relay.Expr | None = None
    "Is added, and broadcasts to [batch, heads, length, total]."
    is_seen: relay.Expr | None = None
    "Other places count nothing; broadcasts likewise."
    sink: relay.Expr | None = None
    "[heads]: another score of each head, that of no value."


def _attend(
    queries: relay.Expr, keys: relay.Expr, values: relay.Expr, scores: _Scores
) -> tuple[relay.Expr, relay.Expr]:
    """Return softmax(queries keys^T) values, [batch, heads, length, size], and the scores."""
    batch, heads, length, _ = shape_of(queries)
    total, dtype = shape_of(keys)[2], dtype_of(queries)

    def stacked(data: relay.Expr) -> relay.Expr:
        wide = relay.cast(data, "float32")
        return relay.reshape(wide, [batch * heads, *shape_of(data)[2:]])

    products = relay.nn.batch_matmul(stacked(queries), stacked(keys))
    scaled = relay.multiply(products, const(scores.scale, "float32"))
    scaled = relay.reshape(scaled, [batch, heads, length, total])
    if scores.softcap:
        cap = const(scores.softcap, "float32")
        scaled = relay.multiply(relay.tanh(relay.divide(scaled, cap)), cap)
    if scores.bias is not None:
        scaled = relay.add(scaled, relay.cast(scores.bias, "float32"))
    if scores.is_seen is not None:
        scaled = relay.where(scores.is_seen, scaled, const(_LOWEST, "float32"))
    shares = scaled
    if scores.sink is not None:
        sink = relay.reshape(relay.cast(scores.sink, "float32"), [1, heads, 1, 1])
        column = relay.broadcast_to(sink, [batch, heads, length, 1])
        shares = relay.concatenate([shares, column], 3)
    shares = relay.nn.softmax(shares, -1)
    if scores.sink is not None:
        shares = relay.strided_slice(shares, [0], [total], axes=[3])
    turned = relay.transpose(stacked(values), [0, 2, 1])
    result = relay.nn.batch_matmul(relay.reshape(shares, [batch * heads, length, total]), turned)
    result = relay.reshape(result, [batch, heads, length, shape_of(values)[3]])
    return relay.cast(result, dtype), relay.cast(scaled, dtype)


def _of_heads(data: relay.Expr, heads: int) -> relay.Expr:
    """[batch, length, heads * size] ==> [batch, heads, length, size]."""
    batch, length, width = shape_of(data)
    split = relay.reshape(data, [batch, length, heads, width // heads])
    return relay.transpose(split, [0, 2, 1, 3])


def _together(data: relay.Expr) -> relay.Expr:
    """[batch, heads, length, size] ==> [batch, length, heads * size]."""
    batch, heads, length, size = shape_of(data)
    return relay.reshape(relay.transpose(data, [0, 2, 1, 3]), [batch, length, heads * size])


def _named(call: OnnxCall, outputs: list[relay.Expr]) -> relay.Expr | relay.expr.TupleWrapper:
    if call.num_outputs == 1:
        return outputs[0]
    fields = outputs[: call.num_outputs]
    return relay.expr.TupleWrapper(relay.Tuple(fields), len(fields))


def _refuse(call: OnnxCall, operands: dict[int, str], attributes: dict[str, float]) -> None:
    """Raise FrontendError where a node has one of these operands, or another value than these."""
    for index, name in operands.items():
        if call.has(index):
            raise FrontendError(f"operand {index} ({name}) is not supported; leave it out")
    for name, default in attributes.items():
        value = call.attributes.get(name, default)
        value = value.decode() if isinstance(value, bytes) else value
        if value != default:
            raise FrontendError(f"{name}={value} is not supported, only {default}")


def multi_head_attention(call: OnnxCall) -> relay.Expr | relay.expr.TupleWrapper:
    """Convert MultiHeadAttention."""
    _refuse(call, {8: "past_sequence_length", 9: "cache_indirection"}, {})
    heads = int(call.number("num_heads", 0))
    queries, keys, values = _projections(call, heads)
    if call.has(6) and call.has(7):
        keys = relay.concatenate([call.operand(6), keys], 2)
        values = relay.concatenate([call.operand(7), values], 2)
    batch, _, length, size = shape_of(queries)
    total = shape_of(keys)[2]
    biases = [call.operand(5)] if call.has(5) else []
    if call.has(4):
        biases.append(_padding(call, batch, length, total))
    is_seen = None
    if call.number("unidirectional", 0):
        is_seen = _causal(const([total - length], "int32"), length, total)
    bias = None
    for one in biases:
        bias = one if bias is None else relay.add(bias, one)
    scale = float(call.number("scale", 0.0)) or size**-0.5
    result, scores = _attend(queries, keys, values, _Scores(scale, bias=bias, is_seen=is_seen))
    return _named(call, [_together(result), keys, values, scores])


def _projections(call: OnnxCall, heads: int) -> tuple[relay.Expr, relay.Expr, relay.Expr]:
    """Return queries, keys and values with their biases, [batch, heads, length, size]."""
    shape = call.shape(0)
    if len(shape) == 5 or (call.has(1) and len(call.shape(1)) == 5):
        raise FrontendError("packed queries, keys and values are not supported; split them before")
    queries = _of_heads(_biased(call, call.operand(0), 0), heads)
    offset = shape[2]
    if len(call.shape(1)) == 4:  # as they are
        return queries, call.operand(1), call.operand(2)
    keys = _biased(call, call.operand(1), offset)
    values = _biased(call, call.operand(2), offset + call.shape(1)[2])
    return queries, _of_heads(keys, heads), _of_heads(values, heads)


def _biased(call: OnnxCall, data: relay.Expr, offset: int) -> relay.Expr:
    if not call.has(3):
        return data
    width = shape_of(data)[2]
    return relay.add(data, relay.strided_slice(call.operand(3), [offset], [offset + width]))


def _padding(call: OnnxCall, batch: int, length: int, total: int) -> relay.Expr:
    """Return what is added for keys that are masked, [batch, 1, 1 or length, total]."""
    mask, shape = relay.cast(call.operand(4), "int32"), call.shape(4)
    if shape == (batch,) and batch != total:  # how many keys are seen
        places = relay.arange(const(total, "int32"), dtype="int32")
        mask = relay.cast(relay.less(places, relay.reshape(mask, [batch, 1])), "int32")
    elif shape not in ((batch, total), (batch, length, total)):
        raise FrontendError(
            f"its key_padding_mask has the shape {list(shape)}; expected [{batch}], "
            f"[{batch}, {total}] or [{batch}, {length}, {total}]"
        )
    rows = length if len(shape) == 3 else 1
    is_kept = relay.greater(relay.reshape(mask, [batch, 1, rows, total]), const(0, "int32"))
    filtered = call.number("mask_filter_value", _FILTER)
    return relay.where(is_kept, const(0, "float32"), const(filtered, "float32"))


def _causal(past: relay.Expr, length: int, total: int, window: int = -1) -> relay.Expr:
    """Return which keys are seen, [batch, 1, length, total].

    Parameters
    ----------
    past
        Keys before the first query, [batch].
    window
        How many of the last ones are seen; -1: all.
    """
    rows = relay.reshape(relay.arange(const(length, "int32"), dtype="int32"), [1, 1, length, 1])
    last = relay.add(relay.reshape(past, [-1, 1, 1, 1]), rows)
    keys = relay.arange(const(total, "int32"), dtype="int32")
    is_seen = relay.less_equal(keys, last)
    if window < 0:
        return is_seen
    first = relay.subtract(last, const(window, "int32"))
    return relay.logical_and(is_seen, relay.greater(keys, first))


_UNKNOWN = {12: "k_scale", 13: "v_scale", 14: "q_norm_weight", 15: "k_norm_weight"}
_ONLY: dict[str, float] = {"qk_output": 0, "kv_cache_bit_width": 0, "sliding_window_cache": 0}


def group_query_attention(call: OnnxCall) -> relay.Expr | relay.expr.TupleWrapper:
    """Convert GroupQueryAttention."""
    _refuse(call, {**_UNKNOWN, 16: "query_seqlens"}, {**_ONLY, "causal": 1})
    heads, shared = int(call.number("num_heads", 0)), int(call.number("kv_num_heads", 0))
    queries, keys, values = _groups(call, heads, shared)
    batch, _, length, size = shape_of(queries)
    is_cached = _is_cached(call)
    whole = None if is_cached else _total(call)
    past = _past(call, batch, length)
    if call.number("do_rotary", 0):
        places = _places(call, past, length)
        tables = call.operand(7), call.operand(8)
        rotary = 2 * call.shape(7)[1]
        is_interleaved = bool(call.number("rotary_interleaved", 0))
        queries, keys = (
            rotate(data, places, tables, rotary, is_interleaved=is_interleaved)
            for data in (queries, keys)
        )
    scale = float(call.number("scale", 0.0)) or size**-0.5
    softcap = float(call.number("softcap", 0.0))
    window = int(call.number("local_window_size", -1))
    if whole is None:
        keys, values = (
            write_rows(call.operand(operand), new, past)
            for operand, new in ((3, keys), (4, values))
        )
        options = AttentionOptions(scale, window, softcap)
        result = cached_attention(queries, keys, values, past, options)
        return _named(call, [_together(result), keys, values])
    keys = _present(call, 3, keys, past, whole)
    values = _present(call, 4, values, past, whole)
    total = shape_of(keys)[2]
    sink = None
    if call.has(11):
        sink = call.operand(11)
    elif call.number("smooth_softmax", 0) == 1:  # onnxruntime writes -1 for none
        sink = const(np.zeros(heads), "float32")
    scores = _Scores(
        scale,
        softcap,
        _cut(call.operand(10), total) if call.has(10) else None,
        _causal(past, length, total, window),
        sink,
    )
    all_keys, all_values = (relay.repeat(data, heads // shared, 1) for data in (keys, values))
    result, _ = _attend(queries, all_keys, all_values, scores)
    return _named(call, [_together(result), keys, values])


def _total(call: OnnxCall) -> int:
    return int(call.constant(6, "total sequence length").reshape(-1)[0])


def _is_cached(call: OnnxCall) -> bool:
    """Tell whether keys and values are written into the past, which has room for all of them."""
    if not (call.has(3) and call.has(4)) or call.has(10) or call.has(11):
        return False
    if call.number("smooth_softmax", 0) == 1 or {call.dtype(i) for i in (0, 3, 4)} != {"float32"}:
        return False
    is_constant = constant_value(call.operand(6), call.params) is not None
    return not is_constant or _total(call) <= call.shape(3)[2]


def _past(call: OnnxCall, batch: int, length: int) -> relay.Expr:
    """Return how many tokens are before the new ones, int32[batch]."""
    ends = relay.reshape(relay.cast(call.operand(5), "int32"), [batch])
    past = relay.subtract(relay.add(ends, const(1, "int32")), const(length, "int32"))
    # Of the first call there are none; its sequences are padded on the right.
    if constant_value(call.operand(6), call.params) is not None:
        return relay.zeros_like(past) if _total(call) == length else past
    total = relay.reshape(relay.cast(call.operand(6), "int32"), [1])
    is_first = relay.equal(total, const(length, "int32"))
    return relay.where(is_first, const(0, "int32"), past)


def _groups(call: OnnxCall, heads: int, shared: int) -> tuple[relay.Expr, relay.Expr, relay.Expr]:
    """Return queries, keys and values, [batch, heads, length, size]."""
    if call.has(1):
        parts = [call.operand(i) for i in range(3)]
    else:  # all three in one
        size = call.shape(0)[2] // (heads + 2 * shared)
        ends = np.cumsum([0, heads * size, shared * size, shared * size])
        parts = [
            relay.strided_slice(call.operand(0), [int(a)], [int(b)], axes=[2])
            for a, b in itertools.pairwise(ends)
        ]
    return _of_heads(parts[0], heads), _of_heads(parts[1], shared), _of_heads(parts[2], shared)


def _places(call: OnnxCall, past: relay.Expr, length: int) -> relay.Expr:
    """Return the positions of the new keys, [batch, length]."""
    if call.has(9):
        return relay.cast(call.operand(9), "int64")
    steps = relay.arange(const(length, "int32"), dtype="int32")
    return relay.cast(relay.add(relay.reshape(past, [-1, 1]), steps), "int64")


def _present(
    call: OnnxCall, operand: int, new: relay.Expr, past: relay.Expr, whole: int
) -> relay.Expr:
    """Return the past with the new keys or values after it, at the place of each sequence."""
    batch, heads, length, size = shape_of(new)
    if not call.has(operand):
        return new
    before = call.shape(operand)[2]
    total = max(before, whole)
    places = relay.arange(const(total, "int32"), dtype="int32")
    start = relay.reshape(past, [-1, 1])
    offset = relay.subtract(places, start)
    is_filled = relay.less(offset, const(length, "int32"))
    is_new = relay.logical_and(relay.greater_equal(offset, const(0, "int32")), is_filled)
    moved = relay.add(offset, const(before, "int32"))
    positions = relay.clip(relay.broadcast_to(places, [batch, total]), 0, max(before - 1, 0))
    index = relay.reshape(relay.where(is_new, moved, positions), [batch, 1, total, 1])
    joined = relay.concatenate([call.operand(operand), new], 2)
    gathered = relay.gather(joined, 2, relay.broadcast_to(index, [batch, heads, total, size]))
    # onnxruntime's zeros after the last one of each sequence.
    is_filled = relay.reshape(is_filled, [batch, 1, total, 1])
    return relay.where(is_filled, gathered, const(0, dtype_of(new)))


def _cut(bias: relay.Expr, total: int) -> relay.Expr:
    """Return a bias of as many keys as there are."""
    return relay.strided_slice(bias, [0], [total], axes=[3])
