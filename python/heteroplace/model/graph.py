"""The network as tasks and tensors: what solvers place, whatever it came from.

A task is a group of ops placed as one unit; a tensor is a produced value. An edge is a
(tensor, consumer) pair, not a type: a tensor is copied at most once to a memory, however many
consumers read it there (Moirai and DiviML charge per edge).

A graph is for one item; of a tensor there is a value for each item of a plan. What runs of several
items add up to, and what stays from run to run, is `shared`: one value in each memory.

Of a routed network some tasks are in branches: each run their router decides for how many cells
they run (`model.routers`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from heteroplace.entries import load_entry
from heteroplace.errors import GraphError
from heteroplace.model.graphs.graph_digest import STRUCTURE_FIELDS, TASK_FIELDS, graph_digest
from heteroplace.model.graphs.graph_order import topological_order
from heteroplace.model.identity import TaskIdentity
from heteroplace.model.memory_use.shared_values import shared_value_faults
from heteroplace.model.routed.routed_values import routed_value_faults
from heteroplace.model.routed.routers import Router, branches_around
from heteroplace.model.tasks import Task, Tensor
from heteroplace.terminal import listed

_NETWORKX = "heteroplace.model.graphs.networkx_view"

__all__ = ["Task", "TaskGraph", "TaskGraphBuilder", "Tensor", "tensor_bytes"]


@dataclass(frozen=True)
class TaskGraph:
    """Tasks in topological order and the tensors between them. Ids are positions in the tuples.

    Made by `TaskGraphBuilder.finalize()`, which checks names, order, acyclicity and sizes.
    """

    name: str
    tasks: tuple[Task, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    """Tensor ids of the model inputs."""
    outputs: tuple[int, ...]
    """Tensor ids of the model outputs, in the model's order; may repeat."""
    updates: tuple[tuple[int, int], ...] = ()
    """State: (model input, tensor that replaces it). The input lies from the start in each memory
    where its update is made, and is replaced there in place, from run to run."""
    routers: tuple[Router, ...] = ()
    """In the topological order of their tasks."""
    buffers: tuple[tuple[str, int], ...] = ()
    """(name, bytes) of routed buffers. Tensors of one lie in it together: in a memory it is once,
    whole, while any of them is there."""

    @cached_property
    def router_ids(self) -> Mapping[str, int]:
        """The id of each router by its name."""
        return {router.name: index for index, router in enumerate(self.routers)}

    @cached_property
    def buffer_bytes(self) -> Mapping[str, int]:
        """The size of each routed buffer by its name."""
        return dict(self.buffers)

    @cached_property
    def branches(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each task the (router id, branch) that it is in, the innermost first."""
        return tuple(branches_around(self.routers, self.router_ids, t.branch) for t in self.tasks)

    @cached_property
    def state_of(self) -> Mapping[int, int]:
        """For each tensor that is an update the model input that it replaces."""
        return {tensor: state for state, tensor in self.updates}

    @cached_property
    def has_shared_values(self) -> bool:
        """Whether any tensor is shared, or tasks share weights."""
        return any(one.shared for one in self.tensors) or any(one.weights for one in self.tasks)

    def is_made_once(self, task: int) -> bool:
        """Say whether all that a task makes is shared: it runs once in each memory that needs it,
        or, where it `adds` or makes its outputs anew, for other items each time."""
        return task in self._made_once

    @cached_property
    def _made_once(self) -> frozenset[int]:
        shared = [tensor.shared for tensor in self.tensors]
        outputs = enumerate(self.task_outputs)
        return frozenset(task for task, own in outputs if own and all(shared[t] for t in own))

    def batch_size(self, task: int, num_items: int) -> int:
        """Return how many items a run for `num_items` computes: 1 if all is shared."""
        return 1 if task in self._computed_once else num_items

    @cached_property
    def _computed_once(self) -> frozenset[int]:
        reads = self.task_inputs
        return frozenset(
            task for task in self._made_once if all(self.tensors[t].shared for t in reads[task])
        )

    @cached_property
    def task_inputs(self) -> tuple[tuple[int, ...], ...]:
        """For each task the ids of the tensors it reads, ascending."""
        reads: list[list[int]] = [[] for _ in self.tasks]
        for tensor_id, tensor in enumerate(self.tensors):
            for consumer in tensor.consumers:
                reads[consumer].append(tensor_id)
        return tuple(map(tuple, reads))

    @cached_property
    def task_outputs(self) -> tuple[tuple[int, ...], ...]:
        """For each task the ids of the tensors it makes, by output index."""
        makes: list[list[int]] = [[] for _ in self.tasks]
        for tensor_id, tensor in enumerate(self.tensors):
            if tensor.producer is not None:
                makes[tensor.producer].append(tensor_id)
        for ids in makes:
            if len(ids) > 1:
                ids.sort(key=lambda tensor_id: self.tensors[tensor_id].index)
        return tuple(map(tuple, makes))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each task the ids of the tasks it reads from, ascending, each once."""
        ids_of_tasks: list[set[int]] = [set() for _ in self.tasks]
        for tensor in self.tensors:
            if tensor.producer is not None:
                for consumer in tensor.consumers:
                    ids_of_tasks[consumer].add(tensor.producer)
        return tuple(tuple(sorted(ids)) for ids in ids_of_tasks)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each task the ids of the tasks that read from it, ascending, each once."""
        ids_of_tasks: list[set[int]] = [set() for _ in self.tasks]
        for task, before in enumerate(self.predecessors):
            for producer in before:
                ids_of_tasks[producer].add(task)
        return tuple(tuple(sorted(ids)) for ids in ids_of_tasks)

    @cached_property
    def identities(self) -> tuple[TaskIdentity, ...]:
        """For each task what its cost depends on."""
        types = [_type_text(tensor) for tensor in self.tensors]
        return tuple(
            TaskIdentity(
                task.name,
                task.op,
                task.flops,
                task.weight_bytes + sum(num_bytes for _, num_bytes in task.weights),
                tuple(sorted([types[tensor] for tensor in reads])),
                tuple([types[tensor] for tensor in writes]),
            )
            for task, reads, writes in zip(
                self.tasks, self.task_inputs, self.task_outputs, strict=True
            )
        )

    def to_networkx(self) -> Any:
        """Return a `networkx.MultiDiGraph` of the tasks; see `model.networkx_view`.

        Raises
        ------
        MissingPackageError
            networkx is not installed.
        """
        return load_entry(f"{_NETWORKX}:to_networkx")(self)

    @staticmethod
    def from_networkx(value: Any) -> TaskGraph:
        """Return the task graph of a directed networkx graph; see `model.networkx_view`.

        `TaskGraph.from_networkx(graph.to_networkx()) == graph`.

        Raises
        ------
        GraphError
            It is not directed, has a cycle, or an attribute is wrong.
        """
        graph: TaskGraph = load_entry(f"{_NETWORKX}:from_networkx")(value, TaskGraphBuilder)
        return graph

    def digest(self) -> str:
        """Return a hex digest of the whole graph; computed once."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return graph_digest(self, self.name, TASK_FIELDS)

    @cached_property
    def structure_digest(self) -> str:
        """A hex digest of what a plan of the graph depends on.

        Pins, groups and scratch memory, which differ with the options of one placement, are left
        out, and names of the graph and of ops inside tasks.
        """
        return graph_digest(self, "", STRUCTURE_FIELDS)


def _type_text(tensor: Tensor) -> str:
    if not tensor.dtype:
        return f"{tensor.bytes} B"
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"


class TaskGraphBuilder:
    """Collects tasks and tensors in any order; `finalize()` sorts and checks them.

    >>> builder = TaskGraphBuilder("pair")
    >>> x = builder.add_input("x", shape=(4,), dtype="float32")
    >>> builder.add_task(Task("a", "nn.relu"), reads=[x])
    >>> y = builder.add_tensor("a", shape=(4,), dtype="float32")
    >>> builder.finalize(outputs=[y]).tasks[0].name
    'a'
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[str, Task] = {}
        self._reads: dict[str, list[str]] = {}
        self._tensors: dict[str, Tensor] = {}
        self._producer: dict[str, str | None] = {}
        self._num_outputs: dict[str | None, int] = {None: 0}
        self._updates: list[tuple[str, str]] = []
        self._routers: list[tuple[Router, str]] = []
        """Without ids, each with the name of its loads."""
        self._buffers: dict[str, int] = {}
        self._faults: list[str] = []

    def add_input(
        self,
        name: str,
        shape: tuple[int, ...] = (),
        dtype: str = "",
        num_bytes: int | None = None,
        shared: bool = False,
        buffer: str | None = None,
    ) -> str:
        """Add a model input; return its tensor name. `num_bytes` as in `add_tensor`; a `buffer` is
        refused by `finalize`, as what is in one is made by a task."""
        tensor = Tensor(name, None, 0, shape, dtype, 0, (), shared, buffer)
        return self._add(tensor, None, num_bytes)

    def add_task(self, task: Task, reads: list[str]) -> None:
        """Add a task that reads the tensors named in `reads` (they may be added later)."""
        if task.name in self._tasks:
            self._faults.append(f"task name {task.name!r} is used twice")
        for field in ("flops", "weight_bytes", "workspace_bytes"):
            if getattr(task, field) < 0:
                self._faults.append(f"task {task.name!r}: {field} is negative")
        self._tasks[task.name] = task
        self._reads[task.name] = list(reads)
        self._num_outputs.setdefault(task.name, 0)

    def add_tensor(
        self,
        producer: str,
        shape: tuple[int, ...] = (),
        dtype: str = "",
        num_bytes: int | None = None,
        name: str | None = None,
        shared: bool = False,
        buffer: str | None = None,
    ) -> str:
        """Add the next output of task `producer`; return the tensor's name.

        `num_bytes` is for graphs that know sizes but no shapes; by default it follows from shape
        and dtype. The default name is "PRODUCER.INDEX".
        """
        index = self._num_outputs.get(producer, 0)
        name = name or f"{producer}.{index}"
        tensor = Tensor(name, None, 0, shape, dtype, 0, (), shared, buffer)
        return self._add(tensor, producer, num_bytes)

    def add_update(self, state: str, tensor: str) -> None:
        """Say that `tensor` replaces the model input `state`, both shared, from run to run."""
        self._updates.append((state, tensor))

    def add_buffer(self, name: str, num_bytes: int) -> None:
        """Add a routed buffer, for tensors that name it."""
        if name in self._buffers:
            self._faults.append(f"buffer name {name!r} is used twice")
        if num_bytes < 0:
            self._faults.append(f"buffer {name!r}: {num_bytes} bytes; expected >= 0")
        self._buffers[name] = num_bytes

    def add_router(self, router: Router, loads: str) -> None:
        """Add a router whose loads are the tensor of that name; the ids in it are ignored."""
        self._routers.append((router, loads))

    def _add(self, tensor: Tensor, producer: str | None, num_bytes: int | None) -> str:
        """Add a tensor with its index and its size."""
        name, shape = tensor.name, tuple(tensor.shape)
        if name in self._tensors:
            self._faults.append(f"tensor name {name!r} is used twice")
        index = self._num_outputs.get(producer, 0)
        self._num_outputs[producer] = index + 1
        size = tensor_bytes(shape, tensor.dtype) if num_bytes is None else num_bytes
        if size < 0:
            self._faults.append(f"tensor {name!r}: {size} bytes; expected >= 0")
        self._tensors[name] = replace(tensor, index=index, shape=shape, bytes=size)
        self._producer[name] = producer
        return name

    def finalize(self, outputs: list[str]) -> TaskGraph:
        """Return the checked graph; tasks come in topological order, ties by order of adding.

        Raises
        ------
        GraphError
            Names that do not exist or repeat, negative sizes, or a cycle (one is named); else what
            is wrong with shared values (`model.shared_values`) or with routers and branches
            (`model.routed_values`). Otherwise all faults at once.
        """
        faults = self._faults + self._unknown_names(outputs)
        if faults:
            raise GraphError(f"graph {self._name!r}: {listed(faults, '; ')}")
        order = topological_order(self._name, self._reads, self._producer)
        task_id = {name: index for index, name in enumerate(order)}
        consumers: dict[str, set[int]] = {name: set() for name in self._tensors}
        for task, reads in self._reads.items():
            for read in reads:
                consumers[read].add(task_id[task])
        tensor_id = {name: index for index, name in enumerate(self._tensors)}
        tensors = []
        for name, tensor in self._tensors.items():
            producer = self._producer[name]
            maker = None if producer is None else task_id[producer]
            readers = tuple(sorted(consumers[name]))
            tensors.append(replace(tensor, producer=maker, consumers=readers))
        graph = TaskGraph(
            self._name,
            tuple(self._tasks[name] for name in order),
            tuple(tensors),
            tuple(i for i, tensor in enumerate(tensors) if tensor.producer is None),
            tuple(tensor_id[name] for name in outputs),
            tuple((tensor_id[state], tensor_id[tensor]) for state, tensor in self._updates),
            self._placed_routers(tensor_id, tensors),
            tuple(self._buffers.items()),
        )
        faults = shared_value_faults(graph) or routed_value_faults(graph)
        if faults:
            raise GraphError(f"graph {self._name!r}: {listed(faults, '; ')}")
        return graph

    def _placed_routers(
        self, tensor_id: Mapping[str, int], tensors: Sequence[Tensor]
    ) -> tuple[Router, ...]:
        """The routers with their ids, in the order of their tasks; -1: a model input's."""
        placed = []
        for router, name in self._routers:
            task = tensors[tensor_id[name]].producer
            placed.append(replace(router, task=-1 if task is None else task, loads=tensor_id[name]))
        return tuple(sorted(placed, key=lambda router: router.task))

    def _unknown_names(self, outputs: list[str]) -> list[str]:
        faults = []
        for tensor, producer in self._producer.items():
            if producer is not None and producer not in self._tasks:
                faults.append(f"tensor {tensor!r}: no task is called {producer!r}")
        for task, reads in self._reads.items():
            for tensor in reads:
                if tensor not in self._tensors:
                    faults.append(f"task {task!r} reads tensor {tensor!r}, which does not exist")
        for tensor in outputs:
            if tensor not in self._tensors:
                faults.append(f"output {tensor!r} does not exist")
        for update in self._updates:
            for tensor in update:
                if tensor not in self._tensors:
                    faults.append(f"update {' -> '.join(update)}: {tensor!r} does not exist")
        for router, loads in self._routers:
            if loads not in self._tensors:
                faults.append(f"router {router.name!r}: its loads {loads!r} do not exist")
        return faults


def tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Return the size in bytes of a tensor, elements rounded up to whole bytes.

    The bits of an element are the first number of its type, times what stands behind an "x".

    >>> tensor_bytes((2, 3), "float16"), tensor_bytes((4,), "float8_e4m3fn")
    (12, 4)
    >>> tensor_bytes((4,), "int12"), tensor_bytes((4,), "float32x4"), tensor_bytes((4,), "bool")
    (8, 64, 4)
    """
    match = re.search(r"(\d+)(?:x(\d+))?", dtype)
    bits = int(match[1]) * int(match[2] or 1) if match else 8
    return prod(shape) * max(1, -(-bits // 8))
