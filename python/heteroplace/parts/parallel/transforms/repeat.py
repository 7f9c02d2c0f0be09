"""A network with two equal groups of layers, one behind the other -> the same with many of them.

Deep networks repeat one block. What is done to each op of a network (importing it, following axes
through it, compiling it) need be done for few blocks only: this makes the graph of all of them.
Before ==> after, for layers a, B1, B2, c and 3 times instead of 1:

    a -> B1 -> B2 -> c   ==>   a -> B1 -> B2 -> B2#2 -> B2#3 -> c

What B2 reads of B1, B2#2 reads of B2, and so on; what both read of earlier layers all of them read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from heteroplace.errors import ShardingError
from heteroplace.model.graph import TaskGraph
from heteroplace.parts.parallel.transforms.builder import ShardedBuilder, TaskEntry, TensorEntry
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph


def repeat_layers(sharded: ShardedGraph, first: int, length: int, times: int) -> ShardedGraph:
    """Return the graph in which some layers come several times. For inference.

    Parameters
    ----------
    first, length
        The group is the layers from `first + length` to before `first + 2 * length`, and equal to
        the `length` layers from `first` on.
    times
        How often it is there then, at least once.

    Raises
    ------
    ShardingError
        The two groups are not equal, or not both in the graph, or what comes behind reads of the
        first; or it is a graph for training, in which each layer has state of its own.
    """
    if sharded.is_training or times < 1 or min(first, length - 1) < 0:
        raise ShardingError(
            f"layers {first} to {first + length - 1} cannot come {times} times: expected a graph "
            f"for inference, one layer or more, and once or more"
        )
    if first + 2 * length > sharded.num_layers:
        raise ShardingError(
            f"{sharded.graph.name!r} has {sharded.num_layers} layers, and two groups of {length} "
            f"from layer {first} on need {first + 2 * length}; begin earlier, or take fewer"
        )
    pair = _Pair(sharded, first, length)
    builder = ShardedBuilder(
        sharded.graph.name, sharded.num_lanes, sharded.num_layers + (times - 1) * length
    )
    late = first + 2 * length
    builder.whole = ShardedBuilder.of(sharded).whole
    for task in range(len(sharded.layer)):
        if sharded.layer[task] < late:
            builder.add_task(pair.entry(task, 1))
    for tensor in range(len(sharded.graph.tensors)):
        if pair.layer_of(tensor) < late:
            builder.add_tensor(pair.tensor(tensor, 1))
    for copy in range(2, times + 1):
        for task in pair.second:
            builder.add_task(pair.entry(task, copy))
        for tensor in range(len(sharded.graph.tensors)):
            if first + length <= pair.layer_of(tensor) < late:
                builder.add_tensor(pair.tensor(tensor, copy))
    for task in range(len(sharded.layer)):
        if sharded.layer[task] >= late:
            builder.add_task(pair.late_entry(task, times))
    for tensor in range(len(sharded.graph.tensors)):
        if pair.layer_of(tensor) >= late:
            builder.add_tensor(pair.tensor(tensor, 1))
    builder.outputs = [pair.last_name(tensor, times) for tensor in sharded.graph.outputs]
    return builder.finalize()


@dataclass(frozen=True)
class _Task:
    """What two equal tasks have in common."""

    op: str
    flops: int
    weight_bytes: int
    workspace_bytes: int
    weights: tuple[int, ...]
    read: tuple[tuple[tuple[int, ...], str, int], ...]
    made: tuple[tuple[tuple[int, ...], str, int], ...]


class _Pair:
    """The two equal groups, and how the second follows the first."""

    def __init__(self, sharded: ShardedGraph, first: int, length: int) -> None:
        self._sharded, self._graph = sharded, sharded.graph
        self._first, self._length = first, length
        self.second: list[int] = []
        """Tasks of the second group."""
        self._follows: dict[int, int] = {}
        """For each tensor of the first group that of the second."""
        self._own: set[int] = set()
        """Tensors of the second group."""
        pairs = list(self._matched())
        for one, other in pairs:
            outputs = (self._graph.task_outputs[task] for task in (one, other))
            for made_here, made_there in zip(*outputs, strict=True):
                self._follows[made_here] = made_there
                self._own.add(made_there)
        self.second = sorted(other for _, other in pairs)
        weights = [
            {name for task in tasks for name, _ in self._graph.tasks[task].weights}
            for tasks in (set(range(len(self._graph.tasks))) - set(self.second), self.second)
        ]
        self._shared_weights = weights[0] & weights[1]
        self._check(pairs)

    def _matched(self) -> Iterator[tuple[int, int]]:
        """Tasks of the first group with those of the second, in order within layer and lane."""
        groups: list[dict[tuple[int, int | None], list[int]]] = [{}, {}]
        for task, layer in enumerate(self._sharded.layer):
            number, offset = divmod(layer - self._first, self._length)
            if number in (0, 1):
                key = (offset, self._sharded.lane[task])
                groups[number].setdefault(key, []).append(task)
        for key in {**groups[0], **groups[1]}:
            sides = [group.get(key, []) for group in groups]
            texts = [[_same(self._graph, task) for task in side] for side in sides]
            if texts[0] != texts[1]:
                raise ShardingError(
                    f"{self._graph.name!r}: layers {self._first + key[0]} and "
                    f"{self._first + self._length + key[0]} have other tasks in lane {key[1]}"
                )
            yield from zip(*sides, strict=True)

    def _check(self, pairs: list[tuple[int, int]]) -> None:
        for one, other in pairs:
            inputs = (self._graph.task_inputs[task] for task in (one, other))
            for read, read_there in zip(*inputs, strict=True):
                is_own = self._follows.get(read) == read_there
                if not (is_own or read_there in self._follows or read == read_there):
                    raise self._fault(other, read_there)
        late = self._first + 2 * self._length
        for task, layer in enumerate(self._sharded.layer):
            for read in self._graph.task_inputs[task]:
                if layer >= late and read in self._follows:
                    raise self._fault(task, read)

    def _fault(self, task: int, tensor: int) -> ShardingError:
        names = self._graph.tasks[task].name, self._graph.tensors[tensor].name
        return ShardingError(
            f"{self._graph.name!r}: task {names[0]!r} reads {names[1]!r}, which no repeated layer "
            f"has at its place"
        )

    def layer_of(self, tensor: int) -> int:
        """Return the layer of a tensor's producer; -1: it is an input."""
        producer = self._graph.tensors[tensor].producer
        return -1 if producer is None else self._sharded.layer[producer]

    def name(self, tensor: int, copy: int) -> str:
        """Return the name of what a copy of the second group reads or makes."""
        name = self._graph.tensors[tensor].name
        if tensor in self._own:
            return name if copy == 1 else f"{name}#{copy}"
        if tensor in self._follows and copy > 1:
            return self.name(self._follows[tensor], copy - 1)
        return name

    def last_name(self, tensor: int, times: int) -> str:
        """Return the name of what later layers read."""
        return self.name(tensor, times if tensor in self._own else 1)

    def entry(self, task: int, copy: int) -> TaskEntry:
        """Return a task, or copy number `copy` of one of the second group; 1: as it is."""
        reads = tuple(self.name(tensor, copy) for tensor in self._graph.task_inputs[task])
        task_record = self._graph.tasks[task]
        if copy > 1:
            weights = tuple(
                (name if name in self._shared_weights else f"{name}#{copy}", num_bytes)
                for name, num_bytes in task_record.weights
            )
            task_record = replace(task_record, name=f"{task_record.name}#{copy}", weights=weights)
        layer = self._sharded.layer[task] + (copy - 1) * self._length
        return TaskEntry(task_record, reads, layer, self._sharded.lane[task])

    def late_entry(self, task: int, times: int) -> TaskEntry:
        """Return a task behind the groups."""
        reads = tuple(self.last_name(tensor, times) for tensor in self._graph.task_inputs[task])
        layer = self._sharded.layer[task] + (times - 1) * self._length
        return TaskEntry(self._graph.tasks[task], reads, layer, self._sharded.lane[task])

    def tensor(self, tensor: int, copy: int) -> TensorEntry:
        """Return a tensor, or that of a copy."""
        tensor_record = self._graph.tensors[tensor]
        producer = (
            None
            if tensor_record.producer is None
            else self._graph.tasks[tensor_record.producer].name
        )
        if copy > 1:
            producer = f"{producer}#{copy}"
        name = self.name(tensor, copy)
        return TensorEntry(
            name,
            producer,
            tensor_record.shape,
            tensor_record.dtype,
            tensor_record.bytes,
            tensor_record.shared,
        )


def _same(graph: TaskGraph, task: int) -> _Task:
    task_record = graph.tasks[task]
    read, outputs = (
        tuple(
            (graph.tensors[tensor].shape, graph.tensors[tensor].dtype, graph.tensors[tensor].bytes)
            for tensor in side
        )
        for side in (graph.task_inputs[task], graph.task_outputs[task])
    )
    return _Task(
        task_record.op,
        task_record.flops,
        task_record.weight_bytes,
        task_record.workspace_bytes,
        tuple(num_bytes for _, num_bytes in task_record.weights),
        read,
        outputs,
    )
