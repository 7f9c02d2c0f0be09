"""Live memory in the most obvious form: who holds how many bytes when a step brings some."""

from math import inf

from heteroplace.model.plan import Run
from tests.reference.simulator import needs, puts


def reference_peaks(graph, cluster, plan, times):
    """For each memory its largest number of live bytes, when there are as many first, and the step
    that brings the last of them (None: no step).

    A value is live at a step from the one that brings it to the last one that brings or reads it,
    and as long as one of these is not done when that step or a later one starts.
    """
    found = []
    for memory in range(len(cluster.memories)):
        held = _held_bytes(graph, cluster, plan, memory)
        values = _values(graph, cluster, plan, times, memory)
        peak = (held, 0, None)
        for index in range(len(plan.steps)):
            if not any(key[1] == memory for key in puts(graph, cluster, plan, index)):
                continue
            earliest = min(start for start, _ in times[index:])
            live = held + sum(
                size
                for first, last, end, size in values
                if first <= index and (index <= last or end > earliest)
            )
            if live > peak[0]:
                peak = (live, times[index][0], index)
        found.append(peak)
    return found


def _held_bytes(graph, cluster, plan, memory):
    """What is there always: weights, workspaces, inputs in the host memory."""
    runs = [step for step in plan.steps if isinstance(step, Run)]
    here = [run for run in runs if cluster.devices[run.device].memory == memory]
    held = sum(
        graph.tasks[task].weight_bytes for task, _ in {(run.task, run.device) for run in here}
    )
    for device in range(len(cluster.devices)):
        held += max(
            (
                graph.tasks[run.task].workspace_bytes * len(run.items)
                for run in here
                if run.device == device
            ),
            default=0,
        )
    if memory == cluster.host:
        held += sum(graph.tensors[tensor].bytes for tensor in graph.inputs) * plan.items
    return held


def _values(graph, cluster, plan, times, memory):
    """(first step, last step, end, bytes) of every item of a tensor that a step brings there."""
    steps = range(len(plan.steps))
    values = []
    for index in steps:
        for key in puts(graph, cluster, plan, index):
            if key[1] != memory:
                continue
            users = [index, *(i for i in steps if key in needs(graph, cluster, plan, i))]
            is_home = isinstance(plan.steps[index], Run)
            stays = memory == cluster.host if cluster.host is not None else is_home
            end = max(times[user][1] for user in users)
            if key[0] in graph.outputs and stays:
                end = inf
            values.append((index, max(users), end, graph.tensors[key[0]].bytes))
    return values
