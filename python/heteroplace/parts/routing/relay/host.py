"""A router that is a function on the host: an op that calls it, and gives it a mask to fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relay, te, tir, topi

from heteroplace.errors import RoutingError
from heteroplace.relay.router_ops import PREFIX
from heteroplace.tvm_bridge import add_relay_op

NAME = PREFIX + "host_decision"


def call_host(function: str, inputs: Sequence[relay.Expr], shape: tuple[int, int]) -> relay.Call:
    """Return the mask int32[cells, branches] that a registered PackedFunc fills.

    Raises
    ------
    RoutingError
        It is to read nothing.
    """
    if not inputs:
        raise RoutingError(f"the router function {function!r} reads nothing; give it a tensor")
    arguments = {"data": ("Tuple of Tensors", "what the function reads")}
    # What it does depends on more than what it reads.
    add_relay_op(NAME, "A mask that a function on the host fills.", arguments, _type_of, _compute,
                 _schedule_host, is_stateful=True)  # fmt: skip
    attrs = tvm.ir.make_node("DictAttrs", function=function, shape=list(shape))
    return relay.Call(tvm.ir.Op.get(NAME), [relay.Tuple(list(inputs))], attrs)


def is_host_decision(expr: relay.Expr) -> bool:
    """Say whether a mask is what a function on the host fills."""
    is_call = isinstance(expr, relay.Call) and isinstance(expr.op, tvm.ir.Op)
    return is_call and str(expr.op.name) == NAME


def _type_of(_arguments: Any, attrs: Any) -> tvm.ir.Type:
    return relay.TensorType([int(extent) for extent in attrs["shape"]], "int32")


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    def body(reads: list[Any], makes: list[Any]) -> Any:
        return tir.call_packed(str(attrs["function"]), *reads, makes[0])

    shape = [int(extent) for extent in attrs["shape"]]
    return [te.extern([shape], list(tensors), body, name="host_decision", dtype=["int32"])]


def _schedule_host(_attrs: Any, outs: Any, _target: Any) -> Any:
    return topi.generic.schedule_extern(outs)
