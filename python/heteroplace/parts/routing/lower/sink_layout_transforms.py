"""Calls that only bring a tensor into another layout for one branch -> calls of that branch.

Kernels want tensors in layouts of their own, and a task ends by bringing what it makes into the
layout of the model. Where nothing but one branch reads that, it is done when the branch is active,
and else skipped with it.

before ==> after, for a task a that is in no branch, and b in a branch

    y' = conv(x); y = layout(y'), of a; z' = layout(y) if active, of b
    ==>  y' = conv(x), of a; y = layout(y') if active; z' = layout(y) if active, of b
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from heteroplace.lower.kernels import KernelCall, KernelCalls, Variant
from heteroplace.lower.order.instructions import root
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run


def sunk_calls(calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan) -> KernelCalls:
    """Return the calls, those that only one branch of whole tensors needs in that branch.

    A task keeps at least one call. Only what stays in one memory is moved, and nothing into a
    branch that is predicted.
    """
    if not calls.routers or all(router.offsets is not None for router in calls.routers):
        return calls
    return _Sinking(calls, graph, cluster, plan).sunk()


class _Sinking:
    def __init__(self, calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan) -> None:
        self._all = calls
        self._parent = {router.name: router.parent for router in graph.routers}
        self._memory: dict[str, int] = {}
        """Of tasks that are run once, when they are active or in every run."""
        runs = [step for step in plan.steps if isinstance(step, Run)]
        count = Counter(step.task for step in runs)
        for step in runs:
            if count[step.task] == 1 and (step.guard is None or step.guard.when == "active"):
                task = graph.tasks[step.task].name
                self._memory[task] = cluster.devices[step.device].memory
        self._stays = {root(calls, value) for value in calls.outputs}
        for router in calls.routers:
            own_values = (router.loads, router.offsets, router.seats)
            self._stays |= {root(calls, value) for value in own_values if value is not None}

    def sunk(self) -> KernelCalls:
        calls: list[KernelCall] = []
        left = Counter(call.task for call in self._all.calls)
        readers: dict[int, list[KernelCall]] = defaultdict(list)
        # From the last one on: those behind a call have their places.
        for call in reversed(self._all.calls):
            reader = self._only_branch(call, readers) if left[call.task] > 1 else None
            if reader is not None:
                left[call.task] -= 1
                call = self._of(call, reader)
                at = next(place for place, each in enumerate(calls) if each is reader)
                calls.insert(at + 1, call)
            else:
                calls.append(call)
            for value in dict.fromkeys(root(self._all, read) for read in call.reads):
                readers[value].append(call)
        return replace(self._all, calls=tuple(reversed(calls)))

    def _only_branch(
        self, call: KernelCall, readers: Mapping[int, list[KernelCall]]
    ) -> KernelCall | None:
        """The first reader of what a call makes, if all of them are in one branch further in."""
        written = {root(self._all, value) for value in call.writes}
        reading = [reader for value in written for reader in readers.get(value, ())]
        if not reading or written & self._stays or not _is_whole(call):
            return None
        branch = reading[0].branch
        is_one = branch != call.branch and all(
            reader.branch == branch and _is_whole(reader) and reader.variants for reader in reading
        )
        memory = self._memory.get(call.task)
        is_near = memory is not None and all(
            self._memory.get(reader.task) == memory for reader in reading
        )
        if not is_one or not is_near or not self._is_around(call.branch, branch):
            return None
        # The last one added is the first one that runs.
        return reading[-1] if len(written) == 1 else None

    def _is_around(self, outer: tuple[str, int] | None, inner: tuple[str, int] | None) -> bool:
        while inner is not None and inner != outer:
            inner = self._parent[inner[0]]
        return inner == outer

    def _of(self, call: KernelCall, reader: KernelCall) -> KernelCall:
        """The call as one of the branch and of the task of who reads it first."""
        only = Variant(0, call.kernel, call.reads, call.writes)
        return replace(
            call,
            segment=reader.segment,
            task=reader.task,
            branch=reader.branch,
            variants=call.variants or (only,),
        )


def _is_whole(call: KernelCall) -> bool:
    """Whether it is done once, whatever the load, and not by a plan's step of its own."""
    is_plain = bool(call.kernel) and call.at is None and call.items == (0,) and not call.in_place
    return is_plain and all(variant.capacity == 0 for variant in call.variants)
