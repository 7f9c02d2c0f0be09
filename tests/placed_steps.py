"""Tasks on devices -> steps of a plan."""

from __future__ import annotations

from collections.abc import Iterable

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Run, Step


def placed_steps(
    graph: TaskGraph, cluster: Cluster, placed: Iterable[tuple[int, int]]
) -> tuple[Step, ...]:
    """Runs of (task, device), and each copy where its tensor is first needed, from its maker.

    `placed` is asked for a pair when those before have run.
    """
    assert cluster.host is not None
    home = dict.fromkeys(graph.inputs, cluster.host)
    there = {(tensor, cluster.host) for tensor in graph.inputs}
    steps: list[Step] = []

    def bring(tensor: int, memory: int) -> None:
        if (tensor, memory) not in there:
            steps.append(Copy(tensor, home[tensor], memory, cluster.route(home[tensor], memory)))
            there.add((tensor, memory))

    for task, device in placed:
        memory = cluster.devices[device].memory
        for tensor in graph.task_inputs[task]:
            bring(tensor, memory)
        steps.append(Run(task, device))
        for tensor in graph.task_outputs[task]:
            home[tensor] = memory
            there.add((tensor, memory))
    for tensor in graph.outputs:
        bring(tensor, cluster.host)
    return tuple(steps)
