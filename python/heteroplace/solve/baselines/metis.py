"""Placement by graph partitioning, as learned placers compare to.

METIS: Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular
Graphs", 1998 (10.1137/S1064827595287997). C++: src/list/engine/list_schedule.cc.

Vertices are tasks, weighted by their mean run time; edges are weighted by their mean transfer time;
as many parts as devices, none above 1.03 of the mean weight, of least cut. The parts go to the
devices in the best of all ways (up to MAX_TRIED_DEVICES devices; beyond, the heaviest part first,
to the device where it takes least), and the result is list-scheduled by upward rank. Precedence is
not seen, so a chain may be cut into parts that wait for each other.

Memory ought to be a second weight, which pymetis does not pass on. So where no way fits, the graph
is cut once more with one weight that stands for both: share of the run time + share of the bytes.
Tasks that cannot be on their part's device go to the fastest one where they can.
"""

from __future__ import annotations

import itertools
import time
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from heteroplace.coarsen.transfers import mean_transfer_ns
from heteroplace.errors import SolverError
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import evaluate_order, list_schedule, rank_order, upward_ranks
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.feasibility import check_possible, nearest_allowed, no_placement_error
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result

MAX_TRIED_DEVICES = 5
"""Up to so many devices all ways to give them the parts are tried."""
_IMBALANCE_PER_MILLE = 30
"""METIS' `ufactor`: the heaviest part has at most 1.03 of the mean weight."""
_TOTAL_WEIGHT = 1 << 30
"""METIS' integers may have 32 bits; weights are scaled to this sum."""

FloatArray = npt.NDArray[np.float64]


class MetisSolver:
    """Balanced parts of least cut, one for each device."""

    name = "metis"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. Deterministic for a seed.

        Raises
        ------
        SolverError
            pymetis is not installed.
        InfeasibleError
            The parts overflow a memory, or a part cannot send to another.
        """
        begin = time.perf_counter()
        check_possible(problem)
        partitioned = partition_plan(problem, options.seed)
        if partitioned.violation:
            raise no_placement_error(problem)
        plan = problem.native.plan(partitioned.steps, f"metis seed {options.seed}")
        wall = time.perf_counter() - begin
        left = Deadline.after(options.time_limit_s, begin).left_s()
        bound = lower_bound(problem, time_limit_s=left).ns
        return make_result(problem, plan, bound, self.name, wall)


def has_pymetis() -> bool:
    """Say whether the package that cuts graphs is installed."""
    return find_spec("pymetis") is not None


def partition_plan(problem: Problem, seed: int = 0, *, balances_memory: bool = True) -> NativePlan:
    """Return the plan; it may overflow memories (`violation`).

    Parameters
    ----------
    balances_memory
        Cut once more, by run time and bytes, where no mapping fits; False: by run time alone.

    O((tasks + reads) log tasks) for each of at most 120 ways to give the parts to the devices.

    Raises
    ------
    SolverError
        pymetis is not installed.
    """
    pymetis = _require_pymetis()
    native = problem.native
    graph = _TaskWeights(problem)
    best: tuple[int, int, IntArray] | None = None
    for weight in (graph.run_ns, graph.both) if balances_memory else (graph.run_ns,):
        trial = _best_mapping(problem, graph.partition(pymetis, weight, seed))
        if best is None or trial[:2] < best[:2]:
            best = trial
        if best[0] == 0:
            break
    assert best is not None
    return list_schedule(native, best[2].tolist(), upward_ranks(native).tolist())


class _TaskWeights:
    """The undirected graph that METIS cuts: a colocation group is one vertex."""

    def __init__(self, problem: Problem) -> None:
        graph, native = problem.graph, problem.native
        self._num_parts = len(problem.cluster.devices)
        group_vertex: dict[int, int] = {}
        vertices: list[int] = []
        count = 0
        for group in native.task_group:
            vertex = group_vertex.setdefault(group, count) if group >= 0 else count
            count += vertex == count
            vertices.append(vertex)
        self._vertex = np.array(vertices, dtype=np.int64)
        self._num_vertices = count
        is_allowed = native.run_ns != IMPOSSIBLE
        total_ns = np.where(is_allowed, native.run_ns, 0).sum(axis=1)
        num_bytes = np.array(
            [
                task.weight_bytes
                + sum(graph.tensors[tensor].bytes for tensor in graph.task_outputs[i])
                for i, task in enumerate(graph.tasks)
            ],
            dtype=np.float64,
        )
        self.run_ns = self._per_vertex(total_ns / is_allowed.sum(axis=1))
        memory = self._per_vertex(num_bytes)
        self.both = self.run_ns / max(1.0, self.run_ns.sum()) + memory / max(1.0, memory.sum())
        self._starts, self._neighbours, self._transfer_ns = self._edges(problem)

    def partition(self, pymetis: Any, weight: FloatArray, seed: int) -> IntArray:
        """Return the part of each task, [num_tasks]."""
        if self._num_parts == 1 or self._num_vertices <= self._num_parts:
            return self._vertex % self._num_parts
        parts = pymetis.part_graph(
            self._num_parts,
            pymetis.CSRAdjacency(self._starts, self._neighbours),
            vweights=_scaled(weight),
            eweights=_scaled(self._transfer_ns),
            recursive=False,
            options=pymetis.Options(ufactor=_IMBALANCE_PER_MILLE, seed=seed),
        )
        part: IntArray = np.asarray(parts.vertex_part, dtype=np.int64)[self._vertex]
        return part

    def _per_vertex(self, values: FloatArray) -> FloatArray:
        return np.bincount(self._vertex, values, minlength=self._num_vertices).astype(np.float64)

    def _edges(self, problem: Problem) -> tuple[IntArray, IntArray, FloatArray]:
        """Compressed rows of neighbours, with the transfer time between each two vertices."""
        sizes = np.array([tensor.bytes for tensor in problem.graph.tensors], dtype=np.float64)
        means_ns = mean_transfer_ns(problem.cluster, sizes).tolist()
        ends: list[tuple[int, int]] = []
        transfer_ns: list[float] = []
        for tensor, mean_ns in zip(problem.graph.tensors, means_ns, strict=True):
            if tensor.producer is None:
                continue
            src = int(self._vertex[tensor.producer])
            for consumer in tensor.consumers:
                dst = int(self._vertex[consumer])
                if src != dst:
                    ends += [(src, dst), (dst, src)]
                    transfer_ns += [mean_ns] * 2
        pairs = np.array(ends, dtype=np.int64).reshape(-1, 2)
        keys, edge = np.unique(pairs[:, 0] * self._num_vertices + pairs[:, 1], return_inverse=True)
        rows = np.bincount(keys // max(1, self._num_vertices), minlength=self._num_vertices)
        starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        times = np.bincount(edge, np.array(transfer_ns), minlength=len(keys)).astype(np.float64)
        return starts, keys % max(1, self._num_vertices), times


def _require_pymetis() -> Any:
    try:
        import pymetis
    except ImportError as err:
        raise SolverError(
            "solver 'metis' needs the package pymetis, which is not installed. "
            "Install it with: pip install 'heteroplace[metis]', or choose another solver."
        ) from err
    return pymetis


def _scaled(weight: FloatArray) -> IntArray:
    """Integers >= 1 in the proportions of `weight`."""
    total = float(weight.sum())
    scale = _TOTAL_WEIGHT / total if total > 0 else 0.0
    whole: IntArray = np.maximum(1, np.rint(weight * scale)).astype(np.int64)
    return whole


def _best_mapping(problem: Problem, part: IntArray) -> tuple[int, int, IntArray]:
    """(violation, makespan in ns, device of each task) of the best way to place the parts.

    Ties: the way that comes first in lexicographic order.
    """
    nearest = nearest_allowed(problem)
    num_devices = nearest.shape[1]
    tasks = np.arange(len(part))
    if num_devices <= MAX_TRIED_DEVICES:
        ways = list(itertools.permutations(range(num_devices)))
    else:
        ways = [_greedy_way(problem, part, nearest)]
    order = rank_order(problem.native)
    best: tuple[int, int, IntArray] | None = None
    for way in ways:
        mapping = nearest[tasks, np.array(way, dtype=np.int64)[part]]
        plan = evaluate_order(problem.native, mapping.tolist(), order)
        if best is None or (plan.violation, plan.makespan_ns) < best[:2]:
            best = (plan.violation, plan.makespan_ns, mapping)
    assert best is not None
    return best


def _greedy_way(problem: Problem, part: IntArray, nearest: IntArray) -> tuple[int, ...]:
    """Device of each part: heaviest part first, to the free device where it takes least."""
    num_devices = nearest.shape[1]
    run_ns = np.take_along_axis(problem.native.run_ns, nearest, axis=1)
    load = np.zeros((num_devices, num_devices), dtype=np.int64)
    np.add.at(load, part, run_ns)
    way = [-1] * num_devices
    free = list(range(num_devices))
    for heavy in np.argsort(-load.mean(axis=1), kind="stable").tolist():
        way[heavy] = min(free, key=lambda device: int(load[heavy, device]))
        free.remove(way[heavy])
    return tuple(way)
