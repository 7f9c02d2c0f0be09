"""What a router, its dispatch, its join and its combine compute, in TIR: rows are copied.

On a CPU a parallel loop goes over the cells, on a GPU a block works on each. A row index that comes
out of a tensor is compared with the buffer's extent, so that a mask with more branches for a cell
than the router's `top_k` cannot write outside of it: on a CPU the router's kernel refuses it,
on a GPU it makes a load of -1, which whoever runs the program refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import groupby
from typing import Any

import tvm
from tvm import te, tir

from heteroplace.parts.routing.relay.router import RouterOptions
from heteroplace.relay.cache.write_kernel import KEPT_ROWS

_THREADS = 256
"""Of a block on a GPU, at most."""


Body = Callable[[list[Any], list[Any]], tir.Stmt]
"""(buffers that are read, buffers that are written) -> what is done."""
Element = Callable[[], AbstractContextManager[tuple[Any, ...]]]
"""A loop over the elements of a cell."""


class _Mask:
    """The mask of a router; cells in rows that hold none take no branch."""

    def __init__(self, mask: Any, is_cell: Callable[[Any], Any]) -> None:
        self._mask, self._is_cell = mask, is_cell

    def __getitem__(self, at: tuple[Any, Any]) -> Any:
        # What lies above a branch's load was never written.
        return tir.Select(self._is_cell(at[0]), self._mask[at], 0)


def route_body(options: RouterOptions, inside: tuple[int, int, int] | None = None) -> Body:
    """Return what a router does: (mask[, priority][, loads]) -> (seats, loads, offsets).

    `inside`: (branch of the loads, most cells that it keeps, its rows) of a router that is in a
    branch.
    """

    def body(reads: list[Any], makes: list[Any]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        mask, *priority = [ib.buffer_ptr(buffer) for buffer in reads]
        seats, loads, offsets = [ib.buffer_ptr(buffer) for buffer in makes]
        num_cells, num_branches = [int(extent) for extent in reads[0].shape]
        if inside is not None:
            (branch, limit, rows), around = inside, priority.pop()
            num_rows = tir.min(around[branch], limit) * (num_cells // rows)
            mask = _Mask(mask, lambda cell: cell < num_rows)
        if not _is_gpu():
            _refuse(ib, mask, options, num_cells)
        _seat_in_order(ib, mask, seats, loads, options, num_cells)
        if priority:
            _seat_by_priority(ib, mask, priority[0], seats, num_cells, num_branches)
        if options.overflow == "drop":
            _drop(ib, options, seats, num_cells)
        with ib.new_scope(), ExitStack() as stack:
            if _is_gpu():
                stack.enter_context(_threads(ib, 1))
            end = ib.allocate("int32", (1,), "end", scope="local")
            end[0] = 0
            for begin, stop, sizes in _alike(options):
                with ib.for_range(0, stop - begin, "index") as index:  # LLVM's loops begin at 0
                    offsets[begin + index] = end[0]
                    load = loads[begin + index]
                    load = tir.max(load, 0) if _is_gpu() else load  # -1: it is refused
                    end[0] += _rows(load, sizes, options)
        return ib.get()

    return body


def _seat_in_order(
    ib: Any, mask: Any, seats: Any, loads: Any, options: RouterOptions, num_cells: int
) -> None:
    """Count the cells of each branch in their order."""
    num_branches = options.num_branches
    with ib.new_scope(), _branches(ib, num_branches) as branch:
        loads[branch] = 0
        if _is_gpu():  # a thread for each branch
            with ib.for_range(0, num_cells, "cell") as cell:
                _take_seat(mask, seats, loads, cell, branch)
            _mark(ib, mask, options, loads, num_cells, branch)
    if not _is_gpu():  # along the rows of the mask
        with ib.for_range(0, num_cells, "cell") as cell, _branches(ib, num_branches) as branch:
            _take_seat(mask, seats, loads, cell, branch)


def _take_seat(mask: Any, seats: Any, loads: Any, cell: Any, branch: Any) -> None:
    is_in = mask[cell, branch] != 0
    loads[branch] = loads[branch] + tir.Select(is_in, 1, 0)
    seats[cell, branch] = tir.Select(is_in, loads[branch], 0)


def _seat_by_priority(
    ib: Any, mask: Any, priority: Any, seats: Any, num_cells: int, num_branches: int
) -> None:
    """Count anew: the cells of highest priority first, those of one priority in their order."""

    def key(cell: Any) -> Any:
        # What is no number comes last; otherwise two cells could get one seat.
        is_number = priority[cell] == priority[cell]
        return tir.Select(is_number, priority[cell], tir.min_value("float32"))

    with (
        ib.new_scope(),
        _cells(ib, num_cells, (num_branches,)) as (cell, element),
        element() as (branch,),
        ib.if_scope(mask[cell, branch] != 0),
    ):
        seats[cell, branch] = 1
        with ib.for_range(0, num_cells, "other") as other:
            is_tie = tir.all(key(other) == key(cell), other < cell)
            is_earlier = tir.any(key(other) > key(cell), is_tie)
            with ib.if_scope(tir.all(mask[other, branch] != 0, is_earlier)):
                seats[cell, branch] = seats[cell, branch] + 1


def _drop(ib: Any, options: RouterOptions, seats: Any, num_cells: int) -> None:
    """Take their seats from the cells behind the largest capacity."""
    for begin, stop, sizes in _alike(options):
        with (
            ib.new_scope(),
            _cells(ib, num_cells, (stop - begin,)) as (cell, element),
            element() as (index,),
            ib.if_scope(seats[cell, begin + index] > sizes[-1]),
        ):
            seats[cell, begin + index] = 0


def _alike(options: RouterOptions) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield (first branch, end, capacities) of branches in a row that have the same."""
    begin = 0
    for sizes, group in groupby(options.capacities):
        stop = begin + len(list(group))
        yield begin, stop, sizes
        begin = stop


def _rows(load: Any, sizes: Sequence[int], options: RouterOptions) -> Any:
    """`model.capacities.branch_rows` as an expression."""
    largest = sizes[-1]
    if options.overflow == "drop":
        rows = _padded(tir.min(load, largest), sizes)
    else:
        rest = _padded(tir.floormod(load, largest), sizes)
        rows = tir.floordiv(load, largest) * largest + rest
    quantum = options.quantum
    return tir.floordiv(rows + quantum - 1, quantum) * quantum if quantum > 1 else rows


def _padded(load: Any, sizes: Sequence[int]) -> Any:
    padded: Any = tir.const(sizes[-1], "int32")
    for size in reversed(sizes[:-1]):
        padded = tir.Select(load <= size, tir.const(size, "int32"), padded)
    return tir.Select(load <= 0, tir.const(0, "int32"), padded)


def _refuse(ib: Any, mask: Any, options: RouterOptions, num_cells: int) -> None:
    """Fail on a mask that is none, or for which a routed buffer may be too small."""
    with ib.new_scope():
        most = ib.allocate("int32", (1,), "most", scope="local")
        least = ib.allocate("int32", (1,), "least", scope="local")
        taken = ib.allocate("int32", (1,), "taken", scope="local")
        most[0] = 0
        least[0] = 0
        with ib.for_range(0, num_cells, "cell") as cell:
            taken[0] = 0
            with ib.for_range(0, options.num_branches, "branch") as branch:
                taken[0] = taken[0] + tir.Select(mask[cell, branch] != 0, 1, 0)
                least[0] = tir.min(least[0], mask[cell, branch])
            most[0] = tir.max(most[0], taken[0])
        # Of a kernel of several routers the executor says for which of them it was called.
        who = f"router {options.name!r}: " if options.name else ""
        _require(
            ib,
            least[0] >= 0,
            f"{who}a route decision is none of its {options.num_branches} branches",
        )
        _require(
            ib,
            most[0] <= options.top_k,
            f"{who}its mask gives a cell more than {options.top_k} branches, which is the most "
            f"that it was made for (top_k)",
        )


def _mark(
    ib: Any, mask: Any, options: RouterOptions, loads: Any, num_cells: int, branch: Any
) -> None:
    """Make a load -1 where `_refuse` would fail: the threads of the branches share the cells."""
    num_branches = options.num_branches
    taken = ib.allocate("int32", (1,), "taken", scope="local")
    least = ib.allocate("int32", (1,), "least", scope="local")
    with ib.for_range(0, -(-num_cells // num_branches), "turn") as turn:
        cell = turn * num_branches + branch
        with ib.if_scope(cell < num_cells):
            taken[0] = 0
            least[0] = 0
            with ib.for_range(0, num_branches, "other") as other:
                taken[0] = taken[0] + tir.Select(mask[cell, other] != 0, 1, 0)
                least[0] = tir.min(least[0], mask[cell, other])
            with ib.if_scope(tir.any(least[0] < 0, taken[0] > options.top_k)):
                loads[branch] = -1


def _require(ib: Any, is_true: Any, what: str) -> None:
    ib.emit(lambda after: tir.AssertStmt(is_true, tir.StringImm(what), after))
    ib.emit(tir.Evaluate(0))


def dispatch_body(is_by_branch: bool) -> Body:
    """Return what a dispatch does: (x, seats, offsets[, gates]) -> buffer.

    `is_by_branch`: x is [cells, branches, ..], and each branch gets its own part.
    """

    def body(reads: list[Any], makes: list[Any]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        x, seats, offsets, *gates = [ib.buffer_ptr(buffer) for buffer in reads]
        buffer = ib.buffer_ptr(makes[0])
        num_cells, num_branches = [int(extent) for extent in reads[1].shape]
        with (
            _cells(ib, num_cells, _cell_shape(makes[0])) as (cell, element),
            ib.for_range(0, num_branches, "branch") as branch,
        ):
            row = offsets[branch] + seats[cell, branch] - 1
            is_seated = tir.all(seats[cell, branch] > 0, row < makes[0].shape[0])
            with ib.if_scope(is_seated), element() as at:
                value = x[_index(cell, branch, *at) if is_by_branch else _index(cell, *at)]
                for gate in gates:
                    value = value * gate[cell, branch].astype(reads[0].dtype)
                buffer[_index(row, *at)] = value
        return ib.get()

    return body


def join_body(reads: list[Any], makes: list[Any]) -> tir.Stmt:
    """Copy the rows of each branch to its place: (y_0, .., loads, offsets) -> joined."""
    ib = tir.ir_builder.create()
    *branches, loads, offsets = [ib.buffer_ptr(buffer) for buffer in reads]
    joined = ib.buffer_ptr(makes[0])
    for branch, values in enumerate(branches):
        num_rows = int(reads[branch].shape[0])
        with ib.new_scope(), _cells(ib, num_rows, _cell_shape(makes[0])) as (index, element):
            row = offsets[branch] + index
            # A branch that drops has loads above its rows: those are the next branch's.
            end = offsets[branch + 1] if branch + 1 < len(branches) else makes[0].shape[0]
            is_used = tir.all(index < loads[branch], row < tir.min(end, makes[0].shape[0]))
            with ib.if_scope(is_used), element() as at:
                joined[_index(row, *at)] = values[_index(index, *at)]
    return ib.get()


def combine_body(has_gates: bool, has_residual: bool) -> Body:
    """Return what a combine does: (joined, seats, offsets[, gates][, residual]) -> y."""

    def body(reads: list[Any], makes: list[Any]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        joined, seats, offsets, *others = [ib.buffer_ptr(buffer) for buffer in reads]
        y = ib.buffer_ptr(makes[0])
        num_cells, num_branches = [int(extent) for extent in reads[1].shape]
        with _cells(ib, num_cells, _cell_shape(makes[0])) as (cell, element):
            place = ib.allocate("int32", (1,), "found", scope="local")
            place[0] = 0
            with ib.for_range(0, num_branches, "branch") as branch:
                row = offsets[branch] + seats[cell, branch] - 1
                is_seated = tir.all(seats[cell, branch] > 0, row < reads[0].shape[0])
                with ib.if_scope(is_seated):
                    gate = others[0][cell, branch].astype(reads[0].dtype) if has_gates else None
                    _add_row(ib, y, joined, cell, row, element, gate, place)
                    place[0] = 1
            nothing = tir.const(0, makes[0].dtype)
            with ib.if_scope(place[0] == 0), _kept(ib, has_residual), element() as at:
                y[_index(cell, *at)] = others[-1][_index(cell, *at)] if has_residual else nothing
        return ib.get()

    return body


@contextmanager
def _kept(ib: Any, has_residual: bool) -> Iterator[None]:
    """Mark what is not to be done where the output lies in the bytes of the residual."""
    with ib.new_scope():
        if has_residual:
            ib.scope_attr(tir.StringImm(KEPT_ROWS), KEPT_ROWS, 1)
        yield


def _add_row(
    ib: Any, y: Any, joined: Any, cell: Any, row: Any, element: Element, gate: Any, place: Any
) -> None:
    """Add a row of a branch to what a cell has; the first is put there, so one is a copy."""

    def value(at: tuple[Any, ...]) -> Any:
        return joined[_index(row, *at)] if gate is None else joined[_index(row, *at)] * gate

    with ib.if_scope(place[0] == 0), element() as at:
        y[_index(cell, *at)] = value(at)
    with ib.else_scope(), element() as at:
        y[_index(cell, *at)] = y[_index(cell, *at)] + value(at)


def _index(*at: Any) -> tuple[Any, ...]:
    return at


def _is_gpu() -> bool:
    """Say whether the kernel is for a GPU: the current target says so."""
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and "gpu" in target.keys


def _cell_shape(buffer: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in buffer.shape[1:])


@contextmanager
def _branches(ib: Any, count: int) -> Iterator[Any]:
    """A loop over branches; on a GPU a thread for each."""
    if _is_gpu():
        with _threads(ib, count) as branch:
            yield branch
    else:
        with ib.for_range(0, count, "branch") as branch:
            yield branch


@contextmanager
def _cells(ib: Any, count: int, shape: tuple[int, ...]) -> Iterator[tuple[Any, Element]]:
    """A loop over cells, and the loop over the elements of one that may be used in it."""
    if _is_gpu():
        block, thread = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
        elements = 1
        for extent in shape:
            elements *= extent
        threads = min(elements, _THREADS)
        ib.scope_attr(block, "thread_extent", count)
        ib.scope_attr(thread, "thread_extent", threads)

        @contextmanager
        def spread() -> Iterator[tuple[Any, ...]]:
            with ib.for_range(0, -(-elements // threads), "step") as step:
                flat = step * threads + thread.var
                with ib.if_scope(flat < elements):
                    yield _unravelled(flat, shape)

        yield block.var, spread
    else:

        @contextmanager
        def nested() -> Iterator[tuple[Any, ...]]:
            with ExitStack() as stack:
                yield tuple(
                    [stack.enter_context(ib.for_range(0, extent, "at")) for extent in shape]
                )

        with ib.for_range(0, count, "cell", kind="parallel") as cell:
            yield cell, nested


@contextmanager
def _threads(ib: Any, count: int) -> Iterator[Any]:
    """So many threads of one block, each in steps if they are more than a block has."""
    thread = te.thread_axis("threadIdx.x")
    threads = min(count, _THREADS)
    ib.scope_attr(thread, "thread_extent", threads)
    with ib.for_range(0, -(-count // threads), "step") as step:
        index = step * threads + thread.var
        with ib.if_scope(index < count):
            yield index


def _unravelled(flat: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The index of an element of a cell, of its position."""
    at: list[Any] = []
    for extent in reversed(shape):
        at.insert(0, tir.floormod(flat, extent))
        flat = tir.floordiv(flat, extent)
    return tuple(at)
