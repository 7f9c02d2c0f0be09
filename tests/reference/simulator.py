"""The simulator's rules in the most obvious form: an oracle for the core."""

from heteroplace.model.collectives import collective_ns
from heteroplace.model.graphs.groups import grouped_ns
from heteroplace.model.plan import Collective, Copy, Load, Run, guard_of
from heteroplace.model.step_values import kind_of

ANYWHERE = 0
"""Of a shared tensor the only item."""
FROM_ALL = {"all_reduce", "all_gather", "reduce_scatter", "reduce", "gather", "all_to_all"}
TO_ALL = {"all_reduce", "all_gather", "broadcast"}
TO_EACH = {"reduce_scatter", "scatter", "all_to_all"}


def reference_times(graph, cluster, costs, plan, decision=None):
    """Start and finish of every step: after all earlier steps that share a resource with it, after
    the latest step that put each of its tensors there, or all of them if they are guarded, after
    those that load its weights, and, if it takes the place of state, after all that read the state
    there. Branches that cores share take what they take together (`grouped_ns`)."""
    used, waits = edges(graph, cluster, plan)
    times = []
    lengths = [duration(graph, cluster, costs, step, decision) for step in plan.steps]
    if decision is not None:
        lengths = grouped_ns(graph, cluster, plan.steps, lengths)
    for index in range(len(plan.steps)):
        before = [earlier for earlier in range(index) if used[earlier] & used[index]]
        start = max((times[earlier][1] for earlier in (*before, *waits[index])), default=0)
        times.append((start, start + lengths[index]))
    return times


def edges(graph, cluster, plan):
    """What each step occupies; and the earlier steps whose end it waits for because of what it
    reads, adds to or replaces."""
    steps = range(len(plan.steps))
    made, read, used = (
        [what(graph, cluster, plan, index) for index in steps] for what in (puts, needs, resources)
    )
    return used, [_waits_for(graph, cluster, plan, made[: i + 1], read[: i + 1]) for i in steps]


def _waits_for(graph, cluster, plan, made, read):
    """Of what each step up to this one has made and read, those that it waits for."""
    step = plan.steps[len(made) - 1]
    found = set()
    if isinstance(step, Run):
        memory = cluster.devices[step.device].memory
        loads = enumerate(plan.steps[: len(made) - 1])
        found |= {i for i, s in loads if isinstance(s, Load) and brings(s, step.task, memory)}
    here = read[-1]
    if is_adding(graph, step):
        here = here | {key for key in made[-1] if graph.tensors[key[0]].shared}
    for key in here:
        before = [index for index, keys in enumerate(made[:-1]) if key in keys]
        is_guarded = bool(before) and guard_of(plan.steps[before[-1]]) is not None
        found |= set(before if is_guarded else before[-1:])
    for tensor, memory, _ in made[-1]:
        state = [old for old, new in graph.updates if new == tensor]
        if state and not isinstance(step, (Copy, Load)):
            place = state[0], memory, ANYWHERE
            found |= {index for index, keys in enumerate(read[:-1]) if place in keys}
    return found


def is_adding(graph, step):
    """Whether a step adds to its shared outputs."""
    return not isinstance(step, (Copy, Load)) and graph.tasks[step.task].adds


def brings(load, task, memory):
    """Whether a load brings the weights of a task to a memory."""
    return task in load.tasks and load.dst == memory


def is_made(guard, decision):
    """Whether a step with that guard is made."""
    load = decision.loads[guard.router][guard.branch]
    predicted = guard.branch in decision.predicted[guard.router]
    return {"active": load, "predicted": predicted, "missed": load and not predicted}[guard.when]


def duration(graph, cluster, costs, step, decision=None):
    """How long a step takes."""
    guard = guard_of(step)
    if guard is not None and decision is not None and not is_made(guard, decision):
        return 0
    if guard is not None and isinstance(step, Run):
        return _branch_ns(graph, costs, step, decision)
    if isinstance(step, Load):
        size = sum(graph.tasks[task].weight_bytes for task in step.tasks)
        return cluster.transfer_ns(step.route, size)
    if guard is not None and decision is not None and graph.tensors[step.tensor].buffer:
        router = graph.routers[guard.router]
        cells = decision.loads[guard.router][guard.branch]
        if router.overflow == "drop":
            cells = min(cells, max(router.capacities[guard.branch]))
        size = graph.tensors[step.tensor].bytes * cells // router.num_cells
        return cluster.transfer_ns(step.route, size)
    if isinstance(step, Run):
        return costs.run_ns(step.task, step.device, batch(graph, step))
    if isinstance(step, Copy):
        shared = graph.tensors[step.tensor].shared
        num_bytes = graph.tensors[step.tensor].bytes * (1 if shared else len(step.items))
        return cluster.transfer_ns(step.route, num_bytes)
    tensors = {*graph.task_inputs[step.task], *graph.task_outputs[step.task]}
    num_bytes = max(graph.tensors[tensor].bytes for tensor in tensors)
    if not any(graph.tensors[tensor].shared for tensor in tensors):
        num_bytes *= len(step.items)
    kind = kind_of(graph, step)
    return collective_ns(cluster, kind, num_bytes, step.devices, step.root, costs.collectives)


def _branch_ns(graph, costs, step, decision):
    router = graph.routers[step.guard.router]
    capacities = router.capacities[step.guard.branch]
    if not set(capacities) <= set(costs.batches):
        return costs.run_ns(step.task, step.device)
    largest = max(capacities)
    left = largest if decision is None else decision.loads[step.guard.router][step.guard.branch]
    left = max(left, 1)
    if router.overflow == "drop":
        left = min(left, largest)
    total = 0
    while left > 0:
        rows = min(size for size in capacities if size >= min(left, largest))
        total += costs.run_ns(step.task, step.device, rows)
        left -= rows
    return total


def batch(graph, step):
    """How many items a step computes."""
    tensors = {*graph.task_inputs[step.task], *graph.task_outputs[step.task]}
    is_shared = bool(graph.task_outputs[step.task])
    is_shared = is_shared and all(graph.tensors[tensor].shared for tensor in tensors)
    return 1 if is_shared else len(step.items)


def resources(graph, cluster, plan, index):
    """What a step occupies."""
    step = plan.steps[index]
    if isinstance(step, Run):
        memory = cluster.devices[step.device].memory
        return {*cluster.devices[step.device].units, *room_bytes(plan, {step.task}, memory)}
    if isinstance(step, Load):
        room = room_bytes(plan, set(step.tasks), step.dst)
        return route_resources(cluster, step.route) | room
    if isinstance(step, Copy):
        return route_resources(cluster, step.route)
    members = [cluster.devices[device] for device in step.devices]
    name = kind_of(graph, step).name
    if name in FROM_ALL & (TO_ALL | TO_EACH):
        pairs = zip(members, [*members[1:], members[0]], strict=True)
    elif name in FROM_ALL:
        pairs = [(member, members[step.root]) for member in members]
    else:
        pairs = [(members[step.root], member) for member in members]
    found, is_moving = set(), False
    for src, dst in pairs:
        if src.memory != dst.memory:
            is_moving = True
            found |= route_resources(cluster, cluster.route(src.memory, dst.memory))
    if not (is_moving and all(member.copy_engines in (1, 2) for member in members)):
        found |= {unit for member in members for unit in member.units}
    return found


def room_bytes(plan, tasks, memory):
    """The bytes of the room for weights of a memory in which those of some tasks lie."""
    return {
        ("room", memory, byte)
        for load in plan.loads
        if load.place is not None and load.dst == memory and tasks & set(load.tasks)
        for byte in range(load.place[0], sum(load.place))
    }


def route_resources(cluster, route):
    """What a copy over some links occupies."""
    found = set()
    for link in (cluster.links[link] for link in route):
        ports = {("out", link.src), ("in", link.dst)}
        found |= {"none": set(), "channel": {link.channel}, "port": ports, "bus": {"all"}}[
            cluster.congestion
        ]
        own = own_copier(cluster, link)
        for side, memory in (("read", link.src), ("write", link.dst)):
            for device in (device for device in cluster.devices if device.memory == memory):
                if own is not None and device.copy_engines == 0:
                    found |= set(device.units) if device is own else set()
                    continue
                engines = {None: (), 0: device.units, 1: [(1, memory)], 2: [(2, memory, side)]}
                found |= set(engines[device.copy_engines])
    return found


def own_copier(cluster, link):
    """The CPU that copies over a link itself, first one that gets the value; None: none does."""
    ends = [d for memory in (link.dst, link.src) for d in cluster.devices if d.memory == memory]
    hosts = {cluster.memory_hosts[memory] for memory in (link.src, link.dst)}
    if len(hosts) > 1 or any(device.kind != "cpu" for device in ends):
        return None
    return next((device for device in ends if device.copy_engines == 0), None)


def _memories(cluster, step):
    return [cluster.devices[device].memory for device in step.devices]


def _of_items(graph, places, items):
    return {
        (tensor, memory, item)
        for tensor, memory in places
        for item in ([ANYWHERE] if graph.tensors[tensor].shared else items)
    }


def puts(graph, cluster, plan, index):
    """(tensor, memory, item) that a step brings about."""
    step = plan.steps[index]
    if isinstance(step, Copy):
        places = [(step.tensor, step.dst)]
    elif isinstance(step, Load):
        places = []
    elif isinstance(step, Run):
        memory = cluster.devices[step.device].memory
        places = [(tensor, memory) for tensor in graph.task_outputs[step.task]]
    else:
        memories, name = _memories(cluster, step), kind_of(graph, step).name
        made = graph.task_outputs[step.task]
        if name in TO_ALL:
            places = [(made[0], memory) for memory in memories]
        elif name in TO_EACH:
            places = list(zip(made, memories, strict=True))
        else:
            places = [(made[0], memories[step.root])]
    return _of_items(graph, places, step.items)


def needs(graph, cluster, plan, index):
    """(tensor, memory, item) that a step reads."""
    step = plan.steps[index]
    guard = guard_of(step)
    asks = guard is not None and guard.when != "predicted"
    loads = [graph.routers[guard.router].loads] if asks else []
    if isinstance(step, Copy):
        places = [(tensor, step.src) for tensor in (step.tensor, *loads)]
    elif isinstance(step, Load):
        places = [(tensor, step.dst) for tensor in loads]
    elif isinstance(step, Run):
        memory = cluster.devices[step.device].memory
        places = [(tensor, memory) for tensor in graph.task_inputs[step.task]]
        if guard is not None and not asks:
            decided = graph.task_outputs[graph.routers[guard.router].task]
            places = [place for place in places if place[0] not in decided]
    else:
        assert isinstance(step, Collective)
        memories, read = _memories(cluster, step), graph.task_inputs[step.task]
        if kind_of(graph, step).name not in FROM_ALL:
            places = [(read[0], memories[step.root])]
        elif len(read) == 1:
            places = [(read[0], memory) for memory in memories]
        else:
            places = list(zip(read, memories, strict=True))
    return _of_items(graph, places, step.items)
