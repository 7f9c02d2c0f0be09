"""DynamicQuantizeLSTM of com.microsoft ==> LSTM whose products are of bytes.

onnxruntime, contributed operators. Weights are [directions, inputs, 4 * hidden], transposed from
those of LSTM, with a scale and a zero point for each direction or each column. All inputs of a
layer are quantised by one range, as is the state in each step.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relay

from heteroplace.parts.onnx.converters.call import OnnxCall, const
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


@dataclass(frozen=True)
class _QuantizedDirection(Direction):
    """A direction whose weights are bytes, [inputs, num_gates * hidden] and [hidden, the same]."""

    scales: tuple[relay.Expr, relay.Expr]
    "Of `weights` and `recurrent`: one number, or one for each column."
    zeros: tuple[relay.Expr, relay.Expr]
    "Likewise, of the weights' type."

    def of_inputs(self, data: relay.Expr) -> relay.Expr:
        return self._product(data, self.weights, 0)

    def of_state(self, hidden: relay.Expr) -> relay.Expr:
        return self._product(hidden, self.recurrent, 1)

    def _product(self, data: relay.Expr, weights: relay.Expr, index: int) -> relay.Expr:
        steps, scale, zero = dynamic_quantize_linear(OnnxCall((data,), {}, 17, 3, {}))
        operands = (steps, weights, zero, self.zeros[index])
        product = mat_mul_integer(OnnxCall(operands, {}, 17, 1, {}))
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
        (of_direction(call.operand(9), index), of_direction(call.operand(11), index)),
    )
