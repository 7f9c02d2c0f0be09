"""RNN, GRU and LSTM ==> one dense for all inputs, then one op for all steps, or a few for each.

ONNX operator specification: gates in the order iofc (LSTM) and zrh (GRU); directions one after the
other along axis 1 of the result. A step beyond the length of a sequence keeps its state and gives
zeros, so that a backward direction begins at the end of each sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, const
from heteroplace.parts.onnx.converters.rolled import rolled_layer
from heteroplace.relay.limits import MAX_RECURRENT_STEPS
from heteroplace.relay.recurrent.op import GATES

Activation = Callable[[relay.Expr], relay.Expr]


@dataclass(frozen=True)
class Direction:
    """One direction of a layer: its weights and functions."""

    weights: relay.Expr
    "[num_gates * hidden, inputs]"
    recurrent: relay.Expr
    "[num_gates * hidden, hidden]"
    biases: tuple[relay.Expr, relay.Expr] | None
    "Of the inputs and of the state, each [num_gates * hidden]; None: there are none."
    peepholes: relay.Expr | None
    "[3 * hidden], in the order iof; LSTM only."
    activations: tuple[Activation, ...]
    clip: float
    "0: gates are not clipped."
    num_gates: int
    hidden: int

    def of_inputs(self, data: relay.Expr) -> relay.Expr:
        """Return what rows of inputs give to the gates, without biases."""
        return relay.nn.dense(data, self.weights)

    def of_state(self, hidden: relay.Expr) -> relay.Expr:
        """Return what a state gives to the gates, without biases."""
        return relay.nn.dense(hidden, self.recurrent)

    def gate(self, data: relay.Expr, index: int, axis: int = 1) -> relay.Expr:
        """Return the part of one gate along an axis of [num_gates * hidden]."""
        begin = index * self.hidden
        return relay.strided_slice(data, [begin], [begin + self.hidden], axes=[axis])

    def clipped(self, data: relay.Expr) -> relay.Expr:
        """Return `data` within the clip."""
        return relay.clip(data, -self.clip, self.clip) if self.clip else data


Step = Callable[[Direction, relay.Expr, list[relay.Expr]], list[relay.Expr]]
"""(direction, what the inputs give to the gates, state) -> the new state, H first."""
MakeDirection = Callable[[OnnxCall, int, int, "tuple[Activation, ...]"], Direction]
"""(node, index of the direction, gates, functions) -> its weights and functions."""


def rnn(call: OnnxCall) -> relay.expr.TupleWrapper | relay.Expr:
    """Convert RNN: H = f(x W + H R + b)."""

    def step(d: Direction, x: relay.Expr, state: list[relay.Expr]) -> list[relay.Expr]:
        total = relay.add(x, _recurrent(d, state[0]))
        return [d.activations[0](d.clipped(total))]

    return _layer(call, step, "rnn", ["Tanh"], num_states=1)


def gru(call: OnnxCall) -> relay.expr.TupleWrapper | relay.Expr:
    """Convert GRU."""
    is_linear_first = bool(call.number("linear_before_reset", 0))

    def step(d: Direction, x: relay.Expr, state: list[relay.Expr]) -> list[relay.Expr]:
        f, g = d.activations
        hidden = state[0]
        from_state = _recurrent(d, hidden)
        update = f(d.clipped(relay.add(d.gate(x, 0), d.gate(from_state, 0))))
        reset = f(d.clipped(relay.add(d.gate(x, 1), d.gate(from_state, 1))))
        if is_linear_first:
            candidate = relay.multiply(reset, d.gate(from_state, 2))
        else:
            rows = relay.strided_slice(d.recurrent, [2 * d.hidden], [3 * d.hidden], axes=[0])
            candidate = relay.nn.dense(relay.multiply(reset, hidden), rows)
            if d.biases is not None:
                candidate = relay.add(candidate, d.gate(d.biases[1], 2, 0))
        new = g(d.clipped(relay.add(d.gate(x, 2), candidate)))
        return [relay.add(new, relay.multiply(update, relay.subtract(hidden, new)))]

    return _layer(call, step, "gru", ["Sigmoid", "Tanh"], num_states=1)


def lstm(
    call: OnnxCall, of_call: MakeDirection | None = None
) -> relay.expr.TupleWrapper | relay.Expr:
    """Convert LSTM, with peepholes and coupled gates; `of_call`: see `MakeDirection`."""
    is_coupled = bool(call.number("input_forget", 0))

    def step(d: Direction, x: relay.Expr, state: list[relay.Expr]) -> list[relay.Expr]:
        f, g, h = d.activations
        hidden, cell = state
        total = relay.add(x, _recurrent(d, hidden))

        def gate(index: int, peephole: int | None = None, seen: relay.Expr = cell) -> relay.Expr:
            value = d.gate(total, index)
            if d.peepholes is not None and peephole is not None:
                value = relay.add(value, relay.multiply(d.gate(d.peepholes, peephole, 0), seen))
            return d.clipped(value)

        write = f(gate(0, 0))
        one = const(1, call.dtype(0))
        keep = relay.subtract(one, write) if is_coupled else f(gate(2, 2))
        new_cell = relay.add(relay.multiply(keep, cell), relay.multiply(write, g(gate(3))))
        show = f(gate(1, 1, new_cell))
        return [relay.multiply(show, h(new_cell)), new_cell]

    functions = ["Sigmoid", "Tanh", "Tanh"]
    return _layer(call, step, "lstm", functions, num_states=2, of_call=of_call)


def _recurrent(d: Direction, hidden: relay.Expr) -> relay.Expr:
    product = d.of_state(hidden)
    return product if d.biases is None else relay.add(product, d.biases[1])


def _layer(
    call: OnnxCall,
    step: Step,
    kind: str,
    functions: list[str],
    num_states: int,
    of_call: MakeDirection | None = None,
) -> relay.expr.TupleWrapper | relay.Expr:
    """Run `step` over the sequence in each direction, and put the results together."""
    is_batch_first = bool(call.number("layout", 0))
    data = call.operand(0)
    if is_batch_first:
        data = relay.transpose(data, [1, 0, 2])
    shape = call.shape(0)
    length, batch = (shape[1], shape[0]) if is_batch_first else shape[:2]
    way = call.text("direction", "forward")
    is_backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[way]
    num_steps = length * len(is_backward)
    rolled = rolled_layer(call, kind, length)
    if rolled is None and num_steps > MAX_RECURRENT_STEPS:
        raise FrontendError(
            f"it has {num_steps} steps ({length} in each of {len(is_backward)} directions), and "
            f"each is compiled as ops of its own; the limit is {MAX_RECURRENT_STEPS} steps. "
            f"Give the model shorter sequences, and call it once for each part"
        )
    all_steps, all_states = [], []
    activations = _activations(call, functions * len(is_backward))
    for index, backward in enumerate(is_backward):
        own = tuple(next(activations) for _ in functions)
        direction = (of_call or direction_of)(call, index, GATES[kind], own)
        state = [
            _initial_state(call, 5 + number, index, (batch, direction.hidden), is_batch_first)
            for number in range(num_states)
        ]
        products = _products(call, direction, data, length)
        if rolled is None:
            steps, state = _run(call, direction, step, products, state, (length, backward))
        else:
            biases = None if direction.biases is None else direction.biases[1]
            part = direction.recurrent, biases
            steps, state = rolled.states(index, backward, products, part, state)
        all_steps.append(steps)
        all_states.append(state)
    outputs = [relay.stack(all_steps, 1)]
    outputs += [relay.stack([state[i] for state in all_states], 0) for i in range(num_states)]
    if is_batch_first:
        outputs = [relay.transpose(outputs[0], [2, 0, 1, 3])] + [
            relay.transpose(output, [1, 0, 2]) for output in outputs[1:]
        ]
    outputs = outputs[: call.num_outputs]
    if len(outputs) == 1:
        return outputs[0]
    return relay.expr.TupleWrapper(relay.Tuple(outputs), len(outputs))


def _products(call: OnnxCall, d: Direction, data: relay.Expr, length: int) -> relay.Expr:
    """Return what the inputs give to the gates, [length, batch, gates * hidden]."""
    products = d.of_inputs(relay.reshape(data, [-1, call.shape(0)[2]]))
    if d.biases is not None:
        products = relay.add(products, d.biases[0])
    return relay.reshape(products, [length, -1, d.num_gates * d.hidden])


def _run(
    call: OnnxCall,
    d: Direction,
    step: Step,
    products: relay.Expr,
    state: list[relay.Expr],
    order: tuple[int, bool],
) -> tuple[relay.Expr, list[relay.Expr]]:
    """Return H of all steps, [length, batch, hidden], and the last state, by ops for each step."""
    length, is_backward = order
    parts = relay.split(products, length, axis=0) if length > 1 else [products]
    steps: list[relay.Expr] = [None] * length
    for time in reversed(range(length)) if is_backward else range(length):
        new = step(d, relay.squeeze(parts[time], [0]), state)
        if call.has(4):
            lengths = relay.expand_dims(relay.cast(call.operand(4), "int32"), -1)
            is_inside = relay.less(const(time, "int32"), lengths)
            zeros = relay.zeros_like(new[0])
            steps[time] = relay.where(is_inside, new[0], zeros)
            new = [relay.where(is_inside, n, old) for n, old in zip(new, state, strict=True)]
        else:
            steps[time] = new[0]
        state = new
    return relay.stack(steps, 0), state


def direction_of(
    call: OnnxCall,
    index: int,
    num_gates: int,
    activations: tuple[Activation, ...],
    hidden: int | None = None,
) -> Direction:
    """Return the weights and functions of direction `index`; `hidden`: None, if R says it last."""
    hidden = call.shape(2)[-1] if hidden is None else hidden
    biases = None
    if call.has(3):
        both = of_direction(call.operand(3), index)
        count = num_gates * hidden
        biases = (
            relay.strided_slice(both, [0], [count]),
            relay.strided_slice(both, [count], [2 * count]),
        )
    return Direction(
        of_direction(call.operand(1), index),
        of_direction(call.operand(2), index),
        biases,
        of_direction(call.operand(7), index) if call.has(7) else None,
        activations,
        float(call.number("clip", 0.0)),
        num_gates,
        hidden,
    )


def of_direction(data: relay.Expr, index: int, axis: int = 0) -> relay.Expr:
    """Return the part of a direction along an axis."""
    return relay.squeeze(relay.strided_slice(data, [index], [index + 1], axes=[axis]), [axis])


def _initial_state(
    call: OnnxCall, operand: int, index: int, shape: tuple[int, int], is_batch_first: bool
) -> relay.Expr:
    if not call.has(operand):
        return relay.zeros(shape, call.dtype(0))
    return of_direction(call.operand(operand), index, 1 if is_batch_first else 0)


def _activations(call: OnnxCall, defaults: list[str]) -> Iterator[Activation]:
    """Yield the functions of all directions in order, with the parameters that they take."""
    names = [
        name.decode() if isinstance(name, bytes) else name
        for name in call.attributes.get("activations", defaults)
    ]
    if len(names) < len(defaults):
        raise FrontendError(f"it names {len(names)} activations and needs {len(defaults)}")
    alphas = iter(call.attributes.get("activation_alpha", ()))
    betas = iter(call.attributes.get("activation_beta", ()))
    dtype = call.dtype(0)
    for name in names:
        key = name.lower()
        if key not in _DEFAULTS:
            raise FrontendError(f"activation '{name}' is not known")
        alpha, beta = _DEFAULTS[key]
        given = [
            None if alpha is None else next(alphas, alpha),
            None if beta is None else next(betas, beta),
        ]
        yield _activation(key, given, dtype)


_DEFAULTS: dict[str, tuple[float | None, float | None]] = {
    "relu": (None, None),
    "tanh": (None, None),
    "sigmoid": (None, None),
    "softsign": (None, None),
    "softplus": (None, None),
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
}
"""Activation -> alpha and beta where none are given; None: it takes none."""


def _activation(key: str, parameters: list[float | None], dtype: str) -> Activation:
    alpha, beta = (const(0.0 if p is None else p, dtype) for p in parameters)
    zero, one = const(0, dtype), const(1, dtype)
    functions: dict[str, Activation] = {
        "relu": relay.nn.relu,
        "tanh": relay.tanh,
        "sigmoid": relay.sigmoid,
        "softsign": lambda x: relay.divide(x, relay.add(one, relay.abs(x))),
        "softplus": lambda x: relay.log(relay.add(one, relay.exp(x))),
        "affine": lambda x: relay.add(relay.multiply(alpha, x), beta),
        "leakyrelu": lambda x: relay.where(relay.less(x, zero), relay.multiply(alpha, x), x),
        "thresholdedrelu": lambda x: relay.where(relay.greater(x, alpha), x, zero),
        "scaledtanh": lambda x: relay.multiply(alpha, relay.tanh(relay.multiply(beta, x))),
        "hardsigmoid": lambda x: relay.clip(relay.add(relay.multiply(alpha, x), beta), 0.0, 1.0),
        "elu": lambda x: relay.where(
            relay.less(x, zero), relay.multiply(alpha, relay.subtract(relay.exp(x), one)), x
        ),
    }
    return functions[key]
