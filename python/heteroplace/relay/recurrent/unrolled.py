"""A recurrent layer that is one op ==> ops of Relay for each step.

Each step is a product and a few elementwise ops, as TVM's own frontends import such a layer. That
is for devices without a kernel of the op, and for training and sharding.
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.errors import LoweringError, UnsupportedRelayError
from heteroplace.model.cluster import Cluster
from heteroplace.relay.expressions import function_pass, op_name, rebuilt, static_shape
from heteroplace.relay.limits import MAX_RECURRENT_STEPS
from heteroplace.relay.quantise import dynamically_quantized
from heteroplace.relay.recurrent.op import GATES, RECURRENT_BYTES_OP, RECURRENT_OP, Recurrent
from heteroplace.relay.targets import device_target, multiplies_words
from heteroplace.relay.tasks.spans import with_span

_OPS = (RECURRENT_OP, RECURRENT_BYTES_OP)


def unrolled_for(mod: tvm.IRModule, cluster: Cluster) -> tvm.IRModule:
    """Return a module without those of the ops that some device of a cluster has no kernel for."""
    if any(device.kind != "cpu" for device in cluster.devices):
        return Unrolled()(mod)
    try:
        targets = [device_target(device) for device in cluster.devices]
    except LoweringError:  # it is planned for, by costs that are given
        return mod
    return mod if all(map(multiplies_words, targets)) else Unrolled((RECURRENT_BYTES_OP,))(mod)


def Unrolled(names: tuple[str, ...] = _OPS) -> tvm.transform.Pass:  # noqa: N802  (as TVM's passes)
    """Return the pass that replaces calls of these ops.

    Raises
    ------
    UnsupportedRelayError
        When it runs: a layer has more steps than `MAX_RECURRENT_STEPS`.
    """

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if op_name(old) in names:
            return with_span(_steps(old, Recurrent(*new.args)), set(new.args), old.span)
        if isinstance(new, relay.TupleGetItem) and isinstance(new.tuple_value, relay.Tuple):
            return new.tuple_value.fields[new.index]
        return new

    return function_pass("Unrolled", lambda function: rebuilt(function, rewrite), ops=_OPS)


def _steps(call: relay.Call, operands: Recurrent) -> relay.Expr:
    steps, _, columns = static_shape(call.args[0].checked_type)
    if steps > MAX_RECURRENT_STEPS:
        raise UnsupportedRelayError(
            f"a recurrent layer has {steps} steps, and each is compiled as ops of its own on this "
            f"cluster; the limit is {MAX_RECURRENT_STEPS}. Place it on CPUs only, or give the "
            f"model shorter sequences and call it once for each part"
        )
    hidden = static_shape(call.args[3].checked_type)[1]
    kind = str(call.attrs["kind"])
    weights = _in_rows(operands.weights, call.args[1].checked_type, columns, hidden)
    parts = relay.split(operands.products, steps, 0) if steps > 1 else [operands.products]
    states: list[relay.Expr] = [None] * steps
    state, cell = operands.hidden, operands.cell
    order = range(steps)
    for time in reversed(order) if call.attrs["is_backward"] else order:
        if operands.scales is None:
            product = relay.nn.dense(state, weights)
        else:
            product = _byte_product(state, weights, operands)
        total = relay.add(product, operands.biases)
        state, cell = _step(kind, relay.squeeze(parts[time], [0]), total, state, cell)
        states[time] = state
    together = relay.stack(states, 0)
    return relay.Tuple([together, cell]) if kind == "lstm" else together


def _step(
    kind: str, products: relay.Expr, total: relay.Expr, state: relay.Expr, cell: relay.Expr
) -> tuple[relay.Expr, relay.Expr]:
    """Return the next state and cell."""
    count = GATES[kind]
    if kind == "rnn":
        return relay.tanh(relay.add(products, total)), cell
    if kind == "lstm":
        write, show, keep, fresh = relay.split(relay.add(products, total), count, 1)
        old, new = relay.multiply(relay.sigmoid(keep), cell), relay.tanh(fresh)
        cell = relay.add(old, relay.multiply(relay.sigmoid(write), new))
        return relay.multiply(relay.sigmoid(show), relay.tanh(cell)), cell
    inputs, states = relay.split(products, count, 1), relay.split(total, count, 1)
    update, reset = (relay.sigmoid(relay.add(inputs[gate], states[gate])) for gate in range(2))
    fresh = relay.tanh(relay.add(inputs[2], relay.multiply(reset, states[2])))
    return relay.add(fresh, relay.multiply(update, relay.subtract(state, fresh))), cell


def _in_rows(panels: relay.Expr, type_: relay.TensorType, columns: int, depth: int) -> relay.Expr:
    """Undo `in_panels`: [columns, depth]."""
    axes = (0, 2, 1) if len(type_.shape) == 3 else (0, 2, 1, 3)
    return relay.reshape(relay.transpose(panels, axes), (columns, depth))


def _byte_product(state: relay.Expr, weights: relay.Expr, operands: Recurrent) -> relay.Expr:
    """Return the product of a state that is rounded to bytes, float32."""
    extremes = relay.min(state), relay.max(state)
    numbers, scale, point = dynamically_quantized(state, *extremes)
    total = relay.nn.dense(numbers, weights, out_dtype="int32")
    centred = relay.subtract(total, relay.multiply(relay.cast(point, "int32"), operands.sums))
    return relay.multiply(relay.cast(centred, "float32"), relay.multiply(scale, operands.scales))
