"""A fused function of a routing op -> the same without names that its kernel does not say.

Ops read the name of the router that they belong to, and routers their own and what is predicted of
them: passes need it, so that no two of them are merged. Kernels do not, and a network of many
routers has fewer. (Of a mask that a kernel refuses the executor knows the router.)

before ==> after

    heteroplace.select(%branches, router="gate")  ==>  heteroplace.select(%branches, router="")
    heteroplace.router(%mask, name="gate")        ==>  heteroplace.router(%mask, name="")
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.relay.local_types import write_types
from heteroplace.relay.router_ops import routing_kind

_UNSAID = ("name", "router", "memories", "predict", "preload")
"""Attributes by which no kernel differs."""


def nameless(function: relay.Function) -> relay.Function:
    """Return a typed fused function without what its kernel does not say; one that is not a single
    op of routing is returned as it is."""
    op = function.body
    if routing_kind(op) is None:
        return function
    attributes = {str(key): value for key, value in op.attrs.items()}
    unsaid = {name: "" for name in _UNSAID if attributes.get(name)}
    if not unsaid:
        return function
    attrs = tvm.ir.make_node("DictAttrs", **attributes | unsaid)
    body = relay.Call(op.op, list(op.args), attrs, None, op.span)
    renamed = relay.Function(function.params, body, function.ret_type, [], function.attrs)
    write_types(body)
    write_types(renamed)
    return renamed
