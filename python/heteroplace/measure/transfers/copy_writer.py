"""Copies and messages that are asked for -> a program of them, over all hosts of a cluster.

There are no kernels: what hands something over, or takes it, copies as much within its memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.errors import ClusterError
from heteroplace.lower.program import (
    ALIGNMENT_BYTES,
    Program,
    ProgramTensor,
    Queue,
    QueueInstruction,
    Space,
)
from heteroplace.model.cluster import Cluster, Device
from heteroplace.native.compiled_file import DL_DEVICE_TYPES

REST_BYTES = 1 << 20
"""Before it hands something over a memory's own queue copies this much: longer than a waiting
worker spins. So copies find their workers asleep, as they mostly do between kernels."""
_NO_SPACE = -1
_CPU = DL_DEVICE_TYPES["cpu"]

Wait = tuple[int, int]
"""(queue, count): until the queue has finished so many instructions."""


class CopyWriter:
    """A program under construction, of all hosts of a cluster.

    Every memory has a home: a queue that produces and consumes there. Two CPU memories of a host
    share one only if they have no two cores between them. Every ordered pair of memories may have
    a copy queue, or messages where the memories are on two hosts.
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
        self._message_queues: dict[tuple[str, int, int], int] = {}
        self._tensors: dict[tuple[int, int, int], int] = {}
        self._last: Wait | None = None
        self._last_memory = 0
        self._num_steps = 0
        self._num_messages = 0

    def produce(self, memory: int, num_bytes: int, place: int) -> tuple[int, int]:
        """Let a memory's queue read what has come to its start, after a rest, and write `place`.

        What was done last on another host is told by a message. Returns the first and the last
        step.
        """
        if self._last is not None and self.host(self._last_memory) != self.host(memory):
            self.carry(self._last_memory, memory, (place, 0), 1)
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
        self._last, self._last_memory = self.finished(home), memory
        return first, last

    def produce_nothing(self, memory: int) -> None:
        """Give a memory's queue something to do, of one byte."""
        tensor = self.tensor(memory, 0, 1)
        self.copy(self._homes[memory], (tensor, tensor), ())

    def carry(self, src: int, dst: int, places: tuple[int, int], num_bytes: int) -> int:
        """Copy or send to another memory what was produced last; return the step."""
        assert self._last is not None
        tensors = (
            self.tensor(src, places[0], num_bytes),
            self.tensor(dst, places[1], num_bytes),
        )
        if self.host(src) == self.host(dst):
            queue = self.copy_queue(src, dst)
            step = self.copy(queue, tensors, (self._last,))
            self._last = self.finished(queue)
        else:
            # What is there of the one before must have been read.
            step = self._num_steps
            readers = (self.finished(self._homes[dst]),)
            self._last = self.send(src, dst, tensors, (self._last,), readers)
        self._last_memory = dst
        return step

    def send(
        self,
        src: int,
        dst: int,
        tensors: tuple[int, int],
        send_waits: Sequence[Wait],
        receive_waits: Sequence[Wait],
    ) -> Wait:
        """Add both sides of a message; return what to wait for on the host that receives it."""
        for kind, host, peer, tensor, waits in (
            ("send", self.host(src), self.host(dst), tensors[0], send_waits),
            ("recv", self.host(dst), self.host(src), tensors[1], receive_waits),
        ):
            queue = self._message_queue(kind, host, peer)
            self._add(queue, kind, (self._num_messages, tensor), waits)
        self._num_messages += 1
        return self.finished(queue)

    def mark(self, memory: int, *waits: Wait) -> int:
        """Let a memory's queue copy a byte after something; return the step."""
        tensor = self.tensor(memory, ALIGNMENT_BYTES, 1)
        return self.copy(self._homes[memory], (tensor, tensor), waits)

    def do_little(self, memory: int, waits: Sequence[Wait]) -> Wait:
        """The same; return what to wait for."""
        self.mark(memory, *waits)
        return self.finished(self._homes[memory])

    def copy(self, queue: int, tensors: tuple[int, int], waits: Sequence[Wait]) -> int:
        """Add a copy to a queue and return its step; it need not wait for its own queue."""
        return self._add(queue, "copy", tensors, waits)

    def host(self, memory: int) -> int:
        """The rank of a memory's host."""
        return self._cluster.hosts.index(self._cluster.memory_hosts[memory])

    def finished(self, queue: int) -> Wait:
        """What to wait for: that all that the queue has so far is done."""
        return queue, len(self._queues[queue].instructions)

    def tensor(self, memory: int, place: int, num_bytes: int) -> int:
        """The id of a tensor of bytes in a memory's arena."""
        return self._tensors.setdefault((memory, place, num_bytes), len(self._tensors))

    def copy_queue(self, src: int, dst: int) -> int:
        """The queue of copies from `src` to `dst`; its device is the first GPU at an end, if any.

        A core that has no copy engine copies what it gets itself, and else what it gives. The same
        as in plans (`heteroplace.lower.order.queues`).
        """
        copying = self._cluster.copying_device(src, dst)
        if copying is not None:
            return self._homes[self._cluster.devices[copying].memory]
        if (src, dst) not in self._copy_queues:
            self._copy_queues[src, dst] = len(self._queues)
            gpus = [
                (DL_DEVICE_TYPES[device.kind], device.index)
                for device in self._cluster.devices
                if device.memory in (src, dst) and device.kind == "cuda"
            ]
            device = gpus[0] if gpus else (_CPU, 0)
            names = (self._cluster.memories[end].name for end in (src, dst))
            name, host = "->".join(names), self.host(src)
            self._queues.append(Queue(name, "copy", device, _NO_SPACE, None, host=host))
        return self._copy_queues[src, dst]

    def finish(self) -> Program:
        """Return the program, of all hosts together."""
        tensors = tuple(
            ProgramTensor(memory, "arena", place, "uint8", (num_bytes,))
            for memory, place, num_bytes in self._tensors
        )
        return Program(tuple(self._spaces), tuple(self._queues), (), tensors, (), (), ())

    def _add(self, queue: int, kind: str, fields: Sequence[int], waits: Sequence[Wait]) -> int:
        latest: dict[int, int] = {}
        for other, count in waits:
            if other != queue and count:
                latest[other] = max(count, latest.get(other, 0))
        step = self._num_steps
        self._num_steps += 1
        instruction = QueueInstruction(
            kind, step, tuple(map(str, fields)), tuple(sorted(latest.items()))
        )
        self._queues[queue].instructions.append(instruction)
        return step

    def _message_queue(self, kind: str, host: int, peer: int) -> int:
        key = (kind, host, peer)
        if key not in self._message_queues:
            self._message_queues[key] = len(self._queues)
            name = f"{'to' if kind == 'send' else 'from'} rank {peer}"
            device = (_CPU, 0)
            self._queues.append(Queue(name, kind, device, _NO_SPACE, None, host=host, peer=peer))
        return self._message_queues[key]

    def _make_homes(self, num_memories: int) -> list[int]:
        """The home of each memory. Those with the fewest cores choose theirs first."""
        homes = [-1] * num_memories
        of_core: dict[tuple[int, int], int] = {}
        cores = [self._cores_of(memory) for memory in range(num_memories)]
        for memory in sorted(range(num_memories), key=lambda memory: len(cores[memory])):
            host = self.host(memory)
            core = next((core for core in cores[memory] if (host, core) not in of_core), None)
            if cores[memory] and core is None:
                # Two workers on one core are refused, since they would wait for each other.
                homes[memory] = of_core[host, cores[memory][0]]
                continue
            if core is not None:
                of_core[host, core] = len(self._queues)
            homes[memory] = len(self._queues)
            name = f"in {self._cluster.memories[memory].name}"
            kind = self._device_of(memory)[0]
            self._queues.append(Queue(name, kind, self._dl_device(memory), memory, core, host=host))
        return homes

    def _devices_of(self, memory: int) -> list[Device]:
        return [device for device in self._cluster.devices if device.memory == memory]

    def _cores_of(self, memory: int) -> list[int]:
        """Cores of the CPU devices of a memory, each once; none for a GPU's."""
        return list(
            dict.fromkeys(
                core
                for device in self._devices_of(memory)
                if device.kind == "cpu"
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
