"""Draft -> the bytes that memories lack for it."""

from __future__ import annotations

from heteroplace.model.memory import memory_use
from heteroplace.native.arrays import COPY
from heteroplace.native.schedule import Draft
from heteroplace.solve.base import Problem


def excess_bytes(problem: Problem, draft: Draft) -> dict[str, int]:
    """Return for each memory that a draft overcommits, by name, the bytes that it lacks."""
    graph, cluster = problem.graph, problem.cluster
    copies = draft.rows[draft.rows[:, 0] == COPY]
    pairs = ((tensor, memory) for tensor, memory in copies[:, 1:3].tolist())
    used = memory_use(graph, cluster, draft.devices(len(graph.tasks)).tolist(), pairs)
    return {
        memory.name: need - memory.bytes
        for memory, need in zip(cluster.memories, used, strict=True)
        if need > memory.bytes
    }
