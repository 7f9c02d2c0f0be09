"""Instructions in order -> the same, with groups: branches of a router that are done side by side.

The calls of a group of the plan (`model.groups`) become one instruction, of all cores that the plan
uses for them: each takes the next active branch, those with most rows first, and does all calls of
it. On a GPU each branch is issued to one of several streams.

before ==> after, for experts a and b, of two calls each, on two cores

    core0: a.0; a.1    core1: b.0; b.1    ==>    core0: group (a.0, a.1), (b.0, b.1)    core1: joins

A call that waits for something which other calls of its group make, and that is made outside of it,
is in a later group. So groups depend on each other in no circle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.order.global_order import in_order, needed_by
from heteroplace.lower.order.instructions import Instruction


def with_groups(
    instructions: Sequence[Instruction], calls: KernelCalls, planned: Sequence[Sequence[int]]
) -> tuple[Instruction, ...]:
    """Return instructions, each after what it needs, with groups in place of the calls in them.

    Parameters
    ----------
    planned
        Of each group the steps of the plan (`model.groups.groups_of`).
    """
    if not planned:
        return tuple(instructions)
    group_of = {step: number for number, steps in enumerate(planned) for step in steps}
    places = [_place(each, calls, group_of) for each in instructions]
    calls_of_groups: dict[tuple[int, int], list[Instruction]] = defaultdict(list)
    single: list[Instruction] = []
    depths = _depths(instructions, places)
    for each, place, depth in zip(instructions, places, depths, strict=True):
        (single if place is None else calls_of_groups[place, depth]).append(each)
    groups: list[Instruction] = []
    for members in calls_of_groups.values():
        if len(_branches(members)) > 1:
            groups.append(_group(members))
        else:
            single += members
    return in_order([*single, *groups])


def _place(each: Instruction, calls: KernelCalls, group_of: Mapping[int, int]) -> int | None:
    """The planned group of a call of a branch that makes rows, else None."""
    if each.call is None or each.guard is None or each.replaces:
        return None
    if any(calls.values[value].rows is None for value, _ in each.writes):
        return None
    return group_of.get(each.step)


def _depths(instructions: Sequence[Instruction], places: Sequence[int | None]) -> list[int]:
    """How often a way to each instruction leaves what may be a group, at most."""
    depths: list[int] = []
    for index, before in enumerate(needed_by(instructions)):
        own = places[index]
        steps = [depths[other] + (places[other] not in (None, own)) for other in before]
        depths.append(max(steps, default=0))
    return depths


def _branches(members: Sequence[Instruction]) -> Mapping[int, list[Instruction]]:
    by_branch: dict[int, list[Instruction]] = defaultdict(list)
    for each in members:
        assert each.guard is not None
        by_branch[each.guard.branch].append(each)
    return by_branch


def _group(members: Sequence[Instruction]) -> Instruction:
    written = {instance for each in members for instance in each.writes}
    reads = dict.fromkeys(instance for each in members for instance in each.reads)
    return Instruction(
        None,
        min(each.device for each in members if each.device is not None),
        (),
        min(each.step for each in members),
        min(each.start_ns for each in members),
        max(each.finish_ns for each in members),
        tuple(instance for instance in reads if instance not in written),
        tuple(dict.fromkeys(instance for each in members for instance in each.writes)),
        members=tuple(each for own in _branches(members).values() for each in own),
    )
