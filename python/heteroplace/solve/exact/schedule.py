"""Steps of a plan <-> a schedule of a Formulation: what is chosen, and when it runs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.model.plan import Copy, Run, Step
from heteroplace.solve.exact.formulation import Formulation

NOT_TAKEN = -1
"""In `Schedule.chosen`: a transfer that is not needed."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """A solution of a Formulation in whole nanoseconds. Arrays are [num_activities]."""

    chosen: tuple[int, ...]
    """Choice of each activity; NOT_TAKEN."""
    start_ns: tuple[int, ...]
    """0 where nothing is taken; so is `finish_ns`."""
    finish_ns: tuple[int, ...]
    makespan_ns: int


def schedule_of_steps(formulation: Formulation, steps: Sequence[Step]) -> Schedule:
    """Return a plan as a schedule. Its copies leave their tensor's home, as those of solvers do."""
    devices = [0] * formulation.num_tasks
    position: dict[tuple[int, int], int] = {}
    priority = [(0, 0)] * formulation.num_activities
    for index, step in enumerate(steps):
        if isinstance(step, Run):
            devices[step.task] = step.device
            priority[step.task] = (index, 0)
        elif isinstance(step, Copy):
            position[step.tensor, step.dst] = index
    chosen = choices_of_devices(formulation, devices)
    for index, transfer in enumerate(formulation.transfers, start=formulation.num_tasks):
        if chosen[index] != NOT_TAKEN:
            memory = formulation.choices[chosen[index]].where
            priority[index] = (position[transfer.tensor, memory], 0)
    return timed(formulation, chosen, priority)


def choices_of_devices(formulation: Formulation, devices: Sequence[int]) -> tuple[int, ...]:
    """Return what is chosen if each task runs on the given device: the transfers follow.

    The devices satisfy `Formulation.exclusions`.
    """
    chosen = [NOT_TAKEN] * formulation.num_activities
    for task, device in enumerate(devices):
        ids = formulation.of_activity[task]
        chosen[task] = next(c for c in ids if formulation.choices[c].where == device)
    taken = {choice for choice in chosen if choice != NOT_TAKEN}
    homes = formulation.homes
    for index, transfer in enumerate(formulation.transfers, start=formulation.num_tasks):
        for choice in formulation.of_activity[index]:
            way = formulation.choices[choice]
            home = homes.home(transfer, way.src)
            if not home.constant and taken.isdisjoint(home.choices):
                continue
            for read in homes.reads(transfer, way.where):
                if read.constant or not taken.isdisjoint(read.choices):
                    chosen[index] = choice
    return tuple(chosen)


def timed(
    formulation: Formulation, chosen: Sequence[int], priority: Sequence[tuple[int, int]]
) -> Schedule:
    """Start each activity as early as it can, one after another, smallest priority first.

    An activity comes up after those that it needs; ties go by id. O(n log n + transfers).
    """
    needs = _needs(formulation, chosen)
    after: list[list[int]] = [[] for _ in chosen]
    open_needs = [0] * len(chosen)
    for activity, before in enumerate(needs):
        open_needs[activity] = len(before)
        for other in before:
            after[other].append(activity)
    start, finish = [0] * len(chosen), [0] * len(chosen)
    free: dict[int, int] = {}
    ready = [
        (priority[activity], activity)
        for activity, choice in enumerate(chosen)
        if choice != NOT_TAKEN and not open_needs[activity]
    ]
    heapq.heapify(ready)
    while ready:
        _, activity = heapq.heappop(ready)
        choice = formulation.choices[chosen[activity]]
        start[activity] = max(
            max((finish[other] for other in needs[activity]), default=0),
            max((free.get(resource, 0) for resource in choice.resources), default=0),
        )
        finish[activity] = start[activity] + choice.duration_ns
        free.update(dict.fromkeys(choice.resources, finish[activity]))
        for other in after[activity]:
            open_needs[other] -= 1
            if not open_needs[other]:
                heapq.heappush(ready, (priority[other], other))
    return Schedule(tuple(chosen), tuple(start), tuple(finish), max(finish, default=0))


def _needs(formulation: Formulation, chosen: Sequence[int]) -> list[list[int]]:
    """For each activity that is taken those that it waits for."""
    devices = formulation.problem.cluster.devices
    needs: list[list[int]] = []
    for task, before in enumerate(formulation.problem.graph.predecessors):
        memory = devices[formulation.choices[chosen[task]].where].memory
        served = [
            transfer
            for transfer in formulation.transfers_to[task]
            if chosen[transfer] != NOT_TAKEN
            and formulation.choices[chosen[transfer]].where == memory
        ]
        needs.append([*before, *served])
    for index, transfer in enumerate(formulation.transfers, start=formulation.num_tasks):
        is_waiting = chosen[index] != NOT_TAKEN and transfer.producer is not None
        needs.append([transfer.producer] if is_waiting and transfer.producer is not None else [])
    return needs


def steps_of_schedule(formulation: Formulation, schedule: Schedule) -> tuple[Step, ...]:
    """Return the plan in order of start; ties as in `src/model/native_plan.h`.

    Of several transfers of a tensor to one memory the first becomes a copy, for all readers.
    """
    timed_steps: list[tuple[tuple[int, ...], Step]] = []
    cluster = formulation.problem.cluster
    for activity, index in enumerate(schedule.chosen):
        if index == NOT_TAKEN:
            continue
        choice = formulation.choices[index]
        times = (schedule.start_ns[activity], schedule.finish_ns[activity])
        if activity < formulation.num_tasks:
            rank = (*times, 2 * activity, activity, 0)
            timed_steps.append((rank, Run(activity, choice.where)))
            continue
        transfer = formulation.transfers[activity - formulation.num_tasks]
        after = -1 if transfer.producer is None else 2 * transfer.producer + 1
        route = cluster.route(choice.src, choice.where)
        step = Copy(transfer.tensor, choice.src, choice.where, route)
        timed_steps.append(((*times, after, transfer.tensor, choice.where), step))
    steps = [step for _, step in sorted(timed_steps, key=lambda entry: entry[0])]
    return tuple(dict.fromkeys(steps))
