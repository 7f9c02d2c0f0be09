"""Products of com.microsoft ==> those of ONNX, with what is fused to them.

onnxruntime, contributed operators: FusedMatMul, FusedConv, MatMulNBits and QuickGelu.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relay
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import (
    OnnxCall,
    const,
    shape_of,
    stacked_product,
)
from heteroplace.parts.onnx.converters.windows import check_windows

_BYTE = 8


def quick_gelu(call: OnnxCall) -> relay.Expr:
    """Convert QuickGelu: x * sigmoid(alpha * x)."""
    data = call.operand(0)
    scaled = relay.multiply(data, const(call.number("alpha", 1.702), call.dtype(0)))
    return relay.multiply(data, relay.sigmoid(scaled))


def fused_mat_mul(call: OnnxCall) -> relay.Expr:
    """Convert FusedMatMul: alpha * A' B', each transposed as its attributes say."""
    left, right = _transposed(call, 0, "A"), _transposed(call, 1, "B")
    product = stacked_product(left, right, call.dtype(0))
    return relay.multiply(product, const(call.number("alpha", 1.0), call.dtype(0)))


def _transposed(call: OnnxCall, index: int, name: str) -> relay.Expr:
    """Return a factor; transBatch moves its first axis to the last but one."""
    data, rank = call.operand(index), len(call.shape(index))
    if rank < 2:
        return data
    axes = list(range(rank))
    if call.number(f"transBatch{name}", 0):
        axes = [*axes[1:-1], 0, axes[-1]]
    if call.number(f"trans{name}", 0):
        axes[-2:] = axes[-1], axes[-2]
    return data if axes == sorted(axes) else relay.transpose(data, axes)


def fused_conv(call: OnnxCall) -> relay.Expr:
    """Convert FusedConv: activation(conv(X, W, B) + Z)."""
    own = ("activation", "activation_params")
    attributes = {name: value for name, value in call.attributes.items() if name not in own}
    inputs = tvm_onnx.onnx_input()
    inputs.extend(call.operands[:3])
    check_windows("Conv", inputs, attributes)
    result = tvm_onnx.Conv._impl_v1(inputs, attributes, call.params)
    if call.has(3):
        result = relay.add(result, call.operand(3))
    name = call.text("activation", "")
    if not name:
        return result
    if name not in _ACTIVATIONS:
        raise FrontendError(f"activation '{name}' is not known")
    count, function = _ACTIVATIONS[name]
    parameters = [float(value) for value in call.attributes.get("activation_params", ())]
    if len(parameters) != count:
        raise FrontendError(
            f"activation '{name}' has {len(parameters)} activation_params, expected {count}"
        )
    return function(result, *parameters)


def _hard_sigmoid(data: relay.Expr, alpha: float, beta: float) -> relay.Expr:
    scaled = relay.multiply(data, const(alpha, "float32"))
    return relay.clip(relay.add(scaled, const(beta, "float32")), 0.0, 1.0)


_ACTIVATIONS: dict[str, tuple[int, Callable[..., relay.Expr]]] = {
    "Relu": (0, relay.nn.relu),
    "Tanh": (0, relay.tanh),
    "Sigmoid": (0, relay.sigmoid),
    "LeakyRelu": (1, relay.nn.leaky_relu),
    "Clip": (2, relay.clip),
    "HardSigmoid": (2, _hard_sigmoid),
}
"""Name -> how many parameters it takes, and the function."""


def mat_mul_n_bits(call: OnnxCall) -> relay.Expr:
    """Convert MatMulNBits: (A, B, scales, zero points, g_idx, bias) -> A dequantised(B)^T."""
    n, k = int(call.number("N", 0)), int(call.number("K", 0))
    bits, block = int(call.number("bits", 4)), int(call.number("block_size", 0))
    if bits not in (2, 4, 8):
        raise FrontendError(f"bits={bits} is not supported, only 2, 4 and 8")
    if call.number("weight_prepacked", 0):
        raise FrontendError("weight_prepacked=1 is not supported, only 0")
    dtype, blocks = call.dtype(0), -(-k // block)
    steps = relay.cast(_unpacked(call.operand(1), [n, blocks * block], bits), "float32")
    scales = relay.cast(relay.reshape(call.operand(2), [n, blocks]), "float32")
    zeros: relay.Expr = const(1 << (bits - 1), "float32")
    if call.has(3) and call.dtype(3) == "uint8":
        row = -(-blocks * bits // _BYTE) * _BYTE // bits
        packed = relay.reshape(call.operand(3), [n, -1])
        zeros = relay.strided_slice(_unpacked(packed, [n, row], bits), [0, 0], [n, blocks])
        zeros = relay.cast(zeros, "float32")
    elif call.has(3):
        zeros = relay.cast(relay.reshape(call.operand(3), [n, blocks]), "float32")
    weights = relay.strided_slice(steps, [0, 0], [n, k])
    if call.has(4):
        groups = call.constant(4, "groups").reshape(-1)[:k]
        of_column = const(groups.astype(np.int64), "int64")
    else:
        of_column = const(np.arange(k) // block, "int64")
    spread = relay.take(scales, of_column, axis=1)
    if call.has(3):
        zeros = relay.take(zeros, of_column, axis=1)
    weights = relay.cast(relay.multiply(relay.subtract(weights, zeros), spread), dtype)
    shape = call.shape(0)
    rows = relay.reshape(call.operand(0), [-1, k])
    product = relay.nn.dense(rows, weights, out_dtype="float32")
    if call.has(5):
        product = relay.add(product, relay.cast(call.operand(5), "float32"))
    return relay.cast(relay.reshape(product, [*shape[:-1], n]), dtype)


def _unpacked(data: relay.Expr, shape: list[int], bits: int) -> relay.Expr:
    """Return numbers of a few bits that lie in bytes, the low bits first, along the last axes."""
    if bits == _BYTE:
        return relay.reshape(data, shape)
    sizes = shape_of(data)
    parts = [
        relay.bitwise_and(
            relay.right_shift(data, const(shift, "uint8")), const((1 << bits) - 1, "uint8")
        )
        for shift in range(0, _BYTE, bits)
    ]
    return relay.reshape(relay.stack(parts, len(sizes)), shape)
