"""HEFT as a solver, and the device sets worth a try with it.

C++: src/list/heft.cc (list::Heft). Topcuoglu, Hariri, Wu, "Performance-Effective and Low-Complexity
Task Scheduling for Heterogeneous Computing", 2002, section 4.2 (10.1109/71.993206).

On devices that share units plain HEFT takes the fastest one again and again and so blocks the
others; trying each set of devices with disjoint units ("antichain") beside all of them mends that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heteroplace.native.list import heft
from heteroplace.native.problem import NativePlan
from heteroplace.native.search import search_plans
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.feasibility import no_placement_error
from heteroplace.solve.list.order_place import OrderPlaceSolver
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem

_MAX_SETS = 64
"""Device sets tried; a cluster with more has its first ones tried, in order of device ids."""
_REPAIR_EVALUATIONS = 20_000
"""Plans tried to mend one that does not fit."""


class HeftSolver(ListSolver):
    """HEFT over all devices. A plan that overflows a memory is mended by a short search."""

    name = "heft"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return heft(problem.native, range(len(problem.cluster.devices)), deadline.left_s())

    def mended(self, problem: Problem, plan: NativePlan, time_limit_s: float) -> NativePlan:
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
    """Return a plan that overflows less, by a short search from it and from Order-Place.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C came meanwhile.
    """
    found = search_plans(
        problem.native,
        [plan, OrderPlaceSolver().native_plan(problem)],
        max_evaluations=_REPAIR_EVALUATIONS,
        time_limit_s=time_limit_s,
        seed=0,
        patience=_REPAIR_EVALUATIONS // 2,
        finds_bound=False,
    )
    if found.was_interrupted:
        raise KeyboardInterrupt
    return found.native_plan


def device_sets(problem: Problem) -> list[tuple[int, ...]]:
    """Return the sets of devices worth a HEFT: all, the maximal antichains, those of one memory.

    An antichain is a set of at least two devices no two of which share a unit.
    """
    cluster = problem.cluster
    everything = tuple(range(len(cluster.devices)))
    sets = [everything]
    groups = [everything]
    for memory in range(len(cluster.memories)):
        groups.append(tuple(d for d in everything if cluster.devices[d].memory == memory))
    for group in groups:
        sets.extend(found for found in _antichains(cluster.unit_ids, group) if len(found) > 1)
    return list(dict.fromkeys(sets))[:_MAX_SETS]


def _antichains(unit_ids: Sequence[Sequence[int]], devices: Sequence[int]) -> list[tuple[int, ...]]:
    """Maximal sets of devices without a common unit, at most _MAX_SETS of them."""
    clashes = {
        device: {other for other in devices if set(unit_ids[device]) & set(unit_ids[other])}
        for device in devices
    }
    found: list[tuple[int, ...]] = []

    def grow(chosen: tuple[int, ...], rest: Sequence[int]) -> None:
        if len(found) >= _MAX_SETS:
            return
        if not rest:
            if all(clashes[device] & set(chosen) for device in devices):
                found.append(chosen)
            return
        first, others = rest[0], rest[1:]
        grow((*chosen, first), [other for other in others if other not in clashes[first]])
        if clashes[first] - {first}:
            grow(chosen, others)

    grow((), list(devices))
    return found
