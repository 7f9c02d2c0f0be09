"""JSON text of a graph file without faults -> its parts, fast.

A file of 50,000 tasks is decoded into typed rows in 0.1 s. Whatever is not plain (a fault, a whole
number written as 1.0, tasks in another than topological order) gives None, and the reader of
`graph_file.py` decides, which names all faults. Where rows are made, both make the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from heteroplace.files.reader import MAX_NUMBER
from heteroplace.model.collector import paused_collector
from heteroplace.model.graph import Task, TaskGraph, Tensor, tensor_bytes
from heteroplace.model.units import parse_bytes

Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
TaskTimes = Mapping[str, int | None]


class TaskRow(Struct, forbid_unknown_fields=True, gc=False):
    """A task as the file has it."""

    name: Name
    op: str | UnsetType = UNSET
    members: tuple[str, ...] | UnsetType = UNSET
    flops: Count | UnsetType = UNSET
    weight_bytes: Count | str | UnsetType = UNSET
    workspace_bytes: Count | str | UnsetType = UNSET
    devices: tuple[Name, ...] | UnsetType = UNSET
    together: Name | UnsetType = UNSET
    times_ns: dict[str, Count | None] | UnsetType = UNSET
    times_ms: dict[str, int | float | None] | UnsetType = UNSET


class TensorRow(Struct, forbid_unknown_fields=True, gc=False):
    """A tensor as the file has it."""

    name: Name | UnsetType = UNSET
    producer: Name | UnsetType = UNSET
    consumers: tuple[Name, ...] | UnsetType = UNSET
    shape: tuple[Count, ...] | UnsetType = UNSET
    dtype: str | UnsetType = UNSET
    bytes: Count | str | UnsetType = UNSET


class GraphRows(Struct, forbid_unknown_fields=True):
    """A whole file."""

    schema_version: Literal[1]
    name: Name
    tasks: list[TaskRow]
    tensors: list[TensorRow]
    outputs: tuple[Name, ...]
    schema: str | UnsetType = msgspec.field(default=UNSET, name="$schema")
    description: str | UnsetType = UNSET


class NotPlainError(Exception):
    """The file is left to the other reader."""


def read_plain_graph(data: bytes) -> tuple[TaskGraph, dict[str, TaskTimes]] | None:
    """Return the graph and the run times in a file's bytes; None: the file is not plain."""
    with paused_collector():
        try:
            file = msgspec.json.decode(data, type=GraphRows)
            if _may_repeat_keys(data, file):
                return None
            task_ids = _ids([row.name for row in file.tasks])
            tasks = tuple(_task(row) for row in file.tasks)
            tensors = _tensors(file.tensors, task_ids)
            tensor_ids = _ids([tensor.name for tensor in tensors])
            outputs = tuple(tensor_ids[name] for name in file.outputs)
            times = {row.name: _times(row) for row in file.tasks if _has_times(row)}
        except (msgspec.MsgspecError, NotPlainError, KeyError, ValueError):
            return None  # KeyError: a name that does not exist; ValueError: a size's text.
        inputs = tuple(i for i, tensor in enumerate(tensors) if tensor.producer is None)
        return TaskGraph(file.name, tasks, tensors, inputs, outputs), times


def _may_repeat_keys(data: bytes, file: GraphRows) -> bool:
    """Tell whether an object may have a key twice, of which the decoder keeps the last.

    What was decoded has every key once. If that written again has as many colons as the file, the
    file had no more keys; an escaped colon in a text would spoil the count.
    """
    if b"\\" in data and b"\\u003" in data:
        return True
    return data.count(b":") != msgspec.json.encode(file).count(b":")


def _ids(names: list[str]) -> dict[str, int]:
    ids = {name: index for index, name in enumerate(names)}
    if len(ids) < len(names):
        raise NotPlainError
    return ids


def _task(row: TaskRow) -> Task:
    return Task(
        row.name,
        row.name if row.op is UNSET else row.op,
        () if row.members is UNSET else row.members,
        0 if row.flops is UNSET else row.flops,
        _size(row.weight_bytes),
        _size(row.workspace_bytes),
        None if row.devices is UNSET else row.devices,
        None if row.together is UNSET else row.together,
    )


def _size(value: int | str | UnsetType) -> int:
    if value is UNSET:
        return 0
    return value if isinstance(value, int) else parse_bytes(value)


def _tensors(rows: list[TensorRow], task_ids: dict[str, int]) -> tuple[Tensor, ...]:
    num_outputs = [0] * len(task_ids)
    num_inputs = 0
    tensors = []
    for row in rows:
        readers = _readers(row, task_ids)
        name = row.name
        if row.producer is UNSET:
            producer = None
            index = num_inputs
            num_inputs += 1
        else:
            producer = task_ids[row.producer]
            index = num_outputs[producer]
            num_outputs[producer] += 1
            if name is UNSET:
                name = f"{row.producer}.{index}"
            if readers and readers[0] <= producer:
                raise NotPlainError  # Another order than that of the file, or a cycle.
        if name is UNSET:
            raise NotPlainError
        shape = () if row.shape is UNSET else row.shape
        dtype = "" if row.dtype is UNSET else row.dtype
        if row.bytes is not UNSET:
            num_bytes = _size(row.bytes)
        elif row.shape is UNSET or not dtype:
            raise NotPlainError
        else:
            num_bytes = tensor_bytes(shape, dtype)
        tensors.append(Tensor(name, producer, index, shape, dtype, num_bytes, readers))
    return tuple(tensors)


def _readers(row: TensorRow, task_ids: dict[str, int]) -> tuple[int, ...]:
    """Ids of the tasks that read it, ascending, each once."""
    if row.consumers is UNSET:
        return ()
    if len(row.consumers) == 1:
        return (task_ids[row.consumers[0]],)
    return tuple(sorted({task_ids[name] for name in row.consumers}))


def _has_times(row: TaskRow) -> bool:
    return row.times_ns is not UNSET or row.times_ms is not UNSET


def _times(row: TaskRow) -> TaskTimes:
    if row.times_ns is not UNSET:
        if row.times_ms is not UNSET:
            raise NotPlainError
        return row.times_ns
    times: dict[str, int | None] = {}
    for device, value in ({} if row.times_ms is UNSET else row.times_ms).items():
        if value is not None and not 0 <= value < MAX_NUMBER:
            raise NotPlainError
        times[device] = None if value is None else round(value * 1_000_000)
    return times
