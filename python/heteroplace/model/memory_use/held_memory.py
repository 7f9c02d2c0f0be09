"""A plan -> the bytes that each memory holds from the first step of it to the last.

The part of the rule by lifetime (`live_memory`) that knows no time. The core has the same rule in
`src/simulate/live_memory.cc`.
"""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Plan, Run, devices_of
from heteroplace.model.step_values import loaded_places, state_places, value_bytes


def held_bytes(graph: TaskGraph, cluster: Cluster, plan: Plan) -> list[int]:
    """Return what is live always in each memory: weights, workspaces, state, and in the host memory
    the model inputs."""
    held = [0] * len(cluster.memories)
    workspace = [0] * len(cluster.devices)
    if cluster.host is not None:
        states = {state for state, _ in graph.updates}
        items = range(plan.items)
        held[cluster.host] = sum(
            value_bytes(graph, t, items) for t in graph.inputs if t not in states
        )
    for tensor, memory in state_places(graph, cluster, plan.steps):
        held[memory] += graph.tensors[tensor].bytes
    loaded = loaded_places(plan.steps)
    places = {(task, load.src) for load in plan.loads for task in load.tasks}
    for task_id, memory in places:
        held[memory] += graph.tasks[task_id].weight_bytes
    has_weights: set[tuple[int, int]] = set()
    named: set[tuple[str, int]] = set()
    for step in plan.steps:
        if not isinstance(step, (Run, Collective)):
            continue
        task = graph.tasks[step.task]
        scratch = task.workspace_bytes * graph.batch_size(step.task, len(step.items))
        for device in devices_of(step):
            memory = cluster.devices[device].memory
            is_resident = (step.task, memory) not in loaded
            if is_resident and (step.task, device) not in has_weights:
                has_weights.add((step.task, device))
                held[memory] += task.weight_bytes
            for name, num_bytes in task.weights:
                if (name, memory) not in named:
                    named.add((name, memory))
                    held[memory] += num_bytes
            workspace[device] = max(workspace[device], scratch)
    for owner, num_bytes in zip(cluster.devices, workspace, strict=True):
        held[owner.memory] += num_bytes
    return held
