"""A direction of an LSTM, GRU or RNN ==> the op that runs all of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm import relay

from heteroplace.parts.onnx.converters.call import OnnxCall, constant_value, shape_of
from heteroplace.relay.recurrent.op import GATES, HIDDEN_MULTIPLE, Recurrent, in_panels, recurrent

_RECURRENT, _LENGTHS, _PEEPHOLES, _SCALE, _ZERO = 2, 4, 7, 10, 11
"""Operands of the layer; the last two are those of DynamicQuantizeLSTM."""
_FUNCTIONS = {"lstm": ["sigmoid", "tanh", "tanh"], "gru": ["sigmoid", "tanh"], "rnn": ["tanh"]}


def rolled_layer(call: OnnxCall, kind: str, steps: int) -> RolledLayer | None:
    """Return what runs a layer by the op; None: the op does not know such a layer.

    It knows no peepholes, clips, coupled gates, shorter sequences or unusual functions, and a GRU
    only with `linear_before_reset`. The weights of the state must be constants: in float32, or in
    int8 with the zero point 0.
    """
    names = [
        name.decode() if isinstance(name, bytes) else name
        for name in call.attributes.get("activations", [])
    ]
    usual = _FUNCTIONS[kind]
    is_usual = [name.lower() for name in names] in ([], usual, usual + usual)
    has_more = call.has(_PEEPHOLES) or not _are_whole(call, steps)
    has_more |= bool(call.number("clip", 0.0)) or bool(call.number("input_forget", 0))
    has_more |= kind == "gru" and not call.number("linear_before_reset", 0)
    if has_more or not is_usual or call.dtype(0) != "float32":
        return None
    weights = constant_value(call.operand(_RECURRENT), call.params)
    if weights is not None and weights.dtype == np.float32:
        return RolledLayer(kind)
    if weights is None or weights.dtype != np.int8:
        return None
    zero = constant_value(call.operand(_ZERO), call.params)
    scales = constant_value(call.operand(_SCALE), call.params)
    is_plain = zero is not None and scales is not None and not np.any(zero)
    return RolledLayer(kind, weights, scales) if is_plain else None


def _are_whole(call: OnnxCall, steps: int) -> bool:
    """Whether all sequences are known to have all steps."""
    if not call.has(_LENGTHS):
        return True
    lengths = constant_value(call.operand(_LENGTHS), call.params)
    return lengths is not None and bool((lengths >= steps).all())


@dataclass(frozen=True)
class RolledLayer:
    """A layer whose directions are calls of the op."""

    kind: str
    byte_weights: npt.NDArray[np.int8] | None = None
    """[directions, hidden, gates * hidden]; None: the weights of the state are of float32."""
    scales: npt.NDArray[np.float32] | None = None
    """Of these, [directions] or [directions, gates * hidden]."""

    def states(
        self,
        direction: int,
        is_backward: bool,
        products: relay.Expr,
        recurrent_part: tuple[relay.Expr, relay.Expr | None],
        first: Sequence[relay.Expr],
    ) -> tuple[relay.Expr, list[relay.Expr]]:
        """Return the states of all steps, [steps, batch, hidden], and the last state of each kind.

        Parameters
        ----------
        products
            What the inputs give to the gates, with their biases, [steps, batch, gates * hidden].
        recurrent_part
            Weights of the state, in float32 [gates * hidden, hidden], or bytes, which are not read;
            and its biases, [gates * hidden], None: 0.
        first
            The first states, [batch, hidden]: H, and C of an LSTM.
        """
        weights, biases = recurrent_part
        gates = GATES[self.kind]
        steps, _, columns = shape_of(products)
        hidden = columns // gates
        more = -hidden % HIDDEN_MULTIPLE
        wide = hidden + more
        scales = sums = None
        dtype = "float32"
        if self.byte_weights is not None and self.scales is not None:
            dtype, values = "int8", self.byte_weights[direction].T
            weights = relay.const(np.ascontiguousarray(values))
            each = np.broadcast_to(self.scales[direction], columns).astype(np.float32)
            scales = _wider(relay.const(each), gates, more)
            sums = _wider(relay.const(values.sum(1, dtype=np.int32)), gates, more)
        if more:
            apart = relay.reshape(weights, (gates, hidden, hidden))
            padded = relay.nn.pad(apart, ((0, 0), (0, more), (0, more)))
            weights = relay.reshape(padded, (gates * wide, wide))
        if biases is None:
            biases = relay.zeros((columns,), "float32")
        hidden_state, *cell = (_wider(state, 1, more) for state in first)
        operands = Recurrent(
            _wider(products, gates, more),
            in_panels(weights, gates * wide, wide, dtype),
            _wider(biases, gates, more),
            hidden_state,
            cell[0] if cell else relay.const(np.zeros(1, np.float32)),
            scales,
            sums,
        )
        results = recurrent(operands, self.kind, is_backward)
        if more:
            results = [
                relay.strided_slice(each, [0], [hidden], axes=[axis])
                for each, axis in zip(results, (2, 1), strict=False)
            ]
        last = 0 if is_backward else steps - 1
        final = relay.squeeze(relay.strided_slice(results[0], [last], [last + 1], axes=[0]), [0])
        return results[0], [final, *results[1:]]


def _wider(values: relay.Expr, gates: int, more: int) -> relay.Expr:
    """The last axis with zeros behind the numbers of each gate."""
    if not more:
        return values
    *shape, columns = shape_of(values)
    apart = relay.reshape(values, [*shape, gates, columns // gates])
    widths = [(0, 0)] * (len(shape) + 1)
    wide = relay.nn.pad(apart, [*widths, (0, more)])
    return relay.reshape(wide, [*shape, -1])
