"""The simulator of the core: steps of a plan -> when each starts and finishes, and the memories.

See `src/simulate/simulator.h` (DistIR, section 4) and `src/simulate/live_memory.h`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

import heteroplace._core as _core
from heteroplace.errors import PlanError
from heteroplace.model.check_collective import collective_faults
from heteroplace.model.plan import Collective, Copy, Run, Step
from heteroplace.model.step_values import collective_step_ns, makes, occupied, reads
from heteroplace.native.arrays import COLLECTIVE, COPY, RUN, IntArray, csr, ints
from heteroplace.native.limits import check_items
from heteroplace.native.problem import NativePlan, NativeProblem

_ONLY_FIRST = frozenset({(0,)})


@dataclass(frozen=True)
class StepTimes:
    """What the simulator found for a plan."""

    start_ns: IntArray
    finish_ns: IntArray
    makespan_ns: int
    used_bytes: tuple[int, ...]
    """For each memory, by the static rule of `heteroplace.model.memory`."""
    held_bytes: tuple[int, ...]
    """For each memory what is live always: weights, workspaces, model inputs in the host memory."""
    peak_bytes: tuple[int, ...]
    """For each memory the largest number of live bytes, by the rule of
    `heteroplace.model.live_memory`: what limits plans."""
    peak_ns: tuple[int, ...]
    """For each memory when there are as many first."""
    peak_step: tuple[int, ...]
    """For each memory the step at whose start that is; -1: before any step."""


def simulate_steps(native: NativeProblem, steps: Sequence[Step], items: int = 1) -> StepTimes:
    """Return when each step of a plan of so many items starts and finishes.

    Raises
    ------
    PlanError
        A step reads a tensor that is not there, a device cannot run its task or batch, or a
        collective is faulty in itself.
    CostMismatchError
        So many items, or such long collectives, that sums of their times or sizes are too large.
    """
    rows, collectives = _rows(steps)
    arrays = (_collectives(native, collectives),) if collectives else ()
    if items > 1 or arrays:
        collective_ns = sum(int(found[-1].sum()) for found in arrays)
        check_items(items, native.longest_ns, native.most_bytes, collective_ns)
    links = csr([step.route if isinstance(step, Copy) else () for step in steps])
    # No lists of items at all: every step is for item 0.
    has_items = items != 1 or not {step.items for step in steps} <= _ONLY_FIRST
    members = csr([step.items for step in steps] if has_items else ())
    return _times(_core.simulate(native.core, rows, *links, *members, items, *arrays))


def _collectives(native: NativeProblem, steps: Sequence[Collective]) -> tuple[IntArray, ...]:
    """What the collectives read, make and occupy and how long they take, as the core reads it.

    Raises
    ------
    PlanError
        A step is no collective that its devices can do; `check_plan` says why.
    """
    graph, cluster = native.graph, native.cluster
    for step in steps:
        ids = (*((device, cluster.devices) for device in step.devices), (step.task, graph.tasks))
        is_known = all(number in range(len(known)) for number, known in ids)
        if not is_known or collective_faults(graph, cluster, step):
            raise PlanError("a collective is faulty; check_plan lists all faults")
    columns = (
        [tuple(chain.from_iterable(reads(graph, cluster, step))) for step in steps],
        [tuple(chain.from_iterable(makes(graph, cluster, step))) for step in steps],
        [step.devices for step in steps],
        [occupied(graph, cluster, step) for step in steps],
    )
    times = [collective_step_ns(graph, cluster, native.collectives, step) for step in steps]
    return *(array for column in columns for array in csr(column)), ints(times)


def simulate_plan(native: NativeProblem, plan: NativePlan) -> StepTimes:
    """Return when each step of a native plan starts and finishes, without making its steps.

    Raises
    ------
    PlanError
        A step reads a tensor that is not there.
    """
    count = len(native.cluster.memories)
    copies = plan.rows[:, 0] == COPY
    pairs = np.where(copies, plan.rows[:, 3] * count + plan.rows[:, 2], 0)
    offsets, links = native.routes
    lengths = np.where(copies, offsets[pairs + 1] - offsets[pairs], 0)
    ends = np.concatenate(([0], np.cumsum(lengths)))
    # Link number k of a step's route lies k behind where the route of its pair begins.
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    values = links[np.repeat(offsets[pairs], lengths) + within]
    rows = np.ascontiguousarray(plan.rows)
    return _times(_core.simulate(native.core, rows, ends, values, *csr(()), 1))


def native_plan_of(native: NativeProblem, steps: Sequence[Step]) -> NativePlan:
    """Return steps of one item, with copies along `Cluster.route`, that fit, as a native plan."""
    makespan_ns = simulate_steps(native, steps).makespan_ns
    return NativePlan(_rows(steps)[0], makespan_ns, 0, native.cluster)


def _rows(steps: Sequence[Step]) -> tuple[IntArray, list[Collective]]:
    """The steps as the core reads them, and the collectives among them, in their order."""
    values: list[int] = []
    collectives: list[Collective] = []
    for step in steps:
        if isinstance(step, Run):
            values += (RUN, step.task, step.device, -1)
        elif isinstance(step, Copy):
            values += (COPY, step.tensor, step.dst, step.src)
        else:
            values += (COLLECTIVE, step.task, len(collectives), -1)
            collectives.append(step)
    return np.array(values, dtype=np.int64).reshape(-1, 4), collectives


def _times(
    found: tuple[IntArray, IntArray, int, IntArray, IntArray, IntArray, IntArray, IntArray],
) -> StepTimes:
    start_ns, finish_ns, makespan_ns, *memories = found
    used, held, peak, at_ns, at_step = (tuple(memory.tolist()) for memory in memories)
    return StepTimes(start_ns, finish_ns, makespan_ns, used, held, peak, at_ns, at_step)
