"""A task graph -> the digest by which plans, costs and files know it.

What older graphs do not say (shared tensors, tasks that add, named weights, updates, branches,
routers, buffers) is left out where nothing says it: their digests stay.
"""

from __future__ import annotations

import hashlib
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from heteroplace.model.graph import TaskGraph

STRUCTURE_FIELDS = ("name", "op", "flops", "weight_bytes")
"""Fields of a task that a plan depends on."""
TASK_FIELDS = (
    *("name", "op", "members", "flops", "weight_bytes", "workspace_bytes", "devices", "together"),
)
"""Fields of a task that every digest has."""
TENSOR_FIELDS = ("name", "producer", "index", "shape", "dtype", "bytes", "consumers")
"""Fields of a tensor that every digest has."""
ADDED_TASK_FIELDS = ("adds", "weights", "branch")
"""Further fields of a task, which a plan depends on too."""
ADDED_TENSOR_FIELDS = ("shared", "buffer")
"""Further fields of a tensor, likewise."""


def graph_digest(graph: TaskGraph, name: str, task_fields: tuple[str, ...]) -> str:
    """Return a hex digest of the graph under a name, with those fields of its tasks."""
    # By columns: 50,000 tasks take 50 ms, as dicts they would take a second.
    columns: list[object] = [
        name,
        [[getattr(task, field) for task in graph.tasks] for field in task_fields],
        [[getattr(tensor, field) for tensor in graph.tensors] for field in TENSOR_FIELDS],
        graph.inputs,
        graph.outputs,
    ]
    added: dict[str, list[object]] = {}
    for values, fields in ((graph.tasks, ADDED_TASK_FIELDS), (graph.tensors, ADDED_TENSOR_FIELDS)):
        for field in fields:
            column = list(map(attrgetter(field), values))
            if any(column):
                added[field] = column
    if added or graph.updates:
        columns += [added, graph.updates]
    if graph.routers or graph.buffers:
        columns += [graph.routers, graph.buffers]
    try:
        text = msgspec.json.encode(columns)
    except (UnicodeEncodeError, OverflowError):
        # Half a surrogate pair in a name, or a size beyond 64 bits.
        text = ascii(tuple(columns)).encode()
    return hashlib.sha256(text).hexdigest()[:16]
