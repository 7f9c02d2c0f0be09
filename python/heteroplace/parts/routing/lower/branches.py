"""Calls of a routed network + plan -> what is guarded, by what, and which values that takes.

A routed buffer is made and read in parts: the rows of each branch are a value of their own, which
lies in it. So who reads rows of one branch waits for those alone, and only they are copied to
another memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from heteroplace.lower.kernels import KernelCall, KernelCalls
from heteroplace.lower.order.guards import Guards
from heteroplace.lower.order.instructions import Instance, root
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Guard, Plan, guard_of


class Branches(Guards):
    """Guards of the calls and copies of one program."""

    def __init__(self, calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan) -> None:
        super().__init__(calls, plan)
        self._cluster = cluster
        self._router_ids = graph.router_ids
        parts: dict[int, list[int]] = defaultdict(list)
        for value, description in enumerate(calls.values):
            if description.rows is not None:
                parts[description.rows.buffer].append(value)
        self._parts = {buffer: tuple(instances) for buffer, instances in parts.items()}
        decided = {value for router in calls.routers for value in (router.loads, router.offsets)}
        self._made_when = {
            value: self._whole_guard(call)
            for call in calls.calls
            if call.branch is not None
            for value in call.writes
            if value not in decided
        }
        """Of what branches make but for decisions, when it is there."""

    def spread(self, value: int) -> tuple[int, ...]:
        """Return the parts of a routed buffer; of any other value itself."""
        return self._parts.get(value, (value,))

    def places(self, memory_of: Mapping[int, int]) -> dict[Instance, tuple[Instance, int]]:
        """Return where values without bytes of their own are, parts of routed buffers first."""
        places_of: dict[Instance, tuple[Instance, int]] = {
            (part, memory): ((root(self._calls, buffer), memory), 0)
            for buffer, parts in self._parts.items()
            for part in parts
            for memory in range(len(self._cluster.memories))
        }
        return places_of | super().places(memory_of)

    def of_call(self, call: KernelCall, step: int) -> Guard | None:
        """Return when a call is made that carries out a step of the plan."""
        if not call.variants or call.branch is None:
            return None
        planned = guard_of(self._plan.steps[step])
        return planned or Guard(self._router_ids[call.branch[0]], call.branch[1])

    def _whole_guard(self, call: KernelCall) -> Guard:
        """When what a call makes is there: what is missed is in place of what was predicted."""
        assert call.branch is not None
        planned = None if call.at is None else guard_of(self._plan.steps[call.at[0]])
        when = "predicted" if planned is not None and planned.when == "predicted" else "active"
        return Guard(self._router_ids[call.branch[0]], call.branch[1], when)

    def of_copy(self, value: int, step: int | None) -> Guard | None:
        """Return when a value is copied: rows of a branch, if the branch is active."""
        rows = self._calls.values[value].rows
        if rows is not None:
            return Guard(self._router_ids[rows.router], rows.branch)
        if value in self._made_when:
            return self._made_when[value]
        return super().of_copy(value, step)

    def decision(self, guard: Guard | None, memory: int) -> tuple[Instance, ...]:
        """Return what says whether a guard of what is done at a memory holds."""
        if guard is None or guard.when == "predicted":
            return ()
        router, there = self._calls.routers[guard.router], decision_memory(self._cluster, memory)
        values = (router.loads, *(() if router.offsets is None else (router.offsets,)))
        return tuple((value, there) for value in values)


def decision_memory(cluster: Cluster, memory: int) -> int:
    """Return the memory in which a core reads decisions for what is done at a memory.

    Threads read memory of CPUs only, also those that issue the work of a GPU. Nothing is brought to
    a memory without devices for it.
    """
    kinds = {device.kind for device in cluster.devices if device.memory == memory}
    assert cluster.host is not None
    return memory if kinds == {"cpu"} else cluster.host
