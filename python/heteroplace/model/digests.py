"""What a plan or a table was made for -> whether that is the graph and the cluster at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import Task, TaskGraph, Tensor
from heteroplace.model.graphs.graph_digest import (
    ADDED_TASK_FIELDS,
    ADDED_TENSOR_FIELDS,
    STRUCTURE_FIELDS,
    TENSOR_FIELDS,
)

_OF_TASK = STRUCTURE_FIELDS + ADDED_TASK_FIELDS
_OF_TENSOR = TENSOR_FIELDS + ADDED_TENSOR_FIELDS


def digest_mismatches(
    graph: TaskGraph, cluster: Cluster, graph_digest: str, cluster_digest: str
) -> list[str]:
    """Return what differs, each to go on from "X was " in a message; [] if both digests agree."""
    pairs = (
        ("graph", graph.name, graph_digest, graph.digest()),
        ("cluster", cluster.name, cluster_digest, cluster.digest()),
    )
    return [
        f"made for a {kind} with digest {expected}, but {kind} {name!r} has {got}"
        for kind, name, expected, got in pairs
        if expected != got
    ]


def remedy_of_mismatch(graph: TaskGraph, structure_digest: str) -> str:
    """Return what to do about a plan, made for a graph of this structure, that has mismatches.

    Pins and limits change digests and no structure: the same plan would be made again.
    """
    if structure_digest != graph.structure_digest:
        return "make the plan again"
    return (
        "the tasks and tensors are the same, so it was made with other pins or groups "
        "(--pin, --exclude, ...), limits (--max-memory) or devices: give the file of `heteroplace "
        "place ... -o FILE`, which holds the graph and the cluster of its plan"
    )


def is_same_but_batches(one: Cluster, other: Cluster) -> bool:
    """Tell whether two clusters are the same but for the batches that their devices take.

    Plans that sum over microbatches at once are of devices that take these as a batch; whoever
    asked for them did not say so.
    """
    if one.digest() == other.digest():
        return True
    plain = [
        replace(each, devices=tuple(replace(own, batch_sizes=(1,)) for own in each.devices))
        for each in (one, other)
    ]
    return plain[0].digest() == plain[1].digest()


def first_difference(saved: TaskGraph, graph: TaskGraph) -> str:
    """Return the first thing in which two graphs differ that a plan depends on; "": none.

    To go on after "the plan's graph", e.g. "has op 'nn.conv2d' for task 'a', graph 'g' has ...".
    """
    return (
        _first_unequal("task", saved.tasks, graph.tasks, _OF_TASK, graph.name)
        or _first_unequal("tensor", saved.tensors, graph.tensors, _OF_TENSOR, graph.name)
        or (
            f"returns other tensors than graph {graph.name!r}"
            if _returns_others(saved, graph)
            else f"has other updates of state than graph {graph.name!r}"
            if saved.updates != graph.updates
            else f"has other routers or routed buffers than graph {graph.name!r}"
            if (saved.routers, saved.buffers) != (graph.routers, graph.buffers)
            else ""
        )
    )


def _returns_others(saved: TaskGraph, graph: TaskGraph) -> bool:
    return (saved.inputs, saved.outputs) != (graph.inputs, graph.outputs)


def _first_unequal(
    what: str,
    saved: Sequence[Task | Tensor],
    present: Sequence[Task | Tensor],
    fields: Sequence[str],
    graph: str,
) -> str:
    names = {value.name for value in present}
    saved_names = {value.name for value in saved}
    for value in saved:
        if value.name not in names:
            return f"has {what} {value.name!r}, which graph {graph!r} does not have"
    for value in present:
        if value.name not in saved_names:
            return f"lacks {what} {value.name!r} of graph {graph!r}"
    for one, other in zip(saved, present, strict=True):
        for field in fields:
            before, now = getattr(one, field), getattr(other, field)
            if before != now:
                return (
                    f"has {field} {before!r} for {what} {one.name!r}, graph {graph!r} has {now!r}"
                )
    return ""
