"""TaskGraph -> modules that follow each other, with one task through which all data goes between.

DiviML, sections IV-B and IV-C: the modules between bridges and articulation points. Behind the exit
of a module nothing of it is under way, so the makespan of a plan is the sum of the times of its
modules, and the time of a module depends on its own placement and on where the exit of the module
before ran.

Boundaries that something passes beside the exit (a colocation group; with a host, the copies of
model inputs and outputs) are given up: the modules on both sides become one.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.model.graph import TaskGraph
from heteroplace.parts.throughput.decompose.narrow_cuts import ModulePath, single_channel_modules


@dataclass(frozen=True)
class ChainModule:
    """Tasks between two exits."""

    tasks: tuple[int, ...]
    """Ascending; the exit is one of them."""
    entry: int | None
    """The exit of the module before, whose tensors are read here; None: this is the first."""
    exit: int | None
    """The last task to finish; None: this is the last module."""


def module_chain(
    graph: TaskGraph,
    *,
    has_host: bool = False,
    keeps_groups: bool = True,
    path: ModulePath | None = None,
) -> tuple[ChainModule, ...]:
    """Return the modules in order; a single one if nothing can be cut. O(n log n + m).

    Parameters
    ----------
    has_host
        Model inputs come from a host and model outputs go there.
    keeps_groups
        No colocation group is cut. False: they are, which is right for bounds only.
    path
        Single-channel modules to begin with; None: those of `single_channel_modules`.
    """
    path = single_channel_modules(graph) if path is None else path
    is_blocked = _blocked(graph, has_host, keeps_groups)
    modules: list[ChainModule] = []
    tasks: list[int] = []
    entry: int | None = None
    for module, boundary in zip(path.modules, (*path.boundaries, None), strict=True):
        tasks.extend(module)
        cut = None if boundary is None else boundary.channels[0][0]
        if boundary is not None and (cut is None or is_blocked[cut] or cut not in tasks):
            continue
        modules.append(ChainModule(tuple(sorted(tasks)), entry, cut))
        tasks, entry = [], cut
    return tuple(modules)


def _blocked(graph: TaskGraph, has_host: bool, keeps_groups: bool) -> list[bool]:
    """For each task whether something passes beside it, if it is the exit of a module."""
    count = len(graph.tasks)
    spans: list[tuple[int, int]] = []
    ends: dict[str, tuple[int, int]] = {}
    for index, task in enumerate(graph.tasks):
        if keeps_groups and task.together is not None:
            ends[task.together] = (ends.get(task.together, (index, index))[0], index)
    spans.extend(ends.values())
    if has_host:
        # Copies of inputs may begin at once, those of outputs may last until the end.
        for tensor in graph.inputs:
            spans.extend((0, reader) for reader in graph.tensors[tensor].consumers[-1:])
        for tensor in graph.outputs:
            producer = graph.tensors[tensor].producer
            if producer is not None:
                spans.append((producer, count))
    blocked = [False] * count
    for first, last in spans:
        for passed in range(first, min(last, count)):
            blocked[passed] = True
    return blocked
