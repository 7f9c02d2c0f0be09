"""Calls of a routed network + plan -> the same, in which branches that hand rows on move nothing.

before ==> after, where all branches of a router are y = copy(x), as those of an exchange of rows

    y = combine(join(copy(x_0), ..), seats, offsets)    ==>    combine(x, seats, offsets)

`x` is the buffer that the router's rows were put in. The calls of the branches stay, by kernels
that do nothing (`kept_rows`): they say which decisions are where, and refuse what is too much.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from heteroplace.lower.kernels import KernelCall, KernelCalls, Rows
from heteroplace.lower.order.call_places import CallPlaces
from heteroplace.lower.order.instructions import root
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan


def with_rows_handed_on(
    calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan
) -> KernelCalls:
    """Return the calls of a plan; a buffer whose rows are copied from another one is that one.

    It is where the branches are in the memory in which their rows are put together: elsewhere what
    the plan moves would be another.

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
        if _are_in_one_memory(calls, buffer, places)
    }
    values = tuple(
        replace(value, alias_of=source_of.get(index, value.alias_of))
        for index, value in enumerate(calls.values)
    )

    def in_place(call: KernelCall) -> KernelCall:
        if not any(_buffer(calls, value) in source_of for value in call.writes):
            return call
        variants = (replace(each, kernel=each.kernel_in_place) for each in call.variants)
        return replace(call, variants=tuple(variants))

    return replace(calls, values=values, calls=tuple(map(in_place, calls.calls)))


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
                sources[buffer].add(_source(calls, call, value))
    buffers = {}
    for buffer, (source, *others) in sources.items():
        if source is not None and not others:
            one, other = calls.values[buffer], calls.values[source]
            if (one.bytes, one.dtype) == (other.bytes, other.dtype):
                buffers[buffer] = source
    return buffers


def _source(calls: KernelCalls, call: KernelCall, written: int) -> int | None:
    """The buffer whose rows a call copies to the same rows of another; None: it does not."""
    target = calls.values[root(calls, written)].rows
    source = calls.values[root(calls, call.reads[0])].rows if len(call.reads) == 1 else None
    does_nothing = bool(call.variants) and all(each.kernel_in_place for each in call.variants)
    if source is None or target is None or not does_nothing:
        return None
    is_same = source == Rows(source.buffer, target.router, target.branch)
    return source.buffer if is_same else None


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
