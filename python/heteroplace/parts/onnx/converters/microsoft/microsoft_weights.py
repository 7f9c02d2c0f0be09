"""Weights of a few bits in blocks: MatMulNBits and GatherBlockQuantized, dequantised at once.

    weight = (number - zero point of its block) * scale of its block

Zero points that are not whole become minimums, -zero point * scale. What is dequantised is exact:
kernels find the numbers again (`rewrites/quantised_weights.py`).
Source: schemas of onnxruntime's contributed operators.
"""

from __future__ import annotations

import numpy as np
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import Array, OnnxCall, const

_BYTE = 8
_NEAR_FLOAT16 = 2.0**-22
"""By what part of itself a minimum may be off the float16 that it was before it was divided by the
scale and multiplied again."""


def mat_mul_n_bits(call: OnnxCall) -> relay.Expr:
    """Convert MatMulNBits: (A, B, scales, zero points, g_idx, bias) -> A dequantised(B)^T."""
    n, k = int(call.number("N", 0)), int(call.number("K", 0))
    block, dtype = int(call.number("block_size", 0)), call.dtype(0)
    bits = _bits(call)
    if call.number("weight_prepacked", 0):
        raise FrontendError("weight_prepacked=1 is not supported, only 0")
    blocks = -(-k // block)
    numbers = _unpacked(call.constant(1, "weights").reshape(n, -1), bits)
    of_column = np.arange(k) // block
    if call.has(4):
        of_column = call.constant(4, "groups").reshape(-1)[:k]
    zeros: Array | None = None
    if call.has(3):
        zeros = call.constant(3, "zero points")
        is_packed = zeros.dtype == np.uint8
        zeros = _unpacked(zeros.reshape(n, -1), bits)[:, :blocks] if is_packed else zeros
        zeros = zeros.reshape(n, blocks)[:, of_column]
    scales = call.constant(2, "scales").reshape(n, blocks)[:, of_column]
    weights = const(_dequantised(numbers[:, :k], scales, zeros, 1 << (bits - 1)), "float32")
    rows = relay.cast(relay.reshape(call.operand(0), [-1, k]), "float32")
    product = relay.nn.dense(rows, weights)
    if call.has(5):
        product = relay.add(product, relay.cast(call.operand(5), "float32"))
    return relay.cast(relay.reshape(product, [*call.shape(0)[:-1], n]), dtype)


def gather_block_quantized(call: OnnxCall) -> relay.Expr:
    """Convert GatherBlockQuantized: (data, indices, scales, zero points) -> dequantised slices.

    An index outside of the data gives zeros.
    """
    data, scales = call.constant(0, "data"), call.constant(2, "scales")
    if data.dtype.kind not in "iu":
        raise FrontendError(f"data of type {data.dtype} is not supported, only integers")
    rank, block = data.ndim, int(call.number("block_size", 128))
    axis = int(call.number("quantize_axis", 1)) % rank
    gathered = int(call.number("gather_axis", 0)) % rank
    zeros = call.constant(3, "zero points") if call.has(3) else None
    default_zero = 0
    # Numbers of uint4 are bytes by now, and have one place each.
    if data.dtype == np.uint8 and -(-data.shape[axis] // block) != scales.shape[axis]:
        bits = _bits(call)
        default_zero = 1 << (bits - 1)
        data = _unpacked(data, bits)
        zeros = None if zeros is None else _unpacked(zeros, bits)
    elif data.dtype == np.uint8 and call.number("bits", 4) == _BYTE:
        default_zero = 1 << (_BYTE - 1)
    of_place = np.arange(data.shape[axis]) // block
    if zeros is not None:
        zeros = np.take(zeros, of_place, axis)
    table = _dequantised(data, np.take(scales, of_place, axis), zeros, default_zero)
    size, indices = table.shape[gathered], call.operand(1)
    zero, count = const(0, call.dtype(1)), const(size, call.dtype(1))
    indices = relay.where(relay.less(indices, zero), relay.add(indices, count), indices)
    is_inside = relay.logical_and(relay.greater_equal(indices, zero), relay.less(indices, count))
    slices = relay.take(const(table, call.dtype(2)), indices, gathered)  # clipped where outside
    shape = [1] * gathered + [*call.shape(1)] + [1] * (rank - gathered - 1)
    return relay.where(relay.reshape(is_inside, shape), slices, const(0, call.dtype(2)))


def _bits(call: OnnxCall) -> int:
    bits = int(call.number("bits", 4))
    if bits not in (2, 4, 8):
        raise FrontendError(f"bits={bits} is not supported, only 2, 4 and 8")
    return bits


def _unpacked(data: Array, bits: int) -> Array:
    """Return numbers of a few bits that lie in bytes, the low bits first, along the last axis."""
    parts = [data >> shift & ((1 << bits) - 1) for shift in range(0, _BYTE, bits)]
    return np.stack(parts, -1).reshape(*data.shape[:-1], -1)


def _dequantised(numbers: Array, scales: Array, zeros: Array | None, zero: int) -> Array:
    """Return (numbers - zeros) * scales in float32; zeros None: all are `zero`."""
    steps, scales = numbers.astype(np.float32), scales.astype(np.float32)
    if zeros is not None and not np.array_equal(zeros, np.rint(zeros)):
        steps *= scales
        steps += _minimums(scales, zeros.astype(np.float32))
        return steps
    steps -= np.float32(zero) if zeros is None else zeros.astype(np.float32)
    steps *= scales
    return steps


def _minimums(scales: Array, zeros: Array) -> Array:
    """Return -zeros * scales, in float32, or the float16 that is next to it."""
    minimums = -zeros * scales
    with np.errstate(over="ignore"):  # what is too large is infinite, which is not near
        halves = minimums.astype(np.float16).astype(np.float32)
        is_near = np.abs(halves - minimums) <= _NEAR_FLOAT16 * np.abs(minimums)
    return np.where(is_near, halves, minimums)
