"""A recurrent layer that is one op ==> ops of Relay for each step, where some device has no kernel.

Each step is a product and a few elementwise ops, as other frontends of TVM import such a layer.
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.model.cluster import Cluster
from heteroplace.relay.expressions import (
    function_pass,
    post_order,
    rebuild,
    static_shape,
)
from heteroplace.relay.limits import MAX_RECURRENT_STEPS
from heteroplace.relay.recurrent.op import (
    GATES,
    RECURRENT_BYTES_OP,
    RECURRENT_OP,
    Recurrent,
    is_recurrent,
)
from heteroplace.relay.targets import device_target, multiplies_integers
from heteroplace.relay.tasks.folded_steps import ROUNDING_SHIFT

_OPS = (RECURRENT_OP, RECURRENT_BYTES_OP)
_LARGEST_STEP = 2.0**15
"""Beyond all bytes with any zero point."""


def unrolled_for(mod: tvm.IRModule, cluster: Cluster) -> tvm.IRModule:
    """Return a module without those of the ops that some device of a cluster has no kernel for."""
    names: tuple[str, ...] = _OPS
    if all(device.kind == "cpu" for device in cluster.devices):
        targets = [device_target(device) for device in cluster.devices]
        names = () if all(map(multiplies_integers, targets)) else (RECURRENT_BYTES_OP,)
    return Unrolled(names)(mod) if names else mod


def Unrolled(names: tuple[str, ...] = _OPS) -> tvm.transform.Pass:  # noqa: N802  (as TVM's passes)
    """Return the pass that replaces calls of these ops; types must be inferred.

    Raises
    ------
    UnsupportedRelayError
        When it runs: a layer has more steps than `MAX_RECURRENT_STEPS`.
    """

    def run(function: relay.Function) -> relay.Function:
        nodes = post_order(function.body)
        mapped: dict[relay.Expr, relay.Expr] = {param: param for param in function.params}

        def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
            if is_recurrent(old) and old.op.name in names:
                return _steps(old, Recurrent(*new.args))
            if isinstance(new, relay.TupleGetItem) and isinstance(new.tuple_value, relay.Tuple):
                return new.tuple_value.fields[new.index]
            return new

        rebuild(nodes, mapped, rewrite)
        return relay.Function(function.params, mapped[function.body], attrs=function.attrs)

    return function_pass("Unrolled", run, ops=_OPS)


def _steps(call: relay.Call, given: Recurrent) -> relay.Expr:
    steps, _, columns = static_shape(call.args[0].checked_type)
    if steps > MAX_RECURRENT_STEPS:
        raise UnsupportedRelayError(
            f"a recurrent layer has {steps} steps, and each is compiled as ops of its own on this "
            f"cluster; the limit is {MAX_RECURRENT_STEPS}. Place it on CPUs only, or give the "
            f"model shorter sequences and call it once for each part"
        )
    hidden = static_shape(call.args[3].checked_type)[1]
    kind = str(call.attrs["kind"])
    weights = _in_rows(given.weights, call.args[1].checked_type, columns, hidden)
    parts = relay.split(given.products, steps, 0) if steps > 1 else [given.products]
    states: list[relay.Expr] = [None] * steps
    state, cell = given.hidden, given.cell
    order = range(steps)
    for time in reversed(order) if call.attrs["is_backward"] else order:
        product = relay.nn.dense(state, weights)
        if given.scales is not None:
            product = _of_bytes(state, weights, given)
        total = relay.add(product, given.biases)
        state, cell = _step(kind, relay.squeeze(parts[time], [0]), total, state, cell)
        states[time] = state
    together = relay.stack(states, 0)
    return relay.Tuple([together, cell]) if kind == "lstm" else together


def _step(
    kind: str, given: relay.Expr, total: relay.Expr, state: relay.Expr, cell: relay.Expr
) -> tuple[relay.Expr, relay.Expr]:
    """Return the next state and cell."""
    count = GATES[kind]
    if kind == "rnn":
        return relay.tanh(relay.add(given, total)), cell
    if kind == "lstm":
        write, show, keep, fresh = relay.split(relay.add(given, total), count, 1)
        old, new = relay.multiply(relay.sigmoid(keep), cell), relay.tanh(fresh)
        cell = relay.add(old, relay.multiply(relay.sigmoid(write), new))
        return relay.multiply(relay.sigmoid(show), relay.tanh(cell)), cell
    inputs, states = relay.split(given, count, 1), relay.split(total, count, 1)
    update, reset = (relay.sigmoid(relay.add(inputs[gate], states[gate])) for gate in range(2))
    fresh = relay.tanh(relay.add(inputs[2], relay.multiply(reset, states[2])))
    return relay.add(fresh, relay.multiply(update, relay.subtract(state, fresh))), cell


def _in_rows(panels: relay.Expr, type_: relay.TensorType, columns: int, depth: int) -> relay.Expr:
    """Undo `in_panels`: [columns, depth]."""
    axes = (0, 2, 1) if len(type_.shape) == 3 else (0, 2, 1, 3)
    return relay.reshape(relay.transpose(panels, axes), (columns, depth))


def _of_bytes(state: relay.Expr, weights: relay.Expr, given: Recurrent) -> relay.Expr:
    """Return the product of a state that is rounded to bytes, float32."""
    zero, shift = relay.const(0.0), relay.const(float(ROUNDING_SHIFT))
    most, least = relay.maximum(relay.max(state), zero), relay.minimum(relay.min(state), zero)
    span = relay.subtract(most, least)
    scale = relay.where(relay.equal(span, zero), relay.const(1.0), span / relay.const(255.0))

    def steps(value: relay.Expr) -> relay.Expr:
        aligned = relay.add(relay.divide(value, scale), shift)
        limits = ROUNDING_SHIFT - _LARGEST_STEP, ROUNDING_SHIFT + _LARGEST_STEP
        return relay.subtract(relay.clip(aligned, *limits), shift)

    point = relay.clip(steps(relay.negative(least)), 0, 255)
    numbers = relay.cast(relay.clip(relay.add(steps(state), point), 0, 255), "uint8")
    total = relay.nn.dense(numbers, weights, out_dtype="int32")
    centred = relay.subtract(total, relay.multiply(relay.cast(point, "int32"), given.sums))
    return relay.multiply(relay.cast(centred, "float32"), relay.multiply(scale, given.scales))
