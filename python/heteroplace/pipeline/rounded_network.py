"""A network -> the same in float32, with a switch for each task that rounds its products.

One compiled program then tells how far any choice of tasks in bfloat16 moves the outputs:

    dense(x, w)  ==>  dense(x', w) + s dense(x', round(w) - w)     x' = x + s (round(x) - x)

where s is 0 or 1, an input. Filters that are a constant times a gate lose what the constant loses,
times the gate. Products with constant weights have switches; others stay in float32,
as the kernels for CPUs do (`parts/kernels/rewrites/bfloat16_products`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm
from tvm import relay

from heteroplace.bfloat16_bits import rounded_to_bfloat16
from heteroplace.relay.bfloat16_rounding import rounded_value
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import rebuilt, task_of_span
from heteroplace.relay.products import constant_weights, gated_weights

SWITCHES = "heteroplace_switches"
"""The input that holds a number for each task: 1: its products are rounded; 0: they are not."""


def with_switches(mod: tvm.IRModule, tasks: Sequence[str]) -> tvm.IRModule:
    """Return a neutral, typed module with switches for some tasks, by their positions.

    Its outputs are those of the network, and SWITCHES is its last input.
    """
    main = mod["main"]
    switches = relay.var(SWITCHES, shape=(len(tasks),), dtype="float32")
    positions: dict[str | None, int] = {name: index for index, name in enumerate(tasks)}
    mapped: ExprMap[relay.Expr] = ExprMap()

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if not isinstance(old, relay.Call) or task_of_span(old) not in positions:
            return new
        gated = gated_weights(old)
        constant = gated[0] if gated is not None else constant_weights(old)
        if constant is None:
            return new
        array = constant.data.numpy()
        lost: relay.Expr = relay.const(rounded_to_bfloat16(array) - array)
        if gated is not None:
            lost = relay.multiply(lost, mapped[gated[1]])
        position = positions[task_of_span(old)]
        switch = relay.take(switches, relay.const(position, "int32"))
        return _with_switch(new, lost, switch)

    function = rebuilt(main, rewrite, mapped)
    with_input = relay.Function([*main.params, switches], function.body)
    return relay.transform.InferType()(tvm.IRModule.from_expr(with_input))


def switched(inputs: Mapping[str, np.ndarray], on: Sequence[bool]) -> dict[str, np.ndarray]:
    """Return the inputs of a network together with its switches."""
    return {**inputs, SWITCHES: np.asarray(on, np.float32)}


def _with_switch(call: relay.Call, lost: relay.Expr, switch: relay.Expr) -> relay.Expr:
    """A product with its switch; `lost` is by how much its weights are rounded."""
    data, weights = call.args

    def product(of: relay.Expr, weights: relay.Expr) -> relay.Call:
        return relay.Call(call.op, [of, weights], call.attrs, call.type_args, call.span)

    moved = data + switch * (rounded_value(data) - data)
    return product(moved, weights) + switch * product(moved, lost)
