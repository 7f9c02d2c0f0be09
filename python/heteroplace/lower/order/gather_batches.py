"""Joined values -> where their items lie side by side: found, made there, or brought together.

A batch may read other items than any one batch has made (DiviML splits and merges batches from op
to op). Its kernel wants them in one block. In the order of preference, and for each memory:

- The items lie side by side already, in what one batch made or what was joined before: a view.
- What holds them gets its place in the block, and is made there by whoever makes or brings it;
  where it holds more than is read, in a block of all that (`join_wholes`).
- Part by part they are copied into the block.

Kernels read and write at multiples of 64 bytes only, so the first two need items of such sizes;
copies go from and to anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from heteroplace.lower.kernels import Joined, Value
from heteroplace.lower.order.instructions import Instance, Instruction, resolve
from heteroplace.lower.program import KERNEL_ALIGNMENT_BYTES


class Copier(Protocol):
    """Makes the instructions that move parts of values."""

    def over_links(
        self, source: Instance, part: Instance, written: Instance, item: int
    ) -> list[Instruction]:
        """Copy a part of what a value holds, of an item, to another memory."""

    def within(
        self, source: Instance, part: Instance, written: Instance, reader: int | None
    ) -> Instruction:
        """Copy a part within its memory, for the call `reader` (None: an output of the model)."""

    def transfer(self, value: int, memory: int, item: int) -> int | None:
        """Return what tells transfers of one value to one memory apart: the plan's step."""


@dataclass
class _Run:
    """A range of a joined value that lies in one piece somewhere."""

    begin: int
    """Offset in the joined value."""
    num_bytes: int
    instance: Instance
    """Where it is; if that is another memory, it has to be brought."""
    offset: int
    item: int
    """The first item in it."""
    transfer: int | None = None


@dataclass
class Joins:
    """Where joined values are, and the copies that are needed. Values are added one by one."""

    values: list[Value]
    """Grows by the parts that copies name."""
    home: Mapping[int, int]
    """Memory where each value is made, or is from the start."""
    whole: Collection[Instance]
    """Values that are brought as a whole to other memories."""
    copier: Copier
    stored: dict[Instance, tuple[Instance, int]] = field(default_factory=dict)
    """As `Ordered.stored`."""
    copies: list[Instruction] = field(default_factory=list)
    reads: dict[Instance, tuple[Instance, ...]] = field(default_factory=dict)
    """For each joined value in a memory what its readers have to wait for."""
    _landed: dict[tuple[int, int, int, int], tuple[Instance, int]] = field(default_factory=dict)
    """By value, memory, item and number of its part: where a copied part is."""

    def join_wholes(self, needed: Collection[Instance]) -> None:
        """Put what is read in part side by side, as far as nothing is copied for that.

        before ==> after, for makers of items 0, 1 and 2, 3, and a reader of items 1, 2

            y01 and y23, copied to z12    ==>    y0123, in which both are made and z12 is a view
        """
        group_of: dict[Instance, set[int]] = {}
        for value, memory in needed:
            parts = {(part, memory) for part in self._found_parts(value)}
            if not all(self._can_move(value, part) for part in parts):
                continue
            group = {part for part, _ in parts}.union(*(group_of.get(part, ()) for part in parts))
            group_of |= dict.fromkeys(((part, memory) for part in group), group)
        groups = {id(group): (group, memory) for (_, memory), group in group_of.items()}
        sizes = {
            part: self._item_bytes(value)
            for value, _ in needed
            for part in self._found_parts(value)
        }
        for group, memory in groups.values():
            part_of = {item: part for part in group for item in self.values[part].items}
            items = tuple(sorted(part_of))
            if all(_is_block(self.values[part].items, items) for part in group):
                joined = Joined(1, tuple(part_of[item] for item in items))
                shape = (sizes[min(group)] * len(items),)
                self.values.append(Value(shape, "uint8", items=items, joined=joined))
                self.add((len(self.values) - 1, memory), None)

    def _found_parts(self, value: int) -> set[int]:
        joined = self.values[value].joined
        assert joined is not None
        return set(joined.parts)

    def _item_bytes(self, value: int) -> int:
        return self.values[value].bytes // len(self.values[value].items)

    def _can_move(self, value: int, part: Instance) -> bool:
        """Whether a kernel that makes a part of `value` may do so in a block of several."""
        joined = self.values[value].joined
        assert joined is not None
        is_made = self.values[part[0]].input_name is None
        return (
            is_made
            and self.home[part[0]] == part[1]
            and part not in self.stored
            and joined.outer == 1
            and self._item_bytes(value) % KERNEL_ALIGNMENT_BYTES == 0
        )

    def add(self, joined: Instance, reader: int | None) -> None:
        """Find or make a place for a joined value in a memory, for the first call that reads it."""
        runs = self._runs(joined)
        self._bring(joined, runs)
        base = self._common_base(runs)
        if base is not None and base[0] != joined:
            self.stored[joined] = base
            self.reads[joined] = tuple(dict.fromkeys(run.instance for run in runs))
            return
        gathered = [
            run.instance if self._put(joined, run) else self._move(joined, run, reader)
            for run in runs
        ]
        self.reads[joined] = tuple(dict.fromkeys(gathered))

    def _runs(self, joined: Instance) -> list[_Run]:
        """The value's ranges in order, as few as can be."""
        value = self.values[joined[0]]
        assert value.joined is not None
        outer, parts = value.joined.outer, value.joined.parts
        size = value.bytes // max(1, outer * len(value.items))
        runs: list[_Run] = []
        for number in range(max(1, outer)):
            for item, part in zip(value.items, parts, strict=True):
                run = self._atom(part, joined[1], item, number, size)
                run.begin = (number * len(value.items) + value.items.index(item)) * size
                last = runs[-1] if runs else None
                if (
                    last is not None
                    and (last.instance, last.transfer) == (run.instance, run.transfer)
                    and last.offset + last.num_bytes == run.offset
                ):
                    last.num_bytes += size
                else:
                    runs.append(run)
        return runs

    def _atom(self, part: int, memory: int, item: int, number: int, size: int) -> _Run:
        """Where the part of one item is: in the memory, or at home."""
        items = self.values[part].items
        offset = (number * len(items) + items.index(item)) * size
        home = self.home[part]
        if home == memory or (part, memory) in self.whole:
            return _Run(0, size, (part, memory), offset, item)
        if (part, memory, item, number) in self._landed:
            instance, offset = self._landed[part, memory, item, number]
            return _Run(0, size, instance, offset, item)
        return _Run(0, size, (part, home), offset, item, self.copier.transfer(part, memory, item))

    def _bring(self, joined: Instance, runs: list[_Run]) -> None:
        """Copy what is in other memories to its place."""
        value, memory = self.values[joined[0]], joined[1]
        assert value.joined is not None
        size = value.bytes // max(1, value.joined.outer * len(value.items))
        for run in runs:
            if run.instance[1] == memory:
                continue
            source = run.instance
            part = self._part(source, run.offset, run.num_bytes)
            landed = self._block(run.num_bytes), memory
            self.stored[landed] = joined, run.begin
            self.copies += self.copier.over_links(source, part, landed, run.item)
            first = run.begin // size if size else 0
            for at in range(first, first + (run.num_bytes // size if size else 1)):
                number, place = divmod(at, len(value.items))
                key = (source[0], memory, value.items[place], number)
                self._landed[key] = landed, (at - first) * size
            run.instance, run.offset = landed, 0

    def _common_base(self, runs: list[_Run]) -> tuple[Instance, int] | None:
        """What all ranges lie in as the joined value wants them; None: they do not."""
        places = [resolve(self.stored, run.instance) for run in runs]
        bases = {
            (owner, offset + run.offset - run.begin)
            for (owner, offset), run in zip(places, runs, strict=True)
        }
        if len(bases) != 1:
            return None
        ((owner, base),) = bases
        return None if base < 0 or base % KERNEL_ALIGNMENT_BYTES else (owner, base)

    def _put(self, joined: Instance, run: _Run) -> bool:
        """Give what holds a range its place in the joined value, if it holds nothing else."""
        owner = run.instance[0]
        if self.stored.get(run.instance) == (joined, run.begin):
            return True
        is_free = run.instance not in self.stored and self.values[owner].input_name is None
        is_all = run.offset == 0 and run.num_bytes == self.values[owner].bytes
        if not (is_free and is_all) or run.begin % KERNEL_ALIGNMENT_BYTES:
            return False
        self.stored[run.instance] = joined, run.begin
        return True

    def _move(self, joined: Instance, run: _Run, reader: int | None) -> Instance:
        part = self._part(run.instance, run.offset, run.num_bytes)
        moved = self._block(run.num_bytes), joined[1]
        self.stored[moved] = joined, run.begin
        self.copies.append(self.copier.within(run.instance, part, moved, reader))
        return moved

    def _part(self, instance: Instance, offset: int, num_bytes: int) -> Instance:
        """A part of what an instance holds, as a value."""
        part = self._block(num_bytes), instance[1]
        self.stored[part] = instance, offset
        return part

    def _block(self, num_bytes: int) -> int:
        self.values.append(Value((num_bytes,), "uint8"))
        return len(self.values) - 1


def _is_block(items: tuple[int, ...], among: tuple[int, ...]) -> bool:
    """Whether some items are neighbours among others, in the same order."""
    first = among.index(items[0])
    return among[first : first + len(items)] == items
