"""A task graph + state of sessions -> the graph in which this state stays where it is used.

before ==> after, for a state `h` that a task reads and that its output `hn` replaces:

    input h                              (no input)
    task cell reads x, h; makes y, hn    task cell reads x; makes y, hn; holds h as a weight
    outputs y, hn                        outputs y

All tasks that read the state and the task that replaces it then share a device, so nothing of it is
copied between memories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heteroplace.errors import SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.model.op_traits.op_record import WRITE_ROWS_OP
from heteroplace.model.tasks import Task, Tensor
from heteroplace.terminal import listed

if TYPE_CHECKING:
    from heteroplace.model.graph import TaskGraph

_GROUP = "state "
"""Begins the labels of groups of tasks that use state."""


@dataclass(frozen=True)
class _State:
    """A state that stays in the memory of the device that uses it."""

    name: str
    old: int
    """Tensor id of the input."""
    new: int
    """Tensor id of the output that replaces it."""
    position: int
    """Of this output among the outputs of the graph."""
    maker: int
    """Id of the task that makes the output."""
    is_in_place: bool
    """Whether its maker writes into the old value."""


def with_resident_state(
    graph: TaskGraph,
    cluster: Cluster,
    pairs: Sequence[tuple[int, int]],
    max_sessions: int = 1,
) -> TaskGraph:
    """Return the graph whose state is no input and no output.

    Tasks keep their ids and names; ids of tensors change. On a cluster of one memory no state is
    ever copied: its tasks stay free, its inputs and outputs stay, and only further sessions add
    bytes. A state also stays an input and an output if it is an output as it is, if no task makes
    what replaces it, or if a branch of a router uses it. A graph with updates is returned as it is.

    Parameters
    ----------
    pairs
        (tensor id of an input, position of the output that replaces it).
    max_sessions
        How many sessions are open at once: the bytes of each state count so many times.

    Raises
    ------
    SolverError
        No device is allowed for all tasks that use one state.
    """
    if graph.updates:
        return graph
    states = _states(graph, cluster, pairs)
    tasks = _holding(graph, held_states(graph, cluster, pairs, max_sessions))
    if _has_one_memory(cluster):
        return graph if max_sessions == 1 else replace(graph, tasks=tasks)
    tasks = _grouped(tasks, _users(graph, states))
    return _without_ports(replace(graph, tasks=tasks), states)


def held_states(
    graph: TaskGraph,
    cluster: Cluster,
    pairs: Sequence[tuple[int, int]],
    max_sessions: int = 1,
) -> dict[int, tuple[tuple[str, int], ...]]:
    """Return what `with_resident_state` adds to the weights of tasks, by task: (input, bytes)."""
    held: dict[int, tuple[tuple[str, int], ...]] = {}
    if graph.updates:
        return held
    for state in _states(graph, cluster, pairs):
        if _has_one_memory(cluster):
            count = max_sessions - 1  # the ports of the graph hold one session
        else:
            # What is not written in place stays beside the old values until the call is over.
            count = max_sessions + (not state.is_in_place)
        pair = state.name, count * graph.tensors[state.old].bytes
        held[state.maker] = (*held.get(state.maker, ()), pair)
    return held


def uses_state(task: Task) -> bool:
    """Say whether a task of such a graph uses state: the next call may read what it makes."""
    return task.together is not None and task.together.startswith(_GROUP)


def _states(
    graph: TaskGraph, cluster: Cluster, pairs: Iterable[tuple[int, int]]
) -> tuple[_State, ...]:
    """The pairs that can stay on a device."""
    are_cpus = all(device.kind == "cpu" for device in cluster.devices)
    states = []
    for old, position in pairs:
        new = graph.outputs[position]
        maker = graph.tensors[new].producer
        if maker is None or old in graph.outputs:
            continue
        users = (*graph.tensors[old].consumers, *graph.tensors[new].consumers, maker)
        if any(graph.branches[task] for task in users):
            continue
        writes_rows = graph.tasks[maker].op == WRITE_ROWS_OP
        is_in_place = are_cpus and writes_rows and graph.tensors[old].consumers == (maker,)
        name = graph.tensors[old].name
        states.append(_State(name, old, new, position, maker, is_in_place))
    return tuple(states)


def _has_one_memory(cluster: Cluster) -> bool:
    return len({device.memory for device in cluster.devices}) == 1


def _holding(graph: TaskGraph, held: Mapping[int, Sequence[tuple[str, int]]]) -> tuple[Task, ...]:
    """The tasks, whose weights hold state."""
    tasks = list(graph.tasks)
    for task, states in held.items():
        num_bytes = sum(size for _, size in states)
        tasks[task] = replace(tasks[task], weight_bytes=tasks[task].weight_bytes + num_bytes)
    return tuple(tasks)


def _users(graph: TaskGraph, states: Iterable[_State]) -> dict[str, list[int]]:
    """Ids of the tasks that share a device for each state.

    What is written in place is read where it lies, so all who read it then are among them.
    """
    users = {}
    for state in states:
        readers = graph.tensors[state.old].consumers
        if state.is_in_place:
            readers += graph.tensors[state.new].consumers
        users[state.name] = sorted({*readers, state.maker})
    return users


def _grouped(tasks: Sequence[Task], users: Mapping[str, Sequence[int]]) -> tuple[Task, ...]:
    """Join the tasks of each state with each other, and with the groups that they are in."""
    labels = [task.together for task in tasks]
    for name, members in users.items():
        joined = {labels[member] for member in members} - {None}
        for index, before in enumerate(labels):
            if index in members or before in joined:
                labels[index] = f"{_GROUP}{name}"
    grouped = tuple(
        replace(task, together=label) for task, label in zip(tasks, labels, strict=True)
    )
    _check_devices(grouped, users)
    return grouped


def _check_devices(tasks: Sequence[Task], users: Mapping[str, Sequence[int]]) -> None:
    """Raise SolverError if a group that uses state is allowed on no device."""
    states: dict[str, list[str]] = {}
    for name, (first, *_) in users.items():
        label = tasks[first].together
        if label is not None:
            states.setdefault(label, []).append(name)
    for label, names in states.items():
        members = [task for task in tasks if task.together == label]
        pinned = [task for task in members if task.devices is not None]
        if not pinned or set.intersection(*(set(task.devices or ()) for task in pinned)):
            continue
        places = listed(f"{task.name} on {', '.join(task.devices or ())}" for task in pinned[:4])
        which = listed(map(repr, names), " and ")
        raise SolverError(
            f"state {which} is kept in the memory of one device, so the tasks "
            f"that use it must share that device, and none is allowed for all of them ({places}); "
            f"change pin, exclude, layers or no_split, or leave the option state out"
        )


def _without_ports(graph: TaskGraph, states: Sequence[_State]) -> TaskGraph:
    """Remove the inputs and outputs of state, and number the tensors anew."""
    old, positions = {state.old for state in states}, {state.position for state in states}
    written = {state.new for state in states if state.is_in_place}
    remaining = [tensor for tensor in range(len(graph.tensors)) if tensor not in old]
    new_id = {tensor: index for index, tensor in enumerate(remaining)}
    inputs = [tensor for tensor in graph.inputs if tensor not in old]
    index_of = {tensor: index for index, tensor in enumerate(inputs)}
    tensors = []
    for tensor in remaining:
        value: Tensor = graph.tensors[tensor]
        value = replace(value, index=index_of.get(tensor, value.index))
        tensors.append(replace(value, bytes=0) if tensor in written else value)
    outputs = [
        new_id[tensor] for index, tensor in enumerate(graph.outputs) if index not in positions
    ]
    return replace(
        graph,
        tensors=tuple(tensors),
        inputs=tuple(new_id[tensor] for tensor in inputs),
        outputs=tuple(outputs),
        routers=tuple(replace(each, loads=new_id[each.loads]) for each in graph.routers),
    )
