"""Rows of memory: the rule of `heteroplace.model.memory`, and condition 6 of DiviML."""

from __future__ import annotations

import math

from heteroplace.solve.batched.divi_model import BatchModel, Slot
from heteroplace.solve.lp.program import Terms


def add_memory(model: BatchModel) -> None:
    """Add rows for each memory that could overflow."""
    for memory in range(len(model.problem.cluster.memories)):
        model.deadline.check()
        if _largest_use(model, memory) > model.problem.cluster.memories[memory].bytes:
            _add_held(model, memory)
        if model.rules.memory == "published":
            _add_published(model, memory)


def _items(model: BatchModel) -> int:
    """Number of items, not of blocks."""
    return model.num_items * model.rules.block


def _slots(model: BatchModel, memory: int) -> list[Slot]:
    devices = model.problem.cluster.devices
    return [
        slot for slots in model.slots for slot in slots if devices[slot.device].memory == memory
    ]


def _kept(model: BatchModel, memory: int) -> frozenset[int]:
    """Tensors with room set aside in a memory."""
    graph = model.problem.graph
    is_host = memory == model.problem.cluster.host
    return frozenset((*graph.inputs, *graph.outputs)) if is_host else frozenset()


def _largest_use(model: BatchModel, memory: int) -> int:
    """Bytes that no plan exceeds."""
    graph = model.problem.graph
    tensors = sum(tensor.bytes for tensor in graph.tensors) * _items(model)
    tasks = [graph.tasks[slot.task] for slot in _slots(model, memory)]
    return tensors + sum(task.weight_bytes + task.workspace_bytes * _items(model) for task in tasks)


def _add_held(model: BatchModel, memory: int) -> None:
    """Weights once per device, tensors made or copied there, the largest workspace."""
    graph, program = model.problem.graph, model.program
    size = model.problem.cluster.memories[memory].bytes
    kept = _kept(model, memory)
    used = _weights(model, memory)
    for device in range(len(model.problem.cluster.devices)):
        if model.problem.cluster.devices[device].memory == memory:
            used += _workspace(model, device, size)
    for tensor_id, tensor in enumerate(graph.tensors):
        if tensor_id in kept or not tensor.bytes:
            continue
        if tensor.producer is None and model.problem.cluster.host is None:
            continue
        for item in range(model.num_items):
            here = program.add_column(0.0, 1.0)
            used.append((here, tensor.bytes * model.rules.block / size))
            if tensor.producer is not None:
                made = model.in_memory(tensor.producer, memory, item)
                program.add_row([*made, (here, -1.0)], -math.inf, 0.0)
            for reader in tensor.consumers:
                read = model.in_memory(reader, memory, item)
                if read:
                    program.add_row([*read, (here, -1.0)], -math.inf, 0.0)
    kept_bytes = sum(graph.tensors[tensor].bytes for tensor in kept) * _items(model)
    program.add_row(used, -math.inf, 1.0 - kept_bytes / size)


def _weights(model: BatchModel, memory: int) -> Terms:
    """Terms for the weights in a memory, as a part of it."""
    size = model.problem.cluster.memories[memory].bytes
    used: Terms = []
    for slot in _slots(model, memory):
        num_bytes = model.problem.graph.tasks[slot.task].weight_bytes
        # The first round is used if any is.
        if num_bytes and slot.round == 0:
            used += model.exists(slot, num_bytes / size)
    return used


def _workspace(model: BatchModel, device: int, size: int) -> Terms:
    """A term for the largest workspace on a device, as a part of `size`."""
    largest: int | None = None
    for slots in model.slots:
        for slot in slots:
            num_bytes = model.problem.graph.tasks[slot.task].workspace_bytes
            if slot.device != device or not num_bytes:
                continue
            if largest is None:
                largest = model.program.add_column(0.0, math.inf)
            one = num_bytes * model.rules.block / size
            need = [(c, count * one) for count, c in slot.sizes.items()]
            model.program.add_row([*need, (largest, -1.0)], -math.inf, 0.0)
    return [] if largest is None else [(largest, 1.0)]


def _add_published(model: BatchModel, memory: int) -> None:
    """Condition 6: weights, and what is read and made for each item of each task."""
    graph = model.problem.graph
    size = model.problem.cluster.memories[memory].bytes
    used = _weights(model, memory)
    for slot in _slots(model, memory):
        tensors = (*graph.task_inputs[slot.task], *graph.task_outputs[slot.task])
        num_bytes = sum(graph.tensors[tensor].bytes for tensor in tensors)
        used += [(column, num_bytes * model.rules.block / size) for column in slot.items]
    if used:
        model.program.add_row(used, -math.inf, 1.0)
