"""Kernel calls of a network -> some of them that run alone, and the scratch memory of its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heteroplace.codegen.instructions import root
from heteroplace.codegen.kernels import KernelCall, KernelCalls, Value
from heteroplace.model.graph import TaskGraph
from heteroplace.relay.ranges.interval import Interval


def only_calls(calls: KernelCalls, kept: Sequence[KernelCall]) -> KernelCalls:
    """Return some of the calls alone; what they read from others are inputs."""
    made = {value for call in kept for value in call.writes}
    read = {value for call in kept for value in call.reads}
    outside = {
        value
        for value in read
        if calls.values[root(calls, value)].constant is None and root(calls, value) not in made
    }
    ranges = _ranges_read(calls, kept)
    values = []
    for index, value in enumerate(calls.values):
        if index in outside:
            made_up = Value(value.shape, value.dtype, f"value{index}", range=ranges.get(index))
            values.append(replace(made_up, example=value.example))
        elif value.input_name is not None:
            values.append(Value(value.shape, value.dtype))  # a model input that nobody reads here
        else:
            values.append(value)
    return replace(calls, values=tuple(values), calls=tuple(kept), outputs=())


def _ranges_read(calls: KernelCalls, kept: Sequence[KernelCall]) -> dict[int, Interval]:
    """For values that some calls read, what they need them to be in."""
    found: dict[int, Interval] = {}
    for call in kept:
        kernel = calls.kernels.get(call.kernel)
        for value, interval in zip(call.reads, kernel.ranges if kernel else (), strict=False):
            if interval is not None:
                known = found.get(value, interval)
                found[value] = known.meet(interval) or known
    return found


def with_kernel_workspaces(graph: TaskGraph, calls: KernelCalls) -> TaskGraph:
    """Return `graph` with at least the scratch memory that the kernels of each task use."""
    largest = {task.name: task.workspace_bytes for task in graph.tasks}
    for call in calls.calls:
        largest[call.task] = max(largest[call.task], call.workspace.caller_bytes)
    tasks = [replace(task, workspace_bytes=largest[task.name]) for task in graph.tasks]
    return replace(graph, tasks=tuple(tasks))
