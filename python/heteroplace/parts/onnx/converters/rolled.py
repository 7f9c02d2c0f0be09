"""A direction of an LSTM, GRU or RNN ==> the op that runs all of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tvm import relay

from heteroplace.parts.onnx.converters.call import OnnxCall, constant_value, shape_of
from heteroplace.relay.recurrent.op import GATES, HIDDEN_MULTIPLE, Recurrent, in_panels, recurrent

_RECURRENT, _LENGTHS, _PEEPHOLES, _SCALE, _ZERO = 2, 4, 7, 10, 11
"""Operands of the layer; the last two are those of DynamicQuantizeLSTM."""
_MAX_STEP_BYTES = 2**20
"""Of the weights of a single step: larger ones are read by all cores together."""
_FUNCTIONS = {"lstm": ["sigmoid", "tanh", "tanh"], "gru": ["sigmoid", "tanh"], "rnn": ["tanh"]}


def state_weights(call: OnnxCall, kind: str, steps: int) -> np.ndarray | None:
    """Return the weights of the state if the op runs such a layer; None: it does not.

    The op knows neither peepholes, clips, coupled gates, shorter sequences, nor other
    functions than the usual ones, and a GRU only with `linear_before_reset`.

    Returns
    -------
    array
        float32 [directions, gates * hidden, hidden], or int8 [directions, hidden, gates * hidden].
    """
    names = [
        name.decode() if isinstance(name, bytes) else name
        for name in call.attributes.get("activations", [])
    ]
    usual = _FUNCTIONS[kind]
    is_usual = [name.lower() for name in names] in ([], usual, usual + usual)
    has_more = call.has(_PEEPHOLES) or not _are_whole(call, steps)
    has_more |= bool(call.number("clip", 0.0)) or bool(call.number("input_forget", 0))
    is_gru = kind == "gru"
    if has_more or not is_usual or (is_gru and not call.number("linear_before_reset", 0)):
        return None
    weights = constant_value(call.operand(_RECURRENT), call.params)
    if weights is None or call.dtype(0) != "float32":
        return None
    is_small = steps > 1 or weights[0].nbytes <= _MAX_STEP_BYTES
    if not is_small or weights.dtype not in (np.float32, np.int8):
        return None
    if weights.dtype == np.int8 and _byte_scales(call) is None:
        return None
    return weights


def _are_whole(call: OnnxCall, steps: int) -> bool:
    """Whether all sequences are known to have all steps."""
    if not call.has(_LENGTHS):
        return True
    lengths = constant_value(call.operand(_LENGTHS), call.params)
    return lengths is not None and bool((lengths >= steps).all())


def _byte_scales(call: OnnxCall) -> np.ndarray | None:
    """The scales of the weights of bytes, [directions] or [directions, gates * hidden]; None: they
    are computed, or there is a zero point other than 0."""
    zero = constant_value(call.operand(_ZERO), call.params)
    scales = constant_value(call.operand(_SCALE), call.params)
    return scales if zero is not None and not np.any(zero) else None


class Line(NamedTuple):
    """One direction of a layer."""

    number: int
    is_backward: bool
    weights: relay.Expr
    """Those of the state: of floats [gates * hidden, hidden]; those of bytes are not read."""
    biases: relay.Expr | None
    """Those of the state, [gates * hidden]; None: 0."""


def all_steps(
    call: OnnxCall, kind: str, line: Line, products: relay.Expr, states: Sequence[relay.Expr]
) -> tuple[relay.Expr, list[relay.Expr]]:
    """Return the states of all steps, [steps, batch, hidden], and the last state of each kind.

    Parameters
    ----------
    products
        What the inputs give to the gates, with their biases, [steps, batch, gates * hidden].
    states
        The first ones, [batch, hidden]: H, and C of an LSTM.
    """
    gates = GATES[kind]
    values = constant_value(call.operand(_RECURRENT), call.params)
    assert values is not None  # else `state_weights` is None
    # Floats stay the parameter that they are, which may be trained.
    weights, biases = line.weights, line.biases
    hidden = values.shape[2] if values.dtype == np.float32 else values.shape[1]
    more = -hidden % HIDDEN_MULTIPLE
    wide = hidden + more
    if biases is None:
        biases = relay.zeros((gates * hidden,), "float32")
    scales = sums = None
    if values.dtype == np.int8:
        own = values[line.number].T
        weights = relay.const(np.ascontiguousarray(own))
        given = _byte_scales(call)
        assert given is not None
        columns = np.broadcast_to(given[line.number], gates * hidden).astype(np.float32)
        scales = relay.const(_padded(columns, gates, more))
        sums = relay.const(_padded(own.sum(1, dtype=np.int32), gates, more))
    if more:
        apart = relay.reshape(weights, (gates, hidden, hidden))
        padded_weights = relay.nn.pad(apart, ((0, 0), (0, more), (0, more)))
        weights = relay.reshape(padded_weights, (gates * wide, wide))
    panels = in_panels(weights, gates * wide, wide, str(values.dtype))
    padded = [_wider(state, 1, more) for state in states]
    operands = Recurrent(
        _wider(products, gates, more),
        panels,
        _wider(biases, gates, more),
        padded[0],
        padded[1] if len(padded) > 1 else relay.const(np.zeros(1, np.float32)),
        scales,
        sums,
    )
    results = recurrent(operands, kind, line.is_backward)
    if more:
        results = [
            relay.strided_slice(each, [0], [hidden], axes=[axis])
            for each, axis in zip(results, (2, 1), strict=False)
        ]
    length = call.shape(0)[1 if call.number("layout", 0) else 0]
    last = 0 if line.is_backward else length - 1
    final = relay.squeeze(relay.strided_slice(results[0], [last], [last + 1], axes=[0]), [0])
    return results[0], [final, *results[1:]]


def _padded(values: np.ndarray, gates: int, more: int) -> np.ndarray:
    """Numbers of each gate with zeros behind them."""
    return np.pad(values.reshape(gates, -1), ((0, 0), (0, more))).reshape(-1)


def _wider(values: relay.Expr, gates: int, more: int) -> relay.Expr:
    """The last axis with zeros behind the numbers of each gate."""
    if not more:
        return values
    *shape, columns = shape_of(values)
    apart = relay.reshape(values, [*shape, gates, columns // gates])
    widths = [(0, 0)] * (len(shape) + 1)
    wide = relay.nn.pad(apart, [*widths, (0, more)])
    return relay.reshape(wide, [*shape, -1])
