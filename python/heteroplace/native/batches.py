"""List schedulers for several items in the core; see `src/sched/batch_schedule.h`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import heteroplace._core as _core
from heteroplace.model.plan import Copy, Run, Step
from heteroplace.native.schedule import NativeProblem

_RULES = {"fastest": 0, "latency": 1, "finish": 2}

BatchRule = Literal["fastest", "latency", "finish"]
"""What a composition is chosen by: least time per item, least latency of all that is scheduled so
far, earliest finish of the task."""

Composition = tuple[tuple[int, int], ...]
"""(device, batch size) of each part; the sizes sum to the number of items."""


@dataclass(frozen=True)
class BatchDraft:
    """A schedule of several items that the core made, in the form of a plan."""

    steps: tuple[Step, ...]
    makespan_ns: int
    """As the scheduler had it; the simulated one is never later."""
    violation: int
    """As in `Draft`: 0: it can be run."""


def batch_compositions(native: NativeProblem, task: int, items: int) -> tuple[Composition, ...]:
    """Return the ways to serve all items of a task with one batch on each device at most.

    Those with at most three parts; if there are none, those with as few parts as possible. Empty:
    the batch sizes of the devices do not add up to `items`.
    """
    found = _core.batch_compositions(native.core, task, items)
    return tuple(tuple(parts) for parts in found)


def schedule_batches(native: NativeProblem, items: int, rule: BatchRule) -> BatchDraft:
    """Schedule all items of all tasks. Raises InfeasibleError if a task has no composition."""
    rows, offsets, values, makespan_ns, violation = _core.schedule_batches(
        native.core, items, _RULES[rule]
    )
    ends = offsets.tolist()
    members = values.tolist()
    steps: list[Step] = []
    for index, (kind, subject, place, src) in enumerate(rows.tolist()):
        of_step = tuple(members[ends[index] : ends[index + 1]])
        if kind == 0:
            steps.append(Run(subject, place, of_step))
        else:
            steps.append(Copy(subject, src, place, native.cluster.route(src, place), of_step))
    return BatchDraft(tuple(steps), makespan_ns, violation)
