"""A module with routers -> the same network of stock ops, every branch on all cells: the oracle.

    take_branch(dispatch(%x))      ==>  %x                               (times its gates)
    combine(join_branches(%y ..))  ==>  sum of where(%mask[:, b], %y_b * %gate[:, b], 0)
    select(%y .., %loads)          ==>  sum of where(%loads[b] > 0, %y_b, 0)

What a branch makes of cells that are not its own is computed and left out. Seats, where they
matter (a router that drops cells), are counted by `cumsum`, or by comparing all cells with all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relay

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.relay.cells import shape_of, type_of
from heteroplace.parts.routing.relay.ops import branch_around
from heteroplace.parts.routing.relay.regions import RoutingCall, branches_of_values, routing_call
from heteroplace.parts.routing.relay.router import RouterOptions, router_options
from heteroplace.relay.expressions import post_order, rebuild
from heteroplace.relay.router_ops import routing_kind

_SEATS, _LOADS, _OFFSETS = range(3)


def dense_masked(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module whose `main` has no ops of routing.

    Raises
    ------
    RoutingError
        A result of these ops is read by others: a routed buffer, offsets; or the rows of a branch
        are fewer than the cells.
    """
    main = relay.transform.InferType()(mod)["main"]
    body = _Dense(main.body).run()
    dense = relay.Function(main.params, body, attrs=main.attrs)
    return relay.transform.InferType()(tvm.IRModule.from_expr(dense))


@tvm.transform.module_pass(opt_level=0, name="DenseMasked")
class DenseMasked:
    """The pass `relay.transform.DenseMasked()`: every branch on all cells, by stock ops."""

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the module without ops of routing; see `dense_masked`."""
        return dense_masked(mod)


class _Taken(NamedTuple):
    """A router: which cells take which branches."""

    options: RouterOptions
    mask: relay.Expr
    """bool[C, B]."""
    seats: relay.Expr
    """int32[C, B], 0 where a cell takes no branch or is dropped."""
    kept: relay.Expr
    """bool[C, B]: seats above 0, by the shortest way."""
    keys: tuple[relay.Expr, ...]
    """By what its cells are seated, smallest first; none: in their order."""


class _Field(NamedTuple):
    taken: _Taken
    field: int


class _Buffer(NamedTuple):
    x: relay.Expr
    gates: relay.Expr | None
    is_by_branch: bool


class _Joined(NamedTuple):
    values: tuple[relay.Expr, ...]


class _Dense:
    """One walk over a body, operands first."""

    def __init__(self, body: relay.Expr) -> None:
        self._body = body
        self._in_branches = branches_of_values(body)
        self._mapped: dict[relay.Expr, Any] = {}

    def run(self) -> relay.Expr:
        for node in post_order(self._body):
            call = routing_call(node) if routing_kind(node) is not None else None
            if call is not None:
                self._mapped[node] = self._routed(node, call)
            elif isinstance(node, relay.TupleGetItem) and self._is_taken(node.tuple_value):
                self._mapped[node] = _Field(self._mapped[node.tuple_value], node.index)
            elif isinstance(node, relay.Tuple):
                continue  # of whatever it is read for
            else:
                self._stock(node)
        return self._value(self._body)

    def _is_taken(self, node: relay.Expr) -> bool:
        return isinstance(self._mapped.get(node), _Taken)

    def _stock(self, node: relay.Expr) -> None:
        """An op of TVM, whose operands are values."""
        value_of = {operand: self._value(operand) for operand in _operands(node)}
        rebuild([node], value_of)
        self._mapped[node] = value_of[node]

    def _value(self, node: relay.Expr) -> relay.Expr:
        """What stands for an expression, as one of Relay."""
        if isinstance(node, relay.Tuple):
            return relay.Tuple([self._value(field) for field in node.fields], node.span)
        value = self._mapped.get(node, node)
        if isinstance(value, _Field) and value.field == _SEATS:
            return value.taken.seats
        if isinstance(value, _Field) and value.field == _LOADS:
            return relay.sum(relay.cast(value.taken.mask, "int32"), axis=0)
        if isinstance(value, tuple):
            raise RoutingError(
                "a routed buffer, its offsets or a router's results as one tuple are read by an op "
                "that is none of routing, or are outputs; a dense module has none of them"
            )
        return value

    def _routed(self, node: relay.Call, call: RoutingCall) -> Any:
        if call.kind == "router":
            return self._router(node, call)
        if call.kind == "dispatch":
            gates = self._value(call.reads[3]) if len(call.reads) > 3 else None
            by_branch = bool(int(call.op.attrs["is_by_branch"]))
            return _Buffer(self._value(call.reads[0]), gates, by_branch)
        if call.kind == "take_branch":
            return self._take(call)
        if call.kind == "join_branches":
            return _Joined(tuple(self._value(value) for value in call.reads[:-2]))
        if call.kind == "combine":
            return self._combine(call)
        if call.kind == "enter_branch":
            return self._value(call.reads[0])
        return self._select(call)

    def _taken(self, read: relay.Expr) -> _Taken:
        taken = self._mapped[read]
        assert isinstance(taken, _Field)  # or `branches_of_values` would have refused it
        return taken.taken

    def _router(self, node: relay.Call, call: RoutingCall) -> _Taken:
        options = router_options(call.op.attrs)
        mask = relay.not_equal(self._value(call.reads[0]), relay.const(0, "int32"))
        reads, around = list(call.reads[1:]), branch_around(call.op.attrs)
        if around is not None:
            outer = self._taken(reads.pop())
            _check_rows(call, outer)
            valid = relay.take(outer.kept, _index(around.branch), axis=1)
            each = shape_of(mask)[0] // around.rows
            valid = relay.repeat(valid, each, 0) if each > 1 else valid
            mask = relay.logical_and(mask, relay.expand_dims(valid, 1))
        priority = self._value(reads[0]) if reads else None
        keys = (*([] if priority is None else [_descending(priority)]), *self._outer_keys(node))
        counted = relay.cast(mask, "int32")
        ranks = relay.cumsum(counted, axis=0) if not keys else _ranks(counted, keys)
        present = mask
        if options.overflow == "drop":
            limits = np.array([sizes[-1] for sizes in options.capacities], dtype="int32")
            present = relay.logical_and(mask, relay.less_equal(ranks, relay.const(limits)))
        seats = relay.where(present, ranks, relay.const(0, "int32"))
        return _Taken(options, mask, seats, present, keys)

    def _outer_keys(self, node: relay.Call) -> tuple[relay.Expr, ...]:
        """By what the rows of the branch are ordered that a router is nested in."""
        branches = self._in_branches[node]
        if not branches:
            return ()
        outer = self._mapped[branches[-1].router]
        if not outer.keys:
            return ()
        seats = relay.cast(relay.take(outer.seats, _index(branches[-1].branch), axis=1), "float32")
        each = shape_of(node.args[0].fields[0])[0] // shape_of(outer.mask)[0]
        return (relay.repeat(seats, each, 0) if each > 1 else seats,)

    def _take(self, call: RoutingCall) -> relay.Expr:
        buffer, taken = self._mapped[call.reads[0]], self._taken(call.reads[1])
        _check_rows(call, taken)
        branch, x = int(call.op.attrs["branch"]), buffer.x
        if buffer.is_by_branch:
            x = relay.take(x, _index(branch), axis=1)
        return x if buffer.gates is None else relay.multiply(x, _column(buffer.gates, branch, x))

    def _combine(self, call: RoutingCall) -> relay.Expr:
        joined, taken = self._mapped[call.reads[0]], self._taken(call.reads[1])
        others = [self._value(read) for read in call.reads[3:]]
        gates = others[0] if int(call.op.attrs["has_gates"]) else None
        values = []
        for branch, value in enumerate(joined.values):
            gated = value if gates is None else relay.multiply(value, _column(gates, branch, value))
            values.append((_column(taken.kept, branch, value, "bool"), gated))
        left = others[-1] if int(call.op.attrs["has_residual"]) else None
        return _sum_of(values, left)

    def _select(self, call: RoutingCall) -> relay.Expr:
        has_residual = int(call.op.attrs["has_residual"])
        count = len(call.reads) - 1 - has_residual
        mask = self._taken(call.reads[count]).mask
        is_active = relay.any(mask, axis=0)
        values = []
        for branch, read in enumerate(call.reads[:count]):
            value = self._value(read)
            values.append((relay.take(is_active, _index(branch), axis=0), value))
        return _sum_of(values, self._value(call.reads[-1]) if has_residual else None)


def _sum_of(
    values: Sequence[tuple[relay.Expr, relay.Expr]], residual: relay.Expr | None
) -> relay.Expr:
    """Sum of the values that their masks let through; the residual where none does."""
    total, reached = None, None
    for mask, value in values:
        zero = relay.const(0, type_of(value).dtype)
        part = relay.where(mask, value, zero)
        total = part if total is None else relay.add(total, part)
        reached = mask if reached is None else relay.logical_or(reached, mask)
    return total if residual is None else relay.where(reached, total, residual)


def _ranks(mask: relay.Expr, keys: Sequence[relay.Expr]) -> relay.Expr:
    """int32[C, B]: how many cells of a branch come before a cell, and itself."""
    cells = shape_of(mask)[0]
    places = relay.const(np.arange(cells, dtype="float32"))
    before: relay.Expr = relay.const(np.zeros((cells, cells), dtype="bool"))
    is_tie: relay.Expr = relay.const(np.ones((cells, cells), dtype="bool"))
    for key in (*keys, places):
        mine, other = relay.expand_dims(key, 1), relay.expand_dims(key, 0)
        before = relay.logical_or(before, relay.logical_and(is_tie, relay.less(other, mine)))
        is_tie = relay.logical_and(is_tie, relay.equal(other, mine))
    # Exact: counts below 2^24.
    first = relay.cast(relay.logical_or(before, is_tie), "float32")
    counts = relay.nn.matmul(first, relay.cast(mask, "float32"))
    return relay.cast(counts, "int32")


def _descending(priority: relay.Expr) -> relay.Expr:
    """A key of which the smallest is the highest priority, and what is no number the largest."""
    last = relay.const(np.finfo("float32").max)
    return relay.where(relay.equal(priority, priority), relay.negative(priority), last)


def _column(
    table: relay.Expr, branch: int, like: relay.Expr, dtype: str | None = None
) -> relay.Expr:
    """table[C, B] for a branch, to be broadcast over values of rows, in their type."""
    type_ = type_of(like)
    column = relay.take(table, _index(branch), axis=1)
    column = relay.reshape(column, [-1] + [1] * (len(type_.shape) - 1))
    column_dtype = dtype or type_.dtype
    return column if type_of(table).dtype == column_dtype else relay.cast(column, column_dtype)


def _index(branch: int) -> relay.Constant:
    return relay.const(branch, "int32")


def _operands(node: relay.Expr) -> list[relay.Expr]:
    if isinstance(node, relay.Call):
        return list(node.args)
    return [node.tuple_value] if isinstance(node, relay.TupleGetItem) else []


def _check_rows(call: RoutingCall, taken: _Taken) -> None:
    rows, cells = int(call.op.attrs["rows"]), shape_of(taken.mask)[0]
    if rows != cells:
        raise RoutingError(
            f"branch {int(call.op.attrs['branch'])} of router {taken.options.name!r} has {rows} "
            f"rows of {cells} cells; only a module before it is specialised has a dense form"
        )
