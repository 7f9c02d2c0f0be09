"""RotaryEmbedding of com.microsoft ==> two products and a sum.

onnxruntime, contributed operators. The first `rotary` numbers of a head are pairs: neighbours
(interleaved), or one of each half. Each pair is rotated by the angle of its position.
"""

from __future__ import annotations

from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, const, shape_of


def rotary_embedding(call: OnnxCall) -> relay.Expr:
    """Convert RotaryEmbedding: (input, position_ids, cos_cache, sin_cache)."""
    for name, default in (("is_packed_batching", 0), ("scale", 1.0)):
        if call.number(name, default) != default:
            raise FrontendError(
                f"{name}={call.number(name, default)} is not supported, only {default}"
            )
    shape = call.shape(0)
    heads, rotary = int(call.number("num_heads", 0)), int(call.number("rotary_embedding_dim", 0))
    if len(shape) == 4:
        data = call.operand(0)
    else:
        size = shape[2] // heads if heads else 2 * call.shape(2)[1]
        split = relay.reshape(call.operand(0), [*shape[:2], shape[2] // size, size])
        data = relay.transpose(split, [0, 2, 1, 3])
    batch, _, length, size = shape_of(data)
    places = relay.cast(call.operand(1), "int64")
    if call.shape(1) == (1,):  # the first one
        places = relay.reshape(
            relay.add(places, relay.arange(const(length, "int64"), dtype="int64")), [1, length]
        )
    else:
        places = relay.reshape(places, [batch, length])
    rotated = rotate(
        data,
        places,
        (call.operand(2), call.operand(3)),
        rotary or size,
        is_interleaved=bool(call.number("interleaved", 0)),
    )
    if len(shape) == 4:
        return rotated
    return relay.reshape(relay.transpose(rotated, [0, 2, 1, 3]), shape)


def rotate(
    data: relay.Expr,
    places: relay.Expr,
    tables: tuple[relay.Expr, relay.Expr],
    rotary: int,
    *,
    is_interleaved: bool,
) -> relay.Expr:
    """Rotate the first `rotary` numbers of each head, [batch, heads, length, size].

    Parameters
    ----------
    places
        Positions, [batch or 1, length].
    tables
        Cosines and sines, [positions, rotary / 2].
    """
    batch, heads, length, size = shape_of(data)
    half = rotary // 2
    cos, sin = (
        relay.expand_dims(
            relay.take(relay.strided_slice(table, [0], [half], axes=[1]), places, axis=0), 1
        )
        for table in tables
    )
    head = relay.strided_slice(data, [0], [rotary], axes=[3])
    if is_interleaved:
        pairs = relay.reshape(head, [batch, heads, length, half, 2])
        first, second = (
            relay.squeeze(relay.strided_slice(pairs, [i], [i + 1], axes=[4]), [4]) for i in (0, 1)
        )
    else:
        first = relay.strided_slice(head, [0], [half], axes=[3])
        second = relay.strided_slice(head, [half], [rotary], axes=[3])
    new = (
        relay.subtract(relay.multiply(first, cos), relay.multiply(second, sin)),
        relay.add(relay.multiply(second, cos), relay.multiply(first, sin)),
    )
    if is_interleaved:
        result = relay.reshape(relay.stack(new, 4), [batch, heads, length, rotary])
    else:
        result = relay.concatenate(new, 3)
    if rotary == size:
        return result
    rest = relay.strided_slice(data, [rotary], [size], axes=[3])
    return relay.concatenate([result, rest], 3)
