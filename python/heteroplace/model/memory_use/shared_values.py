"""What is wrong with the shared values, updates and collectives of a task graph, whatever the plan.

`model.graph` says what they are; how a plan may use them is `model.check`'s to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from heteroplace.model.collectives import collective_kind

if TYPE_CHECKING:
    from heteroplace.model.graph import TaskGraph


def shared_value_faults(graph: TaskGraph) -> list[str]:
    """Return every fault, each naming its task or tensor; [] for a graph that has none of these."""
    return [
        *_task_faults(graph),
        *_collective_faults(graph),
        *_update_faults(graph),
        *_weight_faults(graph),
    ]


def first_shared(graph: TaskGraph) -> str:
    """Return the first thing of a graph that only explicit schedules can use, e.g. "collective
    'sum'"; "": solvers can place it."""
    for task in graph.tasks:
        if collective_kind(task.op) is not None:
            return f"collective {task.name!r}"
        if task.weights:
            return f"weight {task.weights[0][0]!r}, which tasks share"
    return next((f"shared tensor {t.name!r}" for t in graph.tensors if t.shared), "")


def _task_faults(graph: TaskGraph) -> Iterator[str]:
    for task_id, task in enumerate(graph.tasks):
        outputs = graph.task_outputs[task_id]
        if task.adds and not any(graph.tensors[tensor].shared for tensor in outputs):
            yield f"task {task.name!r} adds, and none of what it makes is shared"
        if task.together is not None and collective_kind(task.op) is not None:
            yield f"collective {task.name!r} is in the colocation group {task.together!r}"
        elif task.together is not None and graph.is_made_once(task_id):
            yield (
                f"task {task.name!r} is in the colocation group {task.together!r}, and all that it "
                f"makes is shared: it may run on several devices, so leave out its group"
            )


def _collective_faults(graph: TaskGraph) -> Iterator[str]:
    for task_id, task in enumerate(graph.tasks):
        kind = collective_kind(task.op)
        if kind is None:
            continue
        reads, makes = graph.task_inputs[task_id], graph.task_outputs[task_id]
        if not reads or not makes:
            yield f"collective {task.name!r} reads {len(reads)} tensors and makes {len(makes)}"
        if len({graph.tensors[tensor].shared for tensor in (*reads, *makes)}) > 1:
            yield (
                f"collective {task.name!r} reads and makes shared tensors and others; expected all "
                f"shared, or none"
            )
        if task.adds and not kind.sums:
            yield f"collective {task.name!r} adds, and {kind.name} is no sum"
        if kind.reads == "root" and len(reads) > 1:
            yield f"collective {task.name!r} reads {len(reads)} tensors; {kind.name} reads one"
        if kind.makes != "each" and len(makes) > 1:
            yield f"collective {task.name!r} makes {len(makes)} tensors; {kind.name} makes one"
        if len(reads) == 1 and kind.reads == "each" and not graph.tensors[reads[0]].shared:
            yield (
                f"collective {task.name!r} reads one tensor, which each device has a value of its "
                f"own of only if it is shared; expected one tensor for each device"
            )


def _update_faults(graph: TaskGraph) -> Iterator[str]:
    seen: set[int] = set()
    for state_id, tensor_id in graph.updates:
        state, tensor = graph.tensors[state_id], graph.tensors[tensor_id]
        update = f"update {state.name!r} -> {tensor.name!r}"
        if state.producer is not None or tensor.producer is None:
            yield f"{update}: expected a model input, and a tensor that a task makes"
        elif graph.tasks[tensor.producer].adds:
            yield f"{update}: task {graph.tasks[tensor.producer].name!r} adds to what it makes"
        if tensor_id in graph.outputs:
            yield f"{update}: {tensor.name!r} is an output too; state is read where it lies"
        if not (state.shared and tensor.shared):
            yield f"{update}: expected both to be shared"
        if (state.shape, state.dtype, state.bytes) != (tensor.shape, tensor.dtype, tensor.bytes):
            yield (
                f"{update}: expected equal types, got {state.dtype}{list(state.shape)} of "
                f"{state.bytes} bytes and {tensor.dtype}{list(tensor.shape)} of {tensor.bytes}"
            )
        if seen & {state_id, tensor_id}:
            yield f"{update}: one of them is in an earlier update"
        seen |= {state_id, tensor_id}


def _weight_faults(graph: TaskGraph) -> Iterator[str]:
    sizes: dict[str, int] = {}
    for task in graph.tasks:
        names = [name for name, _ in task.weights]
        if len(set(names)) < len(names):
            yield f"task {task.name!r} names a weight twice: {', '.join(names)}"
        for name, num_bytes in task.weights:
            if num_bytes < 0:
                yield f"task {task.name!r}: weight {name!r} has {num_bytes} bytes; expected >= 0"
            if sizes.setdefault(name, num_bytes) != num_bytes:
                yield (
                    f"task {task.name!r}: weight {name!r} has {num_bytes} bytes, and "
                    f"{sizes[name]} for an earlier task"
                )
