"""How much a task computes and moves: what all predictions of its time start from."""

from __future__ import annotations

from typing import NamedTuple

from heteroplace.model.graph import TaskGraph
from heteroplace.model.op_traits.op_table import traits_of

_PRODUCTS = ("conv", "dense", "matmul", "lstm")
"""Parts of the names of ops that read all of their weights."""
ALL_OPS = ""
"""The type that stands for every op."""


class TaskWork(NamedTuple):
    """What one run of a task does."""

    flops: int
    """Floating-point operations."""
    bytes: int
    """Weights, inputs and outputs, each moved once; of a table the rows that are looked up."""


def task_work(graph: TaskGraph, task_id: int, batch: int = 1) -> TaskWork:
    """Return the work of `batch` items run together: weights are read once for all of them.

    Of a network with routers a batch is of cells: a task of a branch computes and moves its
    capacity's share of all rows, for which the graph has its sizes, and other tasks are as ever.
    """
    task = graph.tasks[task_id]
    times, out_of = 1 if graph.routers else batch, 1
    if graph.branches[task_id]:
        router_id, branch = graph.branches[task_id][0]
        router = graph.routers[router_id]
        times, out_of = router.capacity_of(branch, batch), router.num_cells
    moved = written = 0
    for tensor_id in (*graph.task_inputs[task_id], *graph.task_outputs[task_id]):
        tensor = graph.tensors[tensor_id]
        # What a branch reads beside its rows, such as the loads, is whole at each capacity.
        is_whole = out_of > 1 and tensor.buffer is None
        num_bytes = tensor.bytes if is_whole else -(-tensor.bytes * times // out_of)
        moved += num_bytes
        written += num_bytes if tensor.producer == task_id else 0
    weight_bytes = task.weight_bytes + sum(num_bytes for _, num_bytes in task.weights)
    if _is_lookup(task.op):
        weight_bytes = min(weight_bytes, written)
    return TaskWork(-(-task.flops * times // out_of), weight_bytes + moved)


def _is_lookup(op: str) -> bool:
    """Whether a task reads of its weights only the rows that it looks up, such as embeddings."""
    is_product = any(word in op for word in _PRODUCTS)
    return not is_product and any(traits_of(each).reads_places for each in op.split("+"))


def main_dtype(graph: TaskGraph) -> str:
    """Return "float16" if the half-precision tensors of `graph` hold most bytes, else "float32".

    Half precision has peak speeds of its own.
    """
    half = sum(tensor.bytes for tensor in graph.tensors if tensor.dtype in ("float16", "bfloat16"))
    return "float16" if 2 * half > sum(tensor.bytes for tensor in graph.tensors) else "float32"


def op_types(op: str) -> tuple[str, ...]:
    """Return the types that a task's op belongs to: itself, those that begin alike, ALL_OPS.

    The first of the ops inside a task names what it mainly does.

    >>> op_types("nn.conv2d+add+nn.relu")
    ('nn.conv2d+add+nn.relu', 'nn.conv2d+...', '')
    """
    return tuple(dict.fromkeys((op, f"{op.split('+', 1)[0]}+...", ALL_OPS)))
