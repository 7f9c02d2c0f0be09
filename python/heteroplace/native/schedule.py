"""Schedulers and the simulator of the C++ core, for the package's own values.

`NativeProblem` turns (TaskGraph, Cluster, CostTable) into flat arrays once; everything that a
solver does with the three goes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import heteroplace._core as _core
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Plan, Run, Step
from heteroplace.native.arrays import (
    COPY,
    RUN,
    IntArray,
    allowed_run_ns,
    csr,
    group_ids,
    ints,
    measured_transfers,
    routes,
    run_order,
    task_reads,
)


@dataclass(frozen=True, eq=False)
class Draft:
    """A schedule that the core made, in the form of a plan."""

    rows: IntArray
    """[num_steps, 4]: RUN, task, device, -1; or COPY, tensor, memory it goes to, memory it
    leaves. In the order of the plan."""
    makespan_ns: int
    """As the scheduler had it; the simulated one is never later."""
    violation: int
    """0: it can be run. Else bytes that memories lack, plus 2**50 for each tensor that cannot
    reach a memory where it is read."""
    cluster: Cluster

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The same as objects; made on first use."""
        ways = {(a, b): self.cluster.route(a, b) for a, b in self._copied_between()}
        # By columns: a list for each row would keep the garbage collector busy.
        kinds, subjects, places, sources = (column.tolist() for column in self.rows.T)
        return tuple(
            Run(subject, place) if kind == RUN else Copy(subject, src, place, ways[src, place])
            for kind, subject, place, src in zip(kinds, subjects, places, sources, strict=True)
        )

    @property
    def order(self) -> IntArray:
        """Task ids in the order of their runs."""
        tasks: IntArray = np.ascontiguousarray(self._runs()[:, 1])
        return tasks

    def devices(self, num_tasks: int) -> IntArray:
        """Return the device of each task; -1 where it is not run."""
        devices = np.full(num_tasks, -1, dtype=np.int64)
        runs = self._runs()
        devices[runs[:, 1]] = runs[:, 2]
        return devices

    def _runs(self) -> IntArray:
        runs: IntArray = self.rows[self.rows[:, 0] == RUN]
        return runs

    def _copied_between(self) -> list[tuple[int, int]]:
        copies = self.rows[self.rows[:, 0] == COPY]
        pairs: list[list[int]] = np.unique(copies[:, [3, 2]], axis=0).tolist()
        return [(src, dst) for src, dst in pairs]


@dataclass(frozen=True)
class SearchReport:
    """What a search did."""

    draft: Draft
    num_evaluations: int
    was_interrupted: bool
    """Ctrl-C ended it."""
    prices: tuple[float, ...]
    """For each memory what a byte is worth in the best plan, in ns."""
    bound_ns: int
    """The best proven bound on the makespan: the one given, or one found on the way."""


@dataclass(frozen=True)
class StepTimes:
    """What the simulator found for a plan."""

    start_ns: IntArray
    finish_ns: IntArray
    makespan_ns: int
    used_bytes: tuple[int, ...]
    """For each memory, by the static rule of `heteroplace.model.memory`."""
    peak_bytes: tuple[int, ...]
    """For each memory the largest number of live bytes; see `src/sim/live_memory.h`."""
    peak_ns: tuple[int, ...]
    """For each memory when there are as many first."""
    peak_step: tuple[int, ...]
    """For each memory the step at whose start that is; -1: before any step."""


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
        self.task_group = group_ids(graph)
        self.batch_run_ns = np.stack(
            [
                allowed_run_ns(graph, cluster, costs, self.task_group, batch)
                for batch in costs.batches
            ]
        )
        """[num_batches, num_tasks, num_devices], for `costs.batches`; IMPOSSIBLE as in `run_ns`."""
        self.run_ns: IntArray = self.batch_run_ns[0]
        """[num_tasks, num_devices]; IMPOSSIBLE where the task cannot be: no cost, not allowed, not
        allowed for a task of its `together` label, out of reach of the host, or in a batch that
        the device does not take."""
        unit_offsets, unit_values = csr(cluster.unit_ids)
        read_offsets, read_values = task_reads(graph)
        route_offsets, route_links = csr(routes(cluster))
        resource_offsets, resource_values = csr(cluster.link_resources)
        tasks, tensors = graph.tasks, graph.tensors
        is_output = np.zeros(len(tensors), dtype=np.int64)
        is_output[list(graph.outputs)] = 1
        self.weight_bytes = ints([task.weight_bytes for task in tasks])
        """[num_tasks]"""
        self.workspace_bytes = ints([task.workspace_bytes for task in tasks])
        """[num_tasks]"""
        self.tensor_bytes = ints([tensor.bytes for tensor in tensors])
        """[num_tensors]"""
        self.producer = ints([-1 if t.producer is None else t.producer for t in tensors])
        """[num_tensors], the task that makes it; -1: a model input."""
        self._core = _core.Problem(
            run_ns=self.run_ns.ravel(),
            device_memory=ints([device.memory for device in cluster.devices]),
            unit_offsets=unit_offsets,
            unit_values=unit_values,
            weight_bytes=self.weight_bytes,
            workspace_bytes=self.workspace_bytes,
            task_group=ints(self.task_group),
            tensor_bytes=self.tensor_bytes,
            producer=self.producer,
            is_output=is_output,
            read_offsets=read_offsets,
            read_values=read_values,
            memory_bytes=ints([memory.bytes for memory in cluster.memories]),
            link_bandwidth=ints([link.bytes_per_second for link in cluster.links]),
            link_latency_ns=ints([link.latency_ns for link in cluster.links]),
            link_resource_offsets=resource_offsets,
            link_resource_values=resource_values,
            route_offsets=route_offsets,
            route_links=route_links,
            host=-1 if cluster.host is None else cluster.host,
            batch_sizes=ints(costs.batches),
            batch_run_ns=self.batch_run_ns.ravel(),
            **measured_transfers(cluster),
        )

    def simulate(self, steps: Sequence[Step], items: int = 1) -> StepTimes:
        """Return when each step of a plan of so many items starts and finishes.

        Raises
        ------
        PlanError
            A step reads a tensor that is not there, or a device cannot run its task or batch.
        """
        rows: list[int] = []
        ways: list[tuple[int, ...]] = []
        for step in steps:
            if isinstance(step, Run):
                rows += (0, step.task, step.device, -1)
                ways.append(())
            else:
                rows += (1, step.tensor, step.dst, step.src)
                ways.append(step.route)
        # No lists of items at all: every step is for item 0.
        has_items = items != 1 or any(step.items != (0,) for step in steps)
        start, finish, makespan, *memories = _core.simulate(
            self._core,
            ints(rows),
            *csr(ways),
            *csr(step.items for step in steps if has_items),
            items,
        )
        return StepTimes(start, finish, makespan, *(tuple(memory.tolist()) for memory in memories))

    def draft_of(self, steps: Sequence[Step]) -> Draft:
        """Return steps of one item, with copies along `Cluster.route`, that fit, as a draft."""
        rows = [
            (RUN, step.task, step.device, -1)
            if isinstance(step, Run)
            else (COPY, step.tensor, step.dst, step.src)
            for step in steps
        ]
        makespan = self.simulate(steps).makespan_ns
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        return Draft(table, makespan, 0, self.cluster)

    def makespan_ns(self, draft: Draft) -> int:
        """Return the simulated makespan of a draft, without making its steps."""
        return self.times(draft).makespan_ns

    def times(self, draft: Draft) -> StepTimes:
        """Return when each step of a draft starts and finishes, without making its steps.

        Raises
        ------
        PlanError
            A step reads a tensor that is not there.
        """
        count = len(self.cluster.memories)
        copies = draft.rows[:, 0] == COPY
        pairs = np.where(copies, draft.rows[:, 3] * count + draft.rows[:, 2], 0)
        offsets, links = self._routes
        lengths = np.where(copies, offsets[pairs + 1] - offsets[pairs], 0)
        ends = np.concatenate(([0], np.cumsum(lengths)))
        # Link number k of a step's route lies k behind where the route of its pair begins.
        within = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
        values = links[np.repeat(offsets[pairs], lengths) + within]
        none = csr(())
        rows = np.ascontiguousarray(draft.rows).ravel()
        found = _core.simulate(self._core, rows, ends, values, *none, 1)
        start, finish, makespan, *memories = found
        return StepTimes(start, finish, makespan, *(tuple(memory.tolist()) for memory in memories))

    @cached_property
    def _routes(self) -> tuple[IntArray, IntArray]:
        """Links of the way between each ordered pair of memories."""
        return csr(routes(self.cluster))

    def heft(self, devices: Iterable[int]) -> Draft:
        """HEFT that prefers the given devices; a task that none of them can run goes elsewhere."""
        preferred = np.zeros(len(self.cluster.devices), dtype=np.int64)
        preferred[list(devices)] = 1
        return self._draft(*_core.heft(self._core, preferred))

    def list_schedule(self, placement: Sequence[int], priority: Sequence[float]) -> Draft:
        """Schedule a placement, highest priority first, with insertion into gaps."""
        return self._draft(
            *_core.list_schedule(
                self._core, ints(placement), np.asarray(priority, dtype=np.float64)
            )
        )

    def evaluate(
        self, placement: Sequence[int] | IntArray, order: Sequence[int] | IntArray
    ) -> Draft:
        """Schedule a placement, tasks in the given topological order, without gaps on units."""
        return self._draft(*_core.evaluate(self._core, ints(placement), ints(order)))

    def what_if(self, placement: Sequence[int], order: Sequence[int]) -> IntArray:
        """Makespan in ns after moving each one task (and its `together` label) to each device.

        [num_tasks, num_devices]; IMPOSSIBLE where it cannot be.
        """
        result: IntArray = _core.what_if(self._core, ints(placement), ints(order))
        return result.reshape(len(self.graph.tasks), len(self.cluster.devices))

    def search(
        self,
        starts: Sequence[Draft | Sequence[Step]],
        *,
        max_evaluations: int | None,
        time_limit_s: float,
        seed: int,
        bound_ns: int = 0,
        patience: int = 0,
        threads: int = 1,
        placements: Sequence[Sequence[int]] = (),
        prices: Sequence[float] = (),
        finds_bound: bool = True,
        progress: Callable[[int, int, int], None] | None = None,
    ) -> SearchReport:
        """Improve the best of some plans; see `src/search/search.h`.

        Parameters
        ----------
        starts
            Plans for this problem, as drafts or as steps; at least one.
        max_evaluations
            Number of schedules tried; None: no limit.
        bound_ns
            A makespan that cannot be beaten; the search ends when it is reached.
        patience
            The search ends after so many evaluations without gain; 0: never.
        threads
            Threads of the search. They do not change the result of a search that ends by
            `max_evaluations`.
        placements
            More to start from: a device for each task, ordered by list scheduling.
        prices
            For each memory what a byte is worth, in ns, to begin with; empty: nothing.
        finds_bound
            Whether to look for better bounds and for the placements that come with them.
        progress
            Called about 20 times a second with (evaluations, best makespan in ns, bound in ns).
        """
        none = ints(())
        pairs = [self._start(start) for start in starts]
        pairs += [(ints(placement), none) for placement in placements]
        drafted, evaluations, interrupted, found_prices, found_bound_ns = _core.search(
            self._core,
            pairs,
            -1 if max_evaluations is None else max_evaluations,
            time_limit_s,
            seed,
            bound_ns,
            patience,
            threads,
            list(prices),
            finds_bound,
            progress,
        )
        return SearchReport(
            self._draft(*drafted), evaluations, interrupted, tuple(found_prices), found_bound_ns
        )

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

    def _start(self, plan: Draft | Sequence[Step]) -> tuple[IntArray, IntArray]:
        if isinstance(plan, Draft):
            return plan.devices(len(self.graph.tasks)), plan.order
        return ints(self.placement(plan)), ints(run_order(plan))

    def _draft(self, rows: IntArray, makespan_ns: int, violation: int) -> Draft:
        return Draft(rows, makespan_ns, violation, self.cluster)
