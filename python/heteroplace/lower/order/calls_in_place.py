"""Calls that may lie in the bytes of what they read -> which of them do.

A sum over devices may add to what was brought for it alone. A combine may leave the rows of its
residual where they are (`kept_rows`) if all others who read these are calls of its own device that
need nothing of it: they come first then, in the order of their queue, and nobody waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from heteroplace.lower.kernels import KernelCall, KernelCalls
from heteroplace.lower.order.instructions import Instance, Instruction, root


class CallsInPlace:
    """Finds them. `stored`, where values without bytes of their own lie, gets those found."""

    def __init__(
        self,
        calls: KernelCalls,
        instructions: Sequence[Instruction],
        copied: Collection[Instance],
        stored: dict[Instance, tuple[Instance, int]],
        read_at_end: Collection[Instance],
    ) -> None:
        """
        Parameters
        ----------
        instructions
            All, calls first.
        copied
            Whole values that were brought from other memories.
        read_at_end
            What outputs are read from when a run is over.
        """
        self._calls = calls
        self._instructions = list(instructions)
        self._copied = copied
        self._stored = stored
        self._placed = frozenset(stored)
        """What lies elsewhere for other reasons."""
        self._read_at_end = read_at_end
        self._overwritten: dict[Instance, int] = {}
        self._written = {each for by in instructions for each in by.writes}
        self._readers: dict[Instance, list[int]] = defaultdict(list)
        for index, instruction in enumerate(instructions):
            for instance in dict.fromkeys(instruction.reads):
                self._readers[instance].append(index)
            for instance in instruction.replaces:
                self._overwritten[instance] = index

    def found(self, called: Sequence[Instruction]) -> list[Instruction]:
        """Return the calls, the first ones of the instructions, with what each takes over."""
        return [self._in_place(index, each) for index, each in enumerate(called)]

    def _in_place(self, index: int, each: Instruction) -> Instruction:
        call = None if each.call is None else self._calls.calls[each.call]
        for read, write in () if call is None else call.in_place:
            assert call is not None
            brought = root(self._calls, call.reads[read]), each.writes[0][1]
            instance = each.writes[write]
            if instance in self._placed or not self._is_free(index, each, call, brought):
                continue
            self._stored[instance] = brought, 0
            self._overwritten[brought] = index
            is_in_place = bool(call.kernel_in_place)
            replaces = (*each.replaces, brought)
            return replace(each, replaces=replaces, is_in_place=is_in_place)
        return each

    def _is_free(self, index: int, each: Instruction, call: KernelCall, brought: Instance) -> bool:
        """Whether a call may write over what it reads."""
        if brought in self._placed or brought in self._read_at_end:
            return False
        others = [reader for reader in self._readers[brought] if reader != index]
        if not call.kernel_in_place:
            return brought in self._copied and not others
        if brought not in self._written or brought in self._overwritten:
            return False
        are_here = all(self._instructions[reader].device == each.device for reader in others)
        return are_here and not (others and self._needs_any(others, index))

    def _needs_any(self, instructions: Collection[int], first: int) -> bool:
        """Whether one of some instructions comes after another one."""
        pending, seen, sought = [first], {first}, set(instructions)
        while pending:
            each = self._instructions[pending.pop()]
            after = [reader for value in each.writes for reader in self._readers[value]]
            touched = (*each.writes, *each.reads)
            after += [self._overwritten[at] for at in touched if at in self._overwritten]
            for index in after:
                if index in sought:
                    return True
                if index not in seen:
                    seen.add(index)
                    pending.append(index)
        return False
