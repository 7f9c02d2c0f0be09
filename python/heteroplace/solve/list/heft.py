"""HEFT as a solver, and the device sets worth a try with it.

C++: src/list/engine/list_parts.cc (list::PlanByParts). Topcuoglu, Hariri, Wu,
"Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous Computing", 2002,
section 4.2 (10.1109/71.993206).

On devices that share units plain HEFT takes the fastest one again and again and so blocks the
others; trying each set of devices with disjoint units ("antichain") beside all of them mends that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.core_search import search_plans
from heteroplace.native.list import heft
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.feasibility import no_placement_error
from heteroplace.solve.list.order_place import OrderPlaceSolver
from heteroplace.solve.list.scheduler_solver import ListSolver
from heteroplace.solve.problem import Problem

_MAX_SETS = 64
"""Device sets tried; a cluster with more has its first ones tried, in order of device ids."""
_REPAIR_EVALUATIONS = 20_000
"""Plans tried to repair one that does not fit."""


class HeftSolver(ListSolver):
    """HEFT over all devices. A plan that overflows a memory is repaired by a short search."""

    name = "heft"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return heft(problem.native, range(len(problem.cluster.devices)), deadline.left_s())

    def repaired(self, problem: Problem, plan: NativePlan, time_limit_s: float) -> NativePlan:
        """See `repair`."""
        plan = repair(problem, plan, time_limit_s)
        if plan.violation:
            raise no_placement_error(problem)
        return plan


def heft_native_plan(
    problem: Problem, devices: Iterable[int], time_limit_s: float
) -> NativePlan | None:
    """Return HEFT's plan with the given devices preferred; None if none was found that fits."""
    plan = heft(problem.native, devices)
    if plan.violation:
        plan = repair(problem, plan, time_limit_s)
    return None if plan.violation else plan


def repair(problem: Problem, plan: NativePlan, time_limit_s: float) -> NativePlan:
    """Return the plan that overflows least of it, Order-Place and a short search from both.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C came meanwhile.
    """
    initial = [plan, OrderPlaceSolver().native_plan(problem)]
    improved = search_plans(
        problem.native,
        initial,
        max_evaluations=_REPAIR_EVALUATIONS,
        time_limit_s=time_limit_s,
        seed=0,
        patience=_REPAIR_EVALUATIONS // 2,
        finds_bound=False,
    )
    if improved.was_interrupted:
        raise KeyboardInterrupt
    # The search schedules them anew, and may then lack memory where they do not.
    return min(improved.native_plan, *initial, key=lambda one: one.violation)


def device_sets(problem: Problem) -> list[tuple[int, ...]]:
    """Return the sets of devices worth a HEFT: all, the maximal antichains, those of one memory.

    An antichain is a set of at least two devices no two of which share a unit.
    Complexity: O(sets * devices^2), whatever the number of antichains.
    """
    cluster = problem.cluster
    everything = tuple(range(len(cluster.devices)))
    sets = [everything]
    groups = [everything]
    for memory in range(len(cluster.memories)):
        groups.append(tuple(d for d in everything if cluster.devices[d].memory == memory))
    for group in dict.fromkeys(groups):
        sets.extend(
            antichain for antichain in _antichains(cluster.unit_ids, group) if len(antichain) > 1
        )
    return list(dict.fromkeys(sets))[:_MAX_SETS]


def _antichains(unit_ids: Sequence[Sequence[int]], devices: Sequence[int]) -> list[tuple[int, ...]]:
    """The lexicographically first _MAX_SETS maximal sets of devices without a common unit.

    Johnson, Yannakakis, Papadimitriou, "On generating all maximal independent sets", 1988, section
    3 (10.1016/0020-0190(88)90065-8): each set takes O(devices^2), where walking over all choices of
    devices may pass through very many that no set comes of. Sets of positions are words of bits.
    """
    units = [set(unit_ids[device]) for device in devices]
    clashes = [sum(1 << at for at, other in enumerate(units) if own & other) for own in units]

    def completed(positions: list[int]) -> tuple[int, ...]:
        """The first maximal set with these."""
        chosen, taken = list(positions), 0
        for position in positions:
            taken |= clashes[position] | 1 << position
        for position, clash in enumerate(clashes):
            if not taken >> position & 1:
                chosen.append(position)
                taken |= clash | 1 << position
        return tuple(sorted(chosen))

    waiting = [completed([])]
    seen = set(waiting)
    sets: list[tuple[int, ...]] = []
    while waiting and len(sets) < _MAX_SETS:
        positions = heappop(waiting)
        sets.append(tuple(devices[position] for position in positions))
        for position, clash in enumerate(clashes):
            before = [other for other in positions if other < position]
            allowed = [other for other in before if not clash >> other & 1]
            if len(allowed) == len(before):
                continue  # It is there, or leads to a set that comes earlier.
            another = completed([*allowed, position])
            # Among the devices up to this one it has to be maximal with no others.
            if [other for other in another if other < position] == allowed and another not in seen:
                seen.add(another)
                heappush(waiting, another)
    return sets
