"""The ops of routed networks by numpy: the meaning of each, written without regard to speed.

Rows that no op may read are NaN (integers: a number that shows), so that a network in which they
reach a result has other results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from heteroplace.model.routed.capacities import offsets_of
from heteroplace.parts.routing.relay.ops import branch_around
from heteroplace.parts.routing.relay.router import router_options

Array = np.ndarray
UNWRITTEN = -77_777
"""What stands in integer rows that no op writes."""


def unwritten(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array in which nothing has been written."""
    kind = np.dtype(dtype).kind
    if kind == "i":
        return np.full(shape, max(UNWRITTEN, np.iinfo(dtype).min), dtype)
    return np.full(shape, np.nan if kind == "f" else True, dtype)


def seats_of(mask: Array, priority: Array | None = None) -> Array:
    """The rank of each cell in each branch, from 1: in order, or those of high priority first."""
    cells = range(len(mask))
    keys = np.zeros(len(mask)) if priority is None else np.where(
        np.isnan(priority), np.inf, -priority)  # fmt: skip
    order = sorted(cells, key=lambda cell: (keys[cell], cell))
    seats = np.zeros(mask.shape, "int32")
    for branch in range(mask.shape[1]):
        count = 0
        for cell in order:
            if mask[cell, branch]:
                count += 1
                seats[cell, branch] = count
    return seats


def _router(attrs: Any, reads: list[Array]) -> list[Array]:
    options, (mask, *others) = router_options(attrs), reads
    if branch_around(attrs) is not None:
        each = len(mask) // int(attrs["rows"])
        is_cell = np.arange(len(mask)) < _kept(attrs, others.pop()) * each
        mask = np.where(is_cell[:, None], mask, 0)
    assert (mask >= 0).all() and ((mask != 0).sum(axis=1) <= options.top_k).all()
    seats = seats_of(mask, others[0] if others else None)
    loads = (mask != 0).sum(axis=0)
    if options.overflow == "drop":
        limits = np.array([sizes[-1] for sizes in options.capacities])
        seats = np.where(seats <= limits, seats, 0)
    offsets = offsets_of(loads.tolist(), options.capacities, options.overflow, options.quantum)
    return [seats.astype("int32"), loads.astype("int32"), np.array(offsets, "int32")]


def _dispatch(attrs: Any, reads: list[Array]) -> Array:
    x, seats, offsets, *gates = reads
    by_branch = bool(int(attrs["is_by_branch"]))
    buffer = unwritten((int(attrs["rows"]), *x.shape[1 + by_branch :]), x.dtype)
    for cell, branch in np.argwhere(seats > 0):
        value = x[cell, branch] if by_branch else x[cell]
        for gate in gates:
            value = value * gate[cell, branch].astype(x.dtype)
        row = offsets[branch] + seats[cell, branch] - 1
        assert row < len(buffer), "the buffer is too small"
        buffer[row] = value
    return buffer


def _kept(attrs: Any, loads: Array) -> int:
    return min(int(loads[int(attrs["branch"])]), int(attrs["limit"]), int(attrs["rows"]))


def _take_branch(attrs: Any, reads: list[Array]) -> Array:
    buffer, loads, offsets = reads
    rows = unwritten((int(attrs["rows"]), *buffer.shape[1:]), buffer.dtype)
    begin, kept = offsets[int(attrs["branch"])], _kept(attrs, loads)
    rows[:kept] = buffer[begin : begin + kept]
    return rows


def _join_branches(attrs: Any, reads: list[Array]) -> Array:
    *branches, loads, offsets = reads
    joined = unwritten((int(attrs["rows"]), *branches[0].shape[1:]), branches[0].dtype)
    ends = [*offsets[1:], len(joined)]
    for values, load, begin, end in zip(branches, loads, offsets, ends, strict=True):
        rows = min(load, end - begin)
        joined[begin : begin + rows] = values[:rows]
    return joined


def _combine(attrs: Any, reads: list[Array]) -> Array:
    joined, seats, offsets, *others = reads
    y = np.zeros((len(seats), *joined.shape[1:]), joined.dtype)
    if int(attrs["has_residual"]):
        y[:] = others[-1]
    for cell in range(len(seats)):
        for count, branch in enumerate(np.flatnonzero(seats[cell])):
            value = joined[offsets[branch] + seats[cell, branch] - 1]
            if int(attrs["has_gates"]):
                value = value * others[0][cell, branch].astype(joined.dtype)
            y[cell] = value if count == 0 else y[cell] + value
    return y


def _select(attrs: Any, reads: list[Array]) -> Array:
    has_residual = int(attrs["has_residual"])
    *branches, loads = reads[: len(reads) - has_residual]
    chosen = [value for value, load in zip(branches, loads, strict=True) if load]
    nothing = reads[-1] if has_residual else np.zeros_like(branches[0])
    total = chosen[0] if chosen else nothing
    for value in chosen[1:]:
        total = total + value
    return total


def _enter_branch(attrs: Any, reads: list[Array]) -> Array:
    """The tensor, and nothing of it in a branch that is not run."""
    x, loads = reads
    return x if loads[int(attrs["branch"])] else unwritten(x.shape, x.dtype)


def _host_decision(attrs: Any, reads: list[Array]) -> Array:
    mask = tvm.nd.array(np.zeros([int(extent) for extent in attrs["shape"]], "int32"))
    tvm.get_global_func(str(attrs["function"]))(*[tvm.nd.array(read) for read in reads], mask)
    return mask.numpy()


ROUTING_OPS: dict[str, Callable[..., Any]] = {
    "router": _router,
    "dispatch": _dispatch,
    "take_branch": _take_branch,
    "join_branches": _join_branches,
    "combine": _combine,
    "enter_branch": _enter_branch,
    "select": _select,
    "host_decision": _host_decision,
}
