"""TaskGraph -> its modules at narrow cuts, each kind found once, when it is first asked for.

What bounds, `split` and the route of `auto` share: the chain of modules over single tasks, and
paths of modules over several channels (DiviML, section IV-B).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from heteroplace.model.graph import TaskGraph
from heteroplace.parts.throughput.decompose.narrow_cuts import (
    ModulePath,
    edge_connected_modules,
    prefix_modules,
    single_channel_modules,
)
from heteroplace.parts.throughput.decompose.serial_modules import ChainModule, module_chain
from heteroplace.solve.problem import MAX_MODULE_TASKS, Problem

MAX_MODULE_PATH_TASKS = 5000
"""Larger graphs have too many modules to solve them one by one."""
_CHANNELS = (2, 3, 4, 6, 9, 16)
"""Numbers of channels tried, in this order, until all modules are small enough."""
_MAX_EDGE_CONNECTED_TASKS = 400
"""Above this only prefixes of orders are tried: edge-connected components take a flow per task."""
_OTHER_TARGETS = (24, 48, 64)
"""Sizes of modules on the other paths, for bounds alone."""


def modules_of(problem: Problem) -> Decomposition:
    """Return the modules of a problem's graph, found once for all that ask."""
    return problem.derived(_decompose)


def _decompose(problem: Problem) -> Decomposition:
    return Decomposition(problem.graph, has_host=problem.cluster.host is not None)


class Decomposition:
    """The modules of one graph. Not thread-safe."""

    def __init__(self, graph: TaskGraph, *, has_host: bool) -> None:
        """`has_host`: model inputs come from a host and model outputs go there."""
        self._graph = graph
        self._has_host = has_host

    @cached_property
    def chain(self) -> tuple[ChainModule, ...]:
        """Modules that follow each other over one task each; a single one: nothing can be cut."""
        return module_chain(self._graph, has_host=self._has_host, path=self._single)

    @cached_property
    def path(self) -> ModulePath | None:
        """A path of modules of at most MAX_MODULE_TASKS tasks; None if none is found."""
        if not 0 < len(self._graph.tasks) <= MAX_MODULE_PATH_TASKS:
            return None
        for path in self._candidates():
            if max(map(len, path.modules), default=0) <= MAX_MODULE_TASKS:
                return path
        return None

    @cached_property
    def paths(self) -> tuple[ModulePath, ...]:
        """Paths of several modules; empty if there are no narrow cuts.

        The first is `path`, the one for plans. Which cuts prove most is not known before: others
        follow, of smaller modules and of larger ones, over as many channels.
        """
        first = self.path
        if first is None or len(first.modules) < 2:
            return ()
        channels = first.num_channels
        others = [prefix_modules(self._graph, channels, target) for target in _OTHER_TARGETS]
        by_modules = {path.modules: path for path in (first, *others) if len(path.modules) > 1}
        return tuple(by_modules.values())

    @cached_property
    def _single(self) -> ModulePath:
        return single_channel_modules(self._graph, max_tasks=MAX_MODULE_TASKS)

    def _candidates(self) -> Iterator[ModulePath]:
        graph, target = self._graph, MAX_MODULE_TASKS * 3 // 4
        yield self._single
        for channels in _CHANNELS:
            yield prefix_modules(graph, channels, target)
            if len(graph.tasks) <= _MAX_EDGE_CONNECTED_TASKS:
                yield edge_connected_modules(graph, channels, target)
