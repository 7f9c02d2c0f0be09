"""What a user demands of places -> the task graph, and the cluster, that admit nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch

from heteroplace.errors import (
    ClusterError,
    LoweringError,
    SolverError,
    UnsupportedRelayError,
)
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import Task, TaskGraph
from heteroplace.model.implementations import BFLOAT16, base_of, maker_of
from heteroplace.model.units import parse_bytes


def with_pins(
    graph: TaskGraph, cluster: Cluster, pin: Mapping[str, str], exclude: Sequence[str]
) -> TaskGraph:
    """Return the graph with the devices of its tasks restricted, as far as they are not yet.

    Parameters
    ----------
    cluster
        Where the graph will be placed.
    pin
        Pattern (`fnmatch`) of task names, ops or layers of the imported model -> name of the
        device that must run them; of several that match, the last one holds.
    exclude
        Names of devices that no task may use.

    Raises
    ------
    ClusterError
        There is no such device.
    SolverError
        A pattern matches nothing, or what is asked for excludes itself.
    LoweringError
        A task that the module has on one device is asked for on others.
    """
    for name in (*pin.values(), *exclude):
        cluster.device_id(name)  # raises ClusterError, which lists the names there are
    for pattern, name in pin.items():
        if name in exclude:
            raise SolverError(f"pin: {pattern!r} goes to {name!r}, which is excluded; drop one")
    allowed = tuple(d.name for d in cluster.devices if d.name not in exclude)
    if not allowed:
        raise SolverError("every device is excluded; leave at least one")
    if not pin and not exclude:
        return graph
    matched: set[str] = set()
    tasks, barred = [], []
    for task in graph.tasks:
        devices = allowed if exclude else None
        for pattern, device in pin.items():
            if any(fnmatch(name, pattern) for name in _names(task)):
                matched.add(pattern)
                devices = (device,)
        if task.devices is not None:
            if devices is not None and not set(task.devices) <= set(devices):
                barred.append(f"{task.name} ({task.op}) on {task.devices[0]!r}, not {devices}")
            devices = task.devices
        tasks.append(replace(task, devices=devices))
    unmatched = [pattern for pattern in pin if pattern not in matched]
    if unmatched:
        raise _no_match("pin", unmatched, graph)
    if barred:
        raise LoweringError(
            f"the module is annotated against pin or exclude: {'; '.join(barred)}; change the "
            f"options or the annotations"
        )
    return replace(graph, tasks=tuple(tasks))


def with_precisions(graph: TaskGraph, cluster: Cluster, precisions: Mapping[str, str]) -> TaskGraph:
    """Return the graph whose tasks may use a device's kernels of one precision only.

    Parameters
    ----------
    cluster
        With the twins (`implementations`) that multiply in bfloat16.
    precisions
        Pattern as of `with_pins` -> "float32" or "bf16"; of several that match, the last one holds,
        and without any it is float32. A task without a twin stays in float32.

    Raises
    ------
    SolverError
        A pattern matches nothing.
    """
    twins = {
        device.name: cluster.devices[base].name
        for index, device in enumerate(cluster.devices)
        if maker_of(device.name) == BFLOAT16 and (base := base_of(cluster, index)) is not None
    }
    matched: set[str] = set()
    tasks = []
    for task in graph.tasks:
        precision = "float32"
        for pattern, value in precisions.items():
            if any(fnmatch(name, pattern) for name in _names(task)):
                matched.add(pattern)
                precision = value
        allowed = task.devices or tuple(device.name for device in cluster.devices)
        left_out = set(twins)
        if precision == "bf16":
            left_out = {twins[name] for name in allowed if name in twins}
        devices = tuple(name for name in allowed if name not in left_out)
        tasks.append(replace(task, devices=devices))
    unmatched = [pattern for pattern in precisions if pattern not in matched]
    if unmatched:
        raise _no_match("precision", unmatched, graph)
    return replace(graph, tasks=tuple(tasks))


def with_no_split(graph: TaskGraph, no_split: Sequence[str]) -> TaskGraph:
    """Return the graph where the tasks that a pattern matches stay on one device together.

    Parameters
    ----------
    no_split
        Patterns as of `with_pins`. Groups that have a task in common, those of the graph included,
        become one.

    Raises
    ------
    SolverError
        A pattern matches nothing, or no device is allowed for all tasks of a group.
    """
    if not no_split and not any(task.together for task in graph.tasks):
        return graph
    label = [task.together for task in graph.tasks]
    for pattern in no_split:
        matched = [
            index
            for index, task in enumerate(graph.tasks)
            if any(fnmatch(name, pattern) for name in _names(task))
        ]
        if not matched:
            raise _no_match("no_split", [pattern], graph)
        joined = {label[index] for index in matched} - {None}
        for index, before in enumerate(label):
            if index in matched or before in joined:
                label[index] = f"no_split {pattern}"
    tasks = tuple(
        replace(task, together=group) for task, group in zip(graph.tasks, label, strict=True)
    )
    for group in dict.fromkeys(filter(None, label)):
        members = [task for task in tasks if task.together == group and task.devices is not None]
        common = set.intersection(*(set(task.devices or ()) for task in members or [tasks[0]]))
        if members and not common:
            listed = ", ".join(
                f"{task.name} on {', '.join(task.devices or ())}" for task in members[:4]
            )
            raise SolverError(
                f"no_split: the tasks of {group!r} must share a device, and none is allowed for "
                f"all of them ({listed}); change pin, exclude or the pattern"
            )
    return replace(graph, tasks=tasks)


def with_layers(graph: TaskGraph, cluster: Cluster, layers: Mapping[str, str]) -> TaskGraph:
    """Return the graph whose tasks run only where a map of layers has them.

    Parameters
    ----------
    layers
        Name of a task or of a layer of the imported model -> name of a device. A layer also stands
        for all whose names begin with it and "." or "/", and "" for all; of several the longest
        holds. Tasks of no such layer stay free.

    Raises
    ------
    ClusterError
        There is no such device.
    SolverError
        A name is that of nothing; or layers that are one task have different devices.
    LoweringError
        The module has a task elsewhere.
    """
    for name in layers.values():
        cluster.device_id(name)  # raises ClusterError, which lists the names there are
    if not layers:
        return graph
    used: set[str] = set()
    tasks, torn = [], []
    for task in graph.tasks:
        names = (task.name,) if task.name in layers else layers_of(task) or (task.name,)
        keys = [key for name in names if (key := _longest(name, layers)) is not None]
        used.update(keys)
        devices = dict.fromkeys(layers[key] for key in keys)
        if len(devices) > 1:
            pairs_text = ", ".join(f"{key!r} on {layers[key]!r}" for key in dict.fromkeys(keys))
            torn.append(f"{pairs_text} are one task, {task.name}")
        chosen = next(iter(devices), None)
        if chosen is not None and task.devices is not None and chosen not in task.devices:
            raise LoweringError(
                f"layers: {task.name} is put on {chosen!r}, and may run only on "
                f"{', '.join(task.devices)} (pin, exclude, or the module's annotations)"
            )
        tasks.append(task if chosen is None else replace(task, devices=(chosen,)))
    unmatched = [key for key in layers if key not in used and not _is_hidden(key, layers, graph)]
    if unmatched:
        raise _no_match("layers", unmatched, graph)
    if torn:
        raise SolverError(
            f"layers: {'; '.join(torn[:4])}, since their ops are fused: give them one device"
        )
    return replace(graph, tasks=tuple(tasks))


def layers_of(task: Task) -> tuple[str, ...]:
    """Return the layers of the imported model that a task holds parts of, each once.

    A member is called "layer:op" where the model names its layers.
    """
    names = (member.rpartition(":")[0] for member in task.members)
    return tuple(dict.fromkeys(filter(None, names)))


def _longest(name: str, layers: Mapping[str, str]) -> str | None:
    """The longest key that stands for a name; None: there is none."""
    keys = [key for key in layers if stands_for_layer(key, name)]
    return max(keys, key=len, default=None)


def stands_for_layer(key: str, name: str) -> bool:
    """Say whether a key of a map of layers means a layer: it is its name, or one above it."""
    return not key or name == key or name.startswith((f"{key}.", f"{key}/"))


def _is_hidden(key: str, layers: Mapping[str, str], graph: TaskGraph) -> bool:
    """Whether a key stands for something, of which longer ones, or tasks, say more."""
    names = (name for task in graph.tasks for name in (task.name, *layers_of(task)))
    return any(stands_for_layer(key, name) for name in names)


def with_max_memory(cluster: Cluster, max_memory: Mapping[str, str | int]) -> Cluster:
    """Return the cluster with memories of at most the given sizes.

    Parameters
    ----------
    max_memory
        Name of a device, or of a memory -> size ("10 GiB", or bytes). A device stands for its
        memory, which others may share; of several limits of one memory the least holds, and a
        memory that is smaller stays as it is.

    Raises
    ------
    ClusterError
        There is no such device or memory.
    SolverError
        A size is none, or is 0.
    """
    memories = list(cluster.memories)
    names = {memory.name: index for index, memory in enumerate(memories)}
    names |= {device.name: device.memory for device in cluster.devices}
    for name, size in max_memory.items():
        if name not in names:
            raise ClusterError(
                f"max_memory: cluster {cluster.name!r} has no device or memory {name!r}; it has: "
                f"{', '.join(names)}"
            )
        memory = memories[names[name]]
        least = min(memory.bytes, memory_limit(name, size))
        memories[names[name]] = replace(memory, bytes=least)
    return replace(cluster, memories=tuple(memories))


def memory_limit(name: str, size: str | int) -> int:
    """Return a limit of `max_memory` in bytes; SolverError if it is none."""
    is_number = isinstance(size, str) and size.isascii() and size.isdecimal()
    try:
        limit = parse_bytes(int(size) if is_number else size)
    except ValueError as err:
        raise SolverError(f"max_memory of {name!r} is {size!r}; expected {err}") from err
    if not limit:
        raise SolverError(f"max_memory of {name!r} is 0; leave the device out by exclude instead")
    return limit


def _no_match(option: str, patterns: Sequence[str], graph: TaskGraph) -> SolverError:
    names = ", ".join(task.name for task in graph.tasks[:8])
    return SolverError(
        f"{option}: no task matches {', '.join(patterns)}; tasks are called like: {names}"
    )


def _names(task: Task) -> list[str]:
    """All names that a pattern may mean: the task's, its ops', and those of the layers inside."""
    return [task.name, *task.op.split("+"), *layers_of(task)]


def check_reachable(cluster: Cluster) -> None:
    """Raise ClusterError unless data can go from the host memory to every device and back."""
    if cluster.host is None:
        raise ClusterError(
            f"cluster {cluster.name!r} names no host memory, so a model could neither be fed nor "
            f'read; add "host" to the cluster'
        )
    for device in cluster.devices:
        ways = ((cluster.host, device.memory), (device.memory, cluster.host))
        if not all(cluster.is_reachable(src, dst) for src, dst in ways):
            raise ClusterError(
                f"cluster {cluster.name!r}: no links lead from the host memory to device "
                f"{device.name!r} and back; add them, or leave the device out"
            )


def check_routed(graph: TaskGraph, cluster: Cluster, items: int) -> None:
    """Check that a plan of so many items of a network can be made, if it has routers.

    Raises
    ------
    UnsupportedRelayError
        There are several items, or the cluster has several hosts.
    """
    if not graph.routers:
        return
    name = graph.routers[0].name
    if items > 1:
        raise UnsupportedRelayError(
            f"the model has the router {name!r}, and a plan for {items} items was asked for; its "
            f"cells are what it has several of: leave out items"
        )
    if len(cluster.hosts) > 1:
        raise UnsupportedRelayError(
            f"the model has the router {name!r}, and cluster {cluster.name!r} has the hosts "
            f"{', '.join(cluster.hosts)}, whose messages are sent in every run: give a cluster of "
            f"the devices of one host"
        )
