"""Products of com.microsoft ==> those of ONNX, with what is fused to them.

onnxruntime, contributed operators: FusedMatMul, FusedConv and QuickGelu.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relay
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import (
    OnnxCall,
    const,
    stacked_product,
)
from heteroplace.parts.onnx.converters.windows import check_windows


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
