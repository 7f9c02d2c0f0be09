"""NativePlan -> schedule: when each step of a plan runs and how long everything behind it takes.

The tail of a step is the longest time from its start to the end of all, over tensors that are read,
copies, and the next use of each unit and link (as in `src/search/evaluate/horizon.h`). As
long as all later steps keep their devices and their order, a step that starts at t lets the plan
end at t + tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from heteroplace.model.cluster import Cluster
from heteroplace.native.core_arrays import COPY, IMPOSSIBLE, RUN, IntArray
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.simulate import StepTimes, simulate_plan
from heteroplace.solve.problem import Problem

Row = tuple[int, int, int, int]
"""A step of a plan; see `NativePlan.rows`."""


class ProblemLists:
    """A problem as plain lists, which single entries are read from faster than from arrays."""

    def __init__(self, problem: Problem, *, charges_tensors: bool = True) -> None:
        """Read the problem; `charges_tensors`: count memory by the static rule."""
        self.charges_tensors = charges_tensors
        graph, cluster, native = problem.graph, problem.cluster, problem.native
        self.problem = problem
        self.num_tasks = len(graph.tasks)
        self.num_tensors = len(graph.tensors)
        self.num_memories = len(cluster.memories)
        self.num_devices = len(cluster.devices)
        self.reads = graph.task_inputs
        self.makes = graph.task_outputs
        self.readers = [tensor.consumers for tensor in graph.tensors]
        self.producer: list[int] = native.producer.tolist()
        self.tensor_bytes: list[int] = native.tensor_bytes.tolist()
        self.weight_bytes: list[int] = native.weight_bytes.tolist()
        self.workspace_bytes: list[int] = native.workspace_bytes.tolist()
        self.group = native.task_group
        self.members: dict[int, list[int]] = {}
        """Tasks of each colocation group, by its number."""
        for task, group in enumerate(self.group):
            if group >= 0:
                self.members.setdefault(group, []).append(task)
        self.run_ns: list[list[int]] = native.run_ns.tolist()
        self.host = cluster.host
        self.outputs = frozenset(graph.outputs)
        self.memory_of = tuple(device.memory for device in cluster.devices)
        self.units = cluster.unit_ids
        self.num_resources = len(cluster.resources)
        self.limits = tuple(memory.bytes for memory in cluster.memories)
        self.ways = _ways(cluster)
        """Of each ordered pair of memories what a copy occupies; None: there is no way."""

    def allowed(self, task: int) -> list[int]:
        """Devices that can run a task."""
        return [device for device, ns in enumerate(self.run_ns[task]) if ns != IMPOSSIBLE]

    def bytes_ns(self, num_bytes: int, src: int, dst: int) -> int:
        """Time of a copy of so many bytes between two memories that have a way."""
        cluster = self.problem.cluster
        return cluster.transfer_ns(cluster.route(src, dst), num_bytes)

    def charged_bytes(self, tensor: int, memory: int) -> int:
        """What a tensor adds to a memory where it is made or copied to; nothing by lifetime: what
        lives is then as in the plan that is improved, which the simulator has to confirm."""
        if not self.charges_tensors:
            return 0
        has_room = self.producer[tensor] < 0 or tensor in self.outputs
        return 0 if memory == self.host and has_room else self.tensor_bytes[tensor]

    def used_bytes(self, times: StepTimes) -> tuple[int, ...]:
        """What a plan takes of each memory, by the rule that counts here."""
        return times.used_bytes if self.charges_tensors else times.peak_bytes

    def is_everywhere(self, tensor: int) -> bool:
        """Whether a tensor is in all memories from the beginning."""
        return self.producer[tensor] < 0 and self.host is None


def _ways(cluster: Cluster) -> list[list[tuple[int, ...] | None]]:
    memories = range(len(cluster.memories))
    return [
        [
            cluster.route_resources(cluster.route(src, dst))
            if cluster.is_reachable(src, dst)
            else None
            for dst in memories
        ]
        for src in memories
    ]


class SimulatedPlan:
    """A plan that fits, as it is simulated: its steps by start, with times and tails.

    Complexity of making it: O(steps log steps + reads).
    """

    def __init__(
        self, lists: ProblemLists, native_plan: NativePlan, times: StepTimes | None = None
    ) -> None:
        """Simulate the plan, unless its times are given."""
        times = times or simulate_plan(lists.problem.native, native_plan)
        # Stable: what starts at once keeps its order, so the steps remain a plan.
        order = np.argsort(times.start_ns, kind="stable")
        rows: IntArray = np.ascontiguousarray(native_plan.rows[order])
        self.lists = lists
        self.native_plan = NativePlan(rows, times.makespan_ns, 0, native_plan.cluster)
        self.makespan_ns = times.makespan_ns
        self.used_bytes = lists.used_bytes(times)
        kinds, subjects, wheres, sources = (column.tolist() for column in rows.T)
        self.is_run = [kind == RUN for kind in kinds]
        self.subject: list[int] = subjects
        self.where: list[int] = wheres
        self.src: list[int] = sources
        self.start_ns: list[int] = times.start_ns[order].tolist()
        self.finish_ns: list[int] = times.finish_ns[order].tolist()
        self.run_at = [-1] * lists.num_tasks
        """[num_tasks], the position of each task's run."""
        self.device = [-1] * lists.num_tasks
        """[num_tasks]"""
        self.copy_at: dict[tuple[int, int], int] = {}
        """The position of the copy of a tensor to a memory."""
        self.uses: list[list[int]] = [[] for _ in range(lists.num_resources)]
        """[num_resources], positions of the steps that occupy it."""
        self._index()

    def __len__(self) -> int:
        return len(self.subject)

    def _index(self) -> None:
        for position, subject in enumerate(self.subject):
            if self.is_run[position]:
                self.run_at[subject] = position
                self.device[subject] = self.where[position]
            else:
                self.copy_at[subject, self.where[position]] = position
            for resource in self.occupied(position):
                self.uses[resource].append(position)

    def occupied(self, position: int) -> tuple[int, ...]:
        """What a step occupies."""
        if self.is_run[position]:
            return self.lists.units[self.where[position]]
        way = self.lists.ways[self.src[position]][self.where[position]]
        assert way is not None  # The simulator took the copy.
        return way

    def home(self, tensor: int) -> int | None:
        """The memory where a tensor is made or arrives; None: it is everywhere."""
        producer = self.lists.producer[tensor]
        if producer < 0:
            return self.lists.host
        return self.lists.memory_of[self.device[producer]]

    @cached_property
    def tail_ns(self) -> list[int]:
        """For each position the longest time from the start of the step to the end of all."""
        lists = self.lists
        tails = [0] * len(self)
        next_ns = [0] * lists.num_resources
        count = lists.num_memories
        # Behind the presence of a tensor in a memory: whatever reads or copies it there.
        read_ns = [0] * (lists.num_tensors * count)
        for position in range(len(self) - 1, -1, -1):
            subject, where = self.subject[position], self.where[position]
            resources = self.occupied(position)
            behind = max((next_ns[resource] for resource in resources), default=0)
            if self.is_run[position]:
                memory = lists.memory_of[where]
                for tensor in lists.makes[subject]:
                    behind = max(behind, read_ns[tensor * count + memory])
                reads: Sequence[int] = lists.reads[subject]
            else:
                memory = self.src[position]
                behind = max(behind, read_ns[subject * count + where])
                reads = (subject,)
            tail = self.finish_ns[position] - self.start_ns[position] + behind
            tails[position] = tail
            for resource in resources:
                next_ns[resource] = tail
            for tensor in reads:
                slot = tensor * count + memory
                if read_ns[slot] < tail:
                    read_ns[slot] = tail
        return tails

    @cached_property
    def critical(self) -> list[int]:
        """Positions of the runs and copies that end the plan later if they start later."""
        end = self.makespan_ns
        return [
            position
            for position, (start, tail) in enumerate(zip(self.start_ns, self.tail_ns, strict=True))
            if start + tail == end
        ]

    @property
    def rank(self) -> tuple[int, int]:
        """Shorter first; ties: fewer critical steps."""
        return self.makespan_ns, len(self.critical)

    @cached_property
    def run_positions(self) -> list[int]:
        """Positions of the runs, ascending."""
        return [position for position, is_run in enumerate(self.is_run) if is_run]

    @cached_property
    def rows(self) -> list[Row]:
        """The steps, one tuple each."""
        return list(map(tuple, self.native_plan.rows.tolist()))

    @cached_property
    def workspaces(self) -> list[list[tuple[int, int]]]:
        """For each device (bytes, task) of what runs there, largest workspace first."""
        entries_of: list[list[tuple[int, int]]] = [[] for _ in range(self.lists.num_devices)]
        for task, device in enumerate(self.device):
            if self.lists.workspace_bytes[task]:
                entries_of[device].append((self.lists.workspace_bytes[task], task))
        return [sorted(entries, reverse=True) for entries in entries_of]


def repaired(lists: ProblemLists, rows: Sequence[Row]) -> NativePlan:
    """Return steps whose runs are in a valid order as a plan whose copies are right.

    Copies leave their tensor's home, once for each memory that reads it there; a copy that is
    missing comes right before its first reader, and one that nobody reads is left out. The plan
    has no makespan yet; its violation counts copies that have no way.
    """
    memory_of, producer = lists.memory_of, lists.producer
    home = [lists.host if producer[t] < 0 else None for t in range(lists.num_tensors)]
    requested: set[tuple[int, int]] = set()
    for kind, subject, where, _ in rows:
        if kind == RUN:
            requested.update((tensor, memory_of[where]) for tensor in lists.reads[subject])
            for tensor in lists.makes[subject]:
                home[tensor] = memory_of[where]
    if lists.host is not None:
        requested.update((tensor, lists.host) for tensor in lists.outputs)
    there: set[tuple[int, int]] = set()
    kept_rows: list[Row] = []
    violation = 0

    def bring(tensor: int, memory: int) -> None:
        src = home[tensor]
        nonlocal violation
        if src is not None and src != memory and (tensor, memory) not in there:
            there.add((tensor, memory))
            violation += lists.ways[src][memory] is None
            kept_rows.append((COPY, tensor, memory, src))

    is_made = [producer[tensor] < 0 for tensor in range(lists.num_tensors)]
    for row in rows:
        kind, subject, where, _ = row
        if kind == RUN:
            for tensor in lists.reads[subject]:
                bring(tensor, memory_of[where])
            kept_rows.append(row)
            for tensor in lists.makes[subject]:
                is_made[tensor] = True
        elif is_made[subject] and (subject, where) in requested:
            bring(subject, where)
    if lists.host is not None:
        for tensor in sorted(lists.outputs):
            bring(tensor, lists.host)
    table = np.array(kept_rows, dtype=np.int64).reshape(-1, 4)
    return NativePlan(table, 0, violation, lists.problem.cluster)
