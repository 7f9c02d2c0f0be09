"""The rule by lifetime: how many bytes a plan of one item has live at once in each memory.

Weights are live always, of each device the largest workspace, and model inputs in the host memory,
which may be set once for many runs. A tensor is live in a memory from the step that brings it there
to the last step that reads it there, both included, in plan order, since a compiled program gives
its bytes away in that order (`heteroplace.codegen.lifetimes`). It stays live while that reader is
not done by the time that a later step can start: whoever takes its bytes then need not wait, and
the plan is as long as simulated. Outputs stay in the host memory, or where they are made if there
is no host. A program may need a little more: values are aligned, and may leave gaps.

What the static rule (`model/memory.py`) counts is never less; where that fits, nothing else need be
looked at. The core has the same rule in `src/simulate/live_memory.cc`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run, Step


@dataclass(frozen=True, slots=True)
class LivePeak:
    """The most that is live in one memory."""

    num_bytes: int
    step: int | None
    """The first step of the plan that brings it to that; None: it is there before any."""


def live_peaks(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan
) -> tuple[LivePeak, ...]:
    """Return the peak of each memory. The plan must be whole, and for one item.

    Complexity: O(steps log steps + reads).
    """
    steps = plan.steps
    times = _times(graph, cluster, costs, steps)
    live = held_bytes(graph, cluster, steps)
    peaks = [LivePeak(num_bytes, None) for num_bytes in live]
    # From a step on nothing starts before this.
    earliest = list(accumulate((start for start, _ in reversed(times)), min))[::-1]
    users = _users(graph, cluster, steps)
    ends: list[list[tuple[int, int, int]]] = [[] for _ in steps]
    for (tensor, memory), positions in users.items():
        done = max(times[position][1] for position in positions)
        ends[positions[-1]].append((done, memory, graph.tensors[tensor].bytes))
    unfinished: list[tuple[int, int, int]] = []
    for index, step in enumerate(steps):
        while unfinished and unfinished[0][0] <= earliest[index]:
            _, memory, num_bytes = heapq.heappop(unfinished)
            live[memory] -= num_bytes
        memory = _writes_to(cluster, step)
        live[memory] += sum(graph.tensors[tensor].bytes for tensor in _makes(graph, step))
        if live[memory] > peaks[memory].num_bytes:
            peaks[memory] = LivePeak(live[memory], index)
        for end in ends[index]:
            heapq.heappush(unfinished, end)
    return tuple(peaks)


def held_bytes(graph: TaskGraph, cluster: Cluster, steps: Sequence[Step]) -> list[int]:
    """Return what is live always in each memory: weights, workspaces, inputs in the host memory."""
    held = [0] * len(cluster.memories)
    workspace = [0] * len(cluster.devices)
    if cluster.host is not None:
        held[cluster.host] = sum(graph.tensors[tensor].bytes for tensor in graph.inputs)
    for step in steps:
        if isinstance(step, Run):
            task = graph.tasks[step.task]
            held[cluster.devices[step.device].memory] += task.weight_bytes
            workspace[step.device] = max(workspace[step.device], task.workspace_bytes)
    for device, num_bytes in zip(cluster.devices, workspace, strict=True):
        held[device.memory] += num_bytes
    return held


def _times(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, steps: Sequence[Step]
) -> list[tuple[int, int]]:
    """Start and finish of each step in ns, as `heteroplace.model.plan` says."""
    free = [0] * len(cluster.resources)
    there: dict[tuple[int, int], int] = {}
    times = []
    for step in steps:
        if isinstance(step, Run):
            resources: Sequence[int] = cluster.unit_ids[step.device]
            duration = costs.run_ns(step.task, step.device)
        else:
            resources = cluster.route_resources(step.route)
            duration = cluster.transfer_ns(step.route, graph.tensors[step.tensor].bytes)
        memory = _reads_from(cluster, step)
        ready = (there.get((tensor, memory), 0) for tensor in _reads(graph, step))
        start = max((*(free[resource] for resource in resources), *ready), default=0)
        finish = start + (duration or 0)
        for resource in resources:
            free[resource] = finish
        for tensor in _makes(graph, step):
            there[tensor, _writes_to(cluster, step)] = finish
        times.append((start, finish))
    return times


def _users(
    graph: TaskGraph, cluster: Cluster, steps: Sequence[Step]
) -> dict[tuple[int, int], list[int]]:
    """Positions of the steps that bring or read a tensor in a memory, for those that are freed."""
    users: dict[tuple[int, int], list[int]] = {}
    outputs = frozenset(graph.outputs)
    for index, step in enumerate(steps):
        for tensor in _reads(graph, step):
            # What no step brought is a model input.
            if (tensor, _reads_from(cluster, step)) in users:
                users[tensor, _reads_from(cluster, step)].append(index)
        memory = _writes_to(cluster, step)
        stays = isinstance(step, Run) if cluster.host is None else memory == cluster.host
        for tensor in _makes(graph, step):
            if not (stays and tensor in outputs):
                users[tensor, memory] = [index]
    return users


def _reads(graph: TaskGraph, step: Step) -> Sequence[int]:
    return graph.task_inputs[step.task] if isinstance(step, Run) else (step.tensor,)


def _makes(graph: TaskGraph, step: Step) -> Sequence[int]:
    return graph.task_outputs[step.task] if isinstance(step, Run) else (step.tensor,)


def _reads_from(cluster: Cluster, step: Step) -> int:
    return cluster.devices[step.device].memory if isinstance(step, Run) else step.src


def _writes_to(cluster: Cluster, step: Step) -> int:
    return cluster.devices[step.device].memory if isinstance(step, Run) else step.dst
