"""Memories of a cluster -> programs of copies only, for the executor that runs plans.

What is costed is what is run: the copies go through the executor's own copy queues, between its
own arenas, and are awaited as in a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heteroplace.codegen.program import Program, ProgramTensor, Queue, QueueInstruction, Space
from heteroplace.codegen.targets import DL_DEVICE_TYPES
from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Cluster
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.tvm_bridge import library_path

REST_BYTES = 1 << 20
"""Before it hands something over a memory's own queue copies this much: longer than a waiting
worker spins. So copies find their workers asleep, as they mostly do between kernels."""
_NUM_WARM_TRIPS = 4
"""Trips of each pair that do not count: the first ones wake workers that have slept for long, maybe
on a core that another program has had meanwhile."""
_NO_SPACE = -1
_CPU = DL_DEVICE_TYPES["cpu"]


@dataclass(frozen=True)
class Trip:
    """The steps of one trip there and back: `low` hands over to `high`, and it back to `low`."""

    low: int
    high: int
    bytes: int
    low_done: int
    """Step after which `low` has the data to give."""
    there: int
    """The copy to `high`."""
    high_begin: int
    """First and last step of `high` between the copies."""
    high_done: int
    back: int
    low_begin: int
    """First step of `low` that needs the copy back."""


@dataclass(frozen=True)
class Phase:
    """Copies over one link, or over two at once."""

    links: tuple[int, ...]
    first: tuple[int, ...]
    """For each of `links` the step of its first copy."""
    last: tuple[int, ...]


def load_program(program: Program) -> NativeExecutor:
    """Return an executor of a program without kernels."""
    return NativeExecutor(str(library_path()), "", program.to_text())


def round_trips(cluster: Cluster, sizes: Sequence[int]) -> tuple[Program, tuple[Trip, ...]]:
    """Return one chain of trips between all pairs of memories, with all sizes.

    Each pair starts with some short trips that are not returned.
    """
    largest = _aligned(max(sizes))
    writer = _Writer(cluster, [2 * largest + 2 * REST_BYTES] * len(cluster.memories))
    trips = []
    for low in range(len(cluster.memories)):
        for high in range(low + 1, len(cluster.memories)):
            steps = []
            for size in (*([sizes[0]] * _NUM_WARM_TRIPS), *sizes):
                low_begin, low_done = writer.produce(low, size, largest)
                there = writer.carry(low, high, (largest, 0), size)
                high_begin, high_done = writer.produce(high, size, largest)
                back = writer.carry(high, low, (largest, 0), size)
                steps.append((low_begin, low_done, there, high_begin, high_done, back))
            end, _ = writer.produce(low, sizes[0], largest)
            begins = [*(low_begin for low_begin, *_ in steps[1:]), end]
            counted = list(zip(steps, begins, strict=True))[_NUM_WARM_TRIPS:]
            for size, ((_, done, there, first, last, back), begin) in zip(
                sizes, counted, strict=True
            ):
                trips.append(Trip(low, high, size, done, there, first, last, back, begin))
    return writer.finish(), tuple(trips)


def contention(
    cluster: Cluster,
    links: Sequence[tuple[int, int]],
    counts: Sequence[Sequence[int]],
    groups: Sequence[Sequence[int]],
    num_bytes: int,
) -> tuple[Program, tuple[Phase, ...]]:
    """Return a program of phases; in each the links of one group copy at once.

    Parameters
    ----------
    links : sequence of (int, int)
        Memories from and to.
    counts : sequence of sequence of int
        For each group and each of its links how many copies it makes, one after the other.
    groups : sequence of sequence of int
        Positions in `links`.
    num_bytes : int
        Size of each copy. Every link has bytes of its own in both of its memories.
    """
    stride = _aligned(num_bytes)
    users = [[i for i, ends in enumerate(links) if m in ends] for m in range(len(cluster.memories))]
    writer = _Writer(cluster, [stride * len(found) for found in users])
    phases = []
    awaited: tuple[tuple[int, int], ...] = ()
    for group, times in zip(groups, counts, strict=True):
        first, last, ends = [], [], []
        for link, count in zip(group, times, strict=True):
            src, dst = links[link]
            places = (users[src].index(link) * stride, users[dst].index(link) * stride)
            queue = writer.copy_queue(src, dst)
            tensors = (
                writer.tensor(src, places[0], num_bytes),
                writer.tensor(dst, places[1], num_bytes),
            )
            steps = [
                writer.copy(queue, tensors, awaited if index == 0 else ()) for index in range(count)
            ]
            first.append(steps[0])
            last.append(steps[-1])
            ends.append(writer.finished(queue))
        awaited = tuple(ends)
        phases.append(Phase(tuple(group), tuple(first), tuple(last)))
    return writer.finish(), tuple(phases)


def ports(cluster: Cluster, memory: int, sizes: Sequence[int]) -> Program:
    """Return a program that does nothing, with inputs "in<bytes>" and outputs "out<bytes>"."""
    writer = _Writer(cluster, [max(sizes) if m == memory else 0 for m in range(memory + 1)])
    writer.produce_nothing(memory)
    program = writer.finish()
    first = len(program.tensors)
    tensors = tuple(ProgramTensor(memory, "arena", 0, "uint8", (size,)) for size in sizes)
    return replace(
        program,
        tensors=(*program.tensors, *tensors),
        inputs=tuple((f"in{size}", first + index) for index, size in enumerate(sizes)),
        outputs=tuple((f"out{size}", first + index) for index, size in enumerate(sizes)),
    )


def two_cores(cores: tuple[int, int]) -> Program:
    """Return a program of two idle workers, on two cores."""
    spaces = (Space("ram", (_CPU, 0), 0),)
    queues = tuple(Queue(f"core{core}", "cpu", (_CPU, 0), 0, core) for core in cores)
    return Program(spaces, queues, (), (), (), (), ())


class _Writer:
    """A program under construction.

    Every memory has a home: a queue that produces and consumes there. Two CPU memories share one
    only if they have no two cores between them. Every ordered pair may have a copy queue.
    """

    def __init__(self, cluster: Cluster, arena_bytes: Sequence[int]) -> None:
        self._cluster = cluster
        self._spaces = [
            Space(cluster.memories[index].name, self._dl_device(index), max(num_bytes, 1))
            for index, num_bytes in enumerate(arena_bytes)
        ]
        self._queues: list[Queue] = []
        self._homes = self._make_homes(len(arena_bytes))
        self._copy_queues: dict[tuple[int, int], int] = {}
        self._tensors: dict[tuple[int, int, int], int] = {}
        self._last: tuple[int, int] | None = None
        self._num_steps = 0

    def produce(self, memory: int, num_bytes: int, place: int) -> tuple[int, int]:
        """Let a memory's queue read what has come to its start, after a rest, and write `place`.

        Returns the first and the last step.
        """
        home = self._homes[memory]
        waits = () if self._last is None else (self._last,)
        rest = 2 * place
        rest_tensors = (
            self.tensor(memory, rest, REST_BYTES),
            self.tensor(memory, rest + REST_BYTES, REST_BYTES),
        )
        first = self.copy(home, rest_tensors, waits)
        data = (self.tensor(memory, 0, num_bytes), self.tensor(memory, place, num_bytes))
        last = self.copy(home, data, ())
        self._last = self.finished(home)
        return first, last

    def produce_nothing(self, memory: int) -> None:
        """Give a memory's queue something to do, of one byte."""
        tensor = self.tensor(memory, 0, 1)
        self.copy(self._homes[memory], (tensor, tensor), ())

    def carry(self, src: int, dst: int, places: tuple[int, int], num_bytes: int) -> int:
        """Copy to another memory what was produced last; return the step."""
        queue = self.copy_queue(src, dst)
        tensors = (
            self.tensor(src, places[0], num_bytes),
            self.tensor(dst, places[1], num_bytes),
        )
        assert self._last is not None
        step = self.copy(queue, tensors, (self._last,))
        self._last = self.finished(queue)
        return step

    def copy(self, queue: int, tensors: tuple[int, int], waits: tuple[tuple[int, int], ...]) -> int:
        """Add a copy to a queue and return its step; it need not wait for its own queue."""
        others = tuple(wait for wait in waits if wait[0] != queue)
        step = self._num_steps
        self._num_steps += 1
        instruction = QueueInstruction("copy", step, tuple(map(str, tensors)), others)
        self._queues[queue].instructions.append(instruction)
        return step

    def finished(self, queue: int) -> tuple[int, int]:
        """What to wait for: that all that the queue has so far is done."""
        return queue, len(self._queues[queue].instructions)

    def tensor(self, memory: int, place: int, num_bytes: int) -> int:
        """The id of a tensor of bytes in a memory's arena."""
        return self._tensors.setdefault((memory, place, num_bytes), len(self._tensors))

    def copy_queue(self, src: int, dst: int) -> int:
        """The queue of copies from `src` to `dst`; its device is the first GPU at an end, if any.

        The same as in plans (`heteroplace.codegen.lower`).
        """
        if (src, dst) not in self._copy_queues:
            self._copy_queues[src, dst] = len(self._queues)
            gpus = [
                (DL_DEVICE_TYPES[device.kind], device.index)
                for device in self._cluster.devices
                if device.memory in (src, dst) and device.kind == "cuda"
            ]
            device = gpus[0] if gpus else (_CPU, 0)
            names = (self._cluster.memories[end].name for end in (src, dst))
            self._queues.append(Queue("->".join(names), "copy", device, _NO_SPACE, None))
        return self._copy_queues[src, dst]

    def finish(self) -> Program:
        """Return the program."""
        tensors = tuple(
            ProgramTensor(memory, "arena", place, "uint8", (num_bytes,))
            for memory, place, num_bytes in self._tensors
        )
        return Program(tuple(self._spaces), tuple(self._queues), (), tensors, (), (), ())

    def _make_homes(self, num_memories: int) -> list[int]:
        """The home of each memory. Those with the fewest cores choose theirs first."""
        homes = [-1] * num_memories
        of_core: dict[int, int] = {}
        cores = [self._cores_of(memory) for memory in range(num_memories)]
        for memory in sorted(range(num_memories), key=lambda memory: len(cores[memory])):
            core = next((core for core in cores[memory] if core not in of_core), None)
            if cores[memory] and core is None:
                # Two workers on one core are refused, since they would wait for each other.
                homes[memory] = of_core[cores[memory][0]]
                continue
            if core is not None:
                of_core[core] = len(self._queues)
            homes[memory] = len(self._queues)
            name = f"in {self._cluster.memories[memory].name}"
            kind = self._device_of(memory)[0]
            self._queues.append(Queue(name, kind, self._dl_device(memory), memory, core))
        return homes

    def _cores_of(self, memory: int) -> list[int]:
        """Cores of the CPU devices of a memory, each once; none for a GPU's."""
        return list(
            dict.fromkeys(
                core
                for device in self._cluster.devices
                if device.memory == memory and device.kind == "cpu"
                for core in device.cores
            )
        )

    def _dl_device(self, memory: int) -> tuple[int, int]:
        kind, index = self._device_of(memory)
        return DL_DEVICE_TYPES[kind], 0 if kind == "cpu" else index

    def _device_of(self, memory: int) -> tuple[str, int]:
        """Kind and number of the first device that works in a memory."""
        for device in self._cluster.devices:
            if device.memory == memory and (device.kind != "cpu" or device.cores):
                return device.kind, device.index
        raise ClusterError(
            f"memory {self._cluster.memories[memory].name!r} has no device whose cores or GPU are "
            f"known, so nobody can fill it or read it; give one of its devices 'cores'"
        )


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // 4096) * 4096
