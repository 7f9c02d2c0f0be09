"""The placement and the schedule as one mixed-integer linear program.

Zhang et al., Moirai: Towards Optimal Solution for Distributed Inference on Heterogeneous Devices,
section III-D, DOI 10.48550/arXiv.2312.04025.

By Gurobi where a licence takes the program, else by CP-SAT, which takes the same formulation as
intervals; by HiGHS where that is asked for, or CP-SAT cannot hold the numbers. Unlike the paper its
order rows are made lazily, each big-M is a head-tail bound, a tensor is moved once to each memory,
and the heuristics' best plan bounds the horizon and is returned if nothing better comes.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import replace
from typing import ClassVar

from heteroplace.errors import MissingPackageError, SolverError, SolverLicenceError
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve.deadline import Deadline, TimeUpError
from heteroplace.solve.exact.formulate import formulate, memory_rules
from heteroplace.solve.exact.formulation import Formulation
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
from heteroplace.solve.lp.gurobi import GurobiEngine
from heteroplace.solve.lp.highs import HighsEngine
from heteroplace.solve.lp.linear_program import MipEngine
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result, report

MAX_MOIRAI_TASKS = 500
"""Above this the first relaxation alone takes longer than the search to do better."""
_EVALUATIONS_PER_TASK = 5_000
"""Of the search that makes the incumbent: a program seldom finds better ones."""
_MAX_SIMPLE_TASKS = 20
"""Up to here the program proves more than other bounds, in less time."""

_CPSAT, _CPSAT_NAME = "heteroplace.solve.exact.cpsat_engine", "CP-SAT"

_Row = tuple[str, int | None, str]
"""Of `SolveResult.candidates`."""


class MoiraiSolver:
    """Moirai's mixed-integer programme to a proven optimum, for small graphs."""

    name = "moirai"
    engines: ClassVar = {"latency": ("gurobi", "cpsat", "highs")}
    max_tasks = MAX_MOIRAI_TASKS

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
        incumbent = find_incumbent(problem, options, evaluations)
        tried: list[_Row] = []
        if incumbent.steps is not None:
            search_plan = problem.native.plan(incumbent.steps, f"search seed {options.seed}")
            makespan = simulate_steps(problem.native, search_plan.steps).makespan_ns
            tried.append(("search", makespan, "where the program starts"))
            report(options, "search", begin, makespan, incumbent.bound_ns, lambda: search_plan)
        if num_tasks > _MAX_SIMPLE_TASKS and not incumbent.was_interrupted:
            incumbent = with_thorough_bound(problem, options, incumbent)
        end = (
            incumbent
            if incumbent.was_interrupted
            else _improved(problem, incumbent, options, begin, tried)
        )
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
    problem: Problem, incumbent: Incumbent, options: SolveOptions, begin: float, tried: list[_Row]
) -> Incumbent:
    """Solve the program by each of `memory_rules` in turn, until a plan fits."""
    rules = memory_rules(problem)
    if options.iterations is not None:
        options = replace(options, iterations=options.iterations // len(rules))
    steps, bound_ns, is_infeasible, was_interrupted = (
        incumbent.steps,
        incumbent.bound_ns,
        False,
        False,
    )
    deadline = Deadline.after(options.time_limit_s, begin)
    for index, charges_tensors in enumerate(rules):
        try:
            formulation = formulate(
                problem, bound_ns, charges_tensors=charges_tensors, deadline=deadline
            )
        except TimeUpError:
            tried.append((MoiraiSolver.name, None, "left out: its program was not made in time"))
            break
        except KeyboardInterrupt:
            was_interrupted = True
            break
        start = None if steps is None else schedule_of_steps(formulation, steps)
        if start is not None and start.makespan_ns <= bound_ns:
            break
        left = Deadline.after(seconds_left(options, begin))
        left_s = left.part(1 / (len(rules) - index), options.iterations).left_s()
        try:
            end = _solve(formulation, start, options, left_s, tried)
        except SolverLicenceError:
            raise
        except SolverError as err:
            if steps is None:
                raise
            tried.append((MoiraiSolver.name, None, f"left out: {err}"))
            continue
        was_interrupted = end.was_interrupted
        if index == 0:
            bound_ns, is_infeasible = end.bound_ns, end.is_infeasible
        if end.schedule is not None:
            new_steps = steps_of_schedule(formulation, end.schedule)
            if not any(overflow(problem, new_steps)):
                steps = new_steps
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
    """Solve by the engine that was asked for, else by the first that takes the program."""
    deadline = Deadline.after(time_limit_s)
    if options.engine in ("auto", "gurobi"):
        gurobi = GurobiEngine(options.threads, options.seed)
        try:
            return _solve_by(gurobi, formulation, start, options, deadline, tried)
        except (MissingPackageError, SolverLicenceError) as err:
            if options.engine == "gurobi":
                raise
            tried.append((gurobi.name, None, f"left out: {err}"))
    if options.engine in ("auto", "cpsat"):
        cpsat = importlib.import_module(_CPSAT)  # OR-Tools takes 0.2 s to load
        try:
            end = cpsat.solve_by_cpsat(formulation, start, options, deadline)
        except TimeUpError:
            end = EngineEnd(None, formulation.bound_ns, False, note="the time was up")
        except SolverError as err:
            if options.engine == "cpsat":
                raise
            tried.append((_CPSAT_NAME, None, f"left out: {err}"))
        else:
            return _noted(_CPSAT_NAME, end, tried)
    return _solve_by(HighsEngine(), formulation, start, options, deadline, tried)


def _solve_by(
    engine: MipEngine,
    formulation: Formulation,
    start: Schedule | None,
    options: SolveOptions,
    deadline: Deadline,
    tried: list[_Row],
) -> EngineEnd:
    end = solve_lazily(formulation, engine, start, options, deadline.left_s())
    return _noted(engine.name, end, tried)


def _noted(engine: str, end: EngineEnd, tried: list[_Row]) -> EngineEnd:
    makespan_ns = None if end.schedule is None else end.schedule.makespan_ns
    note = f"{end.note}; " if end.note else ""
    tried.append((engine, makespan_ns, f"{note}bound {end.bound_ns} ns"))
    return end
