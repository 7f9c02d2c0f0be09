"""An oracle for programs: what surely happens before what, by the rules of a program alone.

Instructions of a queue run in order, an instruction starts after its waits, a join after its
leader's call. Messages of a queue start in order and finish in order, so that several may be on the
way; one that is received finishes after it was sent, whose bytes may then still be read. Two
accesses to the same bytes, one of them a write, must be ordered by that, within the programs of all
hosts together. They must end also where a send waits for its receiver. Then they are carried out on
symbols: every kernel must read exactly what the calls say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heteroplace.lower.kernels import KernelCalls, Value
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.program import ALIGNMENT_BYTES, Program, Queue, QueueInstruction


@dataclass
class Access:
    """One touch of a range of an arena."""

    instruction: int
    space: int
    begin: int
    end: int
    is_write: bool


class Oracle:
    """Happens-before of the programs of all hosts, by bit sets of predecessors."""

    def __init__(
        self, calls: KernelCalls, lowered: Lowered, alignment: int = ALIGNMENT_BYTES
    ) -> None:
        self.calls = calls
        self.alignment = alignment
        self.program = together(lowered.programs)
        self.blob = lowered.make_blob().tobytes()
        program = self.program
        self.num_writes = {call.kernel: len(call.writes) for call in calls.calls}
        self.nodes = [
            (queue, index)
            for queue, description in enumerate(program.queues)
            for index in range(len(description.instructions))
        ]
        self.number = {node: number for number, node in enumerate(self.nodes)}
        self.sides = self._sides()
        self._topological_order(self._events(is_rendezvous=True))
        events = self._events(is_rendezvous=False)
        self.order = self._topological_order(events)
        """Events: 2 n is the start of instruction n, 2 n + 1 its end."""
        finished = self._all_finished(events)
        self.before = finished[::2]
        """For each instruction those that have finished when it starts."""
        self.known = finished[1::2]
        """For each instruction those that have finished when it has, itself among them."""
        ports = [tensor for _, tensor in (*program.inputs, *program.outputs)]
        self.aligned = set(ports)
        for number in range(len(self.nodes)):
            if self.instruction(number).kind == "call":
                self.aligned.update(*self.tensors(number))

    def instruction(self, number: int) -> QueueInstruction:
        queue, index = self.nodes[number]
        return self.program.queues[queue].instructions[index]

    def is_message(self, number: int) -> bool:
        return self.program.queues[self.nodes[number][0]].peer is not None

    def direct(self, number: int) -> set[int]:
        """What must have finished before this instruction starts, by the rules."""
        queue, index = self.nodes[number]
        instruction = self.instruction(number)
        found = {self.number[other, count - 1] for other, count in instruction.waits}
        if index and not self.is_message(number):
            found.add(self.number[queue, index - 1])
        if instruction.kind == "join":
            leader, position = map(int, instruction.fields)
            found.add(self.number[leader, position])
        return found

    def _sides(self) -> dict[int, dict[str, int]]:
        """For each tag who sends and who receives."""
        sides: dict[int, dict[str, int]] = {}
        for number in filter(self.is_message, range(len(self.nodes))):
            instruction = self.instruction(number)
            of_tag = sides.setdefault(int(instruction.fields[0]), {})
            assert instruction.kind not in of_tag, "a message has one send and one receive"
            of_tag[instruction.kind] = number
        assert all(set(of_tag) == {"send", "recv"} for of_tag in sides.values())
        return sides

    def _events(self, *, is_rendezvous: bool) -> list[list[int]]:
        """For each event those that come before."""
        before: list[list[int]] = []
        for number in range(len(self.nodes)):
            start, finish = [2 * n + 1 for n in self.direct(number)], [2 * number]
            queue, index = self.nodes[number]
            if self.is_message(number) and index:
                start.append(2 * self.number[queue, index - 1])
                finish.append(2 * self.number[queue, index - 1] + 1)
            before += [start, finish]
        for of_tag in self.sides.values():
            before[2 * of_tag["recv"] + 1].append(2 * of_tag["send"])
            if is_rendezvous:
                before[2 * of_tag["send"] + 1].append(2 * of_tag["recv"])
        return before

    def _topological_order(self, events: list[list[int]]) -> list[int]:
        waiting = [len(before) for before in events]
        after: list[list[int]] = [[] for _ in events]
        for event, before in enumerate(events):
            for earlier in before:
                after[earlier].append(event)
        order = [event for event, count in enumerate(waiting) if not count]
        for event in order:
            for follower in after[event]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    order.append(follower)
        assert len(order) == len(events), "the waits form a cycle"
        return order

    def _all_finished(self, events: list[list[int]]) -> list[int]:
        """For each event the instructions that have finished by then."""
        finished = [0] * len(events)
        for event in self.order:
            for earlier in events[event]:
                finished[event] |= finished[earlier]
            if event % 2:
                finished[event] |= 1 << event // 2
        return finished

    def tensors(self, number: int) -> tuple[list[int], list[int]]:
        """The tensors that an instruction reads and writes."""
        instruction = self.instruction(number)
        if instruction.kind == "join":
            return [], []
        if instruction.kind == "copy":
            return [int(instruction.fields[0])], [int(instruction.fields[1])]
        if instruction.kind in ("send", "recv"):
            named = [int(instruction.fields[1])]
            return (named, []) if instruction.kind == "send" else ([], named)
        arguments = [int(text) for text in instruction.fields[2].split(",")]
        kernel = self.program.kernels[int(instruction.fields[0])]
        first_write = len(arguments) - self.num_writes[kernel]
        return arguments[:first_write], arguments[first_write:]

    def range(self, tensor: int) -> tuple[int, int, int] | None:
        """Space, begin and end in the arena; None for a weight."""
        found = self.program.tensors[tensor]
        if found.storage == "constant":
            return None
        num_bytes = Value(found.shape, found.dtype).bytes
        assert found.place % (self.alignment if tensor in self.aligned else 1) == 0
        assert found.place + num_bytes <= self.program.spaces[found.space].arena_bytes
        return found.space, found.place, found.place + num_bytes

    def check_races(self) -> None:
        accesses = []
        for number in range(len(self.nodes)):
            for tensors, is_write in zip(self.tensors(number), (False, True), strict=True):
                ranges = [self.range(tensor) for tensor in tensors]
                accesses += [Access(number, *r, is_write) for r in ranges if r is not None]
        for i, one in enumerate(accesses):
            for other in accesses[:i]:
                if one.instruction == other.instruction or one.space != other.space:
                    continue
                overlaps = one.begin < other.end and other.begin < one.end
                if overlaps and (one.is_write or other.is_write):
                    a, b = one.instruction, other.instruction
                    is_ordered = self.before[a] >> b & 1 or self.before[b] >> a & 1
                    assert is_ordered, f"race between {self.nodes[a]} and {self.nodes[b]}"

    def acts(self) -> list[int]:
        """The instructions in an order in which they may touch memory.

        What is received is there at the end, all else is done at its start.
        """
        is_end = {2 * number + 1 for number in range(len(self.nodes)) if self._is_receive(number)}
        return [
            event // 2
            for event in self.order
            if event in is_end or (event % 2 == 0 and event + 1 not in is_end)
        ]

    def _is_receive(self, number: int) -> bool:
        return self.instruction(number).kind == "recv"

    def check_values(self) -> None:
        """Carry the programs out on symbols, in one order that their rules allow."""
        content: dict[tuple[int, int, int], object] = {}
        sent: dict[str, object] = {}

        def write(tensor: int, symbol: object) -> None:
            place = self.range(tensor)
            assert place is not None, "a weight is overwritten"
            space, begin, end = place
            for other in list(content):
                if other[0] == space and other[1] < end and begin < other[2]:
                    del content[other]
            content[place] = symbol

        def read(tensor: int) -> object:
            place = self.range(tensor)
            if place is None:
                constant = self.program.constants[self.program.tensors[tensor].place]
                begin, end = constant.blob_offset, constant.blob_offset + constant.bytes
                return ("weights", self.blob[begin:end])
            if place[1] == place[2]:
                return "nothing"
            assert place in content, f"tensor {tensor} is read, but not there (any more)"
            return content[place]

        for name, tensor in self.program.inputs:
            write(tensor, ("input", name) if self._has_bytes(tensor) else "nothing")
        for number in self.acts():
            instruction = self.instruction(number)
            reads, writes = self.tensors(number)
            if instruction.kind == "send":
                sent[instruction.fields[0]] = read(reads[0])
                continue
            symbols = tuple(read(tensor) for tensor in reads)
            for index, tensor in enumerate(writes):
                if instruction.kind in ("copy", "recv"):
                    write(tensor, symbols[0] if symbols else sent[instruction.fields[0]])
                else:
                    kernel = self.program.kernels[int(instruction.fields[0])]
                    write(tensor, (kernel, symbols, index))
        expected = self._expected()
        for (_, tensor), value in zip(self.program.outputs, self.calls.outputs, strict=True):
            assert read(tensor) == expected[value]
        for name, tensor in self.program.inputs:
            assert read(tensor) in (("input", name), "nothing"), "an input was overwritten"

    def _has_bytes(self, tensor: int) -> bool:
        place = self.range(tensor)
        return place is not None and place[1] < place[2]

    def _expected(self) -> list[object]:
        """The symbol of each value, from the calls alone."""
        symbols: list[object] = [None] * len(self.calls.values)
        for value, description in enumerate(self.calls.values):
            if description.constant is not None:
                symbols[value] = ("weights", description.constant.tobytes())

        def resolve(value: int) -> object:
            found = self.calls.values[value]
            if found.alias_of is not None:
                return resolve(found.alias_of)
            if symbols[value] is None:
                symbols[value] = ("input", found.input_name)
            return "nothing" if found.bytes == 0 and found.constant is None else symbols[value]

        remaining = list(self.calls.calls)
        ready = {
            v for v, d in enumerate(self.calls.values) if d.input_name or d.constant is not None
        }
        while remaining:
            call = next(r for r in remaining if all(_root(self.calls, v) in ready for v in r.reads))
            remaining.remove(call)
            arguments = tuple(resolve(value) for value in call.reads)
            for index, value in enumerate(call.writes):
                symbols[value] = (call.kernel, arguments, index)
                ready.add(value)
        return [resolve(v) if _root(self.calls, v) in ready else None for v in range(len(symbols))]


def together(programs: Sequence[Program]) -> Program:
    """The programs of all hosts as one: ids of each behind those of the ones before."""
    if len(programs) == 1:
        return programs[0]
    spaces, queues, constants, tensors, kernels = [], [], [], [], []
    inputs: list[tuple[str, int]] = []
    outputs: list[tuple[str, int]] = []
    for program in programs:
        space, queue, tensor = len(spaces), len(queues), len(tensors)
        queues += [_moved(each, space, queue, tensor, len(kernels)) for each in program.queues]
        for each in program.tensors:
            place = each.place + (len(constants) if each.storage == "constant" else 0)
            tensors.append(replace(each, space=each.space + space, place=place))
        constants += [replace(each, space=each.space + space) for each in program.constants]
        spaces += program.spaces
        kernels += program.kernels
        inputs += [(name, at + tensor) for name, at in program.inputs]
        outputs += [(name, at + tensor) for name, at in program.outputs]
    parts = (spaces, queues, constants, tensors, inputs, outputs, kernels)
    return Program(*map(tuple, parts))


def _moved(queue: Queue, space: int, first: int, tensor: int, kernel: int) -> Queue:
    instructions = []
    for each in queue.instructions:
        fields = [int(text) for text in each.fields[:2]]
        if each.kind == "call":
            arguments = [int(text) + tensor for text in each.fields[2].split(",")]
            moved = (fields[0] + kernel, fields[1], ",".join(map(str, arguments)))
        else:
            by = {"join": (first, 0), "copy": (tensor, tensor)}.get(each.kind, (0, tensor))
            moved = (fields[0] + by[0], fields[1] + by[1])
        waits = tuple((other + first, count) for other, count in each.waits)
        instructions.append(replace(each, fields=tuple(map(str, moved)), waits=waits))
    at = queue.space if queue.space < 0 else queue.space + space
    return replace(queue, space=at, instructions=instructions)


def _root(calls: KernelCalls, value: int) -> int:
    while (alias := calls.values[value].alias_of) is not None:
        value = alias
    return value
