"""TaskGraph -> a path of modules with few edges between neighbours, for divide and conquer.

Ghannane and Abdelfattah, DiviML: A Module-based Heuristic for Mapping Neural Networks onto
Heterogeneous Platforms, section IV-B, DOI 10.48550/arXiv.2308.00127: modules joined by one channel
(bridges and articulation points) or by several (edge-connected components), and, where those do not
form a path, cuts of a topological order.

Unlike DiviML, which assumes one source and one sink: where a graph has several, virtual ones are
added (as `None`); modules smaller than a limit are merged with their neighbours, since a module of
a few tasks is not worth a solve; and several channels may also be had without edge-connected
components, by cutting any topological order where few edges cross (`prefix_modules`).

Model inputs and outputs are no edges: they are read and returned beside the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from heteroplace.coarsen.levels import task_dag
from heteroplace.errors import SolverError
from heteroplace.model.graph import TaskGraph
from heteroplace.native.core_graph import BoolArray, Dag, IntArray
from heteroplace.parts.throughput.native.core_cuts import (
    balanced_prefix_cuts,
    edge_connected_components,
    find_cuts,
)

End = int | None
"""A task, or None: the virtual source or sink."""
_Cuts = tuple[list[int], BoolArray]
"""A topological order of the nodes, and for each position whether a cut may be before it."""


@dataclass(frozen=True)
class Boundary:
    """What joins a module to the next one."""

    channels: tuple[tuple[End, End], ...]
    """(task of the module before, task of the module after) for each edge, ascending."""
    split: int | None = None
    """An articulation point, the last task of the module before, from which the module after
    begins: its tensors must be where it ran, so the only channel is (split, split). None: the
    channels are edges."""


@dataclass(frozen=True)
class ModulePath:
    """Modules in order; edges lead from a module to itself or to the next one."""

    modules: tuple[tuple[int, ...], ...]
    """Task ids, ascending; together all tasks."""
    boundaries: tuple[Boundary, ...]
    """[len(modules) - 1]"""

    @property
    def num_channels(self) -> int:
        """The most that join two modules; 0 for a single module."""
        return max((len(boundary.channels) for boundary in self.boundaries), default=0)


def single_channel_modules(graph: TaskGraph, min_tasks: int = 8, max_tasks: int = 40) -> ModulePath:
    """Cut at every bridge and articulation point, then merge small neighbours. O(n log n + m).

    Each articulation point that is not the end of a bridge is split in two: it runs in the module
    before, and the module after begins where it ran. Since every task lies on a path from source
    to sink, the modules form a path and have one input and one output each.

    Parameters
    ----------
    min_tasks, max_tasks
        A module with fewer than `min_tasks` takes in the next one, unless that makes it larger
        than `max_tasks`. 1 keeps every module.

    Raises
    ------
    SolverError
        `min_tasks` is less than 1.
    """
    _check_positive(min_tasks=min_tasks)
    ends = _SingleEnded(graph)
    cuts = find_cuts(ends.dag)
    bridges = np.flatnonzero(cuts.is_bridge)
    is_bridge_end = np.zeros(ends.dag.num_nodes, dtype=bool)
    is_bridge_end[ends.dag.src[bridges]] = True
    is_bridge_end[ends.dag.dst[bridges]] = True
    splits = np.flatnonzero(cuts.is_articulation & ~is_bridge_end)
    # The second half of each split node is a new node, from which the node's edges leave.
    half = np.full(ends.dag.num_nodes, -1, dtype=np.int64)
    half[splits] = ends.dag.num_nodes + np.arange(len(splits))
    src = np.where(half[ends.dag.src] >= 0, half[ends.dag.src], ends.dag.src)
    split_dag = Dag.of_edges(
        ends.dag.num_nodes + len(splits),
        np.concatenate([src, splits]),
        np.concatenate([ends.dag.dst, half[splits]]),
    )
    component = find_cuts(split_dag).component
    # A module comes before another if all of its nodes do, in any topological order.
    order = list(dict.fromkeys(component[split_dag.breadth_first_order()].tolist()))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    module_of = rank[component[: ends.dag.num_nodes]]
    modules: list[list[int]] = [[] for _ in order]
    for node, module in enumerate(module_of.tolist()):
        modules[module].append(node)
    sizes = [sum(ends.end(node) is not None for node in module) for module in modules]
    starts = _merged_starts(sizes, min_tasks, max_tasks)
    before = {int(module_of[node]): int(node) for node in splits}
    split_at = [before.get(start - 1) for start in starts[1:]]
    merged = [
        [node for module in modules[begin:end] for node in module]
        for begin, end in pairwise([*starts, len(modules)])
    ]
    return ends.path(merged, split_at)


def edge_connected_modules(
    graph: TaskGraph, num_channels: int, target_tasks: int = 1, min_tasks: int = 1
) -> ModulePath:
    """Cut between the (num_channels + 1)-edge-connected components.

    Such components need not form a path, nor an acyclic quotient: components on a cycle are
    joined, and then neighbours in a topological order, until at most `num_channels` edges join a
    module to the next one and none goes further. Of the modules that this allows, those with sizes
    nearest to `target_tasks` are taken.

    It solves a flow of `num_channels` + 1 units for each task that has more edges than that, so it
    is for graphs of up to some 10,000 tasks; `prefix_modules` is linear.

    Raises
    ------
    SolverError
        A parameter is less than 1.
    """
    return _best_path(graph, _component_cuts, num_channels, target_tasks, min_tasks)


def prefix_modules(
    graph: TaskGraph, num_channels: int, target_tasks: int = 40, min_tasks: int = 8
) -> ModulePath:
    """Cut a topological order where at most `num_channels` edges cross, into even modules.

    Three orders are tried (that of the graph, M-TOPO, DFS-TOPO); the first with the least sum of
    (size - target_tasks)**2 is taken. O(n log n + m).

    Raises
    ------
    SolverError
        A parameter is less than 1.
    """
    return _best_path(graph, _cuts_anywhere, num_channels, target_tasks, min_tasks)


def _best_path(
    graph: TaskGraph,
    find_cuts: Callable[[Dag, int], list[_Cuts]],
    num_channels: int,
    target_tasks: int,
    min_tasks: int,
) -> ModulePath:
    """The best path among the cuts that `find_cuts` gives for a graph and a number of channels."""
    _check_positive(num_channels=num_channels, target_tasks=target_tasks, min_tasks=min_tasks)
    ends = _SingleEnded(graph)
    cuts = find_cuts(ends.dag, num_channels)
    return ends.best_path(cuts, num_channels, target_tasks, min_tasks)


def _component_cuts(dag: Dag, num_channels: int) -> list[_Cuts]:
    components = edge_connected_components(dag, num_channels + 1)
    # Components that reach each other have no order; together they do.
    joined = dag.quotient(components, _count(components)).strong_components()
    group_of = joined[components]
    groups = dag.quotient(group_of, _count(group_of))
    members: list[list[int]] = [[] for _ in range(groups.num_nodes)]
    for node, group in enumerate(group_of.tolist()):
        members[group].append(node)
    cuts = []
    for order in (groups.breadth_first_order(), groups.depth_first_order()):
        is_allowed = np.zeros(dag.num_nodes, dtype=bool)
        sizes = [len(members[group]) for group in order]
        is_allowed[np.cumsum([0, *sizes[:-1]])] = True
        cuts.append(([node for group in order for node in members[group]], is_allowed))
    return cuts


def _cuts_anywhere(dag: Dag, _num_channels: int) -> list[_Cuts]:
    anywhere = np.ones(dag.num_nodes, dtype=bool)
    orders = (
        list(range(dag.num_nodes)),
        dag.breadth_first_order().tolist(),
        dag.depth_first_order().tolist(),
    )
    return [(order, anywhere) for order in orders]


class _SingleEnded:
    """The tasks of a graph as nodes, with one source and one sink; node ids are topological."""

    def __init__(self, graph: TaskGraph) -> None:
        dag = task_dag(graph)
        self._num_tasks = dag.num_nodes
        tasks = np.arange(dag.num_nodes)
        sources = np.setdiff1d(tasks, dag.dst).tolist()
        sinks = np.setdiff1d(tasks, dag.src).tolist()
        self._first = int(len(sources) != 1)
        """Node of task 0: 1 if node 0 is a virtual source."""
        src, dst = (dag.src + self._first).tolist(), (dag.dst + self._first).tolist()
        num_nodes = dag.num_nodes + self._first
        if self._first:
            src.extend(0 for _ in sources)
            dst.extend(task + 1 for task in sources)
        if len(sinks) != 1:
            src.extend(task + self._first for task in sinks)
            dst.extend(num_nodes for _ in sinks)
            num_nodes += 1
        self.dag = Dag.of_edges(num_nodes, src, dst)

    def end(self, node: int) -> End:
        """The task of a node, or None if it is virtual."""
        task = node - self._first
        return task if 0 <= task < self._num_tasks else None

    def best_path(
        self,
        candidates: Iterable[_Cuts],
        num_channels: int,
        target_tasks: int,
        min_tasks: int,
    ) -> ModulePath:
        """Cut each order where a cut may be; return the first path with the least cost.

        A virtual end is never a module alone.
        """
        cuts: list[tuple[int, int, list[list[int]]]] = []
        for order, positions in candidates:
            is_allowed = positions.copy()
            if self._first:
                is_allowed[1:2] = False
            if self.end(len(order) - 1) is None:
                is_allowed[-1:] = False
            starts, cost = balanced_prefix_cuts(
                self.dag, order, num_channels, target_tasks, min_tasks, is_allowed
            )
            modules = [order[begin:end] for begin, end in pairwise([*starts, len(order)])]
            cuts.append((cost, len(cuts), modules))
        return self.path(min(cuts)[2])

    def path(
        self, modules: Sequence[Sequence[int]], split_at: Sequence[int | None] | None = None
    ) -> ModulePath:
        """The modules, lists of nodes, as a path; `split_at` gives the split of each boundary."""
        if self._num_tasks == 0:
            return ModulePath((), ())
        module_of = np.empty(self.dag.num_nodes, dtype=np.int64)
        for module, nodes in enumerate(modules):
            module_of[list(nodes)] = module
        channels: list[list[tuple[End, End]]] = [[] for _ in modules[1:]]
        before, after = module_of[self.dag.src], module_of[self.dag.dst]
        for edge in np.flatnonzero(before != after).tolist():
            src, dst = int(self.dag.src[edge]), int(self.dag.dst[edge])
            channels[int(before[edge])].append((self.end(src), self.end(dst)))
        boundaries = []
        for index, pairs in enumerate(channels):
            node = None if split_at is None else split_at[index]
            if node is None:
                boundaries.append(Boundary(tuple(pairs)))
            else:
                task = self.end(node)
                boundaries.append(Boundary(((task, task),), task))
        tasks = [[self.end(node) for node in sorted(nodes)] for nodes in modules]
        return ModulePath(
            tuple(tuple(task for task in ends if task is not None) for ends in tasks),
            tuple(boundaries),
        )


def _merged_starts(sizes: Sequence[int], min_tasks: int, max_tasks: int) -> list[int]:
    """Positions where merged runs of modules begin."""
    starts: list[int] = []
    size = 0
    for module, added in enumerate(sizes):
        if not starts or size >= min_tasks or size + added > max_tasks:
            starts.append(module)
            size = 0
        size += added
    if len(starts) > 1 and size < min_tasks and sum(sizes[starts[-2] :]) <= max_tasks:
        starts.pop()
    return starts


def _count(ids: IntArray) -> int:
    return int(ids.max(initial=-1)) + 1


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise SolverError(f"{name} is {value}; expected at least 1")
