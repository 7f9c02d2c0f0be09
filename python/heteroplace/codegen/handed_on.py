"""Calls of a routed network + plan -> the same without branches that only hand their rows on.

before ==> after, where all branches of a router are y = copy(x), as those of an exchange of rows

    y = combine(join(copy(x_0), ..), seats, offsets)    ==>    combine(x, seats, offsets)

`x` is the buffer that the router's rows were put in. The branches have to be in the memory where
the rows are put together: elsewhere what the plan moves would be another. And they have to take all
rows that there may be: it is the call of a branch that refuses, or leaves out, what is too much.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from heteroplace.codegen.call_places import CallPlaces
from heteroplace.codegen.instructions import root
from heteroplace.codegen.kernels import KernelCalls, Rows
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan

_COPY = "copy"
"""`Kernel.op` of a copy."""


def with_rows_handed_on(
    calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan
) -> KernelCalls:
    """Return the calls of a plan; a buffer whose rows are copied from another one is that one.

    Raises
    ------
    LoweringError
        A call belongs to a task that the plan does not know.
    """
    if not calls.routers:
        return calls
    places = CallPlaces(graph, cluster, plan)
    source_of = {
        buffer: source
        for buffer, source in _copied_buffers(calls).items()
        if _takes_all(calls, buffer) and _are_in_one_memory(calls, buffer, places)
    }
    if not source_of:
        return calls
    values = tuple(
        replace(value, alias_of=source_of[index]) if index in source_of else value
        for index, value in enumerate(calls.values)
    )
    dropped = {
        index
        for index, call in enumerate(calls.calls)
        if any(_buffer(calls, value) in source_of for value in call.writes)
    }
    left = tuple(call for index, call in enumerate(calls.calls) if index not in dropped)
    return replace(calls, values=values, calls=left)


def _buffer(calls: KernelCalls, value: int) -> int | None:
    """The routed buffer that rows are of; None: it is no rows."""
    rows = calls.values[root(calls, value)].rows
    return None if rows is None else rows.buffer


def _copied_buffers(calls: KernelCalls) -> dict[int, int]:
    """For each buffer that is filled by copies of the same rows of one other buffer, that one."""
    sources: dict[int, set[int | None]] = defaultdict(set)
    for call in calls.calls:
        for value in call.writes:
            buffer = _buffer(calls, value)
            if buffer is not None:
                sources[buffer].add(_source(calls, call.reads, value, call.kernel))
    found = {}
    for buffer, (source, *others) in sources.items():
        one, other = calls.values[buffer], source
        if other is None or others:
            continue
        if (one.bytes, one.dtype) == (calls.values[other].bytes, calls.values[other].dtype):
            found[buffer] = other
    return found


def _source(calls: KernelCalls, reads: tuple[int, ...], written: int, symbol: str) -> int | None:
    """The buffer whose rows a call copies to the same rows of another; None: it does not."""
    target = calls.values[root(calls, written)].rows
    source = calls.values[root(calls, reads[0])].rows if len(reads) == 1 else None
    if source is None or target is None or calls.kernels[symbol].op != _COPY:
        return None
    is_same = source == Rows(source.buffer, target.router, target.branch)
    return source.buffer if is_same else None


def _takes_all(calls: KernelCalls, buffer: int) -> bool:
    """Whether no cell is one too many for the branches that fill a buffer."""
    named = {
        value.rows.router for value in calls.values if value.rows and value.rows.buffer == buffer
    }
    routers = [each.router for each in calls.routers if each.router.name in named]
    return all(
        router.overflow == "rounds"
        or min(sizes[-1] for sizes in router.capacities) >= router.num_cells
        for router in routers
    )


def _are_in_one_memory(calls: KernelCalls, buffer: int, places: CallPlaces) -> bool:
    """Whether a buffer is filled in the one memory where it is read, outside of branches."""
    fillers = [
        call for call in calls.calls if any(_buffer(calls, each) == buffer for each in call.writes)
    ]
    readers = [
        call for call in calls.calls if any(root(calls, each) == buffer for each in call.reads)
    ]
    memories = {places.of(call).memory for call in (*fillers, *readers)}
    return len(memories) == 1 and not any(call.variants for call in readers)
