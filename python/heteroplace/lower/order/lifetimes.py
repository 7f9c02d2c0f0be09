"""Instructions in global order -> which values of a memory may not share bytes.

Bytes pass from one value to another where all who touched the first have surely finished by the
order of the program, or are predicted to have finished, when the second is written. A wait then
makes it sure, and costs next to nothing. (In a tight memory every earlier value may be followed,
whatever its users' waits cost.) All such waits point backward in the global order, so they can
never form a cycle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from heteroplace.lower.order.clocks import Clocks
from heteroplace.lower.order.instructions import Instance, Instruction


@dataclass(frozen=True)
class Conflicts:
    """The values of one memory, numbered in the order of their writers; inputs come first."""

    instances: list[Instance] = field(default_factory=list)
    neighbours: list[list[int]] = field(default_factory=list)
    """For each value those that it may not share bytes with."""
    num_live: list[int] = field(default_factory=list)
    """So many of its first neighbours are still needed when it is written."""

    def live_bytes(self, sizes: Sequence[int]) -> int:
        """Return the greatest sum of sizes that are needed at once, whatever the timing."""
        return max(
            (
                size + sum(sizes[other] for other in near[:num_live])
                for size, near, num_live in zip(sizes, self.neighbours, self.num_live, strict=True)
            ),
            default=0,
        )


@dataclass
class _Held:
    """A value that has been written; `finish_ns` is of the last of its users so far."""

    number: int
    users: list[int]
    finish_ns: int


def find_conflicts(
    num_memories: int,
    instructions: Sequence[Instruction],
    queues_of_instruction: Sequence[tuple[int, tuple[int, ...]]],
    inputs: Sequence[Instance],
    late_reads: frozenset[Instance],
    is_tight: bool,
    owner: Callable[[Instance], Instance] = lambda instance: instance,
) -> tuple[Conflicts, ...]:
    """Return the conflicts in each memory.

    Parameters
    ----------
    queues_of_instruction
        The queue that carries each instruction out, and its helpers.
    inputs
        Values that are there before the first instruction.
    late_reads
        Values that nothing may overwrite: inputs and outputs.
    owner
        The value in whose bytes another one lies; it lives as long as any of those in it.

    Near linear in the number of instructions for plans of few queues: a value is forgotten when
    nothing that still comes is predicted to start before its last user has finished.
    """
    finder = _Finder(num_memories, instructions, queues_of_instruction, late_reads, is_tight, owner)
    return finder.run(inputs)


def touched_owners(
    instruction: Instruction, owner: Callable[[Instance], Instance]
) -> tuple[Instance, ...]:
    """Return the values with bytes of their own that an instruction reads or writes."""
    return tuple(dict.fromkeys(map(owner, (*instruction.reads, *instruction.writes))))


def waited_for(
    instruction: Instruction,
    writer: Mapping[Instance, int],
    readers: Mapping[Instance, Sequence[int]],
) -> list[int]:
    """Return who must have finished before an instruction starts, whatever bytes are reused.

    Parameters
    ----------
    writer, readers
        Of each value, the instructions so far. Nobody writes an input: it is there before the run.
    """
    needed = (*instruction.reads, *instruction.replaces)
    writers = [writer[instance] for instance in needed if instance in writer]
    for instance in instruction.replaces:
        writers += readers.get(instance, ())
    return writers


class _Finder:
    def __init__(
        self,
        num_memories: int,
        instructions: Sequence[Instruction],
        queues_of_instruction: Sequence[tuple[int, tuple[int, ...]]],
        late_reads: frozenset[Instance],
        is_tight: bool,
        owner: Callable[[Instance], Instance],
    ) -> None:
        self._instructions = instructions
        self._owner = owner
        self._queues_of_instruction = queues_of_instruction
        self._kept = late_reads
        self._is_tight = is_tight
        num_queues = 1 + max(
            (max(q, *helpers, q) for q, helpers in queues_of_instruction), default=-1
        )
        pairs = zip(instructions, queues_of_instruction, strict=True)
        self._clocks = Clocks(
            num_queues, {queue for each, (queue, _) in pairs if each.message is not None}
        )
        self._found = tuple(Conflicts() for _ in range(num_memories))
        self._live: list[dict[Instance, _Held]] = [{} for _ in range(num_memories)]
        self._retired: list[list[_Held]] = [[] for _ in range(num_memories)]
        self._writer: dict[Instance, int] = {}
        self._readers: dict[Instance, list[int]] = defaultdict(list)

    def run(self, inputs: Sequence[Instance]) -> tuple[Conflicts, ...]:
        for instance in inputs:
            self._write(instance, 0, 0)
        touched = [touched_owners(each, self._owner) for each in self._instructions]
        num_users = Counter(chain.from_iterable(touched))
        earliest = self._earliest_starts()
        for index, instruction in enumerate(self._instructions):
            queue, helpers = self._queues_of_instruction[index]
            self._clocks.wait(queue, waited_for(instruction, self._writer, self._readers))
            for instance in instruction.reads:
                self._readers[instance].append(index)
            for instance in instruction.writes:
                if self._owner(instance) not in self._live[instance[1]]:
                    self._write(self._owner(instance), queue, instruction.start_ns)
                self._writer[instance] = index
            sent = index - 1 if instruction.is_receive else None
            self._clocks.add(index, queue, helpers, sent, len(instruction.members))
            for instance in touched[index]:
                held = self._live[instance[1]][instance]
                held.users.append(index)
                held.finish_ns = max(held.finish_ns, instruction.finish_ns + instruction.linger_ns)
                num_users[instance] -= 1
                if num_users[instance] == 0 and instance not in self._kept:
                    self._retired[instance[1]].append(self._live[instance[1]].pop(instance))
            self._forget(earliest[index + 1])
        return self._found

    def _earliest_starts(self) -> list[int | None]:
        """For each position the earliest predicted start from there on; None: nothing comes."""
        earliest: list[int | None] = [None]
        for instruction in reversed(self._instructions):
            last = earliest[-1]
            earliest.append(
                instruction.start_ns if last is None else min(last, instruction.start_ns)
            )
        return earliest[::-1]

    def _write(self, instance: Instance, queue: int, start_ns: int) -> None:
        memory = instance[1]
        spaces = self._found[memory]
        number = len(spaces.instances)
        neighbours = [held.number for held in self._live[memory].values()]
        spaces.num_live.append(len(neighbours))
        for held in self._retired[memory]:
            if held.finish_ns > start_ns and not all(
                self._clocks.knows(queue, user) for user in held.users
            ):
                neighbours.append(held.number)
        for other in neighbours:
            spaces.neighbours[other].append(number)
        spaces.instances.append(instance)
        spaces.neighbours.append(neighbours)
        self._live[memory][instance] = _Held(number, [], 0)

    def _forget(self, earliest_ns: int | None) -> None:
        """Drop what conflicts with nothing that still comes."""
        for memory, retired in enumerate(self._retired):
            self._retired[memory] = [
                held
                for held in retired
                if not self._is_tight and earliest_ns is not None and held.finish_ns > earliest_ns
            ]
