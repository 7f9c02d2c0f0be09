"""Rows of a network -> a part of them that runs alone, and the scratch memory of its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heteroplace.codegen.kernels import Row, Rows, Value
from heteroplace.codegen.order import root
from heteroplace.model.graph import TaskGraph


def only_rows(rows: Rows, kept: Sequence[Row]) -> Rows:
    """Return some of the rows alone; what they read from others are inputs."""
    made = {value for row in kept for value in row.writes}
    read = {value for row in kept for value in row.reads}
    outside = {
        value
        for value in read
        if rows.values[root(rows, value)].constant is None and root(rows, value) not in made
    }
    values = []
    for index, value in enumerate(rows.values):
        if index in outside:
            values.append(Value(value.shape, value.dtype, input_name=f"value{index}"))
        elif value.input_name is not None:
            values.append(Value(value.shape, value.dtype))  # a model input that nobody reads here
        else:
            values.append(value)
    return replace(rows, values=tuple(values), rows=tuple(kept), outputs=())


def with_row_workspaces(graph: TaskGraph, rows: Rows) -> TaskGraph:
    """Return `graph` with at least the scratch memory that the kernels of each task use."""
    largest = {task.name: task.workspace_bytes for task in graph.tasks}
    for row in rows.rows:
        largest[row.task] = max(largest[row.task], row.workspace.caller_bytes)
    tasks = [replace(task, workspace_bytes=largest[task.name]) for task in graph.tasks]
    return replace(graph, tasks=tuple(tasks))
