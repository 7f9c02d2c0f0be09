"""The default solver `auto`.

Candidates of `auto`: the initial solutions; the search from all of them; then, by the size and the
structure of the graph, a refinement solver, which has the rest of the time and may prove its plan.
Every candidate is measured by the same simulator, and the best single device is always among them,
so the result is never longer than it. For throughput `auto` is the solver `throughput`.

Several devices are used only if they gain enough (`gains_enough`) by the objective.
"""

from __future__ import annotations

import importlib
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from heteroplace.errors import SolverError
from heteroplace.model.plan import Plan
from heteroplace.native.arrays import RUN
from heteroplace.native.problem import NativePlan
from heteroplace.native.simulate import native_plan_of, simulate_plan
from heteroplace.solve.feasibility import no_placement_error
from heteroplace.solve.list.single import single_plan
from heteroplace.solve.objective import (
    THROUGHPUT,
    gains_enough,
    least_gain_ratio,
    num_devices,
    single_objectives,
)
from heteroplace.solve.problem import (
    MAX_CPSAT_TASKS,
    Problem,
    SolveOptions,
    SolveResult,
    make_result,
    report,
)
from heteroplace.solve.refinement import choose_route
from heteroplace.solve.registry import SOLVERS
from heteroplace.solve.search.initial_solutions import INITIAL_SHARE
from heteroplace.solve.search.solver import (
    MAX_TASKS_TO_BOUND,
    begin_solve,
    run_search,
    solve_deadline,
)

_MODULES = {
    "cpsat": "heteroplace.solve.exact.cpsat",
    "split": "heteroplace.solve.split.solver",
    "lns": "heteroplace.solve.lns.engine",
}
"""Of the refinement solvers; they load OR-Tools, which what is proven by bounds never needs."""
_LEAST_S = 0.05
"""Less is not worth starting an exact solver for."""
_LEAST_SHARE_TO_SEARCH_ON = 0.02
_LEAST_TO_LOAD_S = 0.5
"""Less is not worth loading one for: OR-Tools takes 0.2 s."""


@dataclass(frozen=True)
class _Candidate:
    name: str
    plan: NativePlan
    makespan_ns: int

    @cached_property
    def num_devices(self) -> int:
        """How many devices run a task."""
        runs = self.plan.rows[self.plan.rows[:, 0] == RUN]
        return len(set(runs[:, 2].tolist()))

    @property
    def rank(self) -> tuple[int, int, int]:
        """Shorter first; ties: fewer devices, then fewer steps."""
        return (self.makespan_ns, self.num_devices, len(self.plan.rows))


class AutoSolver:
    """Best of all solvers within the time limit."""

    name = "auto"
    objectives = ("latency", "throughput")
    engines: ClassVar = {"latency": ("cpsat",), "throughput": ("gurobi", "highs")}

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. `candidates` of the result lists everything tried or left out."""
        if options.objective == THROUGHPUT:
            result = SOLVERS[THROUGHPUT].solve(problem, options)
            return _with_least_gain(problem, result, least_gain_ratio(problem, options))
        return _Auto(problem, options).run()


class _Auto:
    """One solve: its candidates so far, and the clock."""

    def __init__(self, problem: Problem, options: SolveOptions) -> None:
        self._problem = problem
        self._options = options
        self._begin = time.perf_counter()
        self._deadline = solve_deadline(problem, options, self._begin)
        self._initial_deadline = self._deadline
        self._candidates: list[_Candidate] = []
        self._tried: list[tuple[str, int | None, str]] = []
        self._was_interrupted = False
        self._bound_ns = 0
        self._prices: tuple[float, ...] = ()

    def run(self) -> SolveResult:
        problem, options = self._problem, self._options
        initial, self._bound_ns = begin_solve(problem, options, self._begin)
        self._initial_deadline = self._deadline.within(2 * INITIAL_SHARE * options.time_limit_s)
        plans = initial.native_plans(INITIAL_SHARE * options.time_limit_s)
        self._note_singles({name for name, _ in plans})
        for name, plan in plans:
            if self._candidates and self._deadline.is_over():
                break
            self._add(name, plan)
        if not self._is_proven():
            route = choose_route(problem)
            self._tried.append((f"route: {route.refinement}", None, route.reason))
            # Loaded now, since the search can be told how much time is left, and loading cannot.
            is_refined = route.refinement in _MODULES
            if is_refined and self._deadline.left_s() >= _LEAST_TO_LOAD_S:
                importlib.import_module(_MODULES[route.refinement])
            self._search([plan for _, plan in plans], route.search_share)
            if not self._is_proven() and not self._was_interrupted:
                if is_refined or not self._candidates:
                    self._refine(route.refinement)
                self._search_on()
        if not self._candidates:
            raise no_placement_error(problem)
        chosen, note = self._choose()
        self._tried.append((f"chosen: {chosen.name}", chosen.makespan_ns, note))
        return make_result(
            problem,
            problem.native.plan(chosen.plan.steps, f"auto ({chosen.name} seed {options.seed})"),
            self._bound_ns,
            AutoSolver.name,
            time.perf_counter() - self._begin,
            was_interrupted=self._was_interrupted,
            candidates=tuple(self._tried),
            native_plan=chosen.plan,
        )

    def _note_singles(self, found: set[str]) -> None:
        """Say why devices cannot take everything, unless the graph is so large that it shows."""
        for device_id, device in enumerate(self._problem.cluster.devices):
            name = f"single {device.name}"
            if name in found:
                continue
            note = f"{device.name} cannot run or hold all tasks, or the time was up"
            is_short = len(self._problem.graph.tasks) <= MAX_TASKS_TO_BOUND
            if is_short and not self._initial_deadline.is_over():
                reason = single_plan(self._problem, device_id)
                note = reason if isinstance(reason, str) else "left out: the time was up"
            self._tried.append((name, None, note))

    def _add(self, name: str, plan: NativePlan, note: str = "") -> None:
        if plan.violation:
            self._tried.append((name, None, "does not fit"))
            return
        makespan = simulate_plan(self._problem.native, plan).makespan_ns
        self._candidates.append(_Candidate(name, plan, makespan))
        self._tried.append((name, makespan, note))
        best = min(self._candidates, key=lambda candidate: candidate.rank)
        report(
            self._options,
            name,
            self._begin,
            best.makespan_ns,
            self._bound_ns,
            lambda: self._problem.native.plan(best.plan.steps, best.name),
        )

    def _is_proven(self) -> bool:
        best = min((candidate.makespan_ns for candidate in self._candidates), default=None)
        return best is not None and best <= self._bound_ns

    def _search_on(self) -> None:
        """Search on from the best plan where the refinement solver has left time."""
        is_over = self._is_proven() or self._was_interrupted or not self._candidates
        left = self._deadline.left_s()
        if is_over or self._options.iterations is not None:
            return
        if left < max(_LEAST_S, _LEAST_SHARE_TO_SEARCH_ON * self._options.time_limit_s):
            return
        best = min(self._candidates, key=lambda candidate: candidate.rank)
        options = replace(self._options, seed=(self._options.seed + 1) % 2**31)
        end = run_search(self._problem, [best.plan], options, self._deadline, self._bound_ns)
        self._was_interrupted |= end.was_interrupted
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        self._add("search on", end.native_plan, f"{end.num_evaluations} schedules tried")

    def _search(self, initial: list[NativePlan], share: float) -> None:
        problem, options = self._problem, self._options
        if not initial:
            self._tried.append(("search", None, "left out: there is no plan to start from"))
            return
        if self._candidates and self._deadline.is_over():
            self._tried.append(("search", None, "left out: the time is up"))
            return
        deadline = self._deadline.within(share * self._deadline.left_s())
        end = run_search(problem, initial, options, deadline, self._bound_ns)
        self._was_interrupted = end.was_interrupted
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        self._prices = end.prices
        self._add("search", end.native_plan, f"{end.num_evaluations} schedules tried")

    def _refine(self, refinement: str) -> None:
        """Let the refinement solver have the rest of the time."""
        best = min(self._candidates, key=lambda candidate: candidate.rank, default=None)
        is_loaded = _MODULES.get(refinement) in sys.modules
        least = _LEAST_S if is_loaded else _LEAST_TO_LOAD_S
        if self._deadline.left_s() < least and best is not None:
            self._tried.append((refinement, None, "left out: the time is up"))
            return
        if best is None or refinement == "cpsat":
            self._prove_whole(best)
        elif refinement == "split":
            self._split(best)
        else:
            self._improve_neighbourhoods(best)

    def _prove_whole(self, best: _Candidate | None) -> None:
        problem = self._problem
        if len(problem.graph.tasks) > MAX_CPSAT_TASKS:
            note = f"left out: {len(problem.graph.tasks)} tasks, it takes at most {MAX_CPSAT_TASKS}"
            self._tried.append(("cpsat", None, note))
            return
        steps = None if best is None else best.plan.steps
        try:
            end = importlib.import_module(_MODULES["cpsat"]).run_cpsat(
                problem, steps, self._options, self._deadline, self._bound_ns
            )
        except SolverError as err:
            if best is None:
                raise
            self._tried.append(("cpsat", None, f"left out: {err}"))
            return
        if end.steps is None:
            raise no_placement_error(problem, is_proven=end.is_infeasible)
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        self._add("cpsat", native_plan_of(problem.native, end.steps), f"bound {end.bound_ns} ns")

    def _split(self, best: _Candidate) -> None:
        end = importlib.import_module(_MODULES["split"]).run_split(
            self._problem, best.plan.steps, self._options, self._deadline, self._bound_ns
        )
        self._was_interrupted |= end.was_interrupted
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        self._tried += [(f"split: {name}", makespan, note) for name, makespan, note in end.notes]
        self._add(
            "split", native_plan_of(self._problem.native, end.steps), f"bound {end.bound_ns} ns"
        )

    def _improve_neighbourhoods(self, best: _Candidate) -> None:
        end = importlib.import_module(_MODULES["lns"]).run_lns(
            self._problem, best.plan, self._options, self._deadline, self._bound_ns, self._prices
        )
        self._was_interrupted |= end.was_interrupted
        if end.is_optimal:
            self._bound_ns = max(self._bound_ns, end.makespan_ns)
        self._add("lns", end.native_plan, end.note)

    def _choose(self) -> tuple[_Candidate, str]:
        """The best candidate, unless the best single device is almost as short."""
        ranked = sorted(self._candidates, key=lambda candidate: candidate.rank)
        best = ranked[0]
        singles = [one for one in ranked if one.num_devices <= 1]
        if not singles or singles[0] is best:
            return best, ""
        least, single = least_gain_ratio(self._problem, self._options), singles[0]
        gain = 1 - best.makespan_ns / single.makespan_ns if single.makespan_ns else 0.0
        if gains_enough(best.makespan_ns, single.makespan_ns, least):
            return best, f"{gain:.2%} shorter than {single.name}"
        return single, f"{best.name} is only {gain:.2%} shorter; min_gain_ratio is {least:.2%}"


def _with_least_gain(problem: Problem, result: SolveResult, min_gain_ratio: float) -> SolveResult:
    """A plan of least time per item, or the best single device if that is almost as good."""
    singles = single_objectives(problem, THROUGHPUT)
    name = min(singles, key=lambda device: singles[device], default=None)
    if name is None or num_devices(problem, result.plan) <= 1:
        return result
    if gains_enough(result.objective_ns, singles[name], min_gain_ratio):
        return result
    plan = single_plan(problem, problem.cluster.device_id(name))
    assert isinstance(plan, Plan)  # it has a time per item
    note = f"the plan takes {result.objective_ns} ns per item; min_gain_ratio is {min_gain_ratio}"
    status = "optimal" if singles[name] == result.bound_ns else "feasible"
    tried = (*result.candidates, (f"single {name}", singles[name], note))
    return replace(result, plan=plan, objective_ns=singles[name], status=status, candidates=tried)
