"""The bounds that are there at once: critical path, load, stays, head-tail, Lagrangian rounds."""

from __future__ import annotations

from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.core_bounds import lagrangian_bound
from heteroplace.native.list import heft
from heteroplace.solve.bounds.bound import NO_BOUND, Bound
from heteroplace.solve.bounds.head_tail import head_tail_bound
from heteroplace.solve.bounds.load import Loads
from heteroplace.solve.bounds.paths import find_paths
from heteroplace.solve.bounds.stays import stays_bound
from heteroplace.solve.problem import Problem

_MAX_HEAD_TAIL_TASKS = 5000
_ROUNDS, _ITERATIONS = 6, 24
_WORK = 10_000_000
"""How often the Lagrangian bound may look at a task: some 0.2 seconds on a few devices."""
_MAX_S = 60.0


def quick_bound(problem: Problem, target_ns: int = 0, time_limit_s: float = _MAX_S) -> Bound:
    """Return the best of them. Linear in the number of tasks.

    Parameters
    ----------
    target_ns
        A known makespan, which sets the steps of Lagrange multipliers; 0: HEFT makes one.
    time_limit_s
        Of the Lagrangian bound; a bound that ends by it is not reproducible.
    """
    native = problem.native
    if not is_bounded(problem):
        return NO_BOUND
    bounds = [any_plan_bound(problem), Bound(stays_bound(native), "stays")]
    lagrangian = lagrangian_bound(
        native,
        rounds=_ROUNDS,
        iterations=_ITERATIONS,
        time_limit_s=time_limit_s,
        max_work=_WORK,
        target_ns=target_ns or heft(native, range(len(native.cluster.devices))).makespan_ns,
    )
    bounds.append(Bound(lagrangian.bound_ns, "Lagrangian"))
    return best_of(bounds)


def any_plan_bound(problem: Problem) -> Bound:
    """Return what no plan beats, whatever way its copies take and whenever weights are loaded."""
    if not is_bounded(problem):
        return NO_BOUND
    paths, loads = find_paths(problem.native), Loads(problem.native)
    bounds = [
        Bound(paths.critical_path_ns, "critical path"),
        Bound(loads.bound_ns(slice(None)), "load"),
    ]
    if len(paths.fastest_ns) <= _MAX_HEAD_TAIL_TASKS:
        bounds.append(Bound(head_tail_bound(paths, loads), "head-tail"))
    return best_of(bounds)


def is_bounded(problem: Problem) -> bool:
    """Tell whether there are tasks and each has a device: else nothing is proven."""
    has_device = (problem.native.run_ns != IMPOSSIBLE).any(axis=1)
    return bool(problem.graph.tasks) and bool(has_device.all())


def best_of(bounds: list[Bound]) -> Bound:
    """Return the largest; of equal ones the first. Nothing that is 0."""
    best = max(bounds, key=lambda bound: bound.ns)
    return best if best.ns > 0 else NO_BOUND
