"""Schedulers and the simulator of the C++ core, for the package's own values.

`NativeProblem` turns (TaskGraph, Cluster, CostTable) into flat arrays once; everything that a
solver does with the three goes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import heteroplace._core as _core
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Plan, Run, Step

IntArray = npt.NDArray[np.int64]

IMPOSSIBLE = -1
"""In `NativeProblem.run_ns` and `what_if`: the task cannot be there."""


@dataclass(frozen=True)
class Draft:
    """A schedule that the core made, in the form of a plan."""

    steps: tuple[Step, ...]
    makespan_ns: int
    """As the scheduler had it; the simulated one is never later."""
    violation: int
    """0: it can be run. Else bytes that memories lack, plus 2**50 for each tensor that cannot
    reach a memory where it is read."""


@dataclass(frozen=True)
class SearchReport:
    """What a search did."""

    draft: Draft
    num_evaluations: int
    was_interrupted: bool
    """Ctrl-C ended it."""


@dataclass(frozen=True)
class StepTimes:
    """What the simulator found for a plan."""

    start_ns: IntArray
    finish_ns: IntArray
    used_bytes: tuple[int, ...]
    """For each memory, by the static rule of `heteroplace.model.memory`."""
    makespan_ns: int


class NativeProblem:
    """One graph, one cluster and the costs, as the core reads them. Immutable."""

    def __init__(self, graph: TaskGraph, cluster: Cluster, costs: CostTable) -> None:
        """Build the arrays.

        Raises
        ------
        CostMismatchError
            `costs` belongs to another graph or cluster.
        MissingCostError
            A cost that is needed is unknown.
        """
        costs.check(graph, cluster)
        self.graph = graph
        self.cluster = cluster
        self.graph_digest = costs.graph_digest
        self.cluster_digest = costs.cluster_digest
        self.task_group = _group_ids(graph)
        self.run_ns = _allowed_run_ns(graph, cluster, costs, self.task_group)
        """[num_tasks, num_devices]; IMPOSSIBLE where the task cannot be: no cost, not allowed, not
        allowed for a task of its `together` label, or out of reach of the host."""
        unit_offsets, unit_values = _csr(cluster.unit_ids)
        read_offsets, read_values = _csr(graph.task_inputs)
        route_offsets, route_links = _csr(_routes(cluster))
        resource_offsets, resource_values = _csr(cluster.link_resources)
        outputs = set(graph.outputs)
        self._core = _core.Problem(
            run_ns=self.run_ns.ravel(),
            device_memory=_ints(device.memory for device in cluster.devices),
            unit_offsets=unit_offsets,
            unit_values=unit_values,
            weight_bytes=_ints(task.weight_bytes for task in graph.tasks),
            workspace_bytes=_ints(task.workspace_bytes for task in graph.tasks),
            task_group=_ints(self.task_group),
            tensor_bytes=_ints(tensor.bytes for tensor in graph.tensors),
            producer=_ints(
                -1 if tensor.producer is None else tensor.producer for tensor in graph.tensors
            ),
            is_output=_ints(int(tensor in outputs) for tensor in range(len(graph.tensors))),
            read_offsets=read_offsets,
            read_values=read_values,
            memory_bytes=_ints(memory.bytes for memory in cluster.memories),
            link_bandwidth=_ints(link.bytes_per_second for link in cluster.links),
            link_latency_ns=_ints(link.latency_ns for link in cluster.links),
            link_resource_offsets=resource_offsets,
            link_resource_values=resource_values,
            route_offsets=route_offsets,
            route_links=route_links,
            host=-1 if cluster.host is None else cluster.host,
        )

    def simulate(self, steps: Sequence[Step]) -> StepTimes:
        """Return when each step starts and finishes.

        Raises
        ------
        PlanError
            A step reads a tensor that is not there, or a device cannot run its task.
        """
        rows = np.empty((len(steps), 4), dtype=np.int64)
        routes: list[tuple[int, ...]] = []
        for index, step in enumerate(steps):
            if isinstance(step, Run):
                rows[index] = (0, step.task, step.device, -1)
                routes.append(())
            else:
                rows[index] = (1, step.tensor, step.dst, step.src)
                routes.append(step.route)
        offsets, values = _csr(routes)
        start, finish, used, makespan = _core.simulate(self._core, rows.ravel(), offsets, values)
        return StepTimes(start, finish, tuple(used.tolist()), makespan)

    def heft(self, devices: Iterable[int]) -> Draft:
        """HEFT that prefers the given devices; a task that none of them can run goes elsewhere."""
        preferred = np.zeros(len(self.cluster.devices), dtype=np.int64)
        preferred[list(devices)] = 1
        return self._draft(*_core.heft(self._core, preferred))

    def list_schedule(self, placement: Sequence[int], priority: Sequence[float]) -> Draft:
        """Schedule a placement, highest priority first, with insertion into gaps."""
        return self._draft(
            *_core.list_schedule(
                self._core, _ints(placement), np.asarray(priority, dtype=np.float64)
            )
        )

    def evaluate(self, placement: Sequence[int], order: Sequence[int]) -> Draft:
        """Schedule a placement, tasks in the given topological order, without gaps on units."""
        return self._draft(*_core.evaluate(self._core, _ints(placement), _ints(order)))

    def what_if(self, placement: Sequence[int], order: Sequence[int]) -> IntArray:
        """Makespan in ns after moving each one task (and its `together` label) to each device.

        [num_tasks, num_devices]; IMPOSSIBLE where it cannot be.
        """
        result: IntArray = _core.what_if(self._core, _ints(placement), _ints(order))
        return result.reshape(len(self.graph.tasks), len(self.cluster.devices))

    def search(
        self,
        starts: Sequence[Sequence[Step]],
        *,
        max_evaluations: int | None,
        time_limit_s: float,
        seed: int,
        bound_ns: int = 0,
        patience: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> SearchReport:
        """Improve the best of some plans; see `src/sched/search.h`.

        Parameters
        ----------
        starts
            Steps of plans for this problem; at least one.
        max_evaluations
            Number of schedules tried; None: no limit.
        bound_ns
            A makespan that cannot be beaten; the search ends when it is reached.
        patience
            The search ends after so many evaluations without gain; 0: never.
        progress
            Called about 20 times a second with (evaluations, best makespan in ns).
        """
        pairs = [(_ints(self.placement(steps)), _ints(_run_order(steps))) for steps in starts]
        drafted, evaluations, interrupted = _core.search(
            self._core,
            pairs,
            -1 if max_evaluations is None else max_evaluations,
            time_limit_s,
            seed,
            bound_ns,
            patience,
            progress,
        )
        return SearchReport(self._draft(*drafted), evaluations, interrupted)

    def placement(self, steps: Sequence[Step]) -> tuple[int, ...]:
        """Return the device of each task in `steps`."""
        devices = [-1] * len(self.graph.tasks)
        for step in steps:
            if isinstance(step, Run):
                devices[step.task] = step.device
        return tuple(devices)

    def plan(self, steps: Sequence[Step], origin: str) -> Plan:
        """Return the plan of `steps` for this graph and cluster."""
        return Plan(self.graph_digest, self.cluster_digest, tuple(steps), origin)

    @property
    def core(self) -> _core.Problem:
        """The same in the core, for other modules of `heteroplace.native`."""
        return self._core

    def draft(self, rows: IntArray, makespan_ns: int, violation: int) -> Draft:
        """Return a schedule of the core, rows of (kind, subject, place, src), as a draft."""
        return self._draft(rows, makespan_ns, violation)

    def _draft(self, rows: IntArray, makespan_ns: int, violation: int) -> Draft:
        steps: list[Step] = []
        for kind, subject, place, src in rows.tolist():
            if kind == 0:
                steps.append(Run(subject, place))
            else:
                steps.append(Copy(subject, src, place, self.cluster.route(src, place)))
        return Draft(tuple(steps), makespan_ns, violation)


def _ints(values: Iterable[int]) -> IntArray:
    return np.fromiter(values, dtype=np.int64)


def _csr(rows: Iterable[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Offsets and values of a list of lists."""
    offsets: list[int] = [0]
    values: list[int] = []
    for row in rows:
        values.extend(row)
        offsets.append(len(values))
    return _ints(offsets), _ints(values)


def _run_order(steps: Iterable[Step]) -> list[int]:
    return [step.task for step in steps if isinstance(step, Run)]


def _routes(cluster: Cluster) -> list[tuple[int, ...]]:
    """Link ids for every ordered pair of memories; empty where there is no way."""
    memories = range(len(cluster.memories))
    routes = []
    for src in memories:
        for dst in memories:
            routes.append(cluster.route(src, dst) if cluster.is_reachable(src, dst) else ())
    return routes


def _group_ids(graph: TaskGraph) -> tuple[int, ...]:
    """A number for the `together` label of each task; -1: it has none."""
    ids: dict[str, int] = {}
    groups = []
    for task in graph.tasks:
        groups.append(-1 if task.together is None else ids.setdefault(task.together, len(ids)))
    return tuple(groups)


def _allowed_run_ns(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, task_group: tuple[int, ...]
) -> IntArray:
    num_devices = len(cluster.devices)
    run_ns = np.full((len(graph.tasks), num_devices), IMPOSSIBLE, dtype=np.int64)
    position = {device.name: index for index, device in enumerate(cluster.devices)}
    everywhere = range(num_devices)
    for task_id, task in enumerate(graph.tasks):
        allowed: Iterable[int] = everywhere
        if task.devices is not None:
            allowed = [position[name] for name in task.devices if name in position]
        for device in allowed:
            cost = costs.run_ns(task_id, device)
            if cost is not None:
                run_ns[task_id, device] = cost
    _drop_out_of_reach(run_ns, graph, cluster)
    members: dict[int, list[int]] = {}
    for task_id, group in enumerate(task_group):
        if group >= 0:
            members.setdefault(group, []).append(task_id)
    for tasks in members.values():
        for device in everywhere:
            if (run_ns[tasks, device] == IMPOSSIBLE).any():
                run_ns[tasks, device] = IMPOSSIBLE
    return run_ns


def _drop_out_of_reach(run_ns: IntArray, graph: TaskGraph, cluster: Cluster) -> None:
    """Forbid devices that inputs cannot reach, or whose outputs cannot reach the host."""
    if cluster.host is None:
        return
    for device_id, device in enumerate(cluster.devices):
        if not cluster.is_reachable(cluster.host, device.memory):
            for tensor in graph.inputs:
                run_ns[list(graph.tensors[tensor].consumers), device_id] = IMPOSSIBLE
        if not cluster.is_reachable(device.memory, cluster.host):
            for tensor in graph.outputs:
                producer = graph.tensors[tensor].producer
                if producer is not None:
                    run_ns[producer, device_id] = IMPOSSIBLE
