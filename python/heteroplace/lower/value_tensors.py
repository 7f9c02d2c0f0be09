"""Kernel calls + task graph -> which tensor of the graph a value of the program is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.order.guards import Guards
from heteroplace.model.graph import TaskGraph


def tensors_of_values(calls: KernelCalls, graph: TaskGraph, guards: Guards) -> dict[int, int]:
    """Return the tensor of the graph that each value is, maybe in another layout.

    Of a task that makes several tensors only those in the layout of the model are known.
    """
    task_id = {task.name: index for index, task in enumerate(graph.tasks)}
    inputs = {graph.tensors[tensor].name: tensor for tensor in graph.inputs}
    tensors = {}
    for value, description in enumerate(calls.values):
        if description.input_name is not None and description.input_name in inputs:
            tensors[value] = inputs[description.input_name]
    for call in calls.calls:
        outputs = graph.task_outputs[task_id[call.task]] if call.task in task_id else ()
        shapes = [graph.tensors[tensor].shape for tensor in outputs]
        batched = [calls.values[value].shape for value in call.writes]
        count = len(call.items)
        if len(outputs) == 1:
            tensors.update(dict.fromkeys(call.writes, outputs[0]))
        if len(shapes) == len(batched) and all(map(_is_batch, batched, shapes, repeat(count))):
            tensors.update(zip(call.writes, outputs, strict=True))
        written = guards.written(call)
        # Rows that no kernel call of the task makes last are of another layout, or no tensor.
        if len(written) == len(outputs) and calls.values[written[0]].rows is not None:
            tensors.update(zip(written, outputs, strict=True))
    return tensors


def _is_batch(shape: Sequence[int], of: Sequence[int], count: int) -> bool:
    """Whether a shape is that of several items along one axis."""
    if len(shape) != len(of):
        return False
    changed = [(one, more) for one, more in zip(of, shape, strict=True) if one != more]
    return not changed or (len(changed) == 1 and changed[0][1] == changed[0][0] * count)
