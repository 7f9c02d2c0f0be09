"""Instructions in order -> the same, with groups: branches of a router that are done side by side.

Which branches are active, and with how many cells, is known in the run alone, so whatever order
and core a plan gives them is a guess. Calls of branches of one router with rows, on the cores of
one memory that the plan uses for them (or on one GPU), become one instruction: its cores take the
branches that are active, those with most rows first, and each does all calls of one.

before ==> after, for experts a and b, of two calls each, on two cores

    core0: a.0; a.1    core1: b.0; b.1    ==>    core0: group (a.0, a.1), (b.0, b.1)    core1: joins

A call that waits for something which other calls of its group make, and that is made outside of it,
is in a later group. So groups depend on each other in no circle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from heteroplace.codegen.global_order import in_order, needed_by
from heteroplace.codegen.instructions import Instruction
from heteroplace.codegen.kernels import KernelCalls
from heteroplace.model.cluster import Cluster

_Place = tuple[int, int]
"""Router and memory."""


def with_groups(
    instructions: Sequence[Instruction], calls: KernelCalls, cluster: Cluster
) -> tuple[Instruction, ...]:
    """Return instructions, each after what it needs, with groups in place of the calls in them."""
    places = [_place(each, calls, cluster) for each in instructions]
    if not any(place is not None for place in places):
        return tuple(instructions)
    found: dict[tuple[_Place, int], list[Instruction]] = defaultdict(list)
    single: list[Instruction] = []
    depths = _depths(instructions, places)
    for each, place, depth in zip(instructions, places, depths, strict=True):
        (single if place is None else found[place, depth]).append(each)
    groups: list[Instruction] = []
    for members in found.values():
        if _pays(members, cluster):
            groups.append(_group(members))
        else:
            single += members
    return in_order([*single, *groups]) if groups else tuple(instructions)


def _place(each: Instruction, calls: KernelCalls, cluster: Cluster) -> _Place | None:
    """The router and the memory of a call that may be in a group, else None."""
    if each.call is None or each.guard is None or each.guard.when != "active":
        return None
    call = calls.calls[each.call]
    loaded = {load.value for load in calls.loads}
    # Of a branch whose weights are brought in the run the next ones come while this one runs.
    if each.replaces or not loaded.isdisjoint(call.reads):
        return None
    if any(calls.values[value].rows is None for value, _ in each.writes):
        return None
    assert each.device is not None
    return each.guard.router, cluster.devices[each.device].memory


def _depths(instructions: Sequence[Instruction], places: Sequence[_Place | None]) -> list[int]:
    """How often a way to each instruction leaves what may be a group, at most."""
    depths: list[int] = []
    for index, before in enumerate(needed_by(instructions)):
        own = places[index]
        steps = [depths[other] + (places[other] not in (None, own)) for other in before]
        depths.append(max(steps, default=0))
    return depths


def _pays(members: Sequence[Instruction], cluster: Cluster) -> bool:
    """Whether there are two branches, and two cores or a GPU for them."""
    devices = [cluster.devices[device] for device in _group(members).devices]
    cores = {core for device in devices for core in device.cores}
    has_room = len(cores) > 1 or devices[0].kind == "cuda"
    return has_room and len(_branches(members)) > 1


def _branches(members: Sequence[Instruction]) -> Mapping[int, list[Instruction]]:
    found: dict[int, list[Instruction]] = defaultdict(list)
    for each in members:
        assert each.guard is not None
        found[each.guard.branch].append(each)
    return found


def _group(members: Sequence[Instruction]) -> Instruction:
    made = {instance for each in members for instance in each.writes}
    reads = dict.fromkeys(instance for each in members for instance in each.reads)
    return Instruction(
        None,
        min(each.device for each in members if each.device is not None),
        (),
        min(each.step for each in members),
        min(each.start_ns for each in members),
        max(each.finish_ns for each in members),
        tuple(instance for instance in reads if instance not in made),
        tuple(dict.fromkeys(instance for each in members for instance in each.writes)),
        members=tuple(each for own in _branches(members).values() for each in own),
    )
