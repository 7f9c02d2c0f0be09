"""Task graph with mean times -> favourite child of each task: the linear program of m-SCT.

Source: Hanen and Munier 1995, as used by Jeon et al., "Baechi", SoCC 2020, section 3.1.2. On
infinitely many devices, with f_ij = 0 where j is the favourite child of i: minimise T so that
s_j >= s_i + p_i + c_ij f_ij; at most one child of a task, and one parent, has f = 0, as sums; and
T >= s_i + p_i. Favourites are the edges with f <= threshold.

Unlike Baechi, which hands the whole graph to a solver, the program is taken apart without a loss:
no constraint joins the two sides of a task that no edge passes by (in a topological order), and
modules that are equal, as the layers of a transformer, are solved once. Sinks inside a module may
reach into what follows as far as that takes without transfers; sources likewise. A module of more
than `_MAX_MODULE` tasks is cut into slices of its t-level; edges between slices keep f = 1, and the
path before and after a slice counts with all transfers paid. That is a restriction: its f are
feasible, but T may be longer than the least one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heteroplace.errors import SolverError
from heteroplace.native.core_arrays import IntArray
from heteroplace.native.core_graph import Dag
from heteroplace.native.list import MeanGraph
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.lp.linear import optimal_values
from heteroplace.solve.lp.linear_program import FloatArray, MixedProgram

_MIN_MODULE = 64
"""Tasks; smaller modules are solved together with the next ones."""
_MAX_MODULE = 4_000
"""Tasks; larger modules are cut into slices."""
_SLICE = 1_000
"""Tasks of a slice: width over precision; the time of the solver grows with its square or more."""
_BATCH = 2_000
"""Tasks of modules that are handed to the solver at once, to save its start-up time."""


@dataclass(frozen=True)
class FavouriteEdges:
    """A solution of the program."""

    is_paid: FloatArray
    """[num_edges], f of each edge: the part of the transfer that is paid."""
    is_least: bool
    """The program was solved to the optimum; else some module was sliced."""


@dataclass(frozen=True)
class _Module:
    """A program of its own. Nodes are numbered from 0."""

    edges: IntArray
    """Ids in the whole graph; not part of the key."""
    src: IntArray
    dst: IntArray
    run_ns: IntArray
    transfer_ns: IntArray
    head_ns: IntArray
    """[num_nodes], earliest start; the module begins at 0."""
    tail_ns: IntArray
    """[num_nodes], what follows the node at least; < 0: how far behind the module it may end."""

    def key(self) -> bytes:
        """Equal for modules with equal solutions."""
        arrays = (self.src, self.dst, self.run_ns, self.transfer_ns, self.head_ns, self.tail_ns)
        return b"|".join(array.tobytes() for array in arrays)


def favourite_children(graph: MeanGraph, threshold: float, deadline: Deadline = NEVER) -> IntArray:
    """Return the favourite child of each task, [num_tasks]; -1: it has none.

    Parameters
    ----------
    threshold
        Edges with f at most that make favourites; of several for one task the last one counts.

    Raises
    ------
    SolverError
        HiGHS failed.
    SolverLimitError
        The deadline passed.
    """
    solution = solve_favourites(graph, deadline)
    child = np.full(len(graph.run_ns), -1, dtype=np.int64)
    parent = np.full(len(graph.run_ns), -1, dtype=np.int64)
    for edge in np.flatnonzero(solution.is_paid <= threshold).tolist():
        src, dst = int(graph.src[edge]), int(graph.dst[edge])
        if child[src] >= 0:
            parent[child[src]] = -1
        if parent[dst] >= 0:
            child[parent[dst]] = -1
        child[src], parent[dst] = dst, src
    return child


def solve_favourites(graph: MeanGraph, deadline: Deadline = NEVER) -> FavouriteEdges:
    """Return f of each edge.

    Complexity: that of HiGHS on the distinct modules; the rest is linear.

    Raises
    ------
    SolverError
        HiGHS failed.
    """
    modules, is_least = _modules(graph)
    distinct: dict[bytes, list[_Module]] = {}
    for module in modules:
        distinct.setdefault(module.key(), []).append(module)
    is_paid = np.ones(len(graph.src))
    batch: list[list[_Module]] = []
    size = 0
    for same in distinct.values():
        if batch and size + len(same[0].run_ns) > _BATCH:
            _solve_batch(batch, is_paid, deadline)
            batch, size = [], 0
        batch.append(same)
        size += len(same[0].run_ns)
    _solve_batch(batch, is_paid, deadline)
    return FavouriteEdges(is_paid, is_least)


def _modules(graph: MeanGraph) -> tuple[list[_Module], bool]:
    """Cut where no edge passes by a task; False: a module had to be sliced."""
    count = len(graph.run_ns)
    passing = np.zeros(count + 1, dtype=np.int64)
    np.add.at(passing, graph.src + 1, 1)
    np.add.at(passing, graph.dst, -1)
    cuts = np.flatnonzero(np.cumsum(passing[:count]) == 0)
    first_edge = np.searchsorted(graph.src, np.arange(count + 1))
    free = Dag.of_edges(count, graph.src, graph.dst).levels(
        graph.run_ns, np.zeros(len(graph.src), dtype=np.int64)
    )
    modules: list[_Module] = []
    is_least = True
    begin = 0
    for end in cuts.tolist():
        if end - begin < _MIN_MODULE and end != count - 1:
            continue
        edges = np.arange(first_edge[begin], first_edge[end])
        src, dst = graph.src[edges] - begin, graph.dst[edges] - begin
        run_ns = graph.run_ns[begin : end + 1].copy()
        rest_ns = 0
        if end != count - 1:
            run_ns[end - begin] = 0  # It belongs to the next module.
            rest_ns = int(free.blevel_ns[end])
        transfer_ns = graph.transfer_ns[edges]
        before_ns = int(free.tlevel_ns[begin])
        begin = end
        if not len(edges):
            continue
        if len(run_ns) > _MAX_MODULE:
            modules.extend(_slices(edges, src, dst, run_ns, transfer_ns))
            is_least = False
            continue
        # Beyond all that the module may take, time before and after it changes nothing.
        most = int(run_ns.sum() + transfer_ns.sum())
        head_ns, tail_ns = np.zeros((2, len(run_ns)), dtype=np.int64)
        head_ns[1:][np.bincount(dst, minlength=len(run_ns))[1:] == 0] = -min(before_ns, most)
        tail_ns[:-1][np.bincount(src, minlength=len(run_ns))[:-1] == 0] = -min(rest_ns, most)
        modules.append(_Module(edges, src, dst, run_ns, transfer_ns, head_ns, tail_ns))
    return modules, is_least


def _slices(
    edges: IntArray, src: IntArray, dst: IntArray, run_ns: IntArray, transfer_ns: IntArray
) -> list[_Module]:
    """Cut a module into slices of about `_SLICE` tasks that start one after the other."""
    count = len(run_ns)
    levels = Dag.of_edges(count, src, dst).levels(run_ns, transfer_ns)
    order = np.argsort(levels.tlevel_ns, kind="stable")
    position = np.empty(count, dtype=np.int64)
    position[order] = np.arange(count)
    slice_of = position // _SLICE
    tail_ns = levels.blevel_ns - run_ns
    modules = []
    for index in range(int(slice_of.max()) + 1):
        inside = np.flatnonzero((slice_of[src] == index) & (slice_of[dst] == index))
        nodes = order[index * _SLICE : (index + 1) * _SLICE]
        head_ns = levels.tlevel_ns[nodes]
        modules.append(
            _Module(
                edges[inside],
                position[src[inside]] - index * _SLICE,
                position[dst[inside]] - index * _SLICE,
                run_ns[nodes],
                transfer_ns[inside],
                head_ns - head_ns.min(),
                tail_ns[nodes] - tail_ns[nodes].min(),
            )
        )
    return [module for module in modules if len(module.edges)]


def _solve_batch(batch: list[list[_Module]], is_paid: FloatArray, deadline: Deadline) -> None:
    """Solve the first of each list of equal modules, and write f for all of them."""
    if not batch:
        return
    values = _solve([same[0] for same in batch], deadline)
    begin = 0
    for same in batch:
        end = begin + len(same[0].edges)
        for module in same:
            is_paid[module.edges] = values[begin:end]
        begin = end


def _solve(modules: list[_Module], deadline: Deadline) -> FloatArray:
    """Return f of the edges of all modules, one after the other: one program, sum of the T."""
    sizes = np.array([len(module.run_ns) for module in modules])
    shift = np.concatenate([[0], np.cumsum(sizes)])
    src = np.concatenate([module.src + shift[i] for i, module in enumerate(modules)])
    dst = np.concatenate([module.dst + shift[i] for i, module in enumerate(modules)])
    run, transfer, head, tail = (
        np.concatenate([getattr(module, name) for module in modules]).astype(np.float64)
        for name in ("run_ns", "transfer_ns", "head_ns", "tail_ns")
    )
    unit = max(1.0, float(run.max()), float(transfer.max(initial=0)))
    num_nodes, num_edges = len(run), len(src)
    edge = np.arange(num_edges)
    out_degree = np.bincount(src, minlength=num_nodes)
    in_degree = np.bincount(dst, minlength=num_nodes)
    # Columns: s of nodes, f of edges, T of modules.
    ends = num_nodes + num_edges + np.repeat(np.arange(len(modules)), sizes)
    program = MixedProgram()
    program.add_columns(num_nodes, lower=head / unit)
    # The only edge of its task and of its reader is free: f = 0 costs no other edge anything.
    is_shared = (out_degree[src] > 1) | (in_degree[dst] > 1)
    program.add_columns(num_edges, upper=is_shared)
    program.add_columns(len(modules), cost=1.0)
    program.add_rows(
        -run[src] / unit,
        (edge, src, np.ones(num_edges)),
        (edge, dst, -np.ones(num_edges)),
        (edge, num_nodes + edge, transfer / unit),
    )
    for node, degree in ((src, out_degree), (dst, in_degree)):
        shared = np.flatnonzero(degree > 1)
        row = np.full(num_nodes, -1)
        row[shared] = np.arange(len(shared))
        chosen = edge[row[node] >= 0]
        program.add_rows(
            (1.0 - degree[shared]).astype(np.float64),
            (row[node[chosen]], num_nodes + chosen, -np.ones(len(chosen))),
        )
    # A module ends after its sinks; where paths go on behind a slice, after every task.
    last = np.flatnonzero((out_degree == 0) | (tail > 0))
    row = np.arange(len(last))
    program.add_rows(
        -(run + tail)[last] / unit,
        (row, last, np.ones(len(last))),
        (row, ends[last], -np.ones(len(last))),
    )
    values = optimal_values(program, "m-sct", deadline)
    if values is None:
        raise SolverError("the linear program of 'm-sct' has no solution: a bug of m_sct_lp.py")
    return values[num_nodes : num_nodes + num_edges]
