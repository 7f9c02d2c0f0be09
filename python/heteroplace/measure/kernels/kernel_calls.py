"""Kernel calls of a network -> some of them that run alone, and the scratch memory of its tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from heteroplace.lower.kernels import KernelCall, KernelCalls, Value
from heteroplace.lower.order.instructions import root
from heteroplace.lower.program import aligned
from heteroplace.model.graph import TaskGraph
from heteroplace.relay.ranges.interval import Interval


def only_calls(calls: KernelCalls, some_calls: Sequence[KernelCall]) -> KernelCalls:
    """Return some of the calls alone; what they read from others are inputs."""
    written = {value for call in some_calls for value in call.writes}
    read = {value for call in some_calls for value in call.reads}
    outside = {
        value
        for value in read
        if calls.values[root(calls, value)].constant is None and root(calls, value) not in written
    }
    ranges = _ranges_read(calls, some_calls)
    values = []
    for index, value in enumerate(calls.values):
        if index in outside:
            made_up = Value(value.shape, value.dtype, f"value{index}", range=ranges.get(index))
            values.append(replace(made_up, example=value.example))
        elif value.input_name is not None:
            values.append(Value(value.shape, value.dtype))  # a model input that nobody reads here
        else:
            values.append(value)
    return replace(calls, values=tuple(values), calls=tuple(some_calls), outputs=())


def _ranges_read(calls: KernelCalls, some_calls: Sequence[KernelCall]) -> dict[int, Interval]:
    """For values that some calls read, what they need them to be in."""
    ranges: dict[int, Interval] = {}
    for call in some_calls:
        kernel = calls.kernels.get(call.kernel)
        for value, interval in zip(call.reads, kernel.ranges if kernel else (), strict=False):
            if interval is not None:
                earlier = ranges.get(value)
                ranges[value] = interval if earlier is None else earlier.meet(interval) or earlier
    return ranges


def with_kernel_workspaces(
    graph: TaskGraph, calls: KernelCalls, with_inner_values: bool = False
) -> TaskGraph:
    """Return `graph` with at least the scratch memory that the kernels of each task use.

    Parameters
    ----------
    with_inner_values
        Whether values that kernels of one task hand to each other are scratch memory too.
    """
    workspaces = {task.name: 0 for task in graph.tasks}
    for call in calls.calls:
        workspaces[call.task] = max(workspaces[call.task], call.workspace.caller_bytes)
    if with_inner_values:
        for name, num_bytes in _inner_bytes(calls).items():
            workspaces[name] += num_bytes
    tasks = [
        replace(task, workspace_bytes=max(task.workspace_bytes, workspaces[task.name]))
        for task in graph.tasks
    ]
    return replace(graph, tasks=tuple(tasks))


def _inner_bytes(calls: KernelCalls) -> Counter[str]:
    """For each task the size of all values that its kernels make and nobody else reads."""
    readers: dict[int, set[str]] = defaultdict(set)
    for call in calls.calls:
        for value in call.reads:
            readers[root(calls, value)].add(call.task)
    outputs = {root(calls, value) for value in calls.outputs}
    inner: Counter[str] = Counter()
    for call in calls.calls:
        for value in call.writes:
            if readers[value] == {call.task} and value not in outputs:
                inner[call.task] += aligned(calls.values[value].bytes)
    return inner
