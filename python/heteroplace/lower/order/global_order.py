"""Instructions of a plan -> one global order of them, messages in it.

Each queue of the program is a part of that order, so none can ever wait for itself.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from heteroplace.errors import LoweringError
from heteroplace.lower.order.instructions import Instance, Instruction


def in_order(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """Return the instructions so that each comes after what it needs.

    Among what is ready the earliest step of the plan comes first. What takes over the bytes of
    others comes after all who read those.

    Raises
    ------
    LoweringError
        There is no such order.
    """
    waiting = [0] * len(instructions)
    followers: list[list[int]] = [[] for _ in instructions]
    for index, before in enumerate(needed_by(instructions)):
        waiting[index] = len(before)
        for other in before:
            followers[other].append(index)
    ready = [
        (instruction.step, index)
        for index, instruction in enumerate(instructions)
        if not waiting[index]
    ]
    heapq.heapify(ready)
    order = []
    while ready:
        index = heapq.heappop(ready)[1]
        order.append(instructions[index])
        for follower in followers[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (instructions[follower].step, follower))
    if len(order) < len(instructions):
        raise LoweringError("the kernels depend on each other in a cycle; report this as a bug")
    return tuple(order)


def needed_by(instructions: Sequence[Instruction]) -> list[set[int]]:
    """Return for each instruction which others it comes after."""
    writer = {
        instance: index
        for index, instruction in enumerate(instructions)
        for instance in instruction.writes
    }
    readers: dict[Instance, list[int]] = defaultdict(list)
    for index, instruction in enumerate(instructions):
        for instance in instruction.reads:
            readers[instance].append(index)
    instances_needed = []
    for index, instruction in enumerate(instructions):
        needed = (*instruction.reads, *instruction.replaces)
        before = {writer[instance] for instance in needed if instance in writer}
        for instance in instruction.replaces:
            before.update(reader for reader in readers[instance] if reader != index)
        instances_needed.append(before)
    return instances_needed


def with_messages(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """Return the same with messages in place of copies to other hosts, tags in order.

    Each is a send and, next to it, a receive.
    """
    ordered: list[Instruction] = []
    num_messages = 0
    for each in instructions:
        if each.message is None:
            ordered.append(each)
            continue
        # What is replaced is where it is received: who sends waits for nobody there.
        ordered.append(replace(each, writes=(), replaces=(), message=num_messages))
        ordered.append(replace(each, reads=(), source=None, message=num_messages))
        num_messages += 1
    return tuple(ordered)
