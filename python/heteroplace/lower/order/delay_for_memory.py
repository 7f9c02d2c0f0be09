"""Instructions in order -> the same, with calls later where less is then needed at once.

A task may begin by bringing what it reads into a layout of its kernels, and end by bringing what it
makes into several: all this is ready early, and a step of training reads much of it late. Where
memory is fullest such a call is put in front of the first that reads what it makes. Calls that
compute stay where the plan has them, as what it promises of memory goes by that.

before ==> after, where memory is fullest at b

    x' = layout(x); y = b(x, z); w = c(x', y)  ==>  y = b(x, z); x' = layout(x); w = c(x', y)

Source: Sethi and Ullman, "The Generation of Optimal Code for Arithmetic Expressions" (the operand
that needs most comes first); here by moves from the order of the plan, which otherwise stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate

from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.order.duplicate_layouts import layout_kernels
from heteroplace.lower.order.instructions import Instance, Instruction, Ordered, root
from heteroplace.lower.program import aligned
from heteroplace.model.cluster import Cluster

_MAX_MOVES = 64
"""Moves that are tried for each memory, each of which looks at all instructions."""


def with_late_calls(ordered: Ordered, calls: KernelCalls, cluster: Cluster) -> Ordered:
    """Return instructions in an order that needs no more bytes at once in any memory.

    A call moves within its device, and is then predicted when the call is that it moves to; it
    stays part of its own step.
    Programs with routers stay as they are: what they skip makes no room.

    Complexity: O(memories * (instructions + what they read)), times the moves that are tried.
    """
    if calls.routers:
        return ordered
    layouts = layout_kernels(calls)
    moving = {index for index, call in enumerate(calls.calls) if call.kernel in layouts}
    order = _Order(ordered, moving)
    order.kept = {
        ordered.place((root(calls, output), memory))[0]
        for output in calls.outputs
        for memory in range(len(cluster.memories))
    }
    for memory in range(len(cluster.memories)):
        order.improve(memory)
    return replace(ordered, instructions=tuple(order.instructions))


@dataclass
class _Life:
    """Positions of the first and the last instruction that touch a value."""

    first: int
    last: int


@dataclass(frozen=True)
class _Touched:
    """Where instructions of an order touch values."""

    lives: dict[Instance, _Life]
    """As of `_Order._lives`."""
    first_reader: dict[Instance, int]
    """Position of the first that reads it; those that nobody reads are not there."""
    changes: dict[Instance, list[int]]
    """By value with bytes of its own, positions of those that write or replace it, ascending."""

    def changes_between(self, owner: Instance, begin: int, end: int) -> bool:
        """Say whether an instruction behind `begin` and before `end` writes or replaces a value."""
        places = self.changes.get(owner, [])
        behind = bisect_right(places, begin)
        return behind < len(places) and places[behind] < end


@dataclass(frozen=True)
class _Move:
    gain_bytes: int
    """Bytes that are no longer needed where memory is fullest."""
    begin: int
    end: int
    """The instruction at `begin` is put in front of the one at `end`."""


class _Order:
    def __init__(self, ordered: Ordered, moving: Set[int]) -> None:
        self.instructions = list(ordered.instructions)
        self.kept: Set[Instance] = frozenset()
        """Outputs, which are needed until the end."""
        self._moving = moving
        """Calls that bring a value into another layout."""
        self._ordered = ordered
        whole = {ordered.place(instance)[0] for instance in ordered.stored}
        self._shared = whole | set(ordered.stored)

    def improve(self, memory: int) -> None:
        """Move calls while that lowers the peak of a memory."""
        peak, at = self._peak(memory)
        refused: set[Instance] = set()
        for _ in range(_MAX_MOVES):
            move = self._best_move(memory, at, refused)
            if move is None:
                return
            before = self.instructions
            moved = before[move.begin]
            self.instructions = _moved(before, move)
            changed, place = self._peak(memory)
            if (changed, -place) < (peak, -at):
                peak, at = changed, place
            else:
                self.instructions = before
                refused.update(moved.writes)

    def _owner(self, instance: Instance) -> Instance:
        return self._ordered.place(instance)[0]

    def _size(self, owner: Instance) -> int:
        return aligned(self._ordered.values[owner[0]].bytes)

    def _lives(self, memory: int) -> dict[Instance, _Life]:
        """Of what is made in a memory; inputs are there from the start, whatever the order."""
        lives: dict[Instance, _Life] = {}
        count = len(self.instructions)
        for index, each in enumerate(self.instructions):
            for instance in each.writes:
                if instance[1] == memory:
                    owner = self._owner(instance)
                    last = count if owner in self.kept else index
                    lives.setdefault(owner, _Life(index, last)).last = last
            for instance in each.reads:
                if instance[1] == memory and (life := lives.get(self._owner(instance))) is not None:
                    life.last = max(life.last, index)
        return lives

    def _peak(self, memory: int) -> tuple[int, int]:
        """The most bytes that are needed at once, and the last position where they are."""
        change = [0] * (len(self.instructions) + 2)
        for owner, life in self._lives(memory).items():
            change[life.first] += self._size(owner)
            change[life.last + 1] -= self._size(owner)
        return max((needed, at) for at, needed in enumerate(accumulate(change)))

    def _best_move(self, memory: int, at: int, refused: Set[Instance]) -> _Move | None:
        """The move that makes most room at a position; of equal ones the first call's."""
        touched = self._touched(memory)
        lives = touched.lives
        moves = []
        for begin, each in enumerate(self.instructions[:at]):
            if (refused & set(each.writes)) or not self._may_move(each):
                continue
            needed = [lives[instance] for instance in each.writes if instance in lives]
            if any(life.last > at for life in needed):
                moves.append(self._move(begin, at, touched))
        possible = [move for move in moves if move is not None]
        return max(possible, key=lambda move: (move.gain_bytes, -move.begin), default=None)

    def _touched(self, memory: int) -> _Touched:
        """One pass over all instructions for all the moves that are looked at."""
        first_reader: dict[Instance, int] = {}
        changes: dict[Instance, list[int]] = {}
        for index, each in enumerate(self.instructions):
            for instance in each.reads:
                first_reader.setdefault(instance, index)
            for owner in map(self._owner, (*each.writes, *each.replaces)):
                changes.setdefault(owner, []).append(index)
        return _Touched(self._lives(memory), first_reader, changes)

    def _may_move(self, each: Instruction) -> bool:
        """Whether it is a change of layout that nobody else shares the bytes of."""
        is_plain = each.call in self._moving and each.guard is None and not each.members
        return is_plain and not each.replaces and self._shared.isdisjoint(each.writes)

    def _move(self, begin: int, at: int, touched: _Touched) -> _Move | None:
        """The move of a call behind what is at `at`; None: it would gain nothing, or cannot be."""
        call = self.instructions[begin]
        read = {self._owner(instance) for instance in call.reads}
        readers = [touched.first_reader.get(instance) for instance in call.writes]
        end = min((reader for reader in readers if reader is not None), default=None)
        if end is None or end <= at:
            return None  # it is an output only, or is read before
        reader = self.instructions[end]
        if reader.device != call.device or reader.call is None:
            return None
        if any(touched.changes_between(owner, begin, end) for owner in read):
            return None  # it would read what has been overwritten
        lives = touched.lives
        lost = sum(self._size(owner) for owner in read if owner in lives and lives[owner].last < at)
        gain = sum(self._size(owner) for owner in call.writes) - lost
        return _Move(gain, begin, end) if gain > 0 else None


def _moved(instructions: Sequence[Instruction], move: _Move) -> list[Instruction]:
    call, reader = instructions[move.begin], instructions[move.end]
    late = replace(call, start_ns=reader.start_ns, finish_ns=reader.finish_ns)
    return [
        *instructions[: move.begin],
        *instructions[move.begin + 1 : move.end],
        late,
        *instructions[move.end :],
    ]
