"""An oracle for programs: what surely happens before what, by the rules of a program alone.

Instructions of a queue run in order, an instruction starts after its waits, a join after its
leader's call. Two accesses to the same bytes, one of them a write, must be ordered by that. Then a
program is carried out on symbols: every kernel must read exactly what the calls say.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.codegen.artifact import weights_blob
from heteroplace.codegen.kernels import KernelCalls, Value
from heteroplace.codegen.lower import Lowered
from heteroplace.codegen.program import ALIGNMENT_BYTES, QueueInstruction


@dataclass
class Access:
    """One touch of a range of an arena."""

    instruction: int
    space: int
    begin: int
    end: int
    is_write: bool


class Oracle:
    """Happens-before of a program, by bit sets of predecessors."""

    def __init__(
        self, calls: KernelCalls, lowered: Lowered, alignment: int = ALIGNMENT_BYTES
    ) -> None:
        self.calls = calls
        self.alignment = alignment
        self.program = lowered.program
        self.blob = weights_blob(lowered).tobytes()
        program = lowered.program
        self.num_writes = {call.kernel: len(call.writes) for call in calls.calls}
        self.nodes = [
            (queue, index)
            for queue, description in enumerate(program.queues)
            for index in range(len(description.instructions))
        ]
        self.number = {node: number for number, node in enumerate(self.nodes)}
        self.order = self._topological_order()
        self.before = self._all_before()
        ports = [tensor for _, tensor in (*program.inputs, *program.outputs)]
        self.aligned = set(ports)
        for number in range(len(self.nodes)):
            if self.instruction(number).kind == "call":
                self.aligned.update(*self.tensors(number))

    def instruction(self, number: int) -> QueueInstruction:
        queue, index = self.nodes[number]
        return self.program.queues[queue].instructions[index]

    def direct(self, number: int) -> set[int]:
        """What this instruction waits for, by the rules."""
        queue, index = self.nodes[number]
        instruction = self.instruction(number)
        found = {self.number[queue, index - 1]} if index else set()
        found |= {self.number[other, count - 1] for other, count in instruction.waits}
        if instruction.kind == "join":
            leader, position = map(int, instruction.fields)
            found.add(self.number[leader, position])
        return found

    def _topological_order(self) -> list[int]:
        order: list[int] = []
        done: set[int] = set()
        while len(order) < len(self.nodes):
            ready = [n for n in range(len(self.nodes)) if n not in done and self.direct(n) <= done]
            assert ready, "the waits form a cycle"
            order += ready
            done.update(ready)
        return order

    def _all_before(self) -> list[int]:
        before = [0] * len(self.nodes)
        for number in self.order:
            for earlier in self.direct(number):
                before[number] |= before[earlier] | 1 << earlier
        return before

    def tensors(self, number: int) -> tuple[list[int], list[int]]:
        """The tensors that an instruction reads and writes."""
        instruction = self.instruction(number)
        if instruction.kind == "join":
            return [], []
        if instruction.kind == "copy":
            return [int(instruction.fields[0])], [int(instruction.fields[1])]
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

    def check_values(self) -> None:
        """Carry the program out on symbols, in one order that its rules allow."""
        content: dict[tuple[int, int, int], object] = {}

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
        for number in self.order:
            reads, writes = self.tensors(number)
            instruction = self.instruction(number)
            symbols = tuple(read(tensor) for tensor in reads)
            for index, tensor in enumerate(writes):
                if instruction.kind == "copy":
                    write(tensor, symbols[0])
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


def _root(calls: KernelCalls, value: int) -> int:
    while (alias := calls.values[value].alias_of) is not None:
        value = alias
    return value
