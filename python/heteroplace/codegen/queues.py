"""Instructions -> the queues that carry them out: one per core, per GPU and per copy channel."""

from __future__ import annotations

from collections.abc import Iterable

from heteroplace.codegen.instructions import Instruction
from heteroplace.codegen.program import Queue
from heteroplace.codegen.targets import DL_DEVICE_TYPES
from heteroplace.model.cluster import Cluster
from heteroplace.relay.annotate.writer import home_device

NO_SPACE = -1
"""What a copy queue says in place of a memory: it works in two."""


class QueueTable:
    """The queues that the instructions need, and the ones of each instruction.

    A kernel on a device of several cores is called by the queue of its first core; the queues of
    the others help.
    """

    def __init__(self, cluster: Cluster, instructions: Iterable[Instruction]) -> None:
        self._cluster = cluster
        self._ids: dict[str, int] = {}
        self.queues: list[Queue] = []
        """Without instructions."""
        self.of_item = tuple(self._queues_of(instruction) for instruction in instructions)
        """For each instruction the queue that carries it out, and those that help."""
        if not self.queues:  # A model of reshapes has no kernel, but a run must still end.
            self._device_queues(home_device(cluster))

    def _queues_of(self, instruction: Instruction) -> tuple[int, tuple[int, ...]]:
        if instruction.device is None:
            return self._copy_queue(instruction), ()
        queue, helpers = self._device_queues(instruction.device)
        return queue, () if instruction.call is None else helpers

    def _device_queues(self, index: int) -> tuple[int, tuple[int, ...]]:
        device = self._cluster.devices[index]
        dl_device = (DL_DEVICE_TYPES[device.kind], device.index)
        if device.kind == "cpu":
            ids = [
                self._queue(f"core{core}", "cpu", (dl_device[0], 0), device.memory, core)
                for core in device.cores
            ]
            return ids[0], tuple(ids[1:])
        name = device.units[0].lstrip("/")
        return self._queue(name, device.kind, dl_device, device.memory, None), ()

    def _copy_queue(self, instruction: Instruction) -> int:
        """The queue of the channel that the copy enters; its device is the GPU at one end."""
        link = self._cluster.links[instruction.route[0]]
        ends = {instruction.reads[0][1], instruction.writes[0][1]}
        for device in self._cluster.devices:
            if device.memory in ends and device.kind == "cuda":
                dl_device = (DL_DEVICE_TYPES["cuda"], device.index)
                return self._queue(link.channel, "copy", dl_device, NO_SPACE, None)
        return self._queue(link.channel, "copy", (DL_DEVICE_TYPES["cpu"], 0), NO_SPACE, None)

    def _queue(
        self, name: str, kind: str, dl_device: tuple[int, int], space: int, core: int | None
    ) -> int:
        key = f"{kind}:{name}:{dl_device}"
        if key not in self._ids:
            self._ids[key] = len(self.queues)
            self.queues.append(Queue(name, kind, dl_device, space, core))
        return self._ids[key]
