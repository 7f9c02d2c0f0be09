"""A module with routers -> for each value, in which branches of which routers it is made.

A value is made in a branch if it depends on the branch's rows (`take_branch`) or on a tensor that
entered it whole (`enter_branch`), and leaves it by `join_branches` or `select` only. A router
whose cells are rows of a branch is nested in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tvm import relay

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.relay.ops import branch_around
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import (
    is_primitive,
    is_primitive_call,
    post_order,
    post_order_of_function,
)
from heteroplace.relay.router_ops import kind_of_op, routing_kind
from heteroplace.relay.tasks.fold import children


class RoutingCall(NamedTuple):
    """A call of an op of routing: the op itself, or the fused function that holds nothing else."""

    kind: str
    """Which op, e.g. "dispatch"."""
    op: relay.Call
    """The call of the op, for its attributes."""
    reads: tuple[relay.Expr, ...]
    """What it reads, in the function around it."""


class InBranch(NamedTuple):
    """One branch that a value is made in."""

    router: relay.Expr
    """The call of the router."""
    branch: int
    """Which of its branches."""


Branches = tuple[InBranch, ...]
"""The branches that a value is made in, outermost first."""


def routing_call(expr: relay.Expr) -> RoutingCall | None:
    """Return what a call of an op of routing says, fused or not; None: it is another expression."""
    if not isinstance(expr, relay.Call):
        return None
    op = expr.op
    kind = kind_of_op(op)
    if kind is not None:
        return RoutingCall(kind, expr, tuple(_opened(expr.args[0])))
    body = op.body if is_primitive(op) else None
    kind = routing_kind(body)
    if body is None or kind is None:
        return None
    given = dict(zip(op.params, expr.args, strict=True))
    inner = body.args[0]
    fields = inner.fields if isinstance(inner, relay.Tuple) else [inner]
    reads = [read for field in fields for read in _opened(given.get(field, field))]
    return RoutingCall(kind, body, tuple(reads))


def router_of(loads: relay.Expr) -> relay.Expr:
    """Return the call of the router that a tensor of its results is of."""
    if not isinstance(loads, relay.TupleGetItem):
        raise RoutingError(
            "an op of routing reads loads that are no result of a router; give it the router's own"
        )
    return loads.tuple_value


def branches_around(values: Sequence[relay.Expr]) -> Branches:
    """Return the innermost branches of what is being made: what `branches_of_values` says of it.

    It asks each router in which branch it is, as its op says, and looks no further up: what a
    network costs to make is linear in its routers.

    Raises
    ------
    RoutingError
        Values of two branches.
    """
    deepest: Branches = ()
    pending = list(values)
    seen: set[relay.Expr] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        call = routing_call(node)
        if call is None:
            pending += children(node)
            continue
        router = node if call.kind == "router" else router_of(of_router(call.op, call.reads))
        branches = _branches_of_router(router)
        if call.kind in ("take_branch", "enter_branch"):
            branches = (*branches, InBranch(router, int(call.op.attrs["branch"])))
        deepest = _deeper(node, branches, deepest)
    return deepest


def _branches_of_router(router: relay.Expr) -> Branches:
    """The branches that a router says it is in."""
    branches: list[InBranch] = []
    while True:
        call = routing_call(router)
        around = None if call is None else branch_around(call.op.attrs)
        if call is None or around is None:
            return tuple(reversed(branches))
        router = router_of(call.reads[-1])
        branches.append(InBranch(router, around.branch))


def of_router(op: relay.Call, reads: Sequence[relay.Expr]) -> relay.Expr:
    """Return a result of the router that a call of another op of routing belongs to."""
    kind = routing_kind(op)
    if kind == "select":
        return reads[len(reads) - 1 - int(op.attrs["has_residual"])]
    places = {"dispatch": 1, "combine": 1, "take_branch": 1, "enter_branch": 1}
    return reads[places.get(str(kind), -1)]


def branches_of_values(body: relay.Expr) -> ExprMap[Branches]:
    """Return for each value under `body` the branches that it is made in; tuples are left out.

    Raises
    ------
    RoutingError
        An op reads values of two branches.
    """
    branches_of: ExprMap[Branches] = ExprMap()
    for node in post_order(body):
        if isinstance(node, relay.TupleGetItem):
            whole = node.tuple_value
            opened = whole.fields[node.index] if isinstance(whole, relay.Tuple) else whole
            branches_of[node] = branches_of.get(opened, ())
        elif isinstance(node, relay.Call):
            branches_of[node] = _branches_of_call(node, branches_of)
        elif not isinstance(node, relay.Tuple):
            branches_of[node] = ()
    return branches_of


def _branches_of_call(node: relay.Call, branches_of: ExprMap[Branches]) -> Branches:
    call = routing_call(node)
    if call is None:
        reads = [read for argument in node.args[:] for read in _opened(argument)]
        return _innermost(node, reads, branches_of)
    if call.kind in ("take_branch", "enter_branch"):
        inside = InBranch(router_of(call.reads[1]), int(call.op.attrs["branch"]))
        return (*_innermost(node, call.reads, branches_of), inside)
    if call.kind == "router" and (around := branch_around(call.op.attrs)) is not None:
        loads = call.reads[-1]
        inside = InBranch(router_of(loads), around.branch)
        branches_of[node] = (*_innermost(node, [loads], branches_of), inside)
        return _innermost(node, [node, *call.reads], branches_of)
    if call.kind == "join_branches":
        return _left(node, call.reads[:-2], call.reads[-2:], branches_of)
    if call.kind == "select":
        count = len(call.reads) - 1 - int(call.op.attrs["has_residual"])
        return _left(node, call.reads[:count], call.reads[count:], branches_of)
    return _innermost(node, call.reads, branches_of)


def _left(
    node: relay.Call,
    branches: Sequence[relay.Expr],
    others: Sequence[relay.Expr],
    branches_of: ExprMap[Branches],
) -> Branches:
    """The branches that are still open where a router's branches come together."""
    outer = _innermost(node, others, branches_of)
    loads = next(other for other in others if isinstance(other, relay.TupleGetItem))
    for branch, value in enumerate(branches):
        inside = (*outer, InBranch(router_of(loads), branch))
        if not _is_prefix(branches_of[value], inside):
            raise RoutingError(
                f"{_name(node)} reads as result of branch {branch} a value that is made in another "
                f"branch, or in a router nested in it"
            )
    return outer


def _innermost(
    node: relay.Call, reads: Sequence[relay.Expr], branches_of: ExprMap[Branches]
) -> Branches:
    """The branches of what is read, of which each must be inside of the others'."""
    deepest: Branches = ()
    for read in reads:
        deepest = _deeper(node, branches_of[read], deepest)
    return deepest


def _deeper(reader: relay.Call, one: Branches, other: Branches) -> Branches:
    """The longer of two, which must begin with the other."""
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    if not _is_prefix(shorter, longer):
        raise RoutingError(
            f"{_name(reader)} reads values of two branches of one router; they come together in "
            f"the router's result only"
        )
    return longer


def _is_prefix(shorter: Branches, longer: Branches) -> bool:
    pairs = zip(shorter, longer, strict=False)
    return len(shorter) <= len(longer) and all(
        one.branch == other.branch and one.router.same_as(other.router) for one, other in pairs
    )


def _opened(expr: relay.Expr) -> list[relay.Expr]:
    """The tensors that an argument names, tuples that are written out opened."""
    if isinstance(expr, relay.Tuple):
        return [leaf for field in expr.fields[:] for leaf in _opened(field)]
    return [expr]


def _name(node: relay.Call) -> str:
    if is_primitive_call(node):
        ops = [one for one in post_order_of_function(node.op) if isinstance(one, relay.Call)]
        return "+".join(str(one.op.name) for one in ops)
    return str(getattr(node.op, "name", "a function"))
