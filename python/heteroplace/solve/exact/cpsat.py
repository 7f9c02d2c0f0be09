"""Solve the exact model of Moirai (section III-D) by OR-Tools CP-SAT.

The heuristics' best plan bounds the horizon and is given as a complete hint; it is kept outside the
solver, which may take long before it repeats a hint.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from heteroplace.errors import SolverError
from heteroplace.model.plan import Step
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve.deadline import Deadline, TimeUpError
from heteroplace.solve.exact.cpsat_engine import solve_by_cpsat
from heteroplace.solve.exact.formulate import formulate, memory_rules
from heteroplace.solve.exact.incumbent import find_incumbent
from heteroplace.solve.exact.schedule import schedule_of_steps, steps_of_schedule
from heteroplace.solve.feasibility import check_possible, no_placement_error, overflow
from heteroplace.solve.problem import (
    MAX_CPSAT_TASKS,
    Problem,
    SolveOptions,
    SolveResult,
    make_result,
)


class CpSatSolver:
    """Constraint programming (CP-SAT) to a proven optimum, for small graphs."""

    name = "cpsat"
    engines: ClassVar = {"latency": ("cpsat",)}
    max_tasks = MAX_CPSAT_TASKS

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. `candidates` says why CP-SAT gave up, if it did.

        SolverError above MAX_CPSAT_TASKS tasks.
        """
        begin = time.perf_counter()
        deadline = Deadline.after(options.time_limit_s, begin)
        if len(problem.graph.tasks) > MAX_CPSAT_TASKS:
            raise SolverError(
                f"cpsat takes at most {MAX_CPSAT_TASKS} tasks, graph {problem.graph.name!r} has "
                f"{len(problem.graph.tasks)}; use 'search' or 'auto', or coarsen the graph"
            )
        check_possible(problem)
        incumbent = find_incumbent(problem, options)
        end = CpSatEnd(incumbent.steps, incumbent.bound_ns, False)
        tried: tuple[tuple[str, int | None, str], ...] = ()
        if not incumbent.was_interrupted:
            try:
                end = run_cpsat(problem, incumbent.steps, options, deadline, incumbent.bound_ns)
            except SolverError as err:
                if incumbent.steps is None:
                    raise
                tried = ((self.name, None, f"left out: {err}"),)
        if end.steps is None:
            raise no_placement_error(problem, is_proven=end.is_infeasible)
        plan = problem.native.plan(end.steps, f"cpsat seed {options.seed}")
        wall = time.perf_counter() - begin
        return make_result(
            problem,
            plan,
            end.bound_ns,
            self.name,
            wall,
            was_interrupted=incumbent.was_interrupted or end.was_interrupted,
            candidates=tried,
        )


@dataclass(frozen=True)
class CpSatEnd:
    """How a run of CP-SAT ended."""

    steps: tuple[Step, ...] | None
    """The shorter of its plan and the incumbent; None: there is neither."""
    bound_ns: int
    is_infeasible: bool
    """It is proven that no placement exists."""
    was_interrupted: bool = False
    """Ctrl-C ended it."""


def run_cpsat(
    problem: Problem,
    incumbent: Sequence[Step] | None,
    options: SolveOptions,
    deadline: Deadline,
    bound_ns: int,
) -> CpSatEnd:
    """Solve the exact model, starting from `incumbent` if there is one.

    By each of `memory_rules` in turn, each for its share of the budget, until a plan fits.
    """
    best = None if incumbent is None else tuple(incumbent)
    if not problem.graph.tasks:
        return CpSatEnd(best or (), 0, False)
    rules = memory_rules(problem)
    if options.iterations is not None:
        options = replace(options, iterations=options.iterations // len(rules))
    is_infeasible = was_interrupted = False
    for index, charges_tensors in enumerate(rules):
        until = deadline.part(1 / (len(rules) - index), options.iterations)
        try:
            formulation = formulate(
                problem, bound_ns, charges_tensors=charges_tensors, deadline=until
            )
            known_schedule = None if best is None else schedule_of_steps(formulation, best)
            end = solve_by_cpsat(formulation, known_schedule, options, until)
        except TimeUpError:
            continue
        except KeyboardInterrupt:  # While the model was made.
            was_interrupted = True
            break
        was_interrupted = end.was_interrupted
        if index == 0:
            bound_ns, is_infeasible = end.bound_ns, end.is_infeasible and best is None
        steps = None if end.schedule is None else steps_of_schedule(formulation, end.schedule)
        if steps is not None and not any(overflow(problem, steps)):
            best = steps if best is None else _shorter(problem, best, steps)
            break
        if is_infeasible or was_interrupted:
            break
    return CpSatEnd(best, bound_ns, is_infeasible, was_interrupted)


def _shorter(
    problem: Problem, best: tuple[Step, ...], candidate: tuple[Step, ...]
) -> tuple[Step, ...]:
    """The first, unless the other one is shorter."""
    native = problem.native
    is_shorter = (
        simulate_steps(native, candidate).makespan_ns < simulate_steps(native, best).makespan_ns
    )
    return candidate if is_shorter else best
