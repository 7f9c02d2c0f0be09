"""Plan + rows -> program: queues, waits, memory.

One queue for each core, each GPU and each copy channel that the plan uses. A kernel on a device of
several cores is called by the queue of its first core; the queues of the others join it. A wait is
written only where the order within queues does not imply it already (vector clocks).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from heteroplace.codegen.kernels import Rows
from heteroplace.codegen.memory_plan import Arena
from heteroplace.codegen.order import Instance, Item, order_items, root
from heteroplace.codegen.program import (
    ALIGNMENT_BYTES,
    Constant,
    Instruction,
    Program,
    ProgramTensor,
    Queue,
    Space,
)
from heteroplace.codegen.targets import DL_DEVICE_TYPES
from heteroplace.errors import InfeasibleError, LoweringError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.timeline import Timeline
from heteroplace.model.units import format_bytes

_NO_SPACE = -1
"""What a copy queue says in place of a memory: it works in two."""


@dataclass(frozen=True)
class Lowered:
    """A program and the weights that it refers to."""

    program: Program
    weights: tuple[np.ndarray, ...]
    """To be laid out one after the other at the offsets of the program's constants."""
    blob_bytes: int
    memory_bytes: tuple[int, ...]
    """For each memory of the cluster: arena and weights."""


def lower(
    rows: Rows, graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Timeline
) -> Lowered:
    """Write the program of a plan.

    Parameters
    ----------
    predicted
        The simulated timeline of `plan`: it decides which memory is reused by whom.

    Raises
    ------
    LoweringError
        Rows and plan do not belong together, or the plan is for several items.
    InfeasibleError
        Weights and values do not fit in some memory, even with all reuse that the order allows.
    """
    if plan.items != 1:
        raise LoweringError(
            f"the plan by {plan.origin!r} is for {plan.items} items; a program runs one. Compile a "
            f"plan of one item, or a model whose inputs hold {plan.items} (its batch dimension)"
        )
    items = order_items(rows, graph, cluster, plan, predicted)
    lowered = _Lowering(rows, graph, cluster, items, is_tight=False).run()
    if _excess(lowered, cluster):
        lowered = _Lowering(rows, graph, cluster, items, is_tight=True).run()
    excess = _excess(lowered, cluster)
    if excess:
        raise InfeasibleError("the compiled program does not fit: " + "; ".join(excess))
    return lowered


def _excess(lowered: Lowered, cluster: Cluster) -> list[str]:
    pairs = zip(cluster.memories, lowered.memory_bytes, strict=True)
    return [
        f"memory {memory.name!r} has {format_bytes(memory.bytes)}, the program needs "
        f"{format_bytes(needed)} (weights and live values); allow other devices, or give it more"
        for memory, needed in pairs
        if needed > memory.bytes
    ]


class _Lowering:
    """State of one walk over the items in global order."""

    def __init__(
        self,
        rows: Rows,
        graph: TaskGraph,
        cluster: Cluster,
        items: tuple[Item, ...],
        is_tight: bool,
    ) -> None:
        self._rows = rows
        self._graph = graph
        self._cluster = cluster
        self._items = items
        self._is_tight = is_tight
        self._arenas = [Arena() for _ in cluster.memories]
        self._queues: list[Queue] = []
        self._queue_ids: dict[str, int] = {}
        self._clock: list[dict[int, int]] = []
        self._done: dict[int, tuple[int, int, dict[int, int]]] = {}
        self._offsets: dict[Instance, int] = {}
        self._writer: dict[Instance, int] = {}
        self._users: dict[Instance, list[int]] = {}
        self._num_readers: dict[Instance, int] = {}
        self._tensors: dict[tuple[int, int], int] = {}
        self._tensor_list: list[ProgramTensor] = []
        self._constants: list[Constant] = []
        self._constant_ids: dict[tuple[int, str], int] = {}
        self._blob_offsets: dict[str, int] = {}
        self._weights: list[np.ndarray] = []
        self._blob_bytes = 0
        self._kernels: dict[str, int] = {}

    def run(self) -> Lowered:
        self._place_inputs()
        kept = {(root(self._rows, value), self._cluster.host) for value in self._rows.outputs} | {
            instance for instance in self._offsets
        }
        for item in self._items:
            for instance in item.reads:
                self._num_readers[instance] = self._num_readers.get(instance, 0) + 1
        for index, item in enumerate(self._items):
            self._emit(index, item, kept)
        return self._finish()

    def _place_inputs(self) -> None:
        """Inputs come first and are never overwritten: they may be set once and run many times."""
        assert self._cluster.host is not None
        for value_id, value in enumerate(self._rows.values):
            if value.input_name is not None:
                instance = (value_id, self._cluster.host)
                arena = self._arenas[self._cluster.host]
                self._offsets[instance], _ = arena.allocate(value_id, value.bytes, lambda _: True)
                self._users[instance] = []

    def _emit(self, index: int, item: Item, kept: set[tuple[int, int | None]]) -> None:
        queue, helpers = self._queues_of(item)
        # Nobody writes an input: it is there before the run.
        needed = [self._writer[instance] for instance in item.reads if instance in self._writer]
        for instance in item.writes:
            offset, users = self._arenas[instance[1]].allocate(
                instance[0],
                self._rows.values[instance[0]].bytes,
                lambda user: self._may_wait(user, queue, item),
            )
            self._offsets[instance] = offset
            self._writer[instance] = index
            self._users[instance] = [index]
            needed += users
        waits = self._waits(queue, needed)
        position = len(self._queues[queue].instructions)
        instruction = self._instruction(item, len(helpers) + 1)
        instruction.waits = waits
        self._queues[queue].instructions.append(instruction)
        self._clock[queue][queue] = position + 1
        self._done[index] = (queue, position, dict(self._clock[queue]))
        for helper in helpers:
            fields = (str(queue), str(position))
            self._queues[helper].instructions.append(Instruction("join", item.step, fields))
            self._learn(helper, self._clock[queue])
            self._clock[helper][helper] = len(self._queues[helper].instructions)
        self._retire(index, item, kept)

    def _retire(self, index: int, item: Item, kept: set[tuple[int, int | None]]) -> None:
        for instance in item.reads:
            self._users[instance].append(index)
            self._num_readers[instance] -= 1
        for instance in (*item.reads, *item.writes):
            if self._num_readers.get(instance, 0) == 0 and instance not in kept:
                self._arenas[instance[1]].retire(instance[0], tuple(self._users[instance]))

    def _may_wait(self, user: int, queue: int, item: Item) -> bool:
        """Whether `item` loses nothing by waiting for the item `user`."""
        other, position, _ = self._done[user]
        if other == queue or self._clock[queue].get(other, 0) > position:
            return True
        return self._is_tight or self._items[user].finish_ns <= item.start_ns

    def _waits(self, queue: int, needed: list[int]) -> tuple[tuple[int, int], ...]:
        """The waits that are not implied; each one teaches the queue what its target knew."""
        waits: dict[int, int] = {}
        # The latest first: it may imply the others.
        for user in sorted(dict.fromkeys(needed), reverse=True):
            other, position, clock = self._done[user]
            if other == queue or self._clock[queue].get(other, 0) > position:
                continue
            waits[other] = max(waits.get(other, 0), position + 1)
            self._learn(queue, clock)
        return tuple(sorted(waits.items()))

    def _learn(self, queue: int, clock: dict[int, int]) -> None:
        own = self._clock[queue]
        for other, count in clock.items():
            if other != queue:
                own[other] = max(own.get(other, 0), count)

    def _queues_of(self, item: Item) -> tuple[int, tuple[int, ...]]:
        """The queue that carries the item out, and those that help."""
        if item.device is None:
            return self._copy_queue(item), ()
        device = self._cluster.devices[item.device]
        dl_device = (DL_DEVICE_TYPES[device.kind], device.index)
        if device.kind == "cpu":
            ids = [
                self._queue(f"core{core}", "cpu", (dl_device[0], 0), device.memory, core)
                for core in device.cores
            ]
            return ids[0], tuple(ids[1:])
        name = device.units[0].lstrip("/")
        return self._queue(name, device.kind, dl_device, device.memory, None), ()

    def _copy_queue(self, item: Item) -> int:
        """The queue of the channel that the copy enters; its device is the GPU at one end."""
        link = self._cluster.links[item.route[0]]
        ends = {item.reads[0][1], item.writes[0][1]}
        for device in self._cluster.devices:
            if device.memory in ends and device.kind == "cuda":
                dl_device = (DL_DEVICE_TYPES["cuda"], device.index)
                return self._queue(link.channel, "copy", dl_device, _NO_SPACE, None)
        return self._queue(link.channel, "copy", (DL_DEVICE_TYPES["cpu"], 0), _NO_SPACE, None)

    def _queue(
        self, name: str, kind: str, dl_device: tuple[int, int], space: int, core: int | None
    ) -> int:
        key = f"{kind}:{name}:{dl_device}"
        if key not in self._queue_ids:
            self._queue_ids[key] = len(self._queues)
            self._queues.append(Queue(name, kind, dl_device, space, core))
            self._clock.append({})
        return self._queue_ids[key]

    def _instruction(self, item: Item, num_threads: int) -> Instruction:
        if item.row is None:
            source, target = item.reads[0], item.writes[0]
            tensors = (self._tensor(*source), self._tensor(*target))
            return Instruction("copy", item.step, tuple(map(str, tensors)))
        row = self._rows.rows[item.row]
        assert item.device is not None
        memory = self._cluster.devices[item.device].memory
        arguments = [self._tensor(value, memory) for value in (*row.reads, *row.writes)]
        kernel = self._kernels.setdefault(row.kernel, len(self._kernels))
        fields = (str(kernel), str(num_threads), ",".join(map(str, arguments)))
        return Instruction("call", item.step, fields)

    def _tensor(self, value: int, memory: int) -> int:
        """The program's tensor for a value in a memory; made once."""
        if (value, memory) not in self._tensors:
            owner = root(self._rows, value)
            shape, dtype = self._rows.values[value].shape, self._rows.values[value].dtype
            weights = self._rows.values[owner].constant
            if weights is not None:
                place, storage = self._constant(weights, memory), "constant"
            else:
                place, storage = self._offsets[owner, memory], "arena"
            self._tensors[value, memory] = len(self._tensor_list)
            self._tensor_list.append(ProgramTensor(memory, storage, place, dtype, shape))
        return self._tensors[value, memory]

    def _constant(self, weights: np.ndarray, memory: int) -> int:
        """The id of a constant with this content; equal weights are stored once."""
        data = np.ascontiguousarray(weights)
        digest = hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest()
        if digest not in self._blob_offsets:
            self._blob_offsets[digest] = self._blob_bytes
            self._weights.append(data)
            self._blob_bytes += -(-max(data.nbytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if (memory, digest) not in self._constant_ids:
            self._constant_ids[memory, digest] = len(self._constants)
            constant = Constant(memory, self._blob_offsets[digest], data.nbytes)
            self._constants.append(constant)
        return self._constant_ids[memory, digest]

    def _finish(self) -> Lowered:
        host = self._cluster.host
        assert host is not None
        inputs = []
        for value_id, value in enumerate(self._rows.values):
            if value.input_name is not None:
                inputs.append((value.input_name, self._tensor(value_id, host)))
        outputs = [
            (f"output{index}", self._tensor(value, host))
            for index, value in enumerate(self._rows.outputs)
        ]
        memory_bytes = []
        for index, arena in enumerate(self._arenas):
            weights = sum(c.bytes for c in self._constants if c.space == index)
            memory_bytes.append(arena.size_bytes + weights)
        if not self._queues:
            raise LoweringError("the plan runs nothing: the model has no computation in it")
        # A machine needs only the memories that the plan uses.
        used = {part.space for part in (*self._queues, *self._constants, *self._tensor_list)}
        memories = sorted(used - {_NO_SPACE})
        space_of = {memory: space for space, memory in enumerate(memories)} | {_NO_SPACE: _NO_SPACE}
        spaces = [
            Space(
                self._cluster.memories[memory].name,
                self._dl_device(memory),
                self._arenas[memory].size_bytes,
            )
            for memory in memories
        ]
        for queue in self._queues:
            queue.space = space_of[queue.space]
        program = Program(
            tuple(spaces),
            tuple(self._queues),
            tuple(
                replace(constant, space=space_of[constant.space]) for constant in self._constants
            ),
            tuple(replace(tensor, space=space_of[tensor.space]) for tensor in self._tensor_list),
            tuple(inputs),
            tuple(outputs),
            tuple(self._kernels),
        )
        return Lowered(program, tuple(self._weights), self._blob_bytes, tuple(memory_bytes))

    def _dl_device(self, memory: int) -> tuple[int, int]:
        for device in self._cluster.devices:
            if device.memory == memory:
                ordinal = 0 if device.kind == "cpu" else device.index
                return (DL_DEVICE_TYPES[device.kind], ordinal)
        return (DL_DEVICE_TYPES["cpu"], 0)
