"""All bounds together, within an effort."""

from __future__ import annotations

import time
from typing import Literal, get_args

from heteroplace.entries import load_entry
from heteroplace.errors import SolverError
from heteroplace.native.core_bounds import lagrangian_bound
from heteroplace.solve.bounds.bound import Bound
from heteroplace.solve.bounds.quick import best_of, is_bounded, quick_bound
from heteroplace.solve.problem import Problem
from heteroplace.solve.refinement import added_refinements

Effort = Literal["quick", "thorough"]
EFFORTS: tuple[str, ...] = get_args(Effort)
"""What is there at once; or all that applies, within a time limit."""

_ASSIGNMENT_BOUND = "heteroplace.solve.bounds.assignment:assignment_bound"
"""Loaded for thorough bounds."""
_MAX_ASSIGNMENT_TASKS = 5000
"""Above this the linear programme takes too long; the Lagrangian bound covers what it proves."""
_ROUNDS, _ITERATIONS = 200, 200
_LAGRANGIAN_SHARE = 0.3
"""Of the time that is left, where a refinement solver proves something too."""


def lower_bound(
    problem: Problem,
    effort: Effort = "quick",
    *,
    time_limit_s: float = 10.0,
    threads: int = 1,
    target_ns: int = 0,
) -> Bound:
    """Return a makespan that no plan beats whose copies leave their tensor's home.

    Parameters
    ----------
    effort
        "quick": under half a second at 50,000 tasks on a few devices. "thorough": the LP
        assignment, the Lagrangian bound until it stands still, and what refinement solvers of
        parts prove (`split` over modules), as the time allows.
    time_limit_s
        Wall time, in seconds; a bound that ends by it is not reproducible.
    target_ns
        A known makespan, which sets the steps of Lagrange multipliers; 0: HEFT makes one.

    Raises
    ------
    SolverError
        There is no such effort.
    KeyboardInterrupt
        Ctrl-C came while a refinement solver proved.
    """
    if effort not in EFFORTS:
        raise SolverError(f"effort is {effort!r}; there are: {', '.join(EFFORTS)}")
    begin = time.perf_counter()
    quick = quick_bound(problem, target_ns, time_limit_s)
    if effort == "quick" or not is_bounded(problem):
        return quick

    def left() -> float:
        return max(0.0, time_limit_s - (time.perf_counter() - begin))

    bounds = [quick]
    if len(problem.graph.tasks) <= _MAX_ASSIGNMENT_TASKS and left() > 0:
        spread: int = load_entry(_ASSIGNMENT_BOUND)(problem.native, left())
        bounds.append(Bound(spread, "LP assignment"))
    # Loading OR-Tools takes 0.2 s, which no quick bound waits for.
    provers = [refinement.prover(problem) for refinement in added_refinements().values()]
    share = _LAGRANGIAN_SHARE if any(provers) else 1.0
    lagrangian = lagrangian_bound(
        problem.native,
        rounds=_ROUNDS,
        iterations=_ITERATIONS,
        time_limit_s=share * left(),
        threads=threads,
        target_ns=target_ns or max(quick.ns * 2, 1),
    )
    bounds.append(Bound(lagrangian.bound_ns, "Lagrangian"))
    for prove in provers:
        if prove is not None and left() > 0:
            bounds.append(prove(left(), threads, target_ns))
    return best_of(bounds)
