"""The default solver: many cheap candidates, a search from them, and a proof if the graph is small.

Candidates: those of `starts`; the search from all of them; CP-SAT up to its limit, and before it,
where a graph of that size is a chain of modules, a bound over the chain. Every candidate is
measured by the same simulator, and the best single device is always among them, so the result is
never longer than it. For throughput it is the solver `throughput`.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from functools import cached_property

from heteroplace.native.arrays import RUN
from heteroplace.native.problem import NativePlan
from heteroplace.native.simulate import native_plan_of, simulate_plan
from heteroplace.solve.feasibility import no_placement_error
from heteroplace.solve.list.single import single_plan
from heteroplace.solve.problem import (
    MAX_CPSAT_TASKS,
    Problem,
    SolveOptions,
    SolveResult,
    make_result,
    report,
)
from heteroplace.solve.registry import SOLVERS
from heteroplace.solve.route import choose_route
from heteroplace.solve.search.initial_solutions import START_SHARE
from heteroplace.solve.search.solver import (
    MAX_TASKS_TO_BOUND,
    PLAN_S_PER_TASK,
    begin_solve,
    run_search,
)

_CPSAT = "heteroplace.solve.exact.cpsat"
_SPLIT = "heteroplace.solve.split.solver"
_LNS = "heteroplace.solve.lns.engine"
_LEAST_S = 0.05
"""Less is not worth starting an exact solver for."""


@dataclass(frozen=True)
class _Candidate:
    name: str
    native_plan: NativePlan
    makespan_ns: int

    @cached_property
    def num_devices(self) -> int:
        """How many devices run a task."""
        runs = self.native_plan.rows[self.native_plan.rows[:, 0] == RUN]
        return len(set(runs[:, 2].tolist()))

    @property
    def rank(self) -> tuple[int, int, int]:
        """Shorter first; ties: fewer devices, then fewer steps."""
        return (self.makespan_ns, self.num_devices, len(self.native_plan.rows))


class AutoSolver:
    """Best of all solvers within the time limit."""

    name = "auto"
    objectives = ("latency", "throughput")

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. `candidates` of the result lists everything tried or left out."""
        if options.objective == "throughput":
            return SOLVERS["throughput"].solve(problem, options)
        return _Auto(problem, options).run()


class _Auto:
    """One solve: its candidates so far, and the clock."""

    def __init__(self, problem: Problem, options: SolveOptions) -> None:
        self._problem = problem
        self._options = options
        self._begin = time.perf_counter()
        self._candidates: list[_Candidate] = []
        self._tried: list[tuple[str, int | None, str]] = []
        self._was_interrupted = False
        self._bound_ns = 0
        self._prices: tuple[float, ...] = ()

    def run(self) -> SolveResult:
        problem, options = self._problem, self._options
        starts, self._bound_ns = begin_solve(problem, options, self._begin)
        native_plans = starts.native_plans(START_SHARE * options.time_limit_s)
        self._note_singles({name for name, _ in native_plans})
        for name, native_plan in native_plans:
            self._add(name, native_plan)
        if not self._is_proven():
            route = choose_route(problem)
            self._tried.append((f"route: {route.finisher}", None, route.reason))
            self._search([native_plan for _, native_plan in native_plans], route.search_share)
            if not self._is_proven() and not self._was_interrupted:
                self._finish(route.finisher)
        if not self._candidates:
            raise no_placement_error(problem)
        chosen, note = self._choose()
        self._tried.append((f"chosen: {chosen.name}", chosen.makespan_ns, note))
        return make_result(
            problem,
            problem.native.plan(
                chosen.native_plan.steps, f"auto ({chosen.name} seed {options.seed})"
            ),
            self._bound_ns,
            AutoSolver.name,
            time.perf_counter() - self._begin,
            was_interrupted=self._was_interrupted,
            candidates=tuple(self._tried),
        )

    def _note_singles(self, found: set[str]) -> None:
        """Say why devices cannot take everything, unless the graph is so large that it shows."""
        for device_id, device in enumerate(self._problem.cluster.devices):
            name = f"single {device.name}"
            if name in found:
                continue
            note = f"{device.name} cannot run or hold all tasks"
            if len(self._problem.graph.tasks) <= MAX_TASKS_TO_BOUND:
                note = str(single_plan(self._problem, device_id))
            self._tried.append((name, None, note))

    def _add(self, name: str, native_plan: NativePlan, note: str = "") -> None:
        if native_plan.violation:
            self._tried.append((name, None, "does not fit"))
            return
        makespan = simulate_plan(self._problem.native, native_plan).makespan_ns
        self._candidates.append(_Candidate(name, native_plan, makespan))
        self._tried.append((name, makespan, note))
        best = min(self._candidates, key=lambda candidate: candidate.rank)
        report(
            self._options,
            name,
            self._begin,
            best.makespan_ns,
            self._bound_ns,
            lambda: self._problem.native.plan(best.native_plan.steps, best.name),
        )

    def _left_s(self) -> float:
        spare = PLAN_S_PER_TASK * len(self._problem.graph.tasks)
        return self._options.time_limit_s - spare - (time.perf_counter() - self._begin)

    def _is_proven(self) -> bool:
        best = min((candidate.makespan_ns for candidate in self._candidates), default=None)
        return best is not None and best <= self._bound_ns

    def _search(self, starts: list[NativePlan], share: float) -> None:
        problem, options = self._problem, self._options
        if not starts:
            self._tried.append(("search", None, "left out: there is no plan to start from"))
            return
        limit = max(0.01, self._left_s() * share)
        end = run_search(problem, starts, options, limit, self._bound_ns)
        self._was_interrupted = end.was_interrupted
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        self._prices = end.prices
        self._add("search", end.native_plan, f"{end.num_evaluations} schedules tried")

    def _finish(self, finisher: str) -> None:
        """Let the exact solvers have the rest of the time."""
        left = self._left_s()
        best = min(self._candidates, key=lambda candidate: candidate.rank, default=None)
        if left < _LEAST_S and best is not None:
            self._tried.append((finisher, None, "left out: the time is up"))
            return
        if best is None or finisher == "cpsat":
            self._prove_whole(best, max(left, _LEAST_S))
        elif finisher == "split":
            self._split(best, left)
        else:
            self._improve_stretches(best, left)

    # OR-Tools takes 0.2 s to load, and what is proven by bounds never needs it.

    def _prove_whole(self, best: _Candidate | None, limit: float) -> None:
        problem = self._problem
        if len(problem.graph.tasks) > MAX_CPSAT_TASKS:
            note = f"left out: {len(problem.graph.tasks)} tasks, it takes at most {MAX_CPSAT_TASKS}"
            self._tried.append(("cpsat", None, note))
            return
        end = importlib.import_module(_CPSAT).run_cpsat(
            problem,
            None if best is None else best.native_plan.steps,
            self._options,
            limit,
            self._bound_ns,
        )
        if end.steps is None:
            raise no_placement_error(problem, is_proven=end.is_infeasible)
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        self._add("cpsat", native_plan_of(problem.native, end.steps), f"bound {end.bound_ns} ns")

    def _split(self, best: _Candidate, limit: float) -> None:
        end = importlib.import_module(_SPLIT).run_split(
            self._problem, best.native_plan.steps, self._options, limit, self._bound_ns
        )
        self._was_interrupted |= end.was_interrupted
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        self._tried += [(f"split: {name}", makespan, note) for name, makespan, note in end.notes]
        self._add(
            "split", native_plan_of(self._problem.native, end.steps), f"bound {end.bound_ns} ns"
        )

    def _improve_stretches(self, best: _Candidate, limit: float) -> None:
        end = importlib.import_module(_LNS).run_lns(
            self._problem, best.native_plan, self._options, limit, self._bound_ns, self._prices
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
        least = self._options.min_gain_ratio
        single = singles[0]
        gain = 1 - best.makespan_ns / single.makespan_ns if single.makespan_ns else 0.0
        if gain <= least:
            note = f"{best.name} is only {gain:.2%} shorter; min_gain_ratio is {least:.2%}"
            return single, note
        return best, f"{gain:.2%} shorter than {single.name}"
