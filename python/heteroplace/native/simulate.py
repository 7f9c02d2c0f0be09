"""The simulator of the core: steps of a plan -> when each starts and finishes, and the memories.

See `src/simulate/simulator.h` (DistIR, section 4) and `src/simulate/live_memory.h`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

import heteroplace._core as _core
from heteroplace.errors import PlanError
from heteroplace.model.checks.check_collective import collective_faults
from heteroplace.model.checks.check_guards import unknown_guard
from heteroplace.model.checks.check_parts import unknown_ids
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graphs.groups import grouped_ns, groups_of
from heteroplace.model.memory_use.weight_room import room_parts
from heteroplace.model.plan import Collective, Copy, Load, Run, Step, devices_of, guard_of
from heteroplace.model.routed.decision import Decision
from heteroplace.model.step_values import collective_step_ns, makes, occupied, reads, step_ns
from heteroplace.native.core_arrays import (
    COLLECTIVE,
    COPY,
    GUARDED,
    RUN,
    IntArray,
    IntRows,
    csr,
    ints,
)
from heteroplace.native.core_limits import check_items
from heteroplace.native.core_problem import NativePlan, NativeProblem

_ONLY_FIRST = frozenset({(0,)})
_Values = tuple[IntRows, IntRows, IntRows, IntRows]
"""Of some steps: what they read and make, their devices, and what they occupy."""


@dataclass(frozen=True)
class StepTimes:
    """What the simulator found for a plan."""

    start_ns: IntArray
    finish_ns: IntArray
    makespan_ns: int
    used_bytes: tuple[int, ...]
    """For each memory, by the static rule of `heteroplace.model.memory_use.memory`."""
    held_bytes: tuple[int, ...]
    """For each memory what is live always: weights, workspaces, model inputs in the host memory."""
    peak_bytes: tuple[int, ...]
    """For each memory the largest number of live bytes, by the rule of
    `heteroplace.model.memory_use.live_memory`: what limits plans."""
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
    return Simulation(native, steps, items, costs).times(decision)


class Simulation:
    """Steps that are simulated under several decisions: what does not hang on them is made once.

    Parameters and errors as of `simulate_steps`.
    """

    def __init__(
        self,
        native: NativeProblem,
        steps: Sequence[Step],
        items: int = 1,
        costs: CostTable | None = None,
    ) -> None:
        self._native, self._items, self._costs = native, items, costs or native.costs
        self._rows, self._explicit = _rows(steps, native.cluster)
        self._values = _explicit_values(native, self._explicit) if self._explicit else None
        self._loads = _loads(self._explicit)
        self._links = csr([step.route if isinstance(step, Copy) else () for step in steps])
        # No lists of items at all: every step is for item 0.
        has_items = items != 1 or not {step.items for step in steps} <= _ONLY_FIRST
        self._members = csr([step.items for step in steps] if has_items else ())
        self._groups = groups_of(native.graph, native.cluster, self._explicit)
        self._of_router: dict[int, list[int]] = {}
        for number, step in enumerate(self._explicit):
            guard = guard_of(step)
            self._of_router.setdefault(-1 if guard is None else guard.router, []).append(number)
        self._known: dict[object, list[int]] = {}
        """By router, and by what is decided and predicted of it."""

    def times(self, decision: Decision | None = None, left_out: Collection[int] = ()) -> StepTimes:
        """Return when each step starts and finishes under a decision.

        Parameters
        ----------
        left_out
            Numbers of guarded steps that take no time, whatever the decision says.
        """
        times: list[int] = []
        if self._explicit:
            times = self._explicit_ns(decision)
            for number in left_out:
                times[int(self._rows[number, 2])] = 0
            if decision is not None:
                times = grouped_ns(
                    *(self._native.graph, self._native.cluster, self._explicit, times),
                    self._groups,
                )
        if self._items > 1 or times:
            native = self._native
            check_items(self._items, native.longest_ns, native.max_bytes, sum(times))
        arrays = None if self._values is None else (*self._values, ints(times))
        members = self._links, self._members
        return _core.simulate(self._native, self._rows, *members, self._items, arrays, self._loads)

    def _explicit_ns(self, decision: Decision | None) -> list[int]:
        """How long explicit steps take. Of a guarded one only its own router counts."""
        explicit_ns = [0] * len(self._explicit)
        for router, numbers in self._of_router.items():
            key: object = router
            if decision is not None and router >= 0:
                key = router, (decision.loads[router], decision.predicted[router])
            if key not in self._known:
                steps = [self._explicit[number] for number in numbers]
                self._known[key] = _steps_ns(self._native, steps, self._costs, decision)
            for number, taken in zip(numbers, self._known[key], strict=True):
                explicit_ns[number] = taken
        return explicit_ns


def _steps_ns(
    native: NativeProblem, steps: Sequence[Step], costs: CostTable, decision: Decision | None
) -> list[int]:
    """How long explicit steps take by themselves.

    Raises
    ------
    PlanError
        A device cannot run a task.
    """
    times = []
    for step in steps:
        if isinstance(step, Collective):
            fitted = native.costs.collectives
            times.append(collective_step_ns(native.graph, native.cluster, fitted, step))
            continue
        taken = step_ns(native.graph, native.cluster, costs, step, decision)
        if taken is None:
            raise PlanError("a device cannot run a task; check_plan lists all faults")
        times.append(taken)
    return times


def _explicit_values(native: NativeProblem, steps: Sequence[Step]) -> _Values:
    """What explicit steps read, make and occupy, as the core reads it.

    Raises
    ------
    PlanError
        A step names what does not exist, or what its devices cannot do; `check_plan` says why.
    """
    graph, cluster = native.graph, native.cluster
    for step in steps:
        if unknown_ids(graph, cluster, step) or unknown_guard(graph, step):
            raise PlanError("a step names what does not exist; check_plan lists all faults")
        if isinstance(step, Collective) and collective_faults(graph, cluster, step):
            raise PlanError("a collective is faulty; check_plan lists all faults")
    rooms = room_parts(steps, cluster, len(cluster.resources))
    return (
        csr([tuple(chain.from_iterable(reads(graph, cluster, step))) for step in steps]),
        csr([tuple(chain.from_iterable(makes(graph, cluster, step))) for step in steps]),
        csr([devices_of(step) for step in steps]),
        csr([(*occupied(graph, cluster, step), *r) for step, r in zip(steps, rooms, strict=True)]),
    )


def _loads(steps: Sequence[Step]) -> tuple[IntRows, IntArray] | None:
    """Task and memory of all weights that explicit steps bring, and of those that are kept; None:
    no step is a load."""
    loads = [step for step in steps if isinstance(step, Load)]
    if not loads:
        return None
    places = dict.fromkeys((task, step.src) for step in loads for task in step.tasks)
    brought = [
        [number for task in step.tasks for number in (task, step.dst)]
        if isinstance(step, Load)
        else []
        for step in steps
    ]
    return csr(brought), ints(list(chain.from_iterable(places)))


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
    return _core.simulate(native, rows, (ends, values), csr(()), 1)


def native_plan_of(
    native: NativeProblem, steps: Sequence[Step], makespan_ns: int | None = None
) -> NativePlan:
    """Return steps of one item, with copies along `Cluster.route`, that fit, as a native plan.

    Its makespan is simulated where it is not given, as of a plan that lacks copies.
    """
    if makespan_ns is None:
        makespan_ns = simulate_steps(native, steps).makespan_ns
    return NativePlan(_rows(steps, native.cluster)[0], makespan_ns, 0, native.cluster)


def _rows(steps: Sequence[Step], cluster: Cluster) -> tuple[IntArray, list[Step]]:
    """The steps as the core reads them, and the explicit ones among them, in their order.

    A run whose weights are loaded to a place in the room is explicit: it occupies that place.
    """
    values: list[int] = []
    explicit: list[Step] = []
    for step, parts in zip(steps, room_parts(steps, cluster, 0), strict=True):
        if isinstance(step, Run) and step.guard is None and not parts:
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
