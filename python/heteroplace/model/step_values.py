"""A step of a plan -> the values that it reads and makes, what it occupies, and how long it takes.

The one place that knows it for all kinds of steps. A value is (tensor, memory), one for each item
of the step, or one for all of them where the tensor is shared.

A guarded step reads the router's loads too, in the memory where it looks at them; only what is made
because it is predicted waits for nothing of the router.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import (
    CollectiveCosts,
    CollectiveKind,
    collective_kind,
    collective_ns,
    edges,
)
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Copy, Guard, Load, Run, Step, guard_of
from heteroplace.model.routed.decision import Decision

Place = tuple[int, int]
"""(tensor, memory)"""
Value = tuple[int, int, int]
"""(tensor, memory, item), one item for a shared tensor."""
_ONE: tuple[int, ...] = (0,)


def kind_of(graph: TaskGraph, step: Collective) -> CollectiveKind:
    """Return the kind of a collective step, whose task must be one (`check_plan` asks)."""
    kind = collective_kind(graph.tasks[step.task].op)
    assert kind is not None
    return kind


def reads(graph: TaskGraph, cluster: Cluster, step: Step) -> list[Place]:
    """Return what a step reads, and in which memory it reads it; each once."""
    if isinstance(step, Copy):
        return [(step.tensor, step.src), *guard_reads(graph, step)]
    if isinstance(step, Load):
        return guard_reads(graph, step)
    tensors = graph.task_inputs[step.task]
    if isinstance(step, Run):
        memory = cluster.devices[step.device].memory
        if step.guard is not None and step.guard.when == "predicted":
            router = graph.routers[step.guard.router].task
            tensors = tuple(t for t in tensors if graph.tensors[t].producer != router)
        return [(tensor, memory) for tensor in tensors]
    memories = [cluster.devices[device].memory for device in step.devices]
    if kind_of(graph, step).reads == "root":
        return [(tensor, memories[step.root]) for tensor in tensors]
    if len(tensors) == 1:
        return [(tensors[0], memory) for memory in memories]
    return list(zip(tensors, memories, strict=False))


def guard_reads(graph: TaskGraph, step: Copy | Load) -> list[Place]:
    """Return what a transfer reads to know whether it is made: the loads, where it begins for a
    copy and where it ends for a load. A run reads them anyway."""
    if step.guard is None or step.guard.when == "predicted":
        return []
    memory = step.src if isinstance(step, Copy) else step.dst
    return [(graph.routers[step.guard.router].loads, memory)]


def makes(graph: TaskGraph, cluster: Cluster, step: Step) -> list[Place]:
    """Return what a step makes or brings, and in which memory it is then; each once."""
    if isinstance(step, Copy):
        return [(step.tensor, step.dst)]
    if isinstance(step, Load):
        return []
    tensors = graph.task_outputs[step.task]
    if isinstance(step, Run):
        memory = cluster.devices[step.device].memory
        return [(tensor, memory) for tensor in tensors]
    memories = [cluster.devices[device].memory for device in step.devices]
    kind = kind_of(graph, step)
    if kind.makes == "root":
        return [(tensor, memories[step.root]) for tensor in tensors]
    if kind.makes == "all":
        return [(tensor, memory) for tensor in tensors for memory in dict.fromkeys(memories)]
    return list(zip(tensors, memories, strict=False))


def items_of(graph: TaskGraph, tensor: int, items: tuple[int, ...]) -> tuple[int, ...]:
    """Return the items under which values of a tensor are told apart: one for a shared tensor."""
    return _ONE if graph.tensors[tensor].shared else items


def values_read(graph: TaskGraph, cluster: Cluster, step: Step) -> list[Value]:
    """Return what a step reads, item by item; each once."""
    return _values(graph, reads(graph, cluster, step), step)


def values_made(graph: TaskGraph, cluster: Cluster, step: Step) -> list[Value]:
    """Return what a step makes or brings, item by item; each once."""
    return _values(graph, makes(graph, cluster, step), step)


def _values(graph: TaskGraph, places: Iterable[Place], step: Step) -> list[Value]:
    return [
        (tensor, memory, item)
        for tensor, memory in places
        for item in items_of(graph, tensor, step.items)
    ]


def makers(graph: TaskGraph, cluster: Cluster, steps: Iterable[Step]) -> Iterator[list[int]]:
    """Yield for each step the earlier ones that made or brought what it reads, or adds to, and the
    weights that it runs with, each once; what guarded steps bring comes from all of these."""
    source: dict[Value, list[int]] = {}
    loads: dict[Place, list[int]] = {}
    for index, step in enumerate(steps):
        values = values_made(graph, cluster, step)
        read = values_read(graph, cluster, step)
        read += [value for value in values if adds_to(graph, step, value[0])]
        maker_ids = [maker for value in read for maker in source.get(value, ())]
        if isinstance(step, Run):
            maker_ids += loads.get((step.task, cluster.devices[step.device].memory), [])
        yield list(dict.fromkeys(maker_ids))
        is_guarded = guard_of(step) is not None
        for value in values:
            source[value] = [*(source.get(value, ()) if is_guarded else ()), index]
        if isinstance(step, Load):
            for task in step.tasks:
                place = task, step.dst
                loads[place] = [*(loads.get(place, ()) if is_guarded else ()), index]


def adds_to(graph: TaskGraph, step: Step, tensor: int) -> bool:
    """Say whether a step that makes `tensor` adds to the value that is there."""
    is_added = isinstance(step, (Run, Collective)) and graph.tasks[step.task].adds
    return is_added and graph.tensors[tensor].shared


def state_places(graph: TaskGraph, cluster: Cluster, steps: Iterable[Step]) -> list[Place]:
    """Return where state lies from the start, (model input, memory): where updates are made."""
    if not graph.updates:
        return []
    state_of = graph.state_of
    places: dict[Place, None] = {}
    for step in steps:
        if not isinstance(step, (Run, Collective)):
            continue
        if not any(tensor in state_of for tensor in graph.task_outputs[step.task]):
            continue
        for tensor, memory in makes(graph, cluster, step):
            if tensor in state_of:
                places[state_of[tensor], memory] = None
    return list(places)


def occupied(graph: TaskGraph, cluster: Cluster, step: Step) -> tuple[int, ...]:
    """Return the ids in `cluster.resources` of what `step` occupies, each once.

    A collective takes the units of its devices, unless all of them have copy engines and something
    is transferred, and whatever transfers between them take.
    """
    if isinstance(step, Run):
        return cluster.unit_ids[step.device]
    if isinstance(step, (Copy, Load)):
        return cluster.route_resources(step.route)
    pairs = edges(cluster, kind_of(graph, step), step.devices, step.root)
    devices = () if is_async(graph, cluster, step) else step.devices
    units = (unit for device in devices for unit in cluster.unit_ids[device])
    ways = (cluster.route_resources(cluster.route(src, dst)) for src, dst in pairs)
    return tuple(dict.fromkeys((*units, *(resource for way in ways for resource in way))))


def is_async(graph: TaskGraph, cluster: Cluster, step: Collective) -> bool:
    """Say whether a collective leaves its devices free: all have copy engines, and something is
    transferred."""
    has_engines = all(cluster.devices[device].copy_engines for device in step.devices)
    return has_engines and bool(edges(cluster, kind_of(graph, step), step.devices, step.root))


def channels_of(graph: TaskGraph, cluster: Cluster, step: Step) -> tuple[str, ...]:
    """Return the channels that a step uses, each once."""
    if isinstance(step, Run):
        return ()
    if isinstance(step, (Copy, Load)):
        routes = [step.route]
    else:
        pairs = edges(cluster, kind_of(graph, step), step.devices, step.root)
        routes = [cluster.route(src, dst) for src, dst in pairs]
    return tuple(dict.fromkeys(cluster.links[link].channel for way in routes for link in way))


def loaded_places(steps: Iterable[Step]) -> frozenset[tuple[int, int]]:
    """Return the (task, memory) whose weights loads bring."""
    loads = (step for step in steps if isinstance(step, Load))
    return frozenset((task, step.dst) for step in loads for task in step.tasks)


def step_ns(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    step: Step,
    decision: Decision | None = None,
) -> int | None:
    """Return how long a step takes in ns; None: the device cannot run the task.

    Parameters
    ----------
    decision
        What the routers decide; a step that is not made then takes no time. None: every step is
        made, tasks of a branch for its largest capacity, or, by a table without times for its
        capacities, as long as the table expects; whole tensors are copied.

    Raises
    ------
    MissingCostError
        The cost is unknown, or the table has none for that many items or rows.
    """
    if isinstance(step, Collective):
        return collective_step_ns(graph, cluster, costs.collectives, step)
    if decision is not None and step.guard is not None and not decision.makes(step.guard):
        return 0
    if isinstance(step, Run):
        return _run_ns(graph, costs, step, decision)
    return cluster.transfer_ns(step.route, moved_bytes(graph, step, decision))


def moved_bytes(graph: TaskGraph, step: Copy | Load, decision: Decision | None = None) -> int:
    """Return the bytes that a transfer moves if it is made: all rows that there can be, or those of
    a decision."""
    if isinstance(step, Load):
        return sum(graph.tasks[task].weight_bytes for task in step.tasks)
    if decision is None or step.guard is None or graph.tensors[step.tensor].buffer is None:
        return value_bytes(graph, step.tensor, step.items)
    return rows_bytes(graph, step.tensor, step.guard, decision)


def rows_bytes(graph: TaskGraph, tensor: int, guard: Guard, decision: Decision) -> int:
    """Return the bytes of the rows of a branch that a tensor in a routed buffer holds."""
    row_bytes = graph.tensors[tensor].bytes // graph.routers[guard.router].num_cells
    return row_bytes * decision.cells(graph, guard)


def _run_ns(graph: TaskGraph, costs: CostTable, step: Run, decision: Decision | None) -> int | None:
    if decision is None or step.guard is None:
        return costs.run_ns(step.task, step.device, table_sizes(graph, costs, step)[-1])
    total = 0
    for rows, times in decision.rounds(graph, step.guard):
        taken = costs.run_ns(step.task, step.device, rows)
        if taken is None:
            return None
        total += times * taken
    return total


def table_sizes(graph: TaskGraph, costs: CostTable, step: Run) -> tuple[int, ...]:
    """Return the batch sizes at which a table says how long a run takes, ascending.

    Of a branch they are its capacities. A table that is not for these has expected times, for 1.
    """
    if step.guard is None:
        return (graph.batch_size(step.task, len(step.items)),)
    capacities = graph.routers[step.guard.router].capacities[step.guard.branch]
    return capacities if set(capacities) <= set(costs.batches) else (1,)


def collective_step_ns(
    graph: TaskGraph, cluster: Cluster, fitted: CollectiveCosts | None, step: Collective
) -> int:
    """Return how long a collective step takes in ns, by itself; `fitted` as in `collective_ns`."""
    if fitted is not None and graph.tasks[step.task].name in fitted.in_updates:
        return 0
    kind, num_bytes = kind_of(graph, step), collective_bytes(graph, step)
    return collective_ns(cluster, kind, num_bytes, step.devices, step.root, fitted)


def value_bytes(graph: TaskGraph, tensor: int, items: Sequence[int]) -> int:
    """Return the bytes of so many items of a tensor, or of its one value if it is shared."""
    value = graph.tensors[tensor]
    return value.bytes if value.shared else value.bytes * len(items)


def collective_bytes(graph: TaskGraph, step: Collective) -> int:
    """Return the bytes of the whole tensor of a collective: the largest that it reads or makes."""
    tensors = (*graph.task_inputs[step.task], *graph.task_outputs[step.task])
    return max((value_bytes(graph, tensor, step.items) for tensor in tensors), default=0)


def versioned_tensors(graph: TaskGraph) -> frozenset[int]:
    """Return the tensors that collectives make, those that tasks make and are shared, and state."""
    versioned = {state for state, _ in graph.updates}
    for tensor, description in enumerate(graph.tensors):
        if description.producer is not None:
            is_collective = collective_kind(graph.tasks[description.producer].op) is not None
            if description.shared or is_collective:
                versioned.add(tensor)
    return frozenset(versioned)
