"""A Relay call -> which op of routed networks it is, if any.

The core knows these ops by name, so that it finds routers without loading the part `routing`, which
gives the ops their meaning (`parts/routing/relay/ops.py`).
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.relay.expressions import is_primitive, post_order

PREFIX = "heteroplace."
"""Names of the ops begin with this."""
ROUTER_OPS = (
    "router",
    "dispatch",
    "take_branch",
    "join_branches",
    "combine",
    "enter_branch",
    "select",
)
"""Kinds of ops in a routed network: their names without the prefix."""
_VIEWS = ("take_branch", "join_branches", "enter_branch")


def has_routers(mod: tvm.IRModule) -> bool:
    """Say whether `main` has routers."""
    return any(routing_kind(node) == "router" for node in post_order(mod["main"].body))


def routing_kind(expr: relay.Expr) -> str | None:
    """Return which of the ops a call is of, e.g. "dispatch"; None: of none."""
    return kind_of_op(expr.op) if isinstance(expr, relay.Call) else None


def kind_of_op(op: relay.Expr) -> str | None:
    """Return the same of what a call calls."""
    if not isinstance(op, tvm.ir.Op):
        return None
    name = str(op.name)  # Relay has ops of some of these kinds
    kind = name.removeprefix(PREFIX)
    return kind if name.startswith(PREFIX) and kind in ROUTER_OPS else None


def fused_router_op(call: relay.Expr) -> relay.Call | None:
    """Return the router op that a fused function consists of; None: it is another function."""
    if not isinstance(call, relay.Call):
        return None
    function = call.op
    body = function.body if is_primitive(function) else None
    return None if routing_kind(body) is None else body


def is_view(call: relay.Expr) -> bool:
    """Say whether a call of a fused function moves no data, and is no task."""
    op = fused_router_op(call)
    return op is not None and routing_kind(op) in _VIEWS
