"""Times and sizes of stages + a schedule -> makespan and peaks of a whole step or inference.

In each slot of the schedule (`transforms/schedules.py`) the stages run their passes, then they send
what they have made, ascending by stage: the order of `transforms/assemble.py`. A pass is one step
here, so the walk has as many steps as there are passes and copies between stages, however many
ops, lanes and replicas there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heteroplace.parts.parallel.transforms.schedules import Work, schedule_slots
from heteroplace.parts.parallel.transforms.stages.stage_layout import (
    BACKWARD,
    FORWARD,
    PASSES,
    UPDATE,
    CopyGroup,
)
from heteroplace.parts.parallel.transforms.stages.stage_times import StageBytes, StageTimes

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
        messages = sent.setdefault((group.src, group.is_backward), [])
        messages.append((group.dst, len(PASSES) + number))
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


def bound_ns(
    times: StageTimes, groups: Sequence[CopyGroup], micro_batches: int, has_engines: bool
) -> int:
    """Return what no order of the passes takes less than.

    A stage passes and copies for all microbatches, each behind what the copies that it waits for
    take of one microbatch, its head, and before what must follow it, its tail. Of any of these the
    least head, all work and the least tail together are a bound, as for one machine (Carlier, The
    one-machine sequencing problem, European Journal of Operational Research 11(1), 1982).

    Where devices have engines beside their cores, collectives and copies do not count, and a stage
    begins as soon as what it reads is made, maybe early in a pass: then it is the work alone.
    """
    if has_engines:
        return max(
            micro_batches * (passes[FORWARD] + passes[BACKWARD]) + passes[UPDATE]
            for passes in times.work_ns
        )
    sent: _Sent = [[{}, {}] for _ in times.pass_ns]
    for (src, is_backward, _, dst), copy_ns in zip(groups, times.copy_ns, strict=True):
        of_pass = sent[src][is_backward]
        of_pass[dst] = of_pass.get(dst, 0) + copy_ns
    return max(map(_machine_ns, _jobs(times.pass_ns, sent, micro_batches)))


_Job = tuple[int, int, int]
"""(head, work, tail) in ns: the work is of all microbatches, head and tail are of one."""
_Sent = list[list[dict[int, int]]]
"""What the copies to other stages behind a pass take, [num_stages][FORWARD or BACKWARD][dst]."""


def _jobs(pass_ns: Sequence[Sequence[int]], sent: _Sent, micro_batches: int) -> list[list[_Job]]:
    """What each stage does."""
    heads, tails = _heads(pass_ns, sent), _tails(pass_ns, sent)
    jobs: list[list[_Job]] = []
    for stage, passes in enumerate(pass_ns):
        jobs.append([(heads[stage][BACKWARD] + passes[BACKWARD], passes[UPDATE], 0)])
        for phase in (FORWARD, BACKWARD):
            work_ns = micro_batches * passes[phase]
            jobs[stage].append((heads[stage][phase], work_ns, tails[stage][phase]))
    for src, of_stage in enumerate(sent):
        for phase, of_pass in enumerate(of_stage):
            for dst, copy_ns in of_pass.items():
                head = heads[src][phase] + pass_ns[src][phase]
                job = (head, micro_batches * copy_ns, _rest_ns(pass_ns, tails, src, phase, dst))
                jobs[src].append(job)
                jobs[dst].append(job)
    return jobs


def _heads(pass_ns: Sequence[Sequence[int]], sent: _Sent) -> list[list[int]]:
    """What is done before a pass of a stage, [num_stages][FORWARD or BACKWARD]."""
    heads = [[0, 0] for _ in pass_ns]
    ascending = range(len(pass_ns))
    for phase, stages in ((FORWARD, ascending), (BACKWARD, reversed(ascending))):
        for src in stages:
            end = heads[src][phase] + pass_ns[src][phase]
            if phase == FORWARD:
                heads[src][BACKWARD] = max(heads[src][BACKWARD], end)
            for dst, copy_ns in sent[src][phase].items():
                # To a stage before it goes for a backward pass, whatever made it.
                reader = BACKWARD if dst < src else phase
                if phase == FORWARD or dst < src:
                    heads[dst][reader] = max(heads[dst][reader], end + copy_ns)
    return heads


def _tails(pass_ns: Sequence[Sequence[int]], sent: _Sent) -> list[list[int]]:
    """What is left behind a pass of a stage, [num_stages][FORWARD or BACKWARD]."""
    tails = [[0, passes[UPDATE]] for passes in pass_ns]
    ascending = range(len(pass_ns))
    for phase, stages in ((BACKWARD, ascending), (FORWARD, reversed(ascending))):
        for src in stages:
            if phase == FORWARD:
                tails[src][FORWARD] = pass_ns[src][BACKWARD] + tails[src][BACKWARD]
            for dst, copy_ns in sent[src][phase].items():
                rest = copy_ns + _rest_ns(pass_ns, tails, src, phase, dst)
                tails[src][phase] = max(tails[src][phase], rest)
    return tails


def _rest_ns(
    pass_ns: Sequence[Sequence[int]], tails: list[list[int]], src: int, phase: int, dst: int
) -> int:
    """What is left behind a copy."""
    if phase == BACKWARD and dst > src:
        return 0  # for an update, and the other work of that stage may be long done
    reader = BACKWARD if dst < src else FORWARD
    return pass_ns[dst][reader] + tails[dst][reader]


def _machine_ns(jobs: Sequence[_Job]) -> int:
    """The most that any of the jobs take together."""
    total_ns = 0
    latest_first = sorted(jobs, reverse=True)
    for least in {tail for _, _, tail in jobs}:
        work = 0
        for head, ns, tail in latest_first:
            if tail >= least:
                work += ns
                total_ns = max(total_ns, head + work + least)
    return total_ns


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
