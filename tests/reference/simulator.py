"""The simulator's rules in the most obvious form: an oracle for the core."""

from heteroplace.model.plan import Run


def reference_times(graph, cluster, costs, plan):
    """Start and finish of every step: after all earlier steps that share a resource with it and
    after the step that put each of its tensors there."""
    times = []
    for index, step in enumerate(plan.steps):
        start = 0
        for earlier in range(index):
            shares = _resources(cluster, plan, earlier) & _resources(cluster, plan, index)
            if shares or puts(graph, cluster, plan, earlier) & needs(graph, cluster, plan, index):
                start = max(start, times[earlier][1])
        if isinstance(step, Run):
            duration = costs.run_ns(step.task, step.device, len(step.items))
        else:
            num_bytes = graph.tensors[step.tensor].bytes * len(step.items)
            duration = cluster.transfer_ns(step.route, num_bytes)
        times.append((start, start + duration))
    return times


def _resources(cluster, plan, index):
    """What a step occupies."""
    step = plan.steps[index]
    if isinstance(step, Run):
        return set(cluster.devices[step.device].units)
    found = set()
    for link in (cluster.links[link] for link in step.route):
        ports = {("out", link.src), ("in", link.dst)}
        found |= {"none": set(), "channel": {link.channel}, "port": ports, "bus": {"all"}}[
            cluster.congestion
        ]
        for side, memory in (("read", link.src), ("write", link.dst)):
            for device in (device for device in cluster.devices if device.memory == memory):
                engines = {None: (), 0: device.units, 1: [(1, memory)], 2: [(2, memory, side)]}
                found |= set(engines[device.copy_engines])
    return found


def puts(graph, cluster, plan, index):
    """(tensor, memory, item) that a step brings about."""
    step = plan.steps[index]
    made = graph.task_outputs[step.task] if isinstance(step, Run) else [step.tensor]
    memory = cluster.devices[step.device].memory if isinstance(step, Run) else step.dst
    return {(tensor, memory, item) for tensor in made for item in step.items}


def needs(graph, cluster, plan, index):
    """(tensor, memory, item) that a step reads."""
    step = plan.steps[index]
    read = graph.task_inputs[step.task] if isinstance(step, Run) else [step.tensor]
    memory = cluster.devices[step.device].memory if isinstance(step, Run) else step.src
    return {(tensor, memory, item) for tensor in read for item in step.items}
