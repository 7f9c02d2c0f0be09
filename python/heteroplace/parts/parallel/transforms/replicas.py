"""A sharded graph for one replica -> the same for several, or with sums of its own.

Before ==> after, for a gradient `dw0` that microbatches add up and that `sgd` reads:

    sum_over_replicas   all_reduce.dw0(dw0) -> dw0.sum;  sgd(w0, dw0.sum)
    sum_at_end          dw0 is of one microbatch;  add_up.dw0(dw0) -> dw0.total;  sgd(w0, dw0.total)

The first is step 1 of DistIR's transform (arXiv 2111.05426, section 4.1): each lane's gradient is
summed over the replicas in rank order before its update. The second is how DistIR sums over
microbatches: it keeps the gradients of all of them and sums them by one op at the end.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from heteroplace.model.collectives import collective_op
from heteroplace.model.graph import Task
from heteroplace.parts.parallel.transforms.builder import ShardedBuilder, TaskEntry, TensorEntry
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph


def sum_over_replicas(sharded: ShardedGraph) -> ShardedGraph:
    """Return the graph in which updates read what all replicas' sums add up to.

    An output that is added up (a loss) is then that of all replicas.

    For one replica it is not needed.
    """
    builder, updates = ShardedBuilder.of(sharded), updates_of(sharded)
    for gradient in gradients(sharded):
        add_sum(builder, "all_reduce", gradient, updates)
    return builder.finalize()


def add_sum(
    builder: ShardedBuilder, kind: str, tensor: str, readers: list[str], root: int | None = None
) -> None:
    """Add the sum of a tensor over the replicas; `readers` and the graph's outputs then have it."""
    name = f"{tensor}.sum"
    add_collective(builder, kind, tensor, name, readers, root)
    _return_instead(builder, tensor, name)


def _return_instead(builder: ShardedBuilder, tensor: str, name: str) -> None:
    """Let the graph's outputs have another tensor in the place of one."""
    builder.outputs = [name if output == tensor else output for output in builder.outputs]


def sum_at_end(sharded: ShardedGraph) -> ShardedGraph:
    """Return the graph in which each sum over microbatches is a task of its own.

    Tasks that added to their shared outputs make them for each microbatch, and an "add_up" adds. An
    output that is added up (a loss) is then what that makes.
    """
    builder = ShardedBuilder.of(sharded)
    for gradient in gradients(sharded):
        entry = builder.tensors[gradient]
        maker = builder.tasks[entry.producer or ""]
        maker.task = replace(maker.task, adds=False)
        entry.shared = False
        elements = flops_of_sum(entry)
        task = Task(f"add_up.{gradient}", "add_up", flops=elements, adds=True)
        total = replace(entry, name=f"{gradient}.total", producer=task.name, shared=True)
        builder.read_instead(gradient, total.name, builder.readers(gradient))
        builder.add_task(TaskEntry(task, (gradient,), maker.layer, maker.lane, True))
        builder.add_tensor(total, after=gradient)
        _return_instead(builder, gradient, total.name)
    return builder.finalize()


def gradients(sharded: ShardedGraph) -> list[str]:
    """Return the names of the tensors that runs of microbatches add up to, by tensor id."""
    graph = sharded.graph
    return [
        tensor.name
        for tensor in graph.tensors
        if tensor.shared and tensor.producer is not None and graph.tasks[tensor.producer].adds
    ]


def updates_of(sharded: ShardedGraph) -> list[str]:
    """Return the names of the tasks that run once, after all microbatches."""
    tasks = sharded.graph.tasks
    return [task.name for task, late in zip(tasks, sharded.is_update, strict=True) if late]


def flops_of_sum(tensor: TensorEntry) -> int:
    """Return the additions that one more part takes: the elements of the tensor."""
    return prod(tensor.shape)


def add_collective(
    builder: ShardedBuilder,
    kind: str,
    tensor: str,
    name: str,
    readers: list[str],
    root: int | None = None,
    backward: bool = True,
) -> str:
    """Add a collective over the replicas that reads a shared tensor, and return its task's name.

    `readers`, as far as they read the tensor, then read what the collective makes, a tensor called
    `name`. It belongs to the layer and the lane of what makes the tensor, or of its first reader.
    """
    read = builder.tensors[tensor]
    task_name = f"{kind}.{name}"
    tasks = [task for task in builder.readers(tensor) if task in readers]
    beside = builder.tasks[read.producer or tasks[0]]
    flops = flops_of_sum(read) if kind in ("all_reduce", "reduce") else 0
    task = Task(task_name, collective_op(kind), flops=flops)
    builder.read_instead(tensor, name, tasks)
    builder.add_task(TaskEntry(task, (tensor,), beside.layer, beside.lane, backward, root))
    builder.add_tensor(replace(read, name=name, producer=task_name, shared=True), after=tensor)
    return task_name
