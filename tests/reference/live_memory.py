"""Live memory in the most obvious form: who holds how many bytes when a step brings some."""

from dataclasses import replace
from math import inf

import pytest

from heteroplace.errors import PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.plan import Copy
from tests.reference.simulator import batch, is_adding, needs, puts, reference_times


def check_limits_by_lifetime(found, plan, bytes_less):
    """A plan passes in memories as large as its peaks, and is refused in smaller ones."""
    times = reference_times(found.graph, found.cluster, found.costs, plan)
    peaks = reference_peaks(found.graph, found.cluster, plan, times)
    memories = tuple(
        replace(memory, bytes=max(1, peak - bytes_less))
        for memory, (peak, *_) in zip(found.cluster.memories, peaks, strict=True)
    )
    cluster = replace(found.cluster, memories=memories)
    costs = replace(found.costs, devices=cluster.identities)
    moved = replace(plan, cluster_digest=cluster.digest())
    if all(peak <= m.bytes for (peak, *_), m in zip(peaks, memories, strict=True)):
        check_plan(found.graph, cluster, costs, moved)
        return
    with pytest.raises(PlanError, match=r"memory 'm?\d*.*' needs .* too few\)"):
        check_plan(found.graph, cluster, costs, moved)


def reference_peaks(graph, cluster, plan, times):
    """For each memory its largest number of live bytes, when there are as many first, and the step
    that brings the last of them (None: no step).

    A value is live at a step from the one that brings it to the last one that brings or reads it,
    and as long as one of these is not done when that step or a later one starts, of those that
    bring something to the memory.
    """
    found = []
    for memory in range(len(cluster.memories)):
        held = _held_bytes(graph, cluster, plan, memory)
        values = _values(graph, cluster, plan, times, memory)
        peak = (held, 0, None)
        bringing = sorted({first for first, _, _, size in values if size})
        for index in bringing:
            earliest = min(times[later][0] for later in bringing if later >= index)
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
    """What is there always: weights, workspaces, state, inputs in the host memory."""
    runs = [step for step in plan.steps if not isinstance(step, Copy)]
    work = [
        (run, device)
        for run in runs
        for device in (getattr(run, "devices", None) or [run.device])
        if cluster.devices[device].memory == memory
    ]
    held = sum(
        graph.tasks[task].weight_bytes for task, _ in {(run.task, device) for run, device in work}
    )
    held += sum(
        dict(weight for run, _ in work for weight in graph.tasks[run.task].weights).values()
    )
    for device in range(len(cluster.devices)):
        held += max(
            (
                graph.tasks[run.task].workspace_bytes * batch(graph, run)
                for run, at in work
                if at == device
            ),
            default=0,
        )
    state_of = {new: old for old, new in graph.updates}
    states = {
        state_of[tensor]
        for index, step in enumerate(plan.steps)
        if not isinstance(step, Copy)
        for tensor, at, _ in puts(graph, cluster, plan, index)
        if at == memory and tensor in state_of
    }
    held += sum(graph.tensors[state].bytes for state in states)
    if memory == cluster.host:
        for tensor in set(graph.inputs) - set(state_of.values()):
            count = 1 if graph.tensors[tensor].shared else plan.items
            held += graph.tensors[tensor].bytes * count
    return held


def _values(graph, cluster, plan, times, memory):
    """(first step, last step, end, bytes) of every value that a step brings there."""
    steps = range(len(plan.steps))
    updates = {new for _, new in graph.updates}
    made, read = ([what(graph, cluster, plan, index) for index in steps] for what in (puts, needs))
    values = []
    for key in {key for keys in made for key in keys if key[1] == memory}:
        makers = [index for index in steps if key in made[index]]
        is_shared = graph.tensors[key[0]].shared
        firsts = [
            index
            for index in makers
            if index == makers[0] or not (is_shared and is_adding(graph, plan.steps[index]))
        ]
        for first, after in zip(firsts, [*firsts[1:], len(steps)], strict=True):
            users = [i for i in steps if first <= i < after and key in made[i] | read[i]]
            is_home = not isinstance(plan.steps[first], Copy)
            stays = memory == cluster.host if cluster.host is not None else is_home
            end = max(times[user][1] for user in users)
            if key[0] in graph.outputs and stays:
                end = inf
            size = 0 if key[0] in updates and is_home else graph.tensors[key[0]].bytes
            values.append((first, max(users), end, size))
    return values
