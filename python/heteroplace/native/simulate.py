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
from heteroplace.model.check_guards import unknown_guard
from heteroplace.model.check_parts import unknown_ids
from heteroplace.model.cost import CostTable
from heteroplace.model.decision import Decision
from heteroplace.model.groups import grouped_ns
from heteroplace.model.plan import Collective, Copy, Load, Run, Step, devices_of
from heteroplace.model.step_values import collective_step_ns, makes, occupied, reads, step_ns
from heteroplace.model.weight_room import room_parts
from heteroplace.native.arrays import COLLECTIVE, COPY, GUARDED, RUN, IntArray, csr, ints
from heteroplace.native.limits import check_items
from heteroplace.native.problem import NativePlan, NativeProblem

_ONLY_FIRST = frozenset({(0,)})

_Explicit = tuple[
    IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray
]
"""Of some steps: what they read, make and occupy and their devices as offsets and values, and how
long they take."""


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


def simulate_steps(
    native: NativeProblem,
    steps: Sequence[Step],
    items: int = 1,
    costs: CostTable | None = None,
    decision: Decision | None = None,
) -> StepTimes:
    """Return when each step of a plan of so many items starts and finishes.

    Parameters
    ----------
    costs
        Times of the runs of guarded steps; None: those of `native`.
    decision
        As in `model.step_values.step_ns`.

    Raises
    ------
    PlanError
        A step reads a tensor that is not there, a device cannot run its task or batch, or an
        explicit step is faulty in itself.
    CostMismatchError
        So many items, or such long explicit steps, that sums of their times or sizes are too large.
    """
    rows, explicit = _rows(steps)
    times = _explicit_ns(native, explicit, costs or native.costs, decision) if explicit else []
    arrays = _explicit(native, explicit, times) if explicit else None
    loads = _loads(explicit)
    if items > 1 or explicit:
        check_items(items, native.longest_ns, native.most_bytes, sum(times))
    links = csr([step.route if isinstance(step, Copy) else () for step in steps])
    # No lists of items at all: every step is for item 0.
    has_items = items != 1 or not {step.items for step in steps} <= _ONLY_FIRST
    members = csr([step.items for step in steps] if has_items else ())
    return _times(_core.simulate(native.core, rows, *links, *members, items, arrays, loads))


def _explicit_ns(
    native: NativeProblem,
    steps: Sequence[Step],
    costs: CostTable,
    decision: Decision | None,
) -> list[int]:
    """How long explicit steps take.

    Raises
    ------
    PlanError
        A step names what does not exist, or what its devices cannot do; `check_plan` says why.
    """
    graph, cluster = native.graph, native.cluster
    times = []
    for step in steps:
        if unknown_ids(graph, cluster, step) or unknown_guard(graph, step):
            raise PlanError("a step names what does not exist; check_plan lists all faults")
        if isinstance(step, Collective):
            if collective_faults(graph, cluster, step):
                raise PlanError("a collective is faulty; check_plan lists all faults")
            times.append(collective_step_ns(graph, cluster, native.costs.collectives, step))
            continue
        taken = step_ns(graph, cluster, costs, step, decision)
        if taken is None:
            raise PlanError("a device cannot run a guarded task; check_plan lists all faults")
        times.append(taken)
    return times if decision is None else grouped_ns(graph, cluster, steps, times)


def _explicit(native: NativeProblem, steps: Sequence[Step], times: Sequence[int]) -> _Explicit:
    """What explicit steps read, make and occupy and how long they take, as the core reads it."""
    graph, cluster = native.graph, native.cluster
    rooms = room_parts(steps, cluster, len(cluster.resources))
    return (
        *csr([tuple(chain.from_iterable(reads(graph, cluster, step))) for step in steps]),
        *csr([tuple(chain.from_iterable(makes(graph, cluster, step))) for step in steps]),
        *csr([devices_of(step) for step in steps]),
        *csr([(*occupied(graph, cluster, step), *r) for step, r in zip(steps, rooms, strict=True)]),
        ints(times),
    )


def _loads(steps: Sequence[Step]) -> tuple[IntArray, IntArray, IntArray] | None:
    """Task and memory of all weights that explicit steps bring, and of those that are kept; None:
    no step is a load."""
    loads = [step for step in steps if isinstance(step, Load)]
    if not loads:
        return None
    kept = dict.fromkeys((task, step.src) for step in loads for task in step.tasks)
    brought = [
        [number for task in step.tasks for number in (task, step.dst)]
        if isinstance(step, Load)
        else []
        for step in steps
    ]
    return *csr(brought), ints(list(chain.from_iterable(kept)))


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


def _rows(steps: Sequence[Step]) -> tuple[IntArray, list[Step]]:
    """The steps as the core reads them, and the explicit ones among them, in their order."""
    values: list[int] = []
    explicit: list[Step] = []
    for step in steps:
        if isinstance(step, Run) and step.guard is None:
            values += (RUN, step.task, step.device, -1)
        elif isinstance(step, Copy) and step.guard is None:
            values += (COPY, step.tensor, step.dst, step.src)
        else:
            values += _explicit_row(step, len(explicit))
            explicit.append(step)
    return np.array(values, dtype=np.int64).reshape(-1, 4), explicit


def _explicit_row(step: Step, position: int) -> tuple[int, int, int, int]:
    if isinstance(step, Collective):
        return COLLECTIVE, step.task, position, -1
    return GUARDED, step.task if isinstance(step, Run) else -1, position, -1


def _times(
    found: tuple[IntArray, IntArray, int, IntArray, IntArray, IntArray, IntArray, IntArray],
) -> StepTimes:
    start_ns, finish_ns, makespan_ns, *memories = found
    used, held, peak, at_ns, at_step = (tuple(memory.tolist()) for memory in memories)
    return StepTimes(start_ns, finish_ns, makespan_ns, used, held, peak, at_ns, at_step)
