"""The placement of least time per item as a mixed-integer programme, for small graphs.

Only the assignment is modelled, no order: the throughput form of the programmes of Moirai (III-D)
and of "Efficient Algorithms for Device Placement of DNN Graph Operators" (2020), with one copy per
tensor and memory. Variables: `x` a task (or group) on a device, 0/1; `here` a tensor is in a
memory; `from` a tensor comes to a memory from another one. As a copy comes from the tensor's home,

    here[t, m] <= sum over homes s of from[t, s, m],   from[t, s, m] <= home[t, s]

which is tight enough that HiGHS proves graphs of some hundred tasks in seconds.

Contiguous: the devices have an order and no edge leads back in it, so that each runs one stage, a
convex part of the graph. `before` says which of two devices comes first, and for each edge i -> j

    x[i, d] + x[j, e] <= 1 + before[d, e]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from heteroplace.errors import SolverError, SolverLicenceError
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.solve.lp.highs import HighsEngine
from heteroplace.solve.lp.linear_program import (
    INFEASIBLE,
    INTERRUPTED,
    LIMIT,
    MipAnswer,
    MipEngine,
    MipLimits,
    MixedProgram,
    Terms,
)
from heteroplace.solve.problem import Problem

_MAX_PLACES = 2000
"""Tasks times devices up to which the programme is solved."""
_MAX_COPIES = 30_000
"""And tensors times pairs of memories: with more HiGHS overruns its time limit by seconds."""
_MAX_STAGE_ROWS = 200_000
"""And rows that keep stages in order: cycles of three devices, pairs of devices for each edge."""
_BOUND_SLACK = 1e-6
"""Error of HiGHS' bound that is allowed for, in units of the reference: its tolerance of rows."""


@dataclass(frozen=True)
class Assignment:
    """What the programme gave."""

    bound_ns: int
    """No placement has a smaller time per item."""
    placement: IntArray | None
    """Device of each task of the best one found; None: none was found in time."""
    is_impossible: bool
    """It was proven that nothing fits."""


def is_small(problem: Problem, *, is_contiguous: bool = False) -> bool:
    """Say whether the programme is small enough to be solved, with an order of stages or not."""
    num_copies = len(problem.graph.tensors) * len(problem.cluster.memories) ** 2
    num_devices, num_rows = len(problem.cluster.devices), 0
    if is_contiguous:
        num_edges = sum(map(len, problem.graph.predecessors))
        num_rows = num_devices**3 // 3 + num_edges * num_devices**2
    is_fast = num_copies <= _MAX_COPIES and num_rows <= _MAX_STAGE_ROWS
    return problem.native.run_ns.size <= _MAX_PLACES and is_fast


def solve_assignment(
    problem: Problem,
    reference_ns: int,
    time_limit_s: float,
    node_limit: int | None = None,
    *,
    is_contiguous: bool = False,
    engine: MipEngine | None = None,
) -> Assignment:
    """Solve the programme for at most `time_limit_s` seconds and `node_limit` nodes.

    Parameters
    ----------
    reference_ns
        A time per item of the right size: the tolerances of HiGHS are relative to it.
    is_contiguous
        Only placements are looked at where each device runs one stage.
    engine
        What solves it; None: HiGHS.

    Raises
    ------
    SolverLicenceError, MissingPackageError
        `engine` cannot be used.
    """
    model = _Model(problem, reference_ns)
    if is_contiguous:
        model.add_stages()
    return model.solve(engine or HighsEngine(), MipLimits(time_limit_s, 0.0, node_limit))


class _Model:
    """Columns and rows of the programme; times are divided by `_scale`."""

    def __init__(self, problem: Problem, reference_ns: int) -> None:
        self._problem = problem
        self._native = problem.native
        self._cluster = problem.cluster
        self._graph = problem.graph
        self._program = MixedProgram()
        self._scale = float(max(1, reference_ns))
        self._item = self._program.add_column(0.0, math.inf, cost=1.0)
        self._busy: list[Terms] = [[] for _ in self._native.cluster.resources]
        self._used: list[Terms] = [[] for _ in self._cluster.memories]
        self._place: list[dict[int, int]] = []
        self._add_tasks()
        self._add_workspace()
        for tensor in range(len(self._graph.tensors)):
            self._add_tensor(tensor)
        self._add_limits()

    def add_stages(self) -> None:
        """Order the devices and forbid edges that lead back."""
        devices = range(len(self._cluster.devices))
        before: dict[tuple[int, int], Terms] = {}
        constant: dict[tuple[int, int], float] = {}
        for one, other in combinations(devices, 2):
            column = self._program.add_binary()
            before[one, other], constant[one, other] = [(column, 1.0)], 0.0
            before[other, one], constant[other, one] = [(column, -1.0)], 1.0
        for a in devices:
            for b, c in permutations(devices[a + 1 :], 2):
                cycle = (a, b), (b, c), (c, a)
                terms = [term for pair in cycle for term in before[pair]]
                self._program.add_row(terms, -math.inf, 2.0 - sum(constant[pair] for pair in cycle))
        for reader, producers in enumerate(self._graph.predecessors):
            for producer in producers:
                for pair, terms in before.items():
                    src, dst = self._place[producer].get(pair[0]), self._place[reader].get(pair[1])
                    if src is not None and dst is not None:
                        less = [(column, -value) for column, value in terms]
                        limit = 1.0 + constant[pair]
                        self._program.add_row([(src, 1.0), (dst, 1.0), *less], -math.inf, limit)

    def solve(self, engine: MipEngine, limits: MipLimits) -> Assignment:
        """See `solve_assignment`."""
        try:
            end = engine.solve(self._program, limits, None)
        except SolverLicenceError:
            raise
        except SolverError:  # The engine gave up: nothing is known.
            end = MipAnswer(None, -math.inf, LIMIT)
        if end.status == INTERRUPTED:
            raise KeyboardInterrupt
        bound_ns = 0
        if math.isfinite(end.bound):
            # Loads are integers, so half a nanosecond more is taken off without loss.
            bound_ns = max(0, math.ceil((end.bound - _BOUND_SLACK) * self._scale - 0.5))
        placement = None if end.values is None else self._placement(end.values)
        return Assignment(bound_ns, placement, end.status == INFEASIBLE)

    def _placement(self, values: np.ndarray) -> IntArray:
        return np.array(
            [max(places, key=lambda d: float(values[places[d]])) for places in self._place],
            dtype=np.int64,
        )

    def _add_tasks(self) -> None:
        columns: dict[int, dict[int, int]] = {}
        for task, group in enumerate(self._native.task_group):
            if group < 0 or group not in columns:
                devices = np.flatnonzero(self._native.run_ns[task] != IMPOSSIBLE).tolist()
                places = {device: self._program.add_binary() for device in devices}
                self._program.add_row([(column, 1.0) for column in places.values()], 1.0, 1.0)
                if group >= 0:
                    columns[group] = places
            self._place.append(columns[group] if group >= 0 else places)
        for task, places in enumerate(self._place):
            for device, column in places.items():
                run_ns = int(self._native.run_ns[task, device])
                for unit in self._cluster.unit_ids[device]:
                    self._busy[unit].append((column, run_ns / self._scale))
                memory = self._cluster.devices[device].memory
                self._charge(memory, column, self._graph.tasks[task].weight_bytes)

    def _charge(self, memory: int, column: int, num_bytes: int) -> None:
        self._used[memory].append((column, num_bytes / self._cluster.memories[memory].bytes))

    def _add_workspace(self) -> None:
        """The largest workspace of the tasks on each device."""
        for device_id, device in enumerate(self._cluster.devices):
            size = self._cluster.memories[device.memory].bytes
            largest = self._program.add_column(0.0, math.inf)
            self._used[device.memory].append((largest, 1.0))
            for task, places in enumerate(self._place):
                need = self._graph.tasks[task].workspace_bytes
                if need and device_id in places:
                    self._program.add_row([(largest, 1.0), (places[device_id], -need / size)])

    def _in_memory(self, task: int, memory: int) -> Terms:
        """Terms that are 1 if the task runs on a device of the memory."""
        devices = self._cluster.devices
        return [(c, 1.0) for d, c in self._place[task].items() if devices[d].memory == memory]

    def _add_tensor(self, tensor: int) -> None:
        graph, cluster = self._graph, self._cluster
        value = graph.tensors[tensor]
        host = cluster.host
        if value.producer is None and host is None:
            return
        is_kept = host is not None and (value.producer is None or tensor in graph.outputs)
        memories = range(len(cluster.memories))
        for memory in memories:
            readers = [self._in_memory(task, memory) for task in value.consumers]
            readers = [terms for terms in readers if terms]
            is_output = memory == host and tensor in graph.outputs
            if not readers and not is_output and not self._home(tensor, memory):
                continue
            comes: Terms = []
            for src in memories:
                column = self._copy_column(tensor, src, memory, is_free=is_kept and memory == host)
                if column is not None:
                    comes.append((column, 1.0))
            for terms in readers:
                self._program.add_row([*comes, *((c, -v) for c, v in terms)], 0.0, math.inf)
            if is_output:
                self._program.add_row(comes, 1.0, math.inf)

    def _home(self, tensor: int, memory: int) -> Terms | None:
        """Terms that are 1 if the tensor is made in the memory; None: never."""
        producer = self._graph.tensors[tensor].producer
        if producer is None:
            return [] if memory == self._cluster.host else None
        return self._in_memory(producer, memory) or None

    def _copy_column(self, tensor: int, src: int, dst: int, is_free: bool) -> int | None:
        """A variable that is 1 if the tensor is in `dst` because `src` is its home."""
        home = self._home(tensor, src)
        if home is None or (src != dst and not self._cluster.is_reachable(src, dst)):
            return None
        column = self._program.add_column(0.0, 1.0)
        num_bytes = self._graph.tensors[tensor].bytes
        if home:
            # Where it is made it is, read or not.
            lower = 0.0 if src == dst else -math.inf
            self._program.add_row([(column, 1.0), *((c, -v) for c, v in home)], lower, 0.0)
        if not is_free:
            self._charge(dst, column, num_bytes)
        if src != dst:
            self._add_copy(column, self._cluster.route(src, dst), num_bytes)
        return column

    def _add_copy(self, column: int, route: tuple[int, ...], num_bytes: int) -> None:
        duration = self._cluster.transfer_ns(route, num_bytes) / self._scale
        for resource in self._cluster.route_resources(route):
            self._busy[resource].append((column, duration))

    def _add_limits(self) -> None:
        for terms in self._busy:
            self._program.add_row([(self._item, 1.0), *((c, -v) for c, v in terms)], 0.0, math.inf)
        staying = 0
        if self._cluster.host is not None:
            staying = sum(
                self._graph.tensors[tensor].bytes
                for tensor in {*self._graph.inputs, *self._graph.outputs}
            )
        for memory, terms in enumerate(self._used):
            base = (
                staying / self._cluster.memories[memory].bytes
                if memory == self._cluster.host
                else 0
            )
            self._program.add_row(terms, -math.inf, 1.0 - base)
