"""The default solver: many cheap candidates, a search from them, and a proof if the graph is small.

Candidates: every single device; HEFT on each set of `heft.device_sets`; annealing from the best of
them; CP-SAT up to its limit. Every candidate is measured by the same simulator, and the best single
device is always among them, so the result is never longer than it.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass

from heteroplace.model.plan import Plan
from heteroplace.solve.base import (
    MAX_CPSAT_TASKS,
    Problem,
    SolveOptions,
    SolveResult,
    make_result,
    num_devices_used,
    report,
)
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.heft import check_possible, no_placement_error
from heteroplace.solve.search import run_search, start_plans
from heteroplace.solve.single import single_plan

_CPSAT = "heteroplace.solve.cpsat"
_SEARCH_SHARE = 0.6
"""Part of the time that the search may use when CP-SAT follows it."""


@dataclass(frozen=True)
class _Candidate:
    name: str
    plan: Plan
    makespan_ns: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """Shorter first; ties: fewer devices, then fewer steps."""
        return (self.makespan_ns, num_devices_used(self.plan), len(self.plan.steps))


class AutoSolver:
    """Best of all solvers within the time limit."""

    name = "auto"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. `candidates` of the result lists everything tried or left out."""
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

    def run(self) -> SolveResult:
        problem, options = self._problem, self._options
        check_possible(problem)
        # First of all a plan: the bound of a large graph takes longer.
        draft = problem.native.heft(range(len(problem.cluster.devices)))
        if draft.violation == 0:
            report(
                options,
                "heft",
                self._begin,
                draft.makespan_ns,
                plan=lambda: problem.native.plan(draft.steps, "heft"),
            )
        self._bound_ns = lower_bound(problem).ns
        for device_id, device in enumerate(problem.cluster.devices):
            plan = single_plan(problem, device_id)
            if isinstance(plan, str):
                self._tried.append((f"single {device.name}", None, plan))
        for name, plan in start_plans(problem, self._left_s() / 2):
            self._add(name, plan)
        if not self._is_proven():
            self._search()
        if not self._is_proven() and not self._was_interrupted:
            self._prove()
        if not self._candidates:
            raise no_placement_error(problem)
        chosen, note = self._choose()
        self._tried.append((f"chosen: {chosen.name}", chosen.makespan_ns, note))
        return make_result(
            problem,
            Plan(
                chosen.plan.graph_digest,
                chosen.plan.cluster_digest,
                chosen.plan.steps,
                f"auto ({chosen.plan.origin})",
            ),
            self._bound_ns,
            AutoSolver.name,
            time.perf_counter() - self._begin,
            was_interrupted=self._was_interrupted,
            candidates=tuple(self._tried),
        )

    def _add(self, name: str, plan: Plan, note: str = "") -> None:
        makespan = self._problem.native.simulate(plan.steps).makespan_ns
        self._candidates.append(_Candidate(name, plan, makespan))
        self._tried.append((name, makespan, note))
        best = min(self._candidates, key=lambda candidate: candidate.rank)
        report(
            self._options, name, self._begin, best.makespan_ns, self._bound_ns, lambda: best.plan
        )

    def _left_s(self) -> float:
        return self._options.time_limit_s - (time.perf_counter() - self._begin)

    def _is_proven(self) -> bool:
        best = min((candidate.makespan_ns for candidate in self._candidates), default=None)
        return best is not None and best <= self._bound_ns

    def _search(self) -> None:
        problem, options = self._problem, self._options
        is_small = len(problem.graph.tasks) <= MAX_CPSAT_TASKS
        if not self._candidates:
            self._tried.append(("search", None, "left out: no plan fits to start from"))
            return
        share = _SEARCH_SHARE if is_small else 1.0
        starts = [candidate.plan.steps for candidate in self._candidates]
        limit = max(0.01, self._left_s() * share)
        end = run_search(problem, starts, options, limit, self._bound_ns)
        self._was_interrupted = end.was_interrupted
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        plan = problem.native.plan(end.steps, f"search seed {options.seed}")
        self._add("search", plan, f"{end.num_evaluations} schedules tried")

    def _prove(self) -> None:
        problem, options = self._problem, self._options
        if len(problem.graph.tasks) > MAX_CPSAT_TASKS:
            note = f"left out: {len(problem.graph.tasks)} tasks, it takes at most {MAX_CPSAT_TASKS}"
            self._tried.append(("cpsat", None, note))
            return
        left = self._left_s()
        if left < 0.05 and self._candidates:
            self._tried.append(("cpsat", None, "left out: the time is up"))
            return
        best = min(self._candidates, key=lambda candidate: candidate.rank, default=None)
        incumbent = None if best is None else best.plan.steps
        # OR-Tools takes 0.2 s to load, and large graphs never need it.
        end = importlib.import_module(_CPSAT).run_cpsat(
            problem, incumbent, options, max(left, 0.05), self._bound_ns
        )
        if end.steps is None:
            raise no_placement_error(problem, is_proven=end.is_infeasible)
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        plan = problem.native.plan(end.steps, f"cpsat seed {options.seed}")
        self._add("cpsat", plan, f"bound {end.bound_ns} ns")

    def _choose(self) -> tuple[_Candidate, str]:
        """The best candidate, unless the best single device is almost as short."""
        ranked = sorted(self._candidates, key=lambda candidate: candidate.rank)
        best = ranked[0]
        singles = [one for one in ranked if num_devices_used(one.plan) <= 1]
        if not singles or singles[0] is best:
            return best, ""
        least = self._options.min_gain_ratio
        single = singles[0]
        gain = 1 - best.makespan_ns / single.makespan_ns if single.makespan_ns else 0.0
        if gain <= least:
            note = f"{best.name} is only {gain:.2%} shorter; min_gain_ratio is {least:.2%}"
            return single, note
        return best, f"{gain:.2%} shorter than {single.name}"
