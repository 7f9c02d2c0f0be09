"""One problem in the C++ core, and the plans that the core makes for it.

`NativeProblem` turns (TaskGraph, Cluster, CostTable) into the flat arrays of `src/model/problem.h`
once; everything that a solver does with the three goes through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import heteroplace._core as _core
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Plan, Run, Step
from heteroplace.native.core_arrays import (
    COPY,
    IMPOSSIBLE,
    RUN,
    IntArray,
    allowed_run_ns,
    csr,
    group_ids,
    ints,
    measured_transfers,
    routed_buffers,
    routes,
    run_order,
    shared_values,
    task_reads,
)
from heteroplace.native.core_graph import BoolArray
from heteroplace.native.core_limits import check_bytes, check_times

UNREACHABLE_PENALTY = 2**50
"""`kUnreachablePenalty` of `src/model/native_plan.h`."""


@dataclass(frozen=True, eq=False)
class NativePlan:
    """A plan that the core made, as arrays; objects are made when somebody asks for them."""

    rows: IntArray
    """[num_steps, 4]: RUN, task, device, -1; or COPY, tensor, memory it goes to, memory it
    leaves. In the order of the plan."""
    makespan_ns: int
    """As the scheduler had it; the simulated one is never later."""
    violation: int
    """0: it can be run. Else bytes that memories lack by lifetime, plus UNREACHABLE_PENALTY for
    each tensor that cannot reach a memory where it is read."""
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


class NativeProblem(_core.Problem):
    """One graph, one cluster and the costs, as the core reads them. Immutable."""

    def __init__(
        self,
        graph: TaskGraph,
        cluster: Cluster,
        costs: CostTable,
        *,
        frees_tensors: bool = True,
        weight_bytes: IntArray | None = None,
        allowed: BoolArray | None = None,
    ) -> None:
        """Build the arrays.

        Parameters
        ----------
        frees_tensors
            Count memory by lifetime where the static rule may be short; False: never.
        weight_bytes
            [num_tasks], in place of what the tasks have: of weights that others share, a part.
        allowed
            [num_tasks, num_devices], the devices that a task may use, the same ones for all tasks
            of a colocation group; None: all. Plans are valid for the problem without this limit.

        Raises
        ------
        CostMismatchError
            `costs` belongs to another graph or cluster.
        MissingCostError
            A cost that is needed is unknown.
        CostMismatchError, GraphError
            Times or sizes are so large that sums of them are not (see `native.limits`).
        """
        costs.check(graph, cluster)
        self.graph = graph
        self.cluster = cluster
        self.graph_digest = graph.digest()
        self.cluster_digest = cluster.digest()
        self.costs = costs
        """Times of collectives that were measured, and of guarded runs."""
        self.task_group = group_ids(graph)
        self.batch_run_ns = np.stack(
            [
                allowed_run_ns(graph, cluster, costs, self.task_group, batch)
                for batch in costs.batches
            ]
        )
        """[num_batches, num_tasks, num_devices], for `costs.batches`; IMPOSSIBLE as in `run_ns`."""
        if allowed is not None:
            self.batch_run_ns = np.where(allowed, self.batch_run_ns, IMPOSSIBLE)
        self.run_ns: IntArray = self.batch_run_ns[0]
        """[num_tasks, num_devices]; IMPOSSIBLE where the task cannot be: no cost, not allowed, not
        allowed for a task of its colocation group, out of reach of the host, or in a batch that
        the device does not take."""
        self.routes = csr(routes(cluster))
        """Links of the way between each ordered pair of memories, as offsets and values."""
        self.max_bytes = check_bytes(graph, cluster)
        """No plan of one item has more in all memories together."""
        self.longest_ns = check_times(graph, cluster, self.batch_run_ns, self.routes)
        """No plan of one item is longer."""
        tasks, tensors = graph.tasks, graph.tensors
        self.weight_bytes = ints(
            [task.weight_bytes for task in tasks] if weight_bytes is None else weight_bytes
        )
        """[num_tasks]"""
        self.workspace_bytes = ints([task.workspace_bytes for task in tasks])
        """[num_tasks]"""
        self.tensor_bytes = ints([tensor.bytes for tensor in tensors])
        """[num_tensors]"""
        self.producer = ints([-1 if t.producer is None else t.producer for t in tensors])
        """[num_tensors], the task that makes it; -1: a model input."""
        self._make_core(costs.batches, frees_tensors)

    def _make_core(self, batches: Sequence[int], frees_tensors: bool) -> None:
        graph, cluster = self.graph, self.cluster
        is_output = np.zeros(len(graph.tensors), dtype=np.int64)
        is_output[list(graph.outputs)] = 1
        super().__init__(
            run_ns=self.run_ns.ravel(),
            device_memory=ints([device.memory for device in cluster.devices]),
            device_units=csr(cluster.unit_ids),
            weight_bytes=self.weight_bytes,
            workspace_bytes=self.workspace_bytes,
            task_group=ints(self.task_group),
            tensor_bytes=self.tensor_bytes,
            producer=self.producer,
            is_output=is_output,
            task_reads=task_reads(graph),
            memory_bytes=ints([memory.bytes for memory in cluster.memories]),
            link_bandwidth=ints([link.bytes_per_second for link in cluster.links]),
            link_latency_ns=ints([link.latency_ns for link in cluster.links]),
            link_resources=csr(cluster.link_resources),
            route_links=self.routes,
            host=-1 if cluster.host is None else cluster.host,
            batch_sizes=ints(batches),
            batch_run_ns=self.batch_run_ns.ravel() if len(batches) > 1 else None,
            measured=measured_transfers(cluster),
            shared=shared_values(graph),
            buffers=routed_buffers(graph),
            frees_tensors=frees_tensors,
        )

    def placement(self, steps: Sequence[Step]) -> tuple[int, ...]:
        """Return the device of each task in `steps`."""
        devices = [-1] * len(self.graph.tasks)
        for step in steps:
            if isinstance(step, Run):
                devices[step.task] = step.device
        return tuple(devices)

    def solution_of(self, plan: NativePlan | Sequence[Step]) -> tuple[IntArray, IntArray]:
        """Return the device of each task, and the order of the tasks."""
        if isinstance(plan, NativePlan):
            return plan.devices(len(self.graph.tasks)), plan.order
        return ints(self.placement(plan)), ints(run_order(plan))

    def plan(self, steps: Sequence[Step], origin: str) -> Plan:
        """Return the plan of `steps` for this graph and cluster."""
        return Plan(self.graph_digest, self.cluster_digest, tuple(steps), origin)
