"""Program of all hosts -> one program for each, which its rank runs.

Each has the queues of its host with all their instructions, in their order, and of everything else
what these name; ids are dense again, in the same order. Put together, the parts are the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from heteroplace.lower.program import Program, Queue, QueueInstruction, Rank


def project(program: Program, hosts: Sequence[str], feeder: int) -> tuple[Program, ...]:
    """Return the program of each host; the whole as it is if there is only one.

    Parameters
    ----------
    program
        Whose waits are each within a host.
    hosts
        Names, by rank.
    feeder
        The rank that has inputs and outputs; state is where it is replaced.
    """
    if len(hosts) == 1:
        return (program,)
    return tuple(
        _Part(program, rank, feeder).program(Rank(rank, len(hosts), host))
        for rank, host in enumerate(hosts)
    )


def named_tensors(instruction: QueueInstruction) -> list[int]:
    """Return the ids of the tensors that an instruction names, in its order."""
    if instruction.kind == "call":
        return [int(text) for text in instruction.fields[2].split(",")]
    if instruction.kind == "copy":
        return [int(text) for text in instruction.fields]
    return [] if instruction.kind == "join" else [int(instruction.fields[1])]


class _Part:
    """What is on one host: old ids, ascending, and the new id of each."""

    def __init__(self, whole: Program, rank: int, feeder: int) -> None:
        self._whole = whole
        # State is on the host that replaces it, which has a queue for that.
        host_of = {queue.space: queue.host for queue in whole.queues}
        self._ports = tuple(
            tuple(
                (name, tensor)
                for name, tensor in ports
                if host_of.get(whole.tensors[tensor].space, feeder) == rank
            )
            for ports in (whole.inputs, whole.outputs)
        )
        self._queues = _ids(index for index, each in enumerate(whole.queues) if each.host == rank)
        instructions = [each for at in self._queues for each in whole.queues[at].instructions]
        tensors = [tensor for each in instructions for tensor in named_tensors(each)]
        tensors += [tensor for ports in self._ports for _, tensor in ports]
        self._tensors = _ids(tensors)
        named = [whole.tensors[tensor] for tensor in self._tensors]
        self._constants = _ids(each.place for each in named if each.storage == "constant")
        self._kernels = _ids(int(each.fields[0]) for each in instructions if each.kind == "call")
        spaces = [each.space for each in named] + [whole.queues[at].space for at in self._queues]
        self._spaces = _ids(space for space in spaces if space >= 0)

    def program(self, rank: Rank) -> Program:
        whole = self._whole
        constants = [whole.constants[at] for at in self._constants]
        tensors = []
        for tensor in (whole.tensors[at] for at in self._tensors):
            is_constant = tensor.storage == "constant"
            place = self._constants[tensor.place] if is_constant else tensor.place
            tensors.append(replace(tensor, space=self._spaces[tensor.space], place=place))
        inputs, outputs = (
            tuple((name, self._tensors[tensor]) for name, tensor in ports) for ports in self._ports
        )
        return Program(
            tuple(whole.spaces[at] for at in self._spaces),
            tuple(self._queue(whole.queues[at]) for at in self._queues),
            tuple(replace(each, space=self._spaces[each.space]) for each in constants),
            tuple(tensors),
            inputs,
            outputs,
            tuple(whole.kernels[at] for at in self._kernels),
            rank,
        )

    def _queue(self, queue: Queue) -> Queue:
        space = self._spaces.get(queue.space, queue.space)
        return replace(
            queue, space=space, instructions=[self._instruction(e) for e in queue.instructions]
        )

    def _instruction(self, instruction: QueueInstruction) -> QueueInstruction:
        first, *rest = instruction.fields
        tensors = [str(self._tensors[tensor]) for tensor in named_tensors(instruction)]
        fields: tuple[str, ...] = (first, *tensors)  # a tag means the same on all hosts
        if instruction.kind == "call":
            fields = (str(self._kernels[int(first)]), rest[0], ",".join(tensors))
        elif instruction.kind == "join":
            fields = (str(self._queues[int(first)]), *rest)
        elif instruction.kind == "copy":
            fields = tuple(tensors)
        waits = tuple((self._queues[queue], count) for queue, count in instruction.waits)
        return replace(instruction, fields=fields, waits=waits)


def _ids(ids: Iterable[int]) -> dict[int, int]:
    """The distinct ids, ascending, with their new ones."""
    return {old: new for new, old in enumerate(sorted(set(ids)))}
