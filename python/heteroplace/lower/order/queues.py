"""Instructions -> the queues that carry them out: one per core, per GPU and per copy channel, and
for messages one per ordered pair of hosts on either side."""

from __future__ import annotations

from collections.abc import Iterable

from heteroplace.errors import LoweringError
from heteroplace.lower.order.instructions import Instruction
from heteroplace.lower.program import Queue
from heteroplace.model.cluster import Cluster
from heteroplace.native.compiled_file import DL_DEVICE_TYPES
from heteroplace.relay.annotate.writer import home_device

NO_SPACE = -1
"""What a copy queue says in place of a memory: it works in two."""


class QueueTable:
    """The queues that the instructions need, and the ones of each instruction.

    A kernel on a device of several cores is called by the queue of its first core; the queues of
    the others help. Every host has a queue that is not for messages.

    Raises
    ------
    LoweringError
        A host of several has no device.
    """

    def __init__(self, cluster: Cluster, instructions: Iterable[Instruction]) -> None:
        self._cluster = cluster
        self._ids: dict[str, int] = {}
        self.queues: list[Queue] = []
        """Without instructions."""
        self.of_item = tuple(self._queues_of(instruction) for instruction in instructions)
        """For each instruction the queue that carries it out, and those that help."""
        for rank in range(len(cluster.hosts)):
            # A model of reshapes has no kernel, and a plan may have none for a host: runs must end.
            if not any(queue.host == rank and queue.peer is None for queue in self.queues):
                self._device_queues(self._first_device(rank))

    def _first_device(self, rank: int) -> int:
        """The home device, or on other hosts the first one, a CPU if there is one."""
        home = home_device(self._cluster)
        devices, host = self._cluster.devices, self._cluster.hosts[rank]
        if devices[home].host == host:
            return home
        there = [index for index, device in enumerate(devices) if device.host == host]
        if not there:
            memories = zip(self._cluster.memories, self._cluster.memory_hosts, strict=True)
            name = next(memory.name for memory, at in memories if at == host)
            raise LoweringError(
                f"memory {name!r} is on host {host!r}, which has no device, so no process could "
                f'run there; name its host in the cluster ("host")'
            )
        return min(there, key=lambda index: devices[index].kind != "cpu")

    def _queues_of(self, instruction: Instruction) -> tuple[int, tuple[int, ...]]:
        if instruction.message is not None:
            return self._message_queue(instruction), ()
        if instruction.device is None:
            # A thread for the channel would be woken for each copy, and take the core away from
            # its own.
            src, dst = instruction.origin[1], instruction.writes[0][1]
            device = self._cluster.copying_device(src, dst)
            if device is not None:
                return self._device_queues(device)[0], ()
            return self._copy_queue(instruction), ()
        if instruction.members:
            each = (self._device_queues(device) for device in instruction.devices)
            first, *others = sorted({own for queue, more in each for own in (queue, *more)})
            return first, tuple(others)
        queue, helpers = self._device_queues(instruction.device)
        return queue, () if instruction.call is None else helpers

    def _device_queues(self, index: int) -> tuple[int, tuple[int, ...]]:
        device = self._cluster.devices[index]
        dl_device = (DL_DEVICE_TYPES[device.kind], device.index)
        rank = self._rank(device.memory)
        if device.kind == "cpu":
            ids = [
                self._queue(f"core{core}", "cpu", (dl_device[0], 0), device.memory, core, rank)
                for core in device.cores
            ]
            return ids[0], tuple(ids[1:])
        name = device.units[0].lstrip("/")
        return self._queue(name, device.kind, dl_device, device.memory, None, rank), ()

    def _copy_queue(self, instruction: Instruction) -> int:
        """The queue of the channel that the copy enters; its device is the GPU at one end."""
        link = self._cluster.links[instruction.route[0]]
        ends = {instruction.origin[1], instruction.writes[0][1]}
        rank = self._rank(instruction.writes[0][1])
        for device in self._cluster.devices:
            if device.memory in ends and device.kind == "cuda":
                dl_device = (DL_DEVICE_TYPES["cuda"], device.index)
                return self._queue(link.channel, "copy", dl_device, NO_SPACE, None, rank)
        return self._queue(link.channel, "copy", (DL_DEVICE_TYPES["cpu"], 0), NO_SPACE, None, rank)

    def _message_queue(self, instruction: Instruction) -> int:
        """The queue of all messages from the one host to the other, whatever links they take."""
        link = self._cluster.links[instruction.route[0]]
        src, dst = (self._cluster.memory_hosts[memory] for memory in (link.src, link.dst))
        ranks = self._cluster.hosts.index(src), self._cluster.hosts.index(dst)
        cpu = (DL_DEVICE_TYPES["cpu"], 0)
        if instruction.is_send:
            name = f"to {dst or f'rank {ranks[1]}'}"
            return self._queue(name, "send", cpu, NO_SPACE, None, ranks[0], ranks[1])
        name = f"from {src or f'rank {ranks[0]}'}"
        return self._queue(name, "recv", cpu, NO_SPACE, None, ranks[1], ranks[0])

    def _rank(self, memory: int) -> int:
        return self._cluster.hosts.index(self._cluster.memory_hosts[memory])

    def _queue(
        self,
        name: str,
        kind: str,
        dl_device: tuple[int, int],
        space: int,
        core: int | None,
        rank: int,
        peer: int | None = None,
    ) -> int:
        key = f"{rank}:{kind}:{name}:{dl_device}:{peer}"
        if key not in self._ids:
            self._ids[key] = len(self.queues)
            self.queues.append(Queue(name, kind, dl_device, space, core, host=rank, peer=peer))
        return self._ids[key]
