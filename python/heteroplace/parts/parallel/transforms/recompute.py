"""A sharded graph -> the same that computes activations again instead of keeping them.

Chen et al., "Training deep nets with sublinear memory cost" (arXiv 1604.06174), which DistIR
(arXiv 2111.05426, section 2) writes as a plain second call. Layers are taken in groups: what a
group hands to the next one is kept, what its backward passes read from within is made once more,
right before the first of them. Before ==> after, for layers 0 and 1 in one group:

    a0 = dense(w0, x)                          a0 = dense(w0, x)
    a1 = dense(w1, a0)                  ==>    a1 = dense(w1, a0)
    ...                                        ...
    dw1, da0 = dense_grad(w1, a0, da1)         a0.again = dense(w0, x)
                                               dw1, da0 = dense_grad(w1, a0.again, da1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heteroplace.errors import ShardingError
from heteroplace.parts.parallel.transforms.builder import ShardedBuilder, TaskEntry
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph, cut_stages

_AGAIN = ".again"
"""At the end of the name of a task that computes again what another one does."""


def plain_name(task: str) -> str:
    """Return the name of the task that a task does the work of: itself, or the one it repeats.

    >>> plain_name("dense.1.again"), plain_name("dense.1")
    ('dense.1', 'dense.1')
    """
    return task.removesuffix(_AGAIN)


def recompute(sharded: ShardedGraph, every: int, cuts: int | Sequence[int] = 1) -> ShardedGraph:
    """Return the graph in which groups of layers are computed again before their backward passes.

    Parameters
    ----------
    every
        Layers of a group; those left at the end of a stage are a smaller one.
    cuts
        The stages, as in `cut_stages`: groups do not reach over them.

    Raises
    ------
    ShardingError
        Groups of no layer, or cuts that are none.
    """
    if every < 1:
        raise ShardingError(f"groups of {every} layers; expected at least 1")
    group_of_layer = _groups(cut_stages(sharded.num_layers, cuts), every)
    builder = ShardedBuilder.of(sharded)
    again = _Again(sharded, builder, group_of_layer)
    for task_id in again.chosen():
        again.double(task_id)
    for old, new in again.renamed.items():
        readers = [
            name
            for name in builder.readers(old)
            if builder.tasks[name].backward and name not in again.doubled
        ]
        builder.read_instead(old, new, readers)
    return builder.finalize()


def _groups(stage_of_layer: Sequence[int], every: int) -> list[int]:
    """The group of each layer."""
    groups: list[int] = []
    group, size = -1, 0
    for layer, stage in enumerate(stage_of_layer):
        if layer == 0 or size == every or stage != stage_of_layer[layer - 1]:
            group, size = group + 1, 0
        size += 1
        groups.append(group)
    return groups


class _Again:
    """Which tasks run once more, and what they then make."""

    def __init__(
        self, sharded: ShardedGraph, builder: ShardedBuilder, group_of_layer: Sequence[int]
    ) -> None:
        self._sharded = sharded
        self._builder = builder
        self._group_of_layer = group_of_layer
        self.renamed: dict[str, str] = {}
        """Tensors that are made once more, and the name that they then have."""
        self.doubled: set[str] = set()
        """Names of the tasks that make them."""

    def _group(self, task: int) -> int:
        """-1: it is behind all layers, as the loss is."""
        layer = self._sharded.layer[task]
        return self._group_of_layer[layer] if layer < len(self._group_of_layer) else -1

    def _is_forward(self, task: int) -> bool:
        sharded = self._sharded
        return not sharded.backward[task] and not sharded.once[task] and self._group(task) >= 0

    def _is_kept(self, tensor: int) -> bool:
        """It is an input, made outside of a group, or read outside of its own before the backward
        passes."""
        tensor_record = self._sharded.graph.tensors[tensor]
        if (
            tensor_record.producer is None
            or tensor_record.shared
            or not self._is_forward(tensor_record.producer)
        ):
            return True
        group = self._group(tensor_record.producer)
        is_output = tensor in self._sharded.graph.outputs
        return is_output or any(
            self._group(reader) != group and not self._is_of_pass_back(reader)
            for reader in tensor_record.consumers
        )

    def _is_of_pass_back(self, task: int) -> bool:
        return self._sharded.backward[task] and self._group(task) >= 0

    def chosen(self) -> list[int]:
        """The tasks that run once more, in graph order."""
        graph = self._sharded.graph
        waiting = [
            tensor
            for tensor, tensor_record in enumerate(graph.tensors)
            if not self._is_kept(tensor)
            and any(map(self._is_of_pass_back, tensor_record.consumers))
        ]
        tasks: set[int] = set()
        while waiting:
            producer = graph.tensors[waiting.pop()].producer
            if producer is None or producer in tasks:
                continue
            tasks.add(producer)
            waiting += [read for read in graph.task_inputs[producer] if not self._is_kept(read)]
        return sorted(tasks)

    def double(self, task_id: int) -> None:
        """Add a task once more; those that it reads from must have been added."""
        graph, builder = self._sharded.graph, self._builder
        task = graph.tasks[task_id]
        entry = builder.tasks[task.name]
        name = task.name + _AGAIN
        reads = tuple(self.renamed.get(read, read) for read in entry.reads)
        builder.add_task(
            TaskEntry(replace(task, name=name), reads, entry.layer, entry.lane, True, entry.replica)
        )
        self.doubled.add(name)
        for tensor in graph.task_outputs[task_id]:
            output = builder.tensors[graph.tensors[tensor].name]
            twin = replace(output, name=f"{output.name}.again", producer=name)
            self.renamed[output.name] = builder.add_tensor(twin, after=output.name)
