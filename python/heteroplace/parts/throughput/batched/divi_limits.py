"""Rows of memory: the rule of `heteroplace.model.memory_use.memory`, and condition 6 of DiviML."""

from __future__ import annotations

import math
from collections.abc import Iterable

from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.parts.throughput.batched.divi_model import BatchModel, Slot
from heteroplace.solve.lp.linear_program import Terms
from heteroplace.solve.problem import Problem

_SPARE = 2e-6
"""Part of a memory that plans leave free: engines take rows as kept that are 1e-6 above."""
_WORKSPACE_PARTS = 2.0**20
"""Of a memory, in which workspaces count: one of them is less than `_SPARE`."""
_EXACT_BYTES = 200_000
"""Of a memory of no more, a byte is a larger part than that."""


def may_overflow(problem: Problem, items: int) -> bool:
    """Tell whether some placement of so many items may be short of memory by the static rule.

    Where none is, that rule rules no plan out.
    """
    memories = enumerate(problem.cluster.memories)
    return any(_largest_use(problem, items, index) > memory.bytes for index, memory in memories)


def add_memory(model: BatchModel) -> None:
    """Add rows for each memory that could overflow."""
    for memory in range(len(model.problem.cluster.memories)):
        model.deadline.check()
        size = model.problem.cluster.memories[memory].bytes
        if _largest_use(model.problem, _items(model), memory) > size:
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


def _largest_use(problem: Problem, items: int, memory: int) -> int:
    """Bytes that no plan exceeds."""
    graph, devices = problem.graph, problem.cluster.devices
    here = [index for index, device in enumerate(devices) if device.memory == memory]
    is_possible = (problem.native.batch_run_ns[:, :, here] != IMPOSSIBLE).any(axis=0)
    runs: list[int] = is_possible.sum(axis=1).tolist()
    tensors = sum(tensor.bytes for tensor in graph.tensors) * items
    return tensors + sum(
        count * (task.weight_bytes + task.workspace_bytes * items)
        for task, count in zip(graph.tasks, runs, strict=True)
    )


def _add_held(model: BatchModel, memory: int) -> None:
    """Weights once per device, the largest workspace, and tensors by the rule."""
    graph, program = model.problem.graph, model.program
    size = model.problem.cluster.memories[memory].bytes
    stays = _kept(model, memory)
    used = _weights(model, memory)
    for device in range(len(model.problem.cluster.devices)):
        if model.problem.cluster.devices[device].memory == memory:
            used += _workspace(model, device, size)
    is_whole = model.rules.memory in ("held", "published")
    for tensor_id in _charged(model):
        tensor = graph.tensors[tensor_id]
        if tensor_id in stays or not tensor.bytes:
            continue
        if tensor.producer is None and model.problem.cluster.host is None:
            continue
        for item in range(model.num_items):
            here = program.add_column(0.0, 1.0)
            used.append((here, tensor.bytes * model.rules.block / size))
            if tensor.producer is not None:
                is_there = model.in_memory(tensor.producer, memory, item)
                program.add_row([*is_there, (here, -1.0)], -math.inf, 0.0)
            for reader in tensor.consumers if is_whole else ():
                read = model.in_memory(reader, memory, item)
                if read:
                    program.add_row([*read, (here, -1.0)], -math.inf, 0.0)
    kept_bytes = sum(graph.tensors[tensor].bytes for tensor in stays) * _items(model)
    spare = 0.0
    if size > _EXACT_BYTES:
        spare = _SPARE if is_whole else -_SPARE  # what every plan needs rules none out
    program.add_row(used, -math.inf, 1.0 - kept_bytes / size - spare)


def _charged(model: BatchModel) -> Iterable[int]:
    """Tensors that take bytes where they are made or, but for what is only needed, read."""
    graph, cluster = model.problem.graph, model.problem.cluster
    if model.rules.memory in ("held", "published"):
        return range(len(graph.tensors))
    stays = model.rules.memory == "needed" and cluster.host is None
    return dict.fromkeys(graph.outputs) if stays else ()


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
    """A term for the largest workspace on a device, as a part of `size`.

    Its column counts in bytes, or in larger parts of the memory, so whole numbers suffice.
    """
    largest: int | None = None
    part_bytes = max(1.0, size / _WORKSPACE_PARTS)
    for slots in model.slots:
        for slot in slots:
            num_bytes = model.problem.graph.tasks[slot.task].workspace_bytes
            if slot.device != device or not num_bytes:
                continue
            if largest is None:
                largest = model.program.add_column(0.0, math.inf)
            one = num_bytes * model.rules.block / part_bytes
            need = [(c, count * one) for count, c in slot.sizes.items()]
            model.program.add_row([*need, (largest, -1.0)], -math.inf, 0.0)
    return [] if largest is None else [(largest, part_bytes / size)]


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
