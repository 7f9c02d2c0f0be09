"""Plan -> the sums over devices that need no kernels: what updates weights adds up as it reads.

A sum of gradients that only one update reads, right after it, would be written by each member and
read again by its update. The update's kernel reads what all members bring instead, in rank order,
so that equal kernels on equal values still give equal bits. For float32 that is 16 bytes for each
weight and member, of two, in place of 24; a step of training on one device alone takes 12.

before ==> after, for one of two members

    %sum = add(%dw<0, %dw<1);  sgd(%w, %sum)    ==>    sgd(%w, add(%dw<0, %dw<1))
"""

from __future__ import annotations

from collections.abc import Mapping

from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import are_of_one_cpu
from heteroplace.model.plan import Collective, Plan, Run, devices_of
from heteroplace.parts.parallel.collectives.versions import runs_apart


def sums_in_updates(graph: TaskGraph, cluster: Cluster, plan: Plan) -> Mapping[int, int]:
    """Return the collectives whose sums updates compute, each with its one step.

    These run once, on cores of one CPU, which read what others bring where it is; nothing of them
    is an output or replaces state, and one task reads each of their tensors: it updates a weight,
    right after them on its device, so that what they read is still there.
    Complexity: O(steps + reads).
    """
    updates = _updates_of_sums(graph)
    if not updates:
        return {}
    collective_of = {
        update: task for task, updates_of_task in updates.items() for update in updates_of_task
    }
    last: dict[int, int] = {}
    """By device, its last step so far."""
    step_of: dict[int, int] = {}
    refused: set[int] = set()
    for index, step in enumerate(plan.steps):
        if not isinstance(step, (Run, Collective)):
            continue
        if isinstance(step, Collective) and step.task in updates:
            homes = {cluster.devices[device].memory for device in step.devices}
            if step.task in step_of or not are_of_one_cpu(cluster, *homes):
                refused.add(step.task)
            step_of[step.task] = index
        elif isinstance(step, Run) and step.task in collective_of:
            summed = collective_of[step.task]
            if summed not in step_of or last.get(step.device) != step_of[summed]:
                refused.add(summed)
        last.update(dict.fromkeys(devices_of(step), index))
    return {task: index for task, index in step_of.items() if task not in refused}


def _updates_of_sums(graph: TaskGraph) -> dict[int, list[int]]:
    """By collective that sums, the updates that read what it makes, if nobody else does."""
    states = {state for state, _ in graph.updates}
    needed = {*graph.outputs, *graph.state_of}
    readers_of_sums = {}
    for task, description in enumerate(graph.tasks):
        kind = collective_kind(description.op)
        if kind is None or not kind.sums:
            continue
        outputs = graph.task_outputs[task]
        readers = [graph.tensors[tensor].consumers for tensor in outputs]
        if needed.isdisjoint(outputs) and all(len(each) == 1 for each in readers):
            readers_of_sums[task] = [reader for (reader,) in readers]
    return {
        task: readers
        for task, readers in readers_of_sums.items()
        if all(
            runs_apart(graph, reader)
            and collective_kind(graph.tasks[reader].op) is None
            and not states.isdisjoint(graph.task_inputs[reader])
            for reader in readers
        )
    }
