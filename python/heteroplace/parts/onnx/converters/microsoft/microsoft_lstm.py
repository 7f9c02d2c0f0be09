"""DynamicQuantizeLSTM of com.microsoft ==> LSTM whose products are of bytes.

onnxruntime, contributed operators. Weights are [directions, inputs, 4 * hidden], transposed from
those of LSTM, with a scale and a zero point for each direction or each column. All inputs of a
layer are quantised by one range, as is the state in each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import relay

from heteroplace.parts.onnx.converters.call import OnnxCall, const
from heteroplace.parts.onnx.converters.quantized.byte_products import byte_factor
from heteroplace.parts.onnx.converters.quantized.quantized import (
    dynamic_quantize_linear,
    mat_mul_integer,
)
from heteroplace.parts.onnx.converters.recurrent import (
    Activation,
    Direction,
    direction_of,
    lstm,
    of_direction,
)

_LENGTHS = 4
Product = Callable[[relay.Expr, relay.Expr], relay.Expr]


@dataclass(frozen=True)
class _QuantizedDirection(Direction):
    """A direction whose weights are bytes, [inputs, num_gates * hidden] and [hidden, the same]."""

    scales: tuple[relay.Expr, relay.Expr]
    "Of `weights` and `recurrent`: one number, or one for each column."
    products: tuple[Product, Product]
    "Likewise: (bytes, their zero point) -> int32."

    def of_inputs(self, data: relay.Expr) -> relay.Expr:
        return self._product(data, 0)

    def of_state(self, hidden: relay.Expr) -> relay.Expr:
        return self._product(hidden, 1)

    def _product(self, data: relay.Expr, index: int) -> relay.Expr:
        steps, scale, zero = dynamic_quantize_linear(OnnxCall((data,), {}, 17, 3, {}))
        product = self.products[index](steps, zero)
        return relay.multiply(
            relay.cast(product, "float32"), relay.multiply(scale, self.scales[index])
        )


def dynamic_quantize_lstm(call: OnnxCall) -> relay.expr.TupleWrapper | relay.Expr:
    """Convert DynamicQuantizeLSTM."""
    operands = list(call.operands)
    if call.has(_LENGTHS):
        operands[0] = _within_lengths(call)
    masked = OnnxCall(operands, call.attributes, call.opset, call.num_outputs, call.params)
    return lstm(masked, _quantized_direction)


def _within_lengths(call: OnnxCall) -> relay.Expr:
    """Return inputs with zeros beyond the longest sequence: onnxruntime reads no further."""
    longest = relay.max(relay.cast(call.operand(_LENGTHS), "int32"))
    steps = relay.arange(const(call.shape(0)[0], "int32"), dtype="int32")
    is_inside = relay.reshape(relay.less(steps, longest), [-1, 1, 1])
    return relay.where(is_inside, call.operand(0), const(0, call.dtype(0)))


def _quantized_direction(
    call: OnnxCall, index: int, num_gates: int, activations: tuple[Activation, ...]
) -> Direction:
    hidden = call.shape(2)[1]
    plain = direction_of(call, index, num_gates, activations, hidden)
    return _QuantizedDirection(
        plain.weights,
        plain.recurrent,
        plain.biases,
        plain.peepholes,
        plain.activations,
        plain.clip,
        num_gates,
        hidden,
        (of_direction(call.operand(8), index), of_direction(call.operand(10), index)),
        (_products(call, plain.weights, 9, index), _products(call, plain.recurrent, 11, index)),
    )


def _products(call: OnnxCall, weights: relay.Expr, zero: int, index: int) -> Product:
    """Return what multiplies by weights, which are prepared once for all steps."""
    point = of_direction(call.operand(zero), index)
    factor = byte_factor(weights, point, call.params)
    if factor is not None:
        return factor.product

    def product(data: relay.Expr, data_zero: relay.Expr) -> relay.Expr:
        return mat_mul_integer(OnnxCall((data, weights, data_zero, point), {}, 17, 1, {}))

    return product
