"""Routed networks in Relay: ops that decide, move rows of cells, and bring them together again.

Each op reads one tuple. TVM knows what they compute, so a module with them is an ordinary static
one that stock TVM runs: every branch then computes as many rows as there are cells. C cells, B
branches, R rows of a routed buffer (`rows.buffer_rows`):

    router((mask[, priority][, loads]))    -> (seats[C,B], loads[B], offsets[B]), int32
    dispatch((x, seats, offsets[, gates])) -> buffer[R, cell..]
    take_branch((buffer, loads, offsets))  -> rows of one branch; those above its load are 0
    join_branches((y_0, .., loads, offsets)) -> joined[R, out..]
    combine((joined, seats, offsets[, gates][, residual])) -> y[C, out..]
    enter_branch((x, loads))               -> x, whole, in a branch: where there is one cell
    select((y_0, .., loads[, residual]))   -> sum of the branches that were chosen

A mask has a number other than 0 where a cell (its row) takes a branch (its column). `seats` is the
rank of the cell among those of the branch, from 1; 0: it is not in it, or was dropped. `loads`
counts all that chose the branch, dropped or not. `offsets` says where a branch begins in a buffer.
A router in a branch of another one reads that one's loads last: cells in rows above the branch's
load are none, whatever the mask holds there.
Rows between a branch's load and the next branch are never written by dispatch and join, and never
read by combine. A cell without a seat gets 0, or the residual.

Source: Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023), 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tvm
from tvm import relay, te, topi

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.relay import row_kernels
from heteroplace.parts.routing.relay.known_types import remembered
from heteroplace.parts.routing.relay.router import RouterOptions, router_options
from heteroplace.relay.expressions import static_shape
from heteroplace.relay.router_ops import PREFIX
from heteroplace.tvm_bridge import add_relay_op

Type = tuple[tuple[int, ...], str]
"""(shape, dtype) of a tensor."""


class _RoutingOp(NamedTuple):
    describe: str
    types: Callable[[Any, list[Type]], list[Type]]
    """(attributes, types that it reads) -> types of its results; ValueError: what is wrong."""
    compute: Callable[[Any, list[te.Tensor], list[Type]], list[te.Tensor]]
    returns_tuple: bool = False


def register_routing_ops() -> None:
    """Make the ops known to TVM. Doing so again changes nothing."""
    for kind, op in _OPS.items():
        arguments = {"data": ("Tuple of Tensors", "what it reads")}
        name = PREFIX + kind
        # A router whose mask is constant is still decided in the run.
        add_relay_op(name, op.describe, arguments, _type_of(name, op), _compute(op),
                     _schedule_extern, is_stateful=kind == "router")  # fmt: skip


class BranchRows(NamedTuple):
    """The rows of a branch, as attributes of an op."""

    router: str
    """Name of the router."""
    branch: int
    """Which of its branches."""
    rows: int
    """How many rows the result has; of a router, how many its cells are of."""
    limit: int
    """How many of them may hold cells; above the largest capacity of a branch that drops, none."""


def branch_rows_of(options: RouterOptions, branch: int, num_cells: int) -> BranchRows:
    """Return the rows of a branch before any profile: as many as there are cells."""
    limit = num_cells
    if options.overflow == "drop":
        limit = min(limit, options.capacities[branch][-1])
    return BranchRows(options.name, branch, num_cells, limit)


def router(
    mask: relay.Expr,
    options: RouterOptions,
    priority: relay.Expr | None = None,
    around: tuple[relay.Expr, BranchRows] | None = None,
) -> relay.TupleWrapper:
    """Return (seats, loads, offsets) of a mask int32[C, B].

    Parameters
    ----------
    priority
        float32[C]: cells of higher priority get the first seats; None: in their order.
    around
        Loads of the router, and the branch of it, whose rows the cells are of, equally many of
        each; None: it is in no branch.
    """
    loads, of = ([], BranchRows("", -1, 0, 0)) if around is None else ([around[0]], around[1])
    reads = [mask, *([] if priority is None else [priority]), *loads]
    return relay.TupleWrapper(_call("router", reads, **options.attributes(), **of._asdict()), 3)


def branch_around(attrs: Any) -> BranchRows | None:
    """Return the branch that a router is in, by its attributes; None: in none."""
    around = branch_rows_in(attrs)
    return None if around.branch < 0 else around


def branch_rows_in(attrs: Any) -> BranchRows:
    """Return what the attributes of an op say of rows of a branch."""
    rows, limit = int(attrs["rows"]), int(attrs["limit"])
    return BranchRows(str(attrs["router"]), int(attrs["branch"]), rows, limit)


def dispatch(
    x: relay.Expr,
    seats: relay.Expr,
    offsets: relay.Expr,
    rows: int,
    gates: relay.Expr | None = None,
    is_by_branch: bool = False,
) -> relay.Call:
    """Return a buffer of `rows` rows with the cells of each branch from its offset on.

    Parameters
    ----------
    gates
        float32[C, B], by which cells are multiplied.
    is_by_branch
        x is [C, B, ..] rather than [C, ..]: each branch gets its own part of a cell.
    """
    reads = [x, seats, offsets, *([] if gates is None else [gates])]
    return _call("dispatch", reads, rows=rows, is_by_branch=int(is_by_branch))


def take_branch(
    buffer: relay.Expr, loads: relay.Expr, offsets: relay.Expr, of: BranchRows
) -> relay.Call:
    """Return the first rows of a branch."""
    return _call("take_branch", [buffer, loads, offsets], **of._asdict())


def join_branches(
    branches: Sequence[relay.Expr], loads: relay.Expr, offsets: relay.Expr, router: str, rows: int
) -> relay.Call:
    """Return a buffer of `rows` rows with what each branch made of its cells."""
    return _call("join_branches", [*branches, loads, offsets], router=router, rows=rows)


def combine(
    joined: relay.Expr,
    seats: relay.Expr,
    offsets: relay.Expr,
    gates: relay.Expr | None = None,
    residual: relay.Expr | None = None,
) -> relay.Call:
    """Return for each cell the sum of what its branches made of it, each times its gate."""
    others = [other for other in (gates, residual) if other is not None]
    has = {"has_gates": int(gates is not None), "has_residual": int(residual is not None)}
    return _call("combine", [joined, seats, offsets, *others], **has)


def enter_branch(x: relay.Expr, loads: relay.Expr, router: str, branch: int) -> relay.Call:
    """Return x as what a branch for whole tensors reads."""
    return _call("enter_branch", [x, loads], router=router, branch=branch)


def select(
    branches: Sequence[relay.Expr],
    loads: relay.Expr,
    router: str,
    residual: relay.Expr | None = None,
) -> relay.Call:
    """Return the sum of the results of those branches that have a load, for whole tensors."""
    others = [] if residual is None else [residual]
    has = {"has_residual": int(residual is not None)}
    return _call("select", [*branches, loads, *others], router=router, **has)


def reads_of(call: relay.Call) -> list[relay.Expr]:
    """Return what a call of one of the ops reads."""
    reads: list[relay.Expr] = call.args[0].fields[:]
    return reads


def with_reads(call: relay.Call, reads: Sequence[relay.Expr], **changed: object) -> relay.Call:
    """Return the same call of other tensors, some attributes changed."""
    attributes = {str(key): value for key, value in call.attrs.items()}
    attrs = tvm.ir.make_node("DictAttrs", **{**attributes, **changed})
    return relay.Call(call.op, [relay.Tuple(list(reads))], attrs, None, call.span)


def _call(kind: str, reads: Sequence[relay.Expr], **attributes: object) -> relay.Call:
    register_routing_ops()
    attrs = tvm.ir.make_node("DictAttrs", **attributes)
    return relay.Call(tvm.ir.Op.get(PREFIX + kind), [relay.Tuple(list(reads))], attrs)


def _schedule_extern(_attrs: Any, outs: Any, _target: Any) -> Any:
    return topi.generic.schedule_extern(outs)


def _type_of(name: str, op: _RoutingOp) -> Callable[[Any, Any], tvm.ir.Type | None]:
    def type_of(data: relay.TupleType, attrs: Any) -> relay.Type:
        reads = [(static_shape(field), str(field.dtype)) for field in data.fields]
        try:
            types = op.types(attrs, reads)
        except ValueError as err:
            raise RoutingError(f"{name}: {err}") from err
        results = [relay.TensorType(shape, dtype) for shape, dtype in types]
        return relay.TupleType(results) if op.returns_tuple else results[0]

    return remembered(type_of)


def _compute(op: _RoutingOp) -> Callable[[Any, Any, Any], list[te.Tensor]]:
    def compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
        reads = list(tensors)
        types = [(tuple(int(extent) for extent in one.shape), str(one.dtype)) for one in reads]
        return op.compute(attrs, reads, op.types(attrs, types))

    return compute


def _extern(
    body: row_kernels.Body, reads: list[te.Tensor], makes: list[Type], name: str
) -> list[te.Tensor]:
    # Buffers without an offset of their own: rows are addressed from the start of a tensor.
    ins = [tvm.tir.decl_buffer(one.shape, one.dtype, f"read_{at}") for at, one in enumerate(reads)]
    outs = [tvm.tir.decl_buffer(*one, f"made_{at}") for at, one in enumerate(makes)]
    tensors = te.extern([shape for shape, _ in makes], reads, body, name=name, in_buffers=ins,
                     out_buffers=outs)  # fmt: skip
    return list(tensors) if len(makes) > 1 else [tensors]


def _expect(is_true: bool, what: str) -> None:
    if not is_true:
        raise ValueError(what)


def _router_types(attrs: Any, reads: list[Type]) -> list[Type]:
    (mask, dtype), *priority = reads
    options, around = router_options(attrs), branch_around(attrs)
    _expect(len(mask) == 2 and dtype == "int32", f"a mask is int32[cells, branches]; got {reads}")
    options.checked(mask[1])
    if around is not None:
        _expect_branch(attrs, priority.pop())
        _expect(mask[0] % around.rows == 0, f"{mask[0]} cells of {around.rows} rows of a branch")
    is_fit = not priority or priority == [((mask[0],), "float32")]
    _expect(is_fit, f"a priority is float32[{mask[0]}]; got {priority}")
    return [(mask, "int32"), ((mask[1],), "int32"), ((mask[1],), "int32")]


def _dispatch_types(attrs: Any, reads: list[Type]) -> list[Type]:
    (x, dtype), (seats, _), offsets, *gates = reads
    leading = seats if int(attrs["is_by_branch"]) else seats[:1]
    _expect(x[: len(leading)] == leading, f"x {x} is not of the cells of the seats {seats}")
    _expect(offsets == (seats[1:], "int32"), f"offsets are int32[{seats[1]}]; got {offsets}")
    _expect(not gates or gates == [(seats, "float32")], f"gates are float32{seats}; got {gates}")
    is_float = dtype.startswith(("float", "bfloat"))
    _expect(is_float or not gates, f"cells of {dtype} cannot be multiplied by gates")
    return [((int(attrs["rows"]), *x[len(leading) :]), dtype)]


def _take_types(attrs: Any, reads: list[Type]) -> list[Type]:
    (buffer, dtype), loads, offsets = reads
    _expect(loads == offsets, f"loads {loads} are not as many as offsets {offsets}")
    _expect_branch(attrs, loads)
    return [((int(attrs["rows"]), *buffer[1:]), dtype)]


def _expect_branch(attrs: Any, loads: Type) -> None:
    branch, (count,) = int(attrs["branch"]), loads[0]
    _expect(0 <= branch < count, f"branch {branch} of a router of {count} branches")


def _join_types(attrs: Any, reads: list[Type]) -> list[Type]:
    *branches, loads, offsets = reads
    _expect(loads == offsets == ((len(branches),), "int32"),
            f"{len(branches)} branches, loads {loads}, offsets {offsets}")  # fmt: skip
    results = {(shape[1:], dtype) for shape, dtype in branches}
    _expect(len(results) == 1, f"branches make rows of unlike types: {branches}")
    ((cell, dtype),) = results
    return [((int(attrs["rows"]), *cell), dtype)]


def _combine_types(attrs: Any, reads: list[Type]) -> list[Type]:
    (joined, dtype), (seats, _), offsets, *others = reads
    _expect(offsets == (seats[1:], "int32"), f"offsets are int32[{seats[1]}]; got {offsets}")
    result_type = ((seats[0], *joined[1:]), dtype)
    expected: list[Type] = []
    if int(attrs["has_gates"]):
        expected.append((seats, "float32"))
        is_float = dtype.startswith(("float", "bfloat"))
        _expect(is_float, f"cells of {dtype} cannot be multiplied by gates")
    if int(attrs["has_residual"]):
        expected.append(result_type)
    _expect(others == expected, f"gates and residual are {others}, expected {expected}")
    return [result_type]


def _enter_types(attrs: Any, reads: list[Type]) -> list[Type]:
    _expect_branch(attrs, reads[1])
    return [reads[0]]


def _select_types(attrs: Any, reads: list[Type]) -> list[Type]:
    has_residual = int(attrs["has_residual"])
    *results, loads = reads[: len(reads) - has_residual]
    _expect(loads == ((len(results),), "int32"), f"{len(results)} branches, loads {loads}")
    results += reads[len(reads) - has_residual :]
    _expect(len(set(results)) == 1, f"branches make tensors of unlike types: {results}")
    return results[:1]


def _take(attrs: Any, reads: list[te.Tensor], makes: list[Type]) -> list[te.Tensor]:
    buffer, loads, offsets = reads
    branch, last = int(attrs["branch"]), int(buffer.shape[0]) - 1
    num_rows = tvm.te.min(loads[branch], int(attrs["limit"]))
    zero = tvm.tir.const(0, buffer.dtype)

    def row(index: Any, *at: Any) -> Any:
        source = tvm.te.min(offsets[branch] + index, last)
        return tvm.tir.if_then_else(index < num_rows, buffer(source, *at), zero)

    return [te.compute(makes[0][0], row, name="take_branch")]


def _enter(_attrs: Any, reads: list[te.Tensor], makes: list[Type]) -> list[te.Tensor]:
    return [te.compute(makes[0][0], lambda *at: reads[0](*at), name="enter_branch")]


def _select(attrs: Any, reads: list[te.Tensor], makes: list[Type]) -> list[te.Tensor]:
    has_residual = int(attrs["has_residual"])
    *branches, loads = reads[: len(reads) - has_residual]
    zero = tvm.tir.const(0, makes[0][1])

    def element(*at: Any) -> Any:
        total: Any = reads[-1](*at) if has_residual else zero
        is_first: Any = tvm.tir.const(True, "bool")
        for branch, values in enumerate(branches):
            is_chosen = loads[branch] > 0
            value = values(*at) if branch == 0 else tvm.tir.if_then_else(
                is_first, values(*at), total + values(*at))  # fmt: skip
            total = tvm.tir.if_then_else(is_chosen, value, total)
            is_first = tvm.tir.all(is_first, tvm.tir.Not(is_chosen))
        return total

    return [te.compute(makes[0][0], element, name="select")]


def _router(attrs: Any, reads: list[te.Tensor], makes: list[Type]) -> list[te.Tensor]:
    around = branch_around(attrs)
    inside = None if around is None else (around.branch, around.limit, around.rows)
    return _extern(row_kernels.route_body(router_options(attrs), inside), reads, makes, "router")


def _dispatch(attrs: Any, reads: list[te.Tensor], makes: list[Type]) -> list[te.Tensor]:
    return _extern(
        row_kernels.dispatch_body(bool(int(attrs["is_by_branch"]))), reads, makes, "dispatch"
    )


def _join(_attrs: Any, reads: list[te.Tensor], makes: list[Type]) -> list[te.Tensor]:
    return _extern(row_kernels.join_body, reads, makes, "join_branches")


def _combine(attrs: Any, reads: list[te.Tensor], makes: list[Type]) -> list[te.Tensor]:
    body = row_kernels.combine_body(bool(int(attrs["has_gates"])), bool(int(attrs["has_residual"])))
    return _extern(body, reads, makes, "combine")


_OPS = {
    "router": _RoutingOp("Which cells take which branches.", _router_types, _router, True),
    "dispatch": _RoutingOp("The cells of each branch in a buffer.", _dispatch_types, _dispatch),
    "take_branch": _RoutingOp("The rows of a branch.", _take_types, _take),
    "join_branches": _RoutingOp("The results of all branches.", _join_types, _join),
    "combine": _RoutingOp("The results for each cell.", _combine_types, _combine),
    "enter_branch": _RoutingOp("A whole tensor in a branch.", _enter_types, _enter),
    "select": _RoutingOp("The sum of the branches chosen.", _select_types, _select),
}
