"""Tasks and tensors by name, in any order and changed at will -> a `ShardedGraph`.

What makes sharded graphs adds to an empty builder; what rewrites them takes the builder of one,
changes it, and finalizes it again. A task reads its tensors in the order that they have in the
builder, since a task graph keeps no other, so a rewrite puts what stands for a tensor right after
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from heteroplace.errors import ShardingError
from heteroplace.model.graph import Task, TaskGraphBuilder, tensor_bytes
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph, WholeTensor


def check_sizes(what: str, **sizes: int) -> None:
    """Raise ShardingError unless each of the sizes of what is to be built is at least 1."""
    faults = [f"{name} is {size}" for name, size in sizes.items() if size < 1]
    if faults:
        raise ShardingError(f"{what} cannot be built: {', '.join(faults)}; expected at least 1")


@dataclass
class TaskEntry:
    """A task, what it reads, and where it belongs, as in `ShardedGraph`."""

    task: Task
    reads: tuple[str, ...]
    """Names of tensors, in any order; `ShardedBuilder.read_instead` changes them."""
    layer: int
    lane: int | None
    backward: bool = False
    replica: int | None = None


@dataclass
class TensorEntry:
    """A tensor; its index is its place among those of its producer."""

    name: str
    producer: str | None
    """Name of the task that makes it; None: an input."""
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    shared: bool = False


@dataclass
class ShardedBuilder:
    """A sharded graph that is being made or rewritten."""

    name: str
    num_lanes: int
    num_layers: int
    tasks: dict[str, TaskEntry] = field(default_factory=dict, init=False)
    """By name, in the order that the graph has them where it respects dependencies."""
    tensors: dict[str, TensorEntry] = field(default_factory=dict, init=False)
    """By name, in the order of adding."""
    updates: dict[str, str] = field(default_factory=dict, init=False)
    """For each state the tensor that replaces it."""
    outputs: list[str] = field(default_factory=list, init=False)
    whole: list[tuple[WholeTensor, tuple[str, ...]]] = field(default_factory=list, init=False)
    """Each `WholeTensor`, with the names of its tensors, which have no ids yet."""
    _readers: dict[str, dict[str, None]] = field(default_factory=dict, init=False)
    """For each tensor the names of the tasks that read it."""
    _made: dict[str, list[str]] = field(default_factory=dict, init=False)
    """For each task the names of what it makes."""
    _behind: dict[str | None, list[str]] = field(default_factory=dict, init=False)
    """For each tensor those whose ids come right after it; None: the others."""

    @staticmethod
    def of(sharded: ShardedGraph) -> ShardedBuilder:
        """Return a builder that makes `sharded`."""
        graph = sharded.graph
        names = [tensor.name for tensor in graph.tensors]
        builder = ShardedBuilder(graph.name, sharded.num_lanes, sharded.num_layers)
        for task_id, task in enumerate(graph.tasks):
            reads = tuple(names[tensor] for tensor in graph.task_inputs[task_id])
            builder.add_task(
                TaskEntry(
                    task,
                    reads,
                    sharded.layer[task_id],
                    sharded.lane[task_id],
                    sharded.backward[task_id],
                    sharded.replica[task_id],
                )
            )
        for tensor in graph.tensors:
            producer = None if tensor.producer is None else graph.tasks[tensor.producer].name
            size, shared = tensor.bytes, tensor.shared
            builder.add_tensor(
                TensorEntry(tensor.name, producer, tensor.shape, tensor.dtype, size, shared)
            )
        builder.updates = {names[state]: names[tensor] for state, tensor in graph.updates}
        builder.outputs = [names[tensor] for tensor in graph.outputs]
        builder.whole = [
            (whole, tuple(names[tensor] for tensor in whole.tensors)) for whole in sharded.whole
        ]
        return builder

    def add_task(self, entry: TaskEntry) -> None:
        """Add a task; what it makes is added by `add_tensor`."""
        self.tasks[entry.task.name] = entry
        for read in entry.reads:
            self._readers.setdefault(read, {})[entry.task.name] = None

    def add_tensor(self, entry: TensorEntry, after: str | None = None) -> str:
        """Add a tensor, at the end or with an id right after that of another; return its name."""
        self.tensors[entry.name] = entry
        self._behind.setdefault(after, []).append(entry.name)
        if entry.producer is not None:
            self._made.setdefault(entry.producer, []).append(entry.name)
        return entry.name

    def add_input(self, name: str, shape: tuple[int, ...], dtype: str, shared: bool = False) -> str:
        """Add an input at the end; return its name."""
        size = tensor_bytes(shape, dtype)
        return self.add_tensor(TensorEntry(name, None, shape, dtype, size, shared))

    def add_op(
        self, entry: TaskEntry, shape: tuple[int, ...], dtype: str, name: str, shared: bool = False
    ) -> str:
        """Add a task and, at the end, its only tensor; return the tensor's name."""
        self.add_task(entry)
        size = tensor_bytes(shape, dtype)
        return self.add_tensor(TensorEntry(name, entry.task.name, shape, dtype, size, shared))

    def add_whole(
        self, name: str, tensors: Iterable[str], axis: int | None = None, blocks: int = 1
    ) -> None:
        """Say which inputs stand for an input of the unsharded network, as `WholeTensor`."""
        self.whole.append((WholeTensor(name, (), axis, blocks), tuple(tensors)))

    def read_instead(self, old: str, new: str, tasks: Iterable[str]) -> None:
        """Let `tasks` read tensor `new` where they read `old`."""
        for name in tasks:
            entry = self.tasks[name]
            entry.reads = tuple(new if read == old else read for read in entry.reads)
            del self._readers[old][name]
            self._readers.setdefault(new, {})[name] = None

    def readers(self, tensor: str) -> list[str]:
        """Return the names of the tasks that read a tensor."""
        return list(self._readers.get(tensor, ()))

    def made_by(self, task: str) -> list[str]:
        """Return the names of the tensors that a task makes."""
        return list(self._made.get(task, ()))

    def finalize(self) -> ShardedGraph:
        """Return the checked graph.

        A task comes where it was added, or before that, right before the first that reads from it.

        Raises
        ------
        GraphError
            As `TaskGraphBuilder.finalize`.
        ShardingError
            A task is where it cannot be (`ShardedGraph`).
        """
        builder = TaskGraphBuilder(self.name)
        for tensor in self._sorted_tensors():
            shape, dtype, size = tensor.shape, tensor.dtype, tensor.bytes
            if tensor.producer is None:
                builder.add_input(tensor.name, shape, dtype, size, tensor.shared)
            else:
                builder.add_tensor(tensor.producer, shape, dtype, size, tensor.name, tensor.shared)
        for name in self._sorted_tasks():
            builder.add_task(self.tasks[name].task, list(self.tasks[name].reads))
        for state, update in self.updates.items():
            builder.add_update(state, update)
        graph = builder.finalize(self.outputs)
        ids = {tensor.name: index for index, tensor in enumerate(graph.tensors)}
        entries = [self.tasks[task.name] for task in graph.tasks]
        return ShardedGraph(
            graph,
            self.num_lanes,
            self.num_layers,
            tuple(entry.layer for entry in entries),
            tuple(entry.lane for entry in entries),
            tuple(entry.backward for entry in entries),
            tuple(entry.replica for entry in entries),
            tuple(
                replace(whole, tensors=tuple(ids[tensor] for tensor in tensors))
                for whole, tensors in self.whole
            ),
        )

    def _sorted_tensors(self) -> list[TensorEntry]:
        """In the order of their ids."""
        sorted_entries = []
        waiting = self._behind.get(None, [])[::-1]
        while waiting:
            name = waiting.pop()
            sorted_entries.append(self.tensors[name])
            waiting += self._behind.get(name, [])[::-1]
        return sorted_entries

    def _sorted_tasks(self) -> list[str]:
        """Names of the tasks, each after what makes its inputs where there is no cycle."""
        done: dict[str, None] = {}
        for last in self.tasks:
            path = {last: iter(self._makers(last))}
            while path:
                name = next(reversed(path))
                before = next(
                    (unfinished for unfinished in path[name] if unfinished not in done), None
                )
                if name in done or before is None:
                    done.setdefault(name)
                    del path[name]
                elif before not in path:
                    path[before] = iter(self._makers(before))
        return list(done)

    def _makers(self, task: str) -> list[str]:
        """The tasks whose tensors a task reads, as far as they exist."""
        producers = (
            self.tensors[read].producer for read in self.tasks[task].reads if read in self.tensors
        )
        return [name for name in producers if name in self.tasks]
