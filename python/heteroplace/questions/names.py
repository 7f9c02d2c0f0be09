"""What a user calls a task, an op or a layer -> the tasks that are meant."""

from __future__ import annotations

from fnmatch import fnmatchcase

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import GraphError
from heteroplace.model.demands import layers_of, stands_for_layer
from heteroplace.model.graph import TaskGraph

_MAX_LISTED = 8


def find_tasks(graph: TaskGraph, name: str) -> list[int]:
    """Return the ids of the tasks that `name` means.

    That is a task, else a layer, else an op, else all layers below a name ("encoder" stands for
    "encoder.0.conv"), else a pattern of any of these, else all whose names begin so.

    Raises
    ------
    GraphError
        It means none; the nearest name is told.
    """
    groups = (
        lambda task: (task.name,),
        layers_of,
        lambda task: task.op.split("+"),
    )
    for names in groups:
        matching = [index for index, task in enumerate(graph.tasks) if name in names(task)]
        if matching:
            return matching
    matching = [
        index
        for index, task in enumerate(graph.tasks)
        if any(stands_for_layer(name, layer) for layer in layers_of(task))
    ]
    for pattern in (name, f"{name}*"):
        matching = matching or [
            index
            for index, task in enumerate(graph.tasks)
            if any(fnmatchcase(each, pattern) for names in groups for each in names(task))
        ]
    if matching:
        return matching
    task_name = dict.fromkeys(n for names in groups for task in graph.tasks for n in names(task))
    near = did_you_mean(name, task_name)
    listed = ", ".join(task.name for task in graph.tasks[:_MAX_LISTED])
    raise GraphError(
        f"graph {graph.name!r} has no task, layer or op {name!r}"
        + (near or f"; tasks are called like: {listed}")
    )
