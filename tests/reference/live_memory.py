"""Live memory in the most obvious form: who holds how many bytes from when to when."""

from math import inf

from heteroplace.model.plan import Run
from tests.reference.simulator import needs, puts


def reference_peaks(graph, cluster, plan, times):
    """For each memory its largest number of live bytes, when there are as many first, and the last
    step that starts then and brings some (None: no step)."""
    held = _held(graph, cluster, plan, times)
    moments = sorted({0, *(start for start, _ in times)})
    found = []
    for memory in range(len(cluster.memories)):
        here = [use for use in held if use[0] == memory]
        live = [sum(size for _, a, b, size, _ in here if a <= now < b) for now in moments]
        peak = max(live)
        when = moments[live.index(peak)]
        steps = [step for _, a, b, size, step in here if a == when < b and size > 0]
        found.append((peak, when, max((s for s in steps if s is not None), default=None)))
    return found


def _held(graph, cluster, plan, times):
    """(memory, from, until, bytes, step that brings them) of everything."""
    host, runs = cluster.host, [step for step in plan.steps if isinstance(step, Run)]
    held = []
    for tensor in graph.inputs if host is not None else ():
        held.append((host, 0, inf, graph.tensors[tensor].bytes * plan.items, None))
    for task, device in {(run.task, run.device) for run in runs}:
        memory = cluster.devices[device].memory
        held.append((memory, 0, inf, graph.tasks[task].weight_bytes, None))
    for index, step in enumerate(plan.steps):
        start, finish = times[index]
        if isinstance(step, Run):
            size = graph.tasks[step.task].workspace_bytes * len(step.items)
            held.append((cluster.devices[step.device].memory, start, finish, size, index))
        for key in puts(graph, cluster, plan, index):
            tensor, memory, _ = key
            reads = [
                times[reader][1]
                for reader in range(len(plan.steps))
                if key in needs(graph, cluster, plan, reader)
            ]
            stays = memory == host if host is not None else isinstance(step, Run)
            end = inf if tensor in graph.outputs and stays else max([finish, *reads])
            held.append((memory, start, end, graph.tensors[tensor].bytes, index))
    return held
