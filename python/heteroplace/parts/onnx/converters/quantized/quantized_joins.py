"""QLinearAdd, QLinearMul and QLinear*Pool of com.microsoft ==> plain arithmetic, as onnxruntime.

They add the zero point before they round, so that a tie is decided by the byte that comes out; the
other ops of that domain round first (`rounded_qnn.py`). Of QLinearLeakyRelu and QLinearSoftmax the
defaults and axes are onnxruntime's, the rest is TVM's converter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from tvm import relay
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.parts.onnx.converters.call import OnnxCall
from heteroplace.parts.onnx.converters.pooling import average_pool
from heteroplace.parts.onnx.converters.probabilities import ONE_AXIS
from heteroplace.parts.onnx.converters.quantized.quantized import check_channels
from heteroplace.relay.quantise import quantized

_SLOPE = 0.01
"""Of a QLinearLeakyRelu that names none."""


def q_linear_add(call: OnnxCall) -> relay.Expr:
    """Convert QLinearAdd: (a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)."""
    return _joined(call, relay.add)


def q_linear_mul(call: OnnxCall) -> relay.Expr:
    """Convert QLinearMul, of the operands of QLinearAdd."""
    return _joined(call, relay.multiply)


def q_linear_average_pool(call: OnnxCall) -> relay.Expr:
    """Convert QLinearAveragePool: (x, x_scale, x_zero, y_scale, y_zero)."""
    check_channels(call)
    values = replace(call, operands=[_dequantized(call, 0)])
    return _quantized(call, average_pool(values), 3)


def q_linear_global_average_pool(call: OnnxCall) -> None:
    """Leave QLinearGlobalAveragePool to TVM, whose converter knows no other order of axes."""
    check_channels(call)


def q_linear_leaky_relu(call: OnnxCall) -> relay.Expr:
    """Convert QLinearLeakyRelu: (x, x_scale, x_zero, y_scale, y_zero)."""
    attributes = {"alpha": call.number("alpha", _SLOPE)}
    return tvm_onnx.QLinearLeakyRelu._impl_v10(_inputs(call), attributes, call.params)


def q_linear_softmax(call: OnnxCall) -> relay.Expr:
    """Convert QLinearSoftmax, of the operands of QLinearLeakyRelu: along one axis, or as Softmax
    before opset 13 over all axes from one on, which its attribute `opset` says."""
    shape = call.shape(0)
    is_along_one = call.number("opset", ONE_AXIS) >= ONE_AXIS
    axis = int(call.number("axis", -1)) % len(shape)
    inputs = _inputs(call)
    if not is_along_one:
        inputs[0] = relay.reshape(inputs[0], [prod(shape[:axis]), prod(shape[axis:])])
    attributes = {"axis": axis if is_along_one else 1}
    result = tvm_onnx.QLinearSoftmax._impl_v1(inputs, attributes, call.params)
    return result if is_along_one else relay.reshape(result, list(shape))


def _inputs(call: OnnxCall) -> list[relay.Expr | None]:
    """Return the operands as TVM's converters take them: those beyond the last are left out."""
    inputs: list[relay.Expr | None] = tvm_onnx.onnx_input()
    inputs.extend(call.operands)
    return inputs


def _joined(call: OnnxCall, join: Callable[[relay.Expr, relay.Expr], relay.Expr]) -> relay.Expr:
    return _quantized(call, join(_dequantized(call, 0), _dequantized(call, 3)), 6)


def _dequantized(call: OnnxCall, index: int) -> relay.Expr:
    """Return operand `index` as floats; its scale and its zero point follow it."""
    data = relay.cast(call.operand(index), "int32")
    if call.has(index + 2):
        data = relay.subtract(data, relay.cast(_scalar(call, index + 2), "int32"))
    return relay.multiply(relay.cast(data, "float32"), _scalar(call, index + 1))


def _quantized(call: OnnxCall, data: relay.Expr, scale: int) -> relay.Expr:
    """Return floats as bytes; operand `scale` and the one behind it are those of the result."""
    steps = relay.divide(data, _scalar(call, scale))
    if call.has(scale + 1):
        steps = relay.add(steps, relay.cast(_scalar(call, scale + 1), "float32"))
    return quantized(steps, None, call.dtype(0))


def _scalar(call: OnnxCall, index: int) -> relay.Expr:
    return relay.reshape(call.operand(index), []) if call.shape(index) else call.operand(index)
