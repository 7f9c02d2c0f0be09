"""Read and write task graphs as JSON, so that graphs from elsewhere can be placed without Relay.

The format is in model/README.md. A tensor is what one task makes and any number of tasks read; a
graph whose edges all carry data of their own has one tensor per edge.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from heteroplace.errors import GraphError
from heteroplace.files.graph_fast import read_plain_graph
from heteroplace.files.reader import (
    Faults,
    ObjectReader,
    a_count,
    a_name,
    a_number,
    a_text,
    list_of,
    read_json,
    schema_version,
    write_json,
)
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder, tensor_bytes
from heteroplace.model.units import parse_bytes

SCHEMA_VERSION = 1
Times = Mapping[str, Mapping[str, int | None]]
"""Run time in ns by task name and device name; None: the device cannot run the task."""


@dataclass(frozen=True)
class GraphFile:
    """What a graph file holds."""

    graph: TaskGraph
    times: Times | None
    """None: the file gives no times."""


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
        raise GraphError(f"{os.fspath(path)}: cannot be read: {fault.strerror}") from fault
    if plain is not None:
        return GraphFile(plain[0], plain[1] or None)
    return graph_from_json(read_json(path, GraphError), source=os.fspath(path))


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
        All faults at once, with their JSON paths.
    """
    faults = Faults(source, GraphError)
    root = ObjectReader(value, "$", faults)
    schema_version(root, SCHEMA_VERSION)
    name = root.required("name", a_name, "")
    root.optional("description", a_text, "")
    tasks: list[Task] = []
    times: dict[str, Mapping[str, int | None]] = {}
    task_ids: dict[str, int] = {}
    for reader in root.objects("tasks", is_required=True):
        task = _read_task(reader)
        _note_repeat(reader, "task", task.name, task_ids)
        tasks.append(task)
        given = _read_times(reader)
        if given is not None:
            times[task.name] = given
        reader.finish()
    tensors = _read_tensors(root, task_ids)
    outputs = _read_outputs(root, {tensor.name: index for index, tensor in enumerate(tensors)})
    root.finish()
    faults.check()
    return GraphFile(_build(name, tasks, tensors, outputs, source), times or None)


def graph_to_json(graph: TaskGraph, times: Times | None = None) -> dict[str, object]:
    """Return `graph` as a value for `json.dump`; `graph_from_json` gives an equal graph."""
    tasks = []
    for task in graph.tasks:
        row: dict[str, object] = {"name": task.name, "op": task.op}
        for field in ("flops", "weight_bytes", "workspace_bytes"):
            if getattr(task, field):
                row[field] = getattr(task, field)
        if task.members:
            row["members"] = list(task.members)
        if task.devices is not None:
            row["devices"] = list(task.devices)
        if task.together is not None:
            row["together"] = task.together
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
        tensors.append(row)
    return {
        "schema_version": SCHEMA_VERSION,
        "name": graph.name,
        "tasks": tasks,
        "tensors": tensors,
        "outputs": [graph.tensors[tensor].name for tensor in graph.outputs],
    }


@dataclass(frozen=True)
class _Tensor:
    """A tensor as the file has it, with names in place of ids."""

    name: str
    producer: str | None
    consumers: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def _read_task(reader: ObjectReader) -> Task:
    name = reader.required("name", a_name, "")
    names = list_of(a_name, "a list of names")
    return Task(
        name=name,
        op=reader.optional("op", a_text, name),
        members=reader.optional("members", list_of(a_text, "a list of texts"), ()),
        flops=reader.optional("flops", a_count, 0),
        weight_bytes=reader.optional("weight_bytes", parse_bytes, 0),
        workspace_bytes=reader.optional("workspace_bytes", parse_bytes, 0),
        devices=reader.optional("devices", names, None),
        together=reader.optional("together", a_name, None),
    )


def _read_times(reader: ObjectReader) -> Mapping[str, int | None] | None:
    """The task's run times; milliseconds are rounded to whole nanoseconds."""
    keys = [key for key in ("times_ns", "times_ms") if reader.has(key)]
    if len(keys) == 2:
        reader.faults.add(reader.path, 'has both "times_ns" and "times_ms"; expected one of them')
    times: dict[str, int | None] = {}
    for key in keys:
        entries = reader.entry(key)
        for device, path, value in entries.entries():
            try:
                times[device] = _time_ns(value, key)
            except ValueError as fault:
                reader.faults.expected(path, str(fault), value)
    return times if keys else None


def _time_ns(value: object, key: str) -> int | None:
    if value is None:
        return None
    try:
        return a_count(value) if key == "times_ns" else round(a_number(value) * 1_000_000)
    except ValueError as fault:
        raise ValueError(f"{fault}, or null where the device cannot run the task") from None


def _read_tensors(root: ObjectReader, task_ids: dict[str, int]) -> list[_Tensor]:
    tensors: list[_Tensor] = []
    seen: dict[str, int] = {}
    num_outputs: dict[str, int] = {}
    for reader in root.objects("tensors", is_required=True):
        tensor = _read_tensor(reader, task_ids, num_outputs)
        _note_repeat(reader, "tensor", tensor.name, seen)
        tensors.append(tensor)
    return tensors


def _read_tensor(
    reader: ObjectReader, task_ids: dict[str, int], num_outputs: dict[str, int]
) -> _Tensor:
    """One tensor. `num_outputs` counts the tensors of each producer, for default names."""
    faults, path = reader.faults, reader.path
    producer = reader.optional("producer", a_name, None)
    default_name = ""
    if producer is not None:
        faults.find(f"{path}.producer", "task", producer, task_ids)
        index = num_outputs.get(producer, 0)
        num_outputs[producer] = index + 1
        default_name = f"{producer}.{index}"
    read_name = reader.optional if reader.has("producer") else reader.required
    name = read_name("name", a_name, default_name)
    consumers = reader.optional("consumers", list_of(a_name, "a list of task names"), ())
    for index, consumer in enumerate(consumers):
        faults.find(f"{path}.consumers[{index}]", "task", consumer, task_ids)
    shape = reader.optional("shape", list_of(a_count, "a list of whole numbers >= 0"), ())
    dtype = reader.optional("dtype", a_text, "")
    if not reader.has("bytes") and not (reader.has("shape") and dtype):
        faults.add(path, 'expected "bytes", or both "shape" and "dtype"')
    num_bytes = reader.optional("bytes", parse_bytes, tensor_bytes(shape, dtype))
    reader.finish()
    return _Tensor(name, producer, consumers, shape, dtype, num_bytes)


def _read_outputs(root: ObjectReader, tensor_ids: dict[str, int]) -> tuple[str, ...]:
    outputs = root.required("outputs", list_of(a_name, "a list of tensor names"), ())
    for index, name in enumerate(outputs):
        root.faults.find(f"$.outputs[{index}]", "tensor", name, tensor_ids)
    return outputs


def _note_repeat(reader: ObjectReader, kind: str, name: str, seen: dict[str, int]) -> None:
    if name and name in seen:
        reader.faults.add(reader.path, f"an earlier {kind} is called {name!r} too")
    seen.setdefault(name, len(seen))


def _build(
    name: str, tasks: list[Task], tensors: list[_Tensor], outputs: tuple[str, ...], source: str
) -> TaskGraph:
    builder = TaskGraphBuilder(name)
    reads: dict[str, list[str]] = {task.name: [] for task in tasks}
    for tensor in tensors:
        if tensor.producer is None:
            builder.add_input(tensor.name, tensor.shape, tensor.dtype, tensor.bytes)
        else:
            builder.add_tensor(
                tensor.producer, tensor.shape, tensor.dtype, tensor.bytes, tensor.name
            )
        for consumer in tensor.consumers:
            reads[consumer].append(tensor.name)
    for task in tasks:
        builder.add_task(task, reads[task.name])
    try:
        return builder.finalize(list(outputs))
    except GraphError as fault:
        raise GraphError(f"{source}: {fault}") from fault
