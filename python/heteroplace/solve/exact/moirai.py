"""The placement and the schedule as one mixed-integer linear program.

Zhang et al., Moirai: Towards Optimal Solution for Distributed Inference on Heterogeneous Devices,
section III-D, DOI 10.48550/arXiv.2312.04025.

By Gurobi where its full licence is found, else by HiGHS. Unlike the paper its order rows are made
lazily, each big-M is a head-tail bound, a tensor is moved once to each memory, and the heuristics'
best plan bounds the horizon and is returned if the program gives nothing better.
"""

from __future__ import annotations

import time
from dataclasses import replace

from heteroplace.errors import SolverError, SolverLicenceError
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve.exact.formulate import formulate, memory_rules
from heteroplace.solve.exact.formulation import Formulation
from heteroplace.solve.exact.gurobi_engine import GurobiEngine, why_no_gurobi
from heteroplace.solve.exact.incumbent import (
    INCUMBENT_EVALUATIONS,
    EngineEnd,
    Incumbent,
    find_incumbent,
    seconds_left,
    with_thorough_bound,
)
from heteroplace.solve.exact.lazy_rows import solve_lazily
from heteroplace.solve.exact.schedule import Schedule, schedule_of_steps, steps_of_schedule
from heteroplace.solve.feasibility import check_possible, no_placement_error, overflow
from heteroplace.solve.lp.highs import HighsEngine
from heteroplace.solve.lp.program import MipEngine
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result, report

MAX_MOIRAI_TASKS = 500
"""Above this the first relaxation alone takes longer than the search to do better."""
_EVALUATIONS_PER_TASK = 5_000
"""Of the search that makes the incumbent: a program seldom finds better ones."""
_MAX_SIMPLE_TASKS = 20
"""Up to here the program proves more than other bounds, in less time."""

_Row = tuple[str, int | None, str]
"""Of `SolveResult.candidates`."""


class MoiraiSolver:
    """Moirai's program for up to MAX_MOIRAI_TASKS tasks."""

    name = "moirai"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. `candidates` says which engine was used and why.

        SolverError above MAX_MOIRAI_TASKS tasks.
        """
        begin = time.perf_counter()
        num_tasks = len(problem.graph.tasks)
        if num_tasks > MAX_MOIRAI_TASKS:
            raise SolverError(
                f"moirai takes at most {MAX_MOIRAI_TASKS} tasks, graph {problem.graph.name!r} has "
                f"{num_tasks}; use 'search' or 'auto', or coarsen the graph"
            )
        check_possible(problem)
        if not num_tasks:
            plan = problem.native.plan((), self.name)
            return make_result(problem, plan, 0, self.name, time.perf_counter() - begin)
        evaluations = max(INCUMBENT_EVALUATIONS, _EVALUATIONS_PER_TASK * num_tasks)
        known = find_incumbent(problem, options, evaluations)
        tried: list[_Row] = []
        if known.steps is not None:
            found = problem.native.plan(known.steps, f"search seed {options.seed}")
            makespan = simulate_steps(problem.native, found.steps).makespan_ns
            tried.append(("search", makespan, "where the program starts"))
            report(options, "search", begin, makespan, known.bound_ns, lambda: found)
        if num_tasks > _MAX_SIMPLE_TASKS and not known.was_interrupted:
            known = with_thorough_bound(problem, options, known)
        end = known if known.was_interrupted else _improved(problem, known, options, begin, tried)
        if end.steps is None:
            raise no_placement_error(problem, is_proven=end.is_infeasible)
        return make_result(
            problem,
            problem.native.plan(end.steps, f"moirai seed {options.seed}"),
            end.bound_ns,
            self.name,
            time.perf_counter() - begin,
            was_interrupted=end.was_interrupted,
            candidates=tuple(tried),
        )


def _improved(
    problem: Problem, known: Incumbent, options: SolveOptions, begin: float, tried: list[_Row]
) -> Incumbent:
    """Solve the program by each of `memory_rules` in turn, until a plan fits."""
    rules = memory_rules(problem)
    if options.iterations is not None:
        options = replace(options, iterations=options.iterations // len(rules))
    steps, bound_ns, is_infeasible, was_interrupted = known.steps, known.bound_ns, False, False
    for index, charges_tensors in enumerate(rules):
        formulation = formulate(problem, bound_ns, charges_tensors=charges_tensors)
        start = None if steps is None else schedule_of_steps(formulation, steps)
        if start is not None and start.makespan_ns <= bound_ns:
            break
        left = seconds_left(options, begin) / (len(rules) - index)
        end = _solve(formulation, start, options, left, tried)
        was_interrupted = end.was_interrupted
        if index == 0:
            bound_ns, is_infeasible = end.bound_ns, end.is_infeasible
        if end.schedule is not None:
            found = steps_of_schedule(formulation, end.schedule)
            if not any(overflow(problem, found)):
                steps = found
                break
        if was_interrupted or is_infeasible:
            break
    return Incumbent(steps, bound_ns, was_interrupted, is_infeasible)


def _solve(
    formulation: Formulation,
    start: Schedule | None,
    options: SolveOptions,
    time_limit_s: float,
    tried: list[_Row],
) -> EngineEnd:
    """Solve by the first engine whose licence takes the model."""
    *others, last = _engines(options, tried)
    for engine in others:
        try:
            return _solve_by(engine, formulation, start, options, time_limit_s, tried)
        except SolverLicenceError as err:
            tried.append((engine.name, None, str(err)))
    return _solve_by(last, formulation, start, options, time_limit_s, tried)


def _solve_by(
    engine: MipEngine,
    formulation: Formulation,
    start: Schedule | None,
    options: SolveOptions,
    time_limit_s: float,
    tried: list[_Row],
) -> EngineEnd:
    end = solve_lazily(formulation, engine, start, options, time_limit_s)
    found = None if end.schedule is None else end.schedule.makespan_ns
    tried.append((engine.name, found, f"{end.note}; bound {end.bound_ns} ns"))
    return end


def _engines(options: SolveOptions, tried: list[_Row]) -> list[MipEngine]:
    """The engines in the order in which they are tried, noting what is left out."""
    reason = why_no_gurobi()
    if reason is not None:
        tried.append((GurobiEngine.name, None, f"left out: {reason}"))
        return [HighsEngine()]
    return [GurobiEngine(options.threads, options.seed), HighsEngine()]
