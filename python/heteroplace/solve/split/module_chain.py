"""Problem -> stages that follow each other, with one task through which all data goes between two.

DiviML, sections IV-B and IV-C: the modules between bridges and articulation points. Behind the exit
of a stage nothing of it is under way, so the makespan of a plan is the sum of the times of its
stages, and the time of a stage depends on its own placement and on the memory where the exit of the
stage before ran. Unlike DiviML the states of the programme are memories, not devices: equal devices
of one memory are one state.

Boundaries that something passes beside the exit (a `together` label; with a host, the copies of
model inputs and outputs) are given up: the stages on both sides become one.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.decompose.narrow_cuts import single_channel_modules
from heteroplace.solve.problem import Problem

MIN_STAGE_TASKS, MAX_STAGE_TASKS = 8, 40
"""Stages are joined up to the first; not beyond the second."""


@dataclass(frozen=True)
class Stage:
    """Tasks between two exits."""

    tasks: tuple[int, ...]
    """Ascending; the exit is one of them."""
    entry: int | None
    """The exit of the stage before, whose tensors are read here; None: this is the first."""
    exit: int | None
    """The last task to finish; None: this is the last stage."""


def find_chain(
    problem: Problem, min_tasks: int = MIN_STAGE_TASKS, max_tasks: int = MAX_STAGE_TASKS
) -> tuple[Stage, ...]:
    """Return the stages in order; a single one if nothing can be cut. O(n log n + m)."""
    path = single_channel_modules(problem.graph, min_tasks, max_tasks)
    is_blocked = _blocked(problem)
    stages: list[Stage] = []
    tasks: list[int] = []
    entry: int | None = None
    for module, boundary in zip(path.modules, (*path.boundaries, None), strict=True):
        tasks.extend(module)
        cut = None if boundary is None else boundary.channels[0][0]
        if boundary is not None and (cut is None or cut not in tasks or is_blocked[cut]):
            continue
        stages.append(Stage(tuple(sorted(tasks)), entry, cut))
        tasks, entry = [], cut
    return tuple(stages)


def _blocked(problem: Problem) -> list[bool]:
    """For each task whether something passes beside it, if it is the exit of a stage."""
    graph, host = problem.graph, problem.cluster.host
    count = len(graph.tasks)
    spans: list[tuple[int, int]] = []
    group = problem.native.task_group
    ends: dict[int, tuple[int, int]] = {}
    for task in range(count):
        if group[task] >= 0:
            label = int(group[task])
            ends[label] = (ends.get(label, (task, task))[0], task)
    spans.extend(ends.values())
    if host is not None:
        # Copies of inputs may begin at once, those of outputs may last until the end.
        for tensor in graph.inputs:
            spans.extend((0, reader) for reader in graph.tensors[tensor].consumers[-1:])
        for tensor in graph.outputs:
            producer = graph.tensors[tensor].producer
            if producer is not None:
                spans.append((producer, count))
    blocked = [False] * count
    for first, last in spans:
        for task in range(first, min(last, count)):
            blocked[task] = True
    return blocked
