"""Calls of branches -> groups, which depend on each other in no circle."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from relay_models import cpu_cluster

from heteroplace.lower.kernels import KernelCall, KernelCalls, Rows, Value
from heteroplace.lower.order.clocks import Clocks
from heteroplace.lower.order.grouped import with_groups
from heteroplace.lower.order.instructions import Instruction
from heteroplace.model.plan import Guard

NUM_VALUES = 8
WHOLE = 6
"""A value that is no rows; all others are."""

VALUES = tuple(
    Value((4, 8), "float32", rows=None if at == WHOLE else Rows(NUM_VALUES, "r", at % 2))
    for at in range(NUM_VALUES)
)


def instructions(
    edges: Sequence[tuple[int, int | None, tuple[int, ...], int]],
) -> tuple[tuple[Instruction, ...], KernelCalls]:
    """Calls of (device, branch, what they read, what they make), each a step of its own."""
    found, calls = [], []
    for step, (device, branch, reads, write) in enumerate(edges):
        guard = None if branch is None else Guard(0, branch)
        read, written = tuple((value, 0) for value in reads), ((write, 0),)
        times = (step, 10 * step, 10 * step + 10)
        found.append(Instruction(step, device, (), *times, read, written, guard=guard))
        calls.append(KernelCall(f"k{step}", 0, f"t{step}", reads, (write,)))
    return tuple(found), KernelCalls(VALUES, tuple(calls), (), {})


def members_of(found: Sequence[Instruction]) -> list[list[int | None]]:
    """The calls of each group, and each other call, in order."""
    return [[one.call for one in each.members] or [each.call] for each in found]


def test_branches_stand_next_to_their_own_calls() -> None:
    steps, calls = instructions(
        [(0, 0, (0,), 2), (1, 1, (1,), 3), (0, 0, (2,), 4), (1, 1, (3,), 5)]
    )
    assert with_groups(steps, calls, []) == steps
    (group,) = with_groups(steps, calls, [[0, 1, 2, 3]])
    assert members_of([group]) == [[0, 2, 1, 3]]
    assert (group.devices, group.start_ns, group.finish_ns) == ((0, 1), 0, 40)
    assert set(group.reads) == {(0, 0), (1, 0)}
    assert set(group.writes) == {(value, 0) for value in (2, 3, 4, 5)}
    assert cpu_cluster().devices[group.devices[1]].cores


@pytest.mark.parametrize(("second", "expected"), [(3, [[0, 1, 4], [2], [3]]), (6, None)])
def test_what_goes_through_others_is_in_a_later_group(
    second: int, expected: list[list[int]] | None
) -> None:
    """Call 2 is outside, and reads what call 0 makes for call 3; and maybe for call 4."""
    edges = [(0, 0, (0,), 2), (1, 1, (1,), 3), (0, None, (2,), 6), (0, 0, (6,), 4)]
    steps, calls = instructions([*edges, (1, 1, (3, second), 5)])
    found = with_groups(steps, calls, [[0, 1, 3, 4]])
    assert members_of(found) == (expected or [[0, 1], [2], [3, 4]])


def test_what_makes_no_rows_or_is_of_one_branch_stays_alone() -> None:
    steps, calls = instructions([(0, 0, (0,), 2), (1, 1, (1,), 6), (0, 0, (2,), 4)])
    assert members_of(with_groups(steps, calls, [[0, 1, 2]])) == [[0], [1], [2]]


def test_a_queue_knows_that_the_members_of_a_group_are_done() -> None:
    clocks = Clocks(2)
    assert clocks.add(0, 0, [1], num_members=3) == 0
    assert clocks.add(1, 0) == 4
    assert clocks.knows(1, 0)
    assert clocks.wait(1, [1]) == ((0, 5),)
    assert clocks.done(0) == (0, 1)
