"""Relay's argmax and argmin -> the same kernels, compiled without a warning of TVM.

TVM folds pairs of a place and a value, and only the place has a consumer. `InferBound` then prints
the value's whole expression to the standard error, with a path of the computer TVM was built on
("not in feed graph consumer"). Here the result reads both, in a form whose value is
the place, whatever the condition says:

    place[i]  ==>  select(place[i] == place[i] and value[i] == value[i], place[i], place[i])

TVM's simplifier takes the condition out again, so the lowered kernel is TVM's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relay, te, tir
from tvm.relay.op.strategy import generic
from tvm.target import get_native_generic_func

_OPS = ("argmax", "argmin")


def register_quiet_argmax() -> None:
    """Register the computes of both ops for all targets; doing it again changes nothing."""
    schedules = generic.schedule_reduce
    for name in _OPS:
        compute = tvm.ir.Op.get(name).get_attr("FTVMCompute")
        registered = get_native_generic_func(f"{name}_strategy")
        registered.set_default(_strategy(compute, schedules.fdefault), allow_override=True)
        for key, schedule in schedules.dispatch_dict.items():
            registered.register(_strategy(compute, schedule), [key], allow_override=True)


def _strategy(
    compute: Callable[..., Any], schedule: Callable[..., Any]
) -> Callable[..., relay.op.OpStrategy]:
    def compute_quietly(attrs: Any, inputs: Any, out_type: Any) -> list[te.Tensor]:
        return [reading_both(place) for place in compute(attrs, inputs, out_type)]

    def strategy_of(*_: Any) -> relay.op.OpStrategy:
        strategy = relay.op.OpStrategy()
        strategy.add_implementation(compute_quietly, schedule, name=schedule.__name__)
        return strategy

    return strategy_of


def reading_both(places: te.Tensor) -> te.Tensor:
    """Return the result of TVM's compute as one that reads both outputs of the fold."""
    fold = places.op.input_tensors[0].op

    def place(*indices: tir.Var) -> tir.PrimExpr:
        at, value = (fold.output(number)(*indices) for number in range(2))
        # The place comes first: TVM's schedules take the first tensor read for it.
        is_read = tir.And(tir.EQ(at, at), tir.EQ(value, value))
        return tir.Select(is_read, at, at)

    return te.compute(places.shape, place, name=places.op.name, tag=places.op.tag)
