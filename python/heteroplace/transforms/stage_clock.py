"""Times and sizes of stages + a schedule -> makespan and peaks of a whole step or inference.

In each slot of the schedule (`heteroplace.transforms.schedules`) the stages run their passes, then
they send what they have made, ascending by stage: the order of `heteroplace.transforms.assemble`.
A pass is one step here, so the walk has as many steps as there are passes and copies between
stages, however many ops, lanes and replicas there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heteroplace.transforms.schedules import Work, schedule_slots
from heteroplace.transforms.stage_layout import BACKWARD, FORWARD, PASSES, UPDATE, CopyGroup
from heteroplace.transforms.stage_times import StageBytes, StageTimes

IntArray = NDArray[np.int64]

_HERE = -1


@dataclass(frozen=True)
class StageOrder:
    """The passes and copies of all stages of a replica, in the order of the plan."""

    num_stages: int
    micro_batches: int
    steps: tuple[tuple[int, int, int], ...]
    """(stage, phase, _HERE) of a pass, (src, phase, dst) of a copy. Phases are PASSES, then those
    of the copy groups."""
    phases: tuple[IntArray, ...]
    """For each stage the phases that concern it, in order."""


def stage_order(
    schedule: str,
    num_stages: int,
    micro_batches: int,
    is_training: bool,
    groups: Sequence[CopyGroup],
) -> StageOrder:
    """Return the order in which stages work and send.

    Raises
    ------
    ShardingError
        There is no such schedule, or it cannot go on.
    """
    slots = schedule_slots(schedule, num_stages, micro_batches, is_training)
    sent: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    for number, group in enumerate(groups):
        found = sent.setdefault((group.src, group.is_backward), [])
        found.append((group.dst, len(PASSES) + number))
    steps: list[tuple[int, int, int]] = []
    phases: list[list[int]] = [[] for _ in range(num_stages)]
    left = [sum(work.stage == stage for slot in slots for work in slot)
            for stage in range(num_stages)]  # fmt: skip
    for slot in slots:
        for work in slot:
            steps.append((work.stage, _phase(work), _HERE))
            phases[work.stage].append(_phase(work))
        for work in slot:
            for dst, phase in sent.get((work.stage, work.backward), ()):
                steps.append((work.stage, phase, dst))
                phases[work.stage].append(phase)
                phases[dst].append(phase)
        for work in slot:
            left[work.stage] -= 1
            if not left[work.stage]:
                steps.append((work.stage, UPDATE, _HERE))
                phases[work.stage].append(UPDATE)
    arrays = tuple(np.array(each, dtype=np.int64) for each in phases)
    return StageOrder(num_stages, micro_batches, tuple(steps), arrays)


def _phase(work: Work) -> int:
    return BACKWARD if work.backward else FORWARD


def makespan_ns(order: StageOrder, times: StageTimes) -> int:
    """Return when the last stage is done; copies take both of their stages."""
    free = [0] * order.num_stages
    run_ns, copy_ns = times.pass_ns, times.copy_ns
    for stage, phase, dst in order.steps:
        if dst == _HERE:
            free[stage] += run_ns[stage][phase]
        else:
            free[stage] = free[dst] = max(free[stage], free[dst]) + copy_ns[phase - len(PASSES)]
    return max(free)


def bound_ns(times: StageTimes, groups: Sequence[CopyGroup], micro_batches: int,
             is_training: bool, has_engines: bool) -> int:  # fmt: skip
    """Return what no order of the passes takes less than.

    A stage works for all microbatches, after the first has come through the stages before it, and
    before the last one goes on. Where devices have engines beside their cores, collectives and
    copies do not count.
    """
    run_ns = times.work_ns if has_engines else times.pass_ns
    num_stages = len(run_ns)
    busy = [0] * num_stages
    to_next = [0] * num_stages
    to_last = [0] * num_stages
    if not has_engines:
        for group, copy_ns in zip(groups, times.copy_ns, strict=True):
            busy[group.src] += copy_ns
            busy[group.dst] += copy_ns
            if not group.is_backward and group.dst == group.src + 1:
                to_next[group.src] += copy_ns
            elif group.is_backward and group.dst == group.src - 1:
                to_last[group.src] += copy_ns
    found = 0
    for stage, passes in enumerate(run_ns):
        work = micro_batches * (passes[FORWARD] + passes[BACKWARD] + busy[stage])
        # Copies of the first microbatch to this stage are in `busy`.
        before = sum(run_ns[s][FORWARD] for s in range(stage))
        before += sum(to_next[: max(stage - 1, 0)])
        if is_training:
            after = sum(run_ns[s][BACKWARD] for s in range(stage))
            after += sum(to_last[1:stage])
            found = max(found, before + work + max(passes[UPDATE], after + run_ns[0][UPDATE]))
        else:
            after = sum(run_ns[s][FORWARD] for s in range(stage + 1, num_stages))
            found = max(found, before + work + after + sum(to_next[stage + 1 :]))
    return found


def peak_bytes(order: StageOrder, sizes: StageBytes) -> IntArray:
    """Return the most that is live in each stage and lane, [num_stages, num_lanes]."""
    peaks: IntArray = sizes.held.copy()
    for stage, phases in enumerate(order.phases):
        if not len(phases):
            continue
        net, peak = sizes.net[stage][:, phases], sizes.peak[stage][:, phases]
        _, firsts = np.unique(phases, return_index=True)
        net[:, firsts] = sizes.first_net[stage][:, phases[firsts]]
        peak[:, firsts] = sizes.first_peak[stage][:, phases[firsts]]
        before = np.cumsum(net, axis=1) - net
        peaks[stage] += np.maximum((before + peak).max(axis=1), 0)
    return peaks
