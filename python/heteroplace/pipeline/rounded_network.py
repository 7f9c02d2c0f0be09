"""A network -> the same in float32, with a switch for each task that rounds its products.

One compiled program then tells how far any choice of tasks in bfloat16 moves the outputs:

    dense(x, w)  ==>  dense(x', w) + s dense(x', round(w) - w)     x' = x + s (round(x) - x)

where s is 0 or 1, an input. Products with constant weights have switches; others stay in float32,
as the kernels for CPUs do (`parts/kernels/rewrites/bfloat16_products`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm
from tvm import relay

from heteroplace.model.implementations import BFLOAT16_OPS
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import op_name, rebuilt, task_of_span

SWITCHES = "heteroplace_switches"
"""The input that holds a number for each task: 1: its products are rounded; 0: they are not."""

_HALF = 0x7FFF


def with_switches(mod: tvm.IRModule, tasks: Sequence[str]) -> tvm.IRModule:
    """Return a neutral, typed module with switches for some tasks, by their positions.

    Its outputs are those of the network, and SWITCHES is its last input.
    """
    main = mod["main"]
    switches = relay.var(SWITCHES, shape=(len(tasks),), dtype="float32")
    positions = {name: index for index, name in enumerate(tasks)}
    mapped: ExprMap[relay.Expr] = ExprMap()

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        position = positions.get(task_of_span(old) or "")
        if position is None or not _is_lowered(old):
            return new
        switch = relay.take(switches, relay.const(position, "int32"))
        return _with_switch(old, mapped[old.args[0]], switch)

    function = rebuilt(main, rewrite, mapped, BFLOAT16_OPS)
    with_input = relay.Function([*main.params, switches], function.body)
    return relay.transform.InferType()(tvm.IRModule.from_expr(with_input))


def switched(inputs: Mapping[str, np.ndarray], on: Sequence[bool]) -> dict[str, np.ndarray]:
    """Return the inputs of a network together with its switches."""
    return {**inputs, SWITCHES: np.asarray(on, np.float32)}


def _is_lowered(call: relay.Expr) -> bool:
    if op_name(call) not in BFLOAT16_OPS or not isinstance(call.args[1], relay.Constant):
        return False
    is_float = all(each.checked_type.dtype == "float32" for each in (*call.args, call))
    return is_float and (op_name(call) != "nn.conv2d" or int(call.attrs.groups) == 1)


def _with_switch(call: relay.Call, data: relay.Expr, switch: relay.Expr) -> relay.Expr:
    def product(of: relay.Expr, weights: relay.Expr) -> relay.Call:
        return relay.Call(call.op, [of, weights], call.attrs, call.type_args, call.span)

    weights = call.args[1]
    array = weights.data.numpy()
    lost = relay.const(_rounded_array(array) - array)
    moved = data + switch * (_rounded(data) - data)
    return product(moved, weights) + switch * product(moved, lost)


def _rounded_array(array: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest: np.ndarray = ((bits + np.uint32(_HALF) + ((bits >> 16) & 1)) >> 16 << 16).view(
        np.float32
    )
    return nearest


def _rounded(value: relay.Expr) -> relay.Expr:
    """Numbers rounded to bfloat16, to nearest, ties to even."""

    def const(number: int) -> relay.Constant:
        return relay.const(number, "uint32")

    bits = relay.reinterpret(value, "uint32")
    odd = relay.bitwise_and(relay.right_shift(bits, const(16)), const(1))
    upper = relay.right_shift(bits + const(_HALF) + odd, const(16))
    return relay.reinterpret(relay.left_shift(upper, const(16)), "float32")
