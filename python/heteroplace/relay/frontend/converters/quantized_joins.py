"""QLinearAdd, QLinearMul and QLinear*Pool of com.microsoft ==> plain arithmetic, as onnxruntime.

They add the zero point before they round, so that a tie is decided by the byte that comes out; the
other ops of that domain round first (`rounded_qnn.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.relay.frontend.converters.call import OnnxCall
from heteroplace.relay.frontend.converters.pooling import average_pool
from heteroplace.relay.frontend.converters.quantized import quantized


def q_linear_add(call: OnnxCall) -> relay.Expr:
    """Convert QLinearAdd: (a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)."""
    return _joined(call, relay.add)


def q_linear_mul(call: OnnxCall) -> relay.Expr:
    """Convert QLinearMul, of the operands of QLinearAdd."""
    return _joined(call, relay.multiply)


def q_linear_average_pool(call: OnnxCall) -> relay.Expr:
    """Convert QLinearAveragePool: (x, x_scale, x_zero, y_scale, y_zero)."""
    _check_channels(call)
    values = replace(call, operands=[_dequantized(call, 0)])
    return _quantized(call, average_pool(values), 3)


def q_linear_global_average_pool(call: OnnxCall) -> None:
    """Leave QLinearGlobalAveragePool to TVM, whose converter knows no other order of axes."""
    _check_channels(call)


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


def _check_channels(call: OnnxCall) -> None:
    if call.number("channels_last", 0):
        raise FrontendError("channels_last=1 is not supported, only 0: transpose before and after")
