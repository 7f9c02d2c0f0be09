"""Task graphs as JSON, so that graphs from elsewhere can be placed without Relay.

A tensor is what one task makes and any number of tasks read; a graph whose edges all carry data of
their own has one tensor per edge. `graph_fields` describes the file. If it has no faults and its
tasks are in topological order, it is decoded and made a graph at once; any other is walked for all
its faults, and the builder sorts the tasks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET, UnsetType

from heteroplace.errors import GraphError
from heteroplace.files.faults import Faults, JsonPath
from heteroplace.files.fields.graph_fields import (
    SCHEMA_VERSION,
    GraphDescription,
    TaskEntry,
    TensorEntry,
)
from heteroplace.files.fields.kind_keys import check_graph_keys
from heteroplace.files.reader import (
    decode_plain,
    read_json,
    read_struct,
    unreadable,
    write_json,
)
from heteroplace.files.routers_file import (
    branch_of,
    branch_to_json,
    placed_routers,
    router_of,
    router_to_json,
)
from heteroplace.model.collector import paused_collector
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder, Tensor, tensor_bytes
from heteroplace.model.memory_use.shared_values import shared_value_faults
from heteroplace.model.routed.routed_values import routed_value_faults
from heteroplace.model.units import IN_63_BITS, MAX_INTEGER, parse_bytes

Times = Mapping[str, Mapping[str, int | None]]
"""Run time in ns by task name and device name; None: the device cannot run the task."""


_BITS = re.compile(r"[^0-9]*[0-9]{0,4}[^0-9]*")
"""Of data types: one number, that of the bits of an element, of a few digits."""


@dataclass(frozen=True)
class GraphFile:
    """What a graph file holds."""

    graph: TaskGraph
    times: Times | None
    """None: the file gives no times."""


class NotPlainError(Exception):
    """The file has faults, or an order that only the builder can sort."""


def load_graph(path: str | os.PathLike[str]) -> GraphFile:
    """Return the graph in a file, and the run times if the file gives any.

    Raises
    ------
    GraphError
        The file cannot be read, or has faults: all are named, with their JSON paths. A cycle is
        found when there is no other fault.
    """
    try:
        plain = read_plain_graph(Path(path).read_bytes())
    except OSError as fault:
        raise GraphError(unreadable(path, fault)) from fault
    except ValueError as fault:  # a path that no file has
        raise GraphError(f"{os.fspath(path)!a}: cannot be read: {fault}") from fault
    if plain is not None:
        return plain
    value = read_json(path, GraphError)
    check_graph_keys(value, os.fspath(path))
    return graph_from_json(value, source=os.fspath(path))


def read_plain_graph(data: bytes) -> GraphFile | None:
    """Return what is in a file's bytes; None: they are not plain, `graph_from_json` must decide."""
    with paused_collector():
        file = decode_plain(data, GraphDescription)
        if file is None:
            return None
        try:
            return _plain(file)
        except (NotPlainError, KeyError, ValueError):
            return None  # KeyError: a name that does not exist; ValueError: a size's text.


def save_graph(graph: TaskGraph, path: str | os.PathLike[str], times: Times | None = None) -> None:
    """Write `graph` to `path` so that `load_graph` returns an equal one; atomic.

    Raises
    ------
    GraphError
        The file could not be read back, e.g. because a name is empty, or `times` names a task
        that the graph has not.
    """
    unknown = sorted(set(times or {}) - {task.name for task in graph.tasks})
    if unknown:
        raise GraphError(f"times are given for tasks that graph {graph.name!r} has not: {unknown}")
    value = graph_to_json(graph, times)
    if graph_from_json(value, os.fspath(path)).graph != graph:
        raise GraphError(
            f"graph {graph.name!r} would be read back in another order; make it with "
            f"TaskGraphBuilder"
        )
    write_json(value, path)


def graph_from_json(value: object, source: str = "graph") -> GraphFile:
    """Return the graph that a parsed JSON value describes; `source` names it in messages.

    Raises
    ------
    GraphError
        All faults that the schema sees, else all between records, with their JSON paths.
    """
    file, faults = read_struct(value, GraphDescription, source, GraphError)
    _check_names(file, faults)
    faults.check()
    times = {entry.name: _times(entry) for entry in file.tasks if _has_times(entry)}
    return GraphFile(_build(file, source), times or None)


def graph_to_json(graph: TaskGraph, times: Times | None = None) -> dict[str, object]:
    """Return `graph` as a value for `json.dump`; `graph_from_json` gives an equal graph."""
    tasks = []
    for task in graph.tasks:
        row: dict[str, object] = {"name": task.name, "op": task.op}
        for key in ("flops", "weight_bytes", "workspace_bytes"):
            if getattr(task, key):
                row[key] = getattr(task, key)
        if task.members:
            row["members"] = list(task.members)
        if task.devices is not None:
            row["devices"] = list(task.devices)
        if task.together is not None:
            row["together"] = task.together
        if task.adds:
            row["adds"] = True
        if task.weights:
            row["weights"] = dict(task.weights)
        if task.branch is not None:
            row["branch"] = branch_to_json(task.branch)
        if times is not None and task.name in times:
            row["times_ns"] = dict(times[task.name])
        tasks.append(row)
    tensors = []
    for tensor in graph.tensors:
        row = {"name": tensor.name}
        if tensor.producer is not None:
            row["producer"] = graph.tasks[tensor.producer].name
        row["consumers"] = [graph.tasks[task].name for task in tensor.consumers]
        row["shape"] = list(tensor.shape)
        row["dtype"] = tensor.dtype
        row["bytes"] = tensor.bytes
        if tensor.shared:
            row["shared"] = True
        if tensor.buffer is not None:
            row["buffer"] = tensor.buffer
        tensors.append(row)
    value: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "name": graph.name,
        "tasks": tasks,
        "tensors": tensors,
        "outputs": [graph.tensors[tensor].name for tensor in graph.outputs],
    }
    if graph.updates:
        names = [tensor.name for tensor in graph.tensors]
        value["updates"] = {names[state]: names[tensor] for state, tensor in graph.updates}
    if graph.buffers:
        value["buffers"] = dict(graph.buffers)
    if graph.routers:
        value["routers"] = [router_to_json(graph, router) for router in graph.routers]
    return value


def _check_names(file: GraphDescription, faults: Faults) -> None:
    """Note names that repeat or do not exist, and what one record says twice or not at all."""
    tasks: dict[str, int] = {}
    for i, task in enumerate(file.tasks):
        _note_repeat(faults, ("tasks", i), task.name, tasks)
    tensors: dict[str, int] = {}
    for (i, tensor), name in zip(enumerate(file.tensors), _tensor_names(file), strict=True):
        path = ("tensors", i)
        if tensor.producer is not UNSET:
            faults.find((*path, "producer"), "task", tensor.producer, tasks)
        for k, consumer in enumerate(tensor.consumers or ()):
            faults.find((*path, "consumers", k), "task", consumer, tasks)
        if tensor.bytes is UNSET:
            try:
                _form(tensor)
            except ValueError as fault:
                faults.expected(path, str(fault), [tensor.shape, tensor.dtype])
        _note_repeat(faults, path, name, tensors)
    for i, name in enumerate(file.outputs):
        faults.find(("outputs", i), "tensor", name, tensors)
    for state, name in (file.updates or {}).items():
        for end in (state, name):
            faults.find(("updates", state), "tensor", end, tensors)
    for i, router in enumerate(file.routers or ()):
        faults.find(("routers", i, "loads"), "tensor", router.loads, tensors)
    for place, size in _size_texts(file):
        faults.parse(place, parse_bytes, size, 0)


def _size_texts(file: GraphDescription) -> Iterator[tuple[JsonPath, str]]:
    """The sizes that are texts, and where they stand."""
    sizes: list[tuple[JsonPath, int | str | UnsetType]] = []
    for i, task in enumerate(file.tasks):
        sizes.append((("tasks", i, "weight_bytes"), task.weight_bytes))
        sizes.append((("tasks", i, "workspace_bytes"), task.workspace_bytes))
        tables = task.weights or {}
        sizes += ((("tasks", i, "weights", name), size) for name, size in tables.items())
    sizes += ((("tensors", i, "bytes"), tensor.bytes) for i, tensor in enumerate(file.tensors))
    sizes += ((("buffers", name), size) for name, size in (file.buffers or {}).items())
    return ((path, size) for path, size in sizes if isinstance(size, str))


def _note_repeat(faults: Faults, path: tuple[str, int], name: str, seen: dict[str, int]) -> None:
    if name in seen:
        faults.add(path, f"an earlier {path[0][:-1]} is called {name!r} too")
    seen.setdefault(name, len(seen))


def _tensor_names(file: GraphDescription) -> list[str]:
    """The tensors' names; by default that of the producer and the number among its tensors."""
    num_outputs: dict[str, int] = {}
    names = []
    for tensor in file.tensors:
        name = tensor.name or ""
        if tensor.producer:
            index = num_outputs.get(tensor.producer, 0)
            num_outputs[tensor.producer] = index + 1
            name = name or f"{tensor.producer}.{index}"
        names.append(name)
    return names


def _build(file: GraphDescription, source: str) -> TaskGraph:
    """Make the graph of a file whose tasks may be in any order."""
    builder = TaskGraphBuilder(file.name)
    reads: dict[str, list[str]] = {task.name: [] for task in file.tasks}
    for tensor, name in zip(file.tensors, _tensor_names(file), strict=True):
        shape, dtype, num_bytes = _form(tensor)
        if tensor.producer is UNSET:
            builder.add_input(
                name, shape, dtype, num_bytes, bool(tensor.shared), tensor.buffer or None
            )
        else:
            ways = bool(tensor.shared), tensor.buffer or None
            builder.add_tensor(tensor.producer, shape, dtype, num_bytes, name, *ways)
        for consumer in tensor.consumers or ():
            reads[consumer].append(name)
    for task in file.tasks:
        builder.add_task(_task(task), reads[task.name])
    for state, update in (file.updates or {}).items():
        builder.add_update(state, update)
    for buffer, size in (file.buffers or {}).items():
        builder.add_buffer(buffer, _size(size))
    for router in file.routers or ():
        builder.add_router(router_of(router), router.loads)
    try:
        return builder.finalize(list(file.outputs))
    except GraphError as fault:
        raise GraphError(f"{source}: {fault}") from fault


def _plain(file: GraphDescription) -> GraphFile:
    """Make the graph of a file whose tasks are in topological order."""
    task_ids = _ids([entry.name for entry in file.tasks])
    tasks = tuple(_task(entry) for entry in file.tasks)
    tensors = _tensors(file.tensors, task_ids)
    tensor_ids = _ids([tensor.name for tensor in tensors])
    outputs = tuple(tensor_ids[name] for name in file.outputs)
    times = {entry.name: _times(entry) for entry in file.tasks if _has_times(entry)}
    inputs = tuple(i for i, tensor in enumerate(tensors) if tensor.producer is None)
    updates = tuple((tensor_ids[old], tensor_ids[new]) for old, new in (file.updates or {}).items())
    routed = placed_routers(file.routers or (), tensors, tensor_ids), _sizes(file.buffers)
    graph = TaskGraph(file.name, tasks, tensors, inputs, outputs, updates, *routed)
    if shared_value_faults(graph) or routed_value_faults(graph):
        raise NotPlainError
    return GraphFile(graph, times or None)


def _ids(names: list[str]) -> dict[str, int]:
    ids = {name: index for index, name in enumerate(names)}
    if len(ids) < len(names):
        raise NotPlainError
    return ids


def _task(entry: TaskEntry) -> Task:
    return Task(
        entry.name,
        entry.name if entry.op is UNSET else entry.op,
        () if entry.members is UNSET else entry.members,
        0 if entry.flops is UNSET else entry.flops,
        _size(entry.weight_bytes),
        _size(entry.workspace_bytes),
        None if entry.devices is UNSET else entry.devices,
        None if entry.together is UNSET else entry.together,
        bool(entry.adds),
        _sizes(entry.weights),
        branch_of(entry.branch),
    )


def _sizes(sizes: Mapping[str, int | str] | UnsetType) -> tuple[tuple[str, int], ...]:
    return tuple((name, _size(value)) for name, value in (sizes or {}).items())


def _size(value: int | str | UnsetType) -> int:
    if value is UNSET:
        return 0
    return value if isinstance(value, int) else parse_bytes(value)


def _form(entry: TensorEntry) -> tuple[tuple[int, ...], str, int]:
    """Shape, dtype and bytes."""
    shape = () if entry.shape is UNSET else entry.shape
    dtype = "" if entry.dtype is UNSET else entry.dtype
    if entry.bytes is not UNSET:
        return shape, dtype, _size(entry.bytes)
    num_bytes = tensor_bytes(shape, dtype) if _BITS.fullmatch(dtype) else MAX_INTEGER + 1
    if num_bytes > MAX_INTEGER:
        raise ValueError(f"a data type of one number, its bits, and a size in bytes {IN_63_BITS}")
    return shape, dtype, num_bytes


def _tensors(entries: tuple[TensorEntry, ...], task_ids: dict[str, int]) -> tuple[Tensor, ...]:
    num_outputs = [0] * len(task_ids)
    num_inputs = 0
    tensors = []
    for entry in entries:
        readers = _readers(entry, task_ids)
        name = entry.name
        if entry.producer is UNSET:
            producer = None
            index = num_inputs
            num_inputs += 1
        else:
            producer = task_ids[entry.producer]
            index = num_outputs[producer]
            num_outputs[producer] += 1
            if name is UNSET:
                name = f"{entry.producer}.{index}"
            if readers and readers[0] <= producer:
                raise NotPlainError  # Another order than that of the file, or a cycle.
        assert name is not UNSET
        ways = bool(entry.shared), entry.buffer or None
        tensors.append(Tensor(name, producer, index, *_form(entry), readers, *ways))
    return tuple(tensors)


def _readers(entry: TensorEntry, task_ids: dict[str, int]) -> tuple[int, ...]:
    """Ids of the tasks that read it, ascending, each once."""
    if entry.consumers is UNSET:
        return ()
    if len(entry.consumers) == 1:
        return (task_ids[entry.consumers[0]],)
    return tuple(sorted({task_ids[name] for name in entry.consumers}))


def _has_times(entry: TaskEntry) -> bool:
    return entry.times_ns is not UNSET or entry.times_ms is not UNSET


def _times(entry: TaskEntry) -> Mapping[str, int | None]:
    """The task's run times; milliseconds are rounded to whole nanoseconds."""
    if entry.times_ns is not UNSET:
        return entry.times_ns
    milliseconds = {} if entry.times_ms is UNSET else entry.times_ms
    return {
        device: None if value is None else round(value * 1_000_000)
        for device, value in milliseconds.items()
    }
