"""What a branch made of its rows -> the same, checked: each result an op of its own, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import tvm
from tvm import relay

from heteroplace.errors import RoutingError, UnsupportedRelayError
from heteroplace.parts.routing.relay.ops import BranchRows, branch_around, enter_branch, reads_of
from heteroplace.relay.expressions import rebuild
from heteroplace.relay.local_types import write_types
from heteroplace.relay.router_ops import routing_kind
from heteroplace.relay.tasks.fold import children
from heteroplace.relay.tasks.rebatch import Growth, Rebatcher


def checked_results(
    rows: Sequence[relay.Expr],
    values: Sequence[relay.Expr],
    of: BranchRows,
    loads: relay.Expr,
) -> list[relay.Expr]:
    """Return the results of a branch, each made by an op of it, and by one that no other is of.

    A result that is handed on (the rows themselves, or a value from outside) is copied by the
    branch: it is there only if the branch is run.

    Raises
    ------
    RoutingError
        A result that is no tensor, or whose rows do not follow from the rows one by one.
    """
    inside = _made_of(rows, values)
    results: list[relay.Expr] = []
    for value in values:
        is_own = value in inside and routing_kind(value) is None
        if not is_own and value not in inside and of.rows == 1:
            value = enter_branch(value, loads, of.router, of.branch)
        is_new = not any(value.same_as(other) for other in results)
        results.append(value if is_own and is_new else relay.copy(value))
    if of.rows > 1:
        _check_apart(rows, values, inside, of)
    return results


def _made_of(rows: Sequence[relay.Expr], values: Sequence[relay.Expr]) -> dict[relay.Expr, None]:
    """What of the values depends on the rows, operands first, the rows themselves included.

    The walk ends at the rows: what they are made of, which may be all of a network so far, is not
    looked at.
    """
    exprs = dict.fromkeys(rows)
    seen = {*rows, *(read for row in rows for read in reads_of(row))}
    pending = [(value, False) for value in reversed(values)]
    while pending:
        node, is_ready = pending.pop()
        if is_ready:
            if any(child in exprs for child in children(node)):
                exprs[node] = None
        elif node not in seen:
            seen.add(node)
            pending.append((node, True))
            pending += [(child, False) for child in reversed(children(node))]
    return exprs


def _check_apart(
    rows: Sequence[relay.Expr],
    values: Sequence[relay.Expr],
    inside: dict[relay.Expr, None],
    of: BranchRows,
) -> None:
    """Refuse a branch that mixes rows. One that holds a router is checked where that is, if the
    router knows that it is in the branch."""
    nodes = [node for node in inside if not any(node.same_as(row) for row in rows)]
    kinds = [routing_kind(node) for node in nodes]
    for kind, node in zip(kinds, nodes, strict=True):
        if kind == "router" and branch_around(node.attrs) is None:
            raise RoutingError(
                f"branch {of.branch} of router {of.router!r} holds router "
                f"{str(node.attrs['name'])!r}, which was made outside of it and would count rows "
                f"that hold no cell; route the rows that the branch is given, in a Python function"
            )
    if any(kind is not None for kind in kinds):
        return
    mapped: dict[relay.Expr, relay.Expr] = {}
    captured: list[relay.Var] = []
    for at, row in enumerate(rows):
        write_types(row)
        mapped[row] = relay.Var(f"rows.{at}", row.checked_type)
    items = [mapped[row] for row in rows]
    for node in nodes:
        for child in children(node):
            if child in mapped or isinstance(child, relay.Constant):
                mapped.setdefault(child, child)
                continue
            write_types(child)
            mapped[child] = relay.Var(f"captured.{len(captured)}", child.checked_type)
            captured.append(mapped[child])
        rebuild([node], mapped)
    body = relay.Tuple([mapped.get(value, value) for value in values])
    function = relay.Function([*items, *captured], body)
    try:
        # Each row is an item: axes of which a place holds parts of two are refused, too.
        growths = {item.name_hint: Growth(Fraction(2), of.rows) for item in items}
        typed = relay.transform.InferType()(tvm.IRModule.from_expr(function))
        Rebatcher(growths, "other numbers of rows").run(typed["main"])
    except UnsupportedRelayError as err:
        raise RoutingError(
            f"branch {of.branch} of router {of.router!r} does not treat its cells one by one: {err}"
        ) from err
