"""Kernel calls + state of sessions -> the same calls, with state in memory that sessions own.

A call that replaces a part of a state, such as rows of a cache, changes it where it lies if nobody
else reads what was there before. Other state is written beside the old value, and the session takes
it over after the call.

State lies in the memory of the tasks that use it, if all of them are in one; else in the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heteroplace.lower.kernels import KernelCall, KernelCalls
from heteroplace.lower.order.call_places import CallPlaces
from heteroplace.lower.order.instructions import root
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan


def with_kept_states(
    calls: KernelCalls,
    states: Sequence[tuple[int, int]],
    graph: TaskGraph,
    cluster: Cluster,
    plan: Plan,
) -> KernelCalls:
    """Return the calls with state of sessions.

    Parameters
    ----------
    states
        (input, output that replaces it), as positions.
    """
    inputs = [v for v, value in enumerate(calls.values) if value.input_name is not None]
    values, new_calls = list(calls.values), list(calls.calls)
    readers = _readers(calls)
    places = CallPlaces(graph, cluster, plan)
    for position, output in states:
        state = inputs[position]
        result = root(calls, calls.outputs[output])
        memory = _only_memory(calls, state, result, readers, places)
        memory = None if memory == cluster.host else memory
        values[state] = replace(values[state], is_kept=True, memory=memory)
        writers = [index for index, call in enumerate(calls.calls) if result in call.writes]
        if len(writers) != 1 or not _may_change(calls, writers[0], state, result, readers):
            continue
        call = calls.calls[writers[0]]
        new_calls[writers[0]] = replace(
            call, kernel=call.kernel_in_place, kernel_in_place="", in_place=()
        )
        values[state] = replace(values[state], memory=places.of(call).memory)
        values[result] = replace(values[result], in_place_of=state)
    replaced_by = tuple((inputs[position], output) for position, output in states)
    return replace(calls, values=tuple(values), calls=tuple(new_calls), kept_states=replaced_by)


def _readers(calls: KernelCalls) -> dict[int, set[int]]:
    """Calls by the value that they read."""
    readers: dict[int, set[int]] = {}
    for index, call in enumerate(calls.calls):
        for value in call.reads:
            readers.setdefault(root(calls, value), set()).add(index)
    return readers


def _only_memory(
    calls: KernelCalls,
    state: int,
    result: int,
    readers: dict[int, set[int]],
    places: CallPlaces,
) -> int | None:
    """The memory in which all who read a state are, and who replaces it; None: there are several,
    or it is an output itself, which is read in the host's."""
    writers = {index for index, call in enumerate(calls.calls) if result in call.writes}
    if not writers or state in {root(calls, value) for value in calls.outputs}:
        return None
    users = writers | readers.get(state, set())
    memories = {places.of(calls.calls[index]).memory for index in users}
    return memories.pop() if len(memories) == 1 else None


def _may_change(
    calls: KernelCalls, writer: int, state: int, result: int, readers: dict[int, set[int]]
) -> bool:
    """Whether a call may write its result over a state."""
    call: KernelCall = calls.calls[writer]
    pairs = {(root(calls, call.reads[read]), call.writes[write]) for read, write in call.in_place}
    is_output = state in {root(calls, value) for value in calls.outputs}
    return (
        bool(call.kernel_in_place)
        and (state, result) in pairs
        and readers[state] == {writer}
        and not is_output
        and call.branch is None
        and call.items == (0,)
    )
