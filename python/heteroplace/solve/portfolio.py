"""The default solver `auto`.

Candidates of `auto`: the initial solutions; the search from all of them; and, chosen by the size
and the structure of the graph, refinement solvers, one of which may prove its plan. The search is
that of the solver `search`, and has a turn until it has stalled (no gain for `Route.patience` of
its time). Then each refinement solver has a turn
from the best plan, as long as the time without gain, and again as long as it gains; then the search
goes on where it was, knowing that plan, until it has gone without gain twice as long as before; and
so on. So the time goes to whoever gains.

Every candidate is measured by the same simulator, and the best single device is always among them,
so the result is never longer than it. For throughput, or several items, a part solves
(`objective_solver.py`). Where costs are measured, it ends sooner if the gains stop
(`SolveOptions.ends_stalled`), and sooner still if the bound proves that little is left to gain.

Several devices are used only if they gain enough (`gains_enough`) by the objective; where a bound
proves that they cannot, nothing is searched (`SolveOptions.stop_gain_ratio`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from heteroplace.errors import SolverError
from heteroplace.native.core_arrays import RUN
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.core_search import Stall
from heteroplace.native.simulate import native_plan_of, simulate_plan
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.feasibility import no_placement_error
from heteroplace.solve.list.single import single_plan
from heteroplace.solve.objective import gains_enough, least_gain_ratio
from heteroplace.solve.objective_solver import added_objective
from heteroplace.solve.problem import (
    MAX_CPSAT_TASKS,
    Problem,
    SolveOptions,
    SolveResult,
    make_result,
    report,
)
from heteroplace.solve.refinement import (
    Route,
    added_refinements,
    choose_route,
    is_loaded,
    load_refinement,
)
from heteroplace.solve.search.initial_solutions import initial_s
from heteroplace.solve.search.search_solver import (
    LONG_PATIENCE_PER_TASK,
    MAX_TASKS_TO_BOUND,
    SearchEnd,
    SearchRun,
    before_copies,
    begin_solve,
    solve_deadline,
)

if TYPE_CHECKING:
    from heteroplace.solve.lns.engine import NeighbourhoodSearch

_MIN_S = 0.05
"""Less is not worth starting an exact solver for."""
_MIN_TURN_SHARE = 0.1
"""Least turn of others, as a part of the time: an exact model is built before it is solved."""
_MIN_STALL_S = 0.2
_GAIN_RATIO = 5e-4
"""Smaller gains do not prolong the turns of the refinement solver; nor those of the search."""
_WAIT_SHARE = 0.15
"""Of the time limit: how long at least `auto` waits for a gain where it ends when it stalls."""
_CLOSE_WAIT_SHARE = 0.02
"""The same once the bound proves that no gain is worth a search. See `_worth` for between."""
_MIN_TO_LOAD_S = 0.5
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
    takes_items = True
    objectives = ("latency", "throughput")
    engines: ClassVar = {
        "latency": ("cpsat",),
        "throughput": ("gurobi", "highs"),
        "items": ("gurobi", "highs"),
    }

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. `candidates` of the result lists everything tried or left out."""
        added = added_objective(options.objective, options.items)
        return _Auto(problem, options).run() if added is None else added.solve(problem, options)


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
        self._exhausted: set[tuple[str, int | None]] = set()
        """Refinement solvers, and makespans of plans that each can do nothing more with; None: it
        was asked for a first plan."""
        self._neighbourhoods: NeighbourhoodSearch | None = None
        self._num_turns = 0
        """Of the refinement solver."""
        self._gained_s = 0.0
        """When the best plan last became shorter, since the beginning."""

    def run(self) -> SolveResult:
        problem, options = self._problem, self._options
        initial, self._bound_ns = begin_solve(problem, options, self._begin)
        self._deadline = before_copies(problem, self._deadline, initial.first()[1])
        starting_s = initial_s(problem, options)
        self._initial_deadline = self._deadline.within(2 * starting_s)
        plans = initial.native_plans(starting_s)
        self._note_singles({name for name, _ in plans})
        for index, (name, plan) in enumerate(plans):
            if self._candidates and self._deadline.is_over():
                # By what its scheduler says.
                self._add(
                    *min(plans[index:], key=lambda one: (one[1].violation, one[1].makespan_ns))
                )
                break
            self._add(name, plan)
        if not self._is_proven():
            self._improve([plan for _, plan in plans])
        elif self._cannot_gain():
            self._tried.append(("search", None, "left out: no plan is worth several devices"))
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

    def _note_singles(self, names: set[str]) -> None:
        """Say why devices cannot take everything, unless the graph is so large that it shows."""
        for device_id, device in enumerate(self._problem.cluster.devices):
            name = f"single {device.name}"
            if name in names:
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
        if self._best_ns is None or makespan < (1 - _GAIN_RATIO) * self._best_ns:
            self._gained_s = time.perf_counter() - self._begin
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
        """Whether nothing shorter is left to be found, or nothing that several devices are worth
        being used for."""
        if self._best_ns is None:
            return False
        return self._best_ns <= self._bound_ns or self._cannot_gain()

    def _cannot_gain(self) -> bool:
        """Whether the bound proves it."""
        ratio = self._options.stop_gain_ratio
        singles = [one.makespan_ns for one in self._candidates if one.num_devices == 1]
        return bool(ratio and singles) and not gains_enough(self._bound_ns, min(singles), ratio)

    @property
    def _best(self) -> _Candidate | None:
        return min(self._candidates, key=lambda candidate: candidate.rank, default=None)

    @property
    def _best_ns(self) -> int | None:
        best = self._best
        return None if best is None else best.makespan_ns

    def _worth(self) -> float:
        """Return how much of the usual patience a search deserves: 0 if the bound leaves no more
        than the smallest gain that counts, 1 if it leaves twice that."""
        best_ns, least = self._best_ns, self._options.stop_gain_ratio
        if not best_ns or not least:
            return 1.0
        return min(1.0, max(0.0, (1 - self._bound_ns / best_ns) / least - 1))

    def _is_over(self) -> bool:
        is_stopped = self._is_proven() or self._was_interrupted or self._deadline.is_over()
        return is_stopped or self._patience_left_s() <= 0

    def _patience_left_s(self) -> float:
        """How much longer a gain is waited for."""
        if not self._options.ends_stalled:
            return math.inf
        worth = self._worth()
        share = worth * _WAIT_SHARE + (1 - worth) * _CLOSE_WAIT_SHARE
        patience_s = max(share * self._options.time_limit_s, worth * self._gained_s)
        return self._gained_s + patience_s - (time.perf_counter() - self._begin)

    def _improve(self, initial: list[NativePlan]) -> None:
        """Let search and refinement solver take turns; see the module."""
        if not initial:
            self._tried.append(("search", None, "left out: there is no plan to start from"))
            self._route()
            self._refine("cpsat", self._deadline)
            return
        if self._candidates and self._deadline.is_over():
            self._tried.append(("search", None, "left out: the time is up"))
            return
        best = self._best
        best_plan = None if best is None else (best.makespan_ns, best.plan)
        search = SearchRun(self._problem, initial, self._options, LONG_PATIENCE_PER_TASK, best_plan)
        stalled_s = 0.0
        route = self._route()
        while True:
            end = self._search(
                search, stalled_s, route.patience if self._refinements(route) else None
            )
            stalled_s = end.stalled_s
            names = [] if self._is_over() else self._refinements(route)
            for number, name in enumerate(names):
                turn_s = max(stalled_s, _MIN_TURN_SHARE * self._options.time_limit_s)
                if not end.can_go_on:
                    turn_s = self._deadline.left_s() / (len(names) - number)
                self._refine_while_it_gains(name, turn_s)
            if self._is_over() or not end.can_go_on:
                return

    def _route(self) -> Route:
        route = choose_route(self._problem)
        names = ", ".join(route.refinements) or "search"
        self._tried.append((f"route: {names}", None, route.reason))
        return route

    def _refinements(self, route: Route) -> list[str]:
        """The refinement solvers that may still gain something."""
        names = route.refinements if self._candidates else ("cpsat",)
        return [name for name in names if (name, self._best_ns) not in self._exhausted]

    def _search(self, search: SearchRun, stalled_s: float, patience: float | None) -> SearchEnd:
        """One turn of the search, from the best plan if that is another's; None: to the end."""
        best, stall = self._best, None
        others = [] if best is None or search.knows(best.plan) else [best.plan]
        if patience is not None and self._options.iterations is None:
            stall = Stall(patience, max(_MIN_STALL_S, 2 * stalled_s))
        deadline = self._deadline.within(self._patience_left_s())
        end = search.run(deadline, self._bound_ns, stall, others)
        self._was_interrupted |= end.was_interrupted
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        self._prices = end.prices
        self._add("search", end.native_plan, f"{end.num_evaluations} schedules tried")
        return end

    def _refine_while_it_gains(self, name: str, turn_s: float) -> None:
        has_work = self._options.iterations is not None  # which ends the only turn
        while not self._is_over() and (name, self._best_ns) not in self._exhausted:
            before_ns = self._best_ns
            deadline = self._deadline if has_work else self._deadline.within(turn_s)
            if self._worth() < 1:
                deadline = deadline.within(self._patience_left_s())
            self._refine(name, deadline)
            if has_work or before_ns is None or self._best_ns is None:
                return
            if self._best_ns > (1 - _GAIN_RATIO) * before_ns:
                return

    def _refine(self, name: str, deadline: Deadline) -> None:
        """One turn of a refinement solver; without a plan, of "cpsat", which alone needs none."""
        best = self._best
        least = _MIN_S if is_loaded(name) else _MIN_TO_LOAD_S
        is_close = self._worth() < 1
        if (deadline if is_close else self._deadline).left_s() < least and best is not None:
            reason = "the bound leaves too little to gain" if is_close else "the time is up"
            self._tried.append((name, None, f"left out: {reason}"))
            self._exhausted.add((name, best.makespan_ns))
            return
        load_refinement(name)
        # Another turn, other neighbourhoods.
        options = replace(self._options, seed=(self._options.seed + self._num_turns) % 2**31)
        self._num_turns += 1
        if best is None or name == "cpsat":
            self._prove_whole(best, options, deadline)
        elif name == "lns":
            self._improve_neighbourhoods(best, deadline)
        else:
            self._refine_by_part(name, best, options, deadline)
        has_ended = deadline.left_s() > 2 * _MIN_S or best is None
        if has_ended and self._best_ns == (None if best is None else best.makespan_ns):
            self._exhausted.add((name, self._best_ns))

    def _prove_whole(
        self, best: _Candidate | None, options: SolveOptions, deadline: Deadline
    ) -> None:
        problem = self._problem
        if len(problem.graph.tasks) > MAX_CPSAT_TASKS:
            note = f"left out: {len(problem.graph.tasks)} tasks, it takes at most {MAX_CPSAT_TASKS}"
            self._tried.append(("cpsat", None, note))
            return
        steps = None if best is None else best.plan.steps
        try:
            end = load_refinement("cpsat").run_cpsat(
                problem, steps, options, deadline, self._bound_ns
            )
        except SolverError as err:
            self._tried.append(("cpsat", None, f"left out: {err}"))
            return
        self._was_interrupted |= end.was_interrupted
        if end.is_infeasible:
            raise no_placement_error(problem, is_proven=True)
        if end.steps is None:
            self._tried.append(("cpsat", None, "found no plan"))
            return
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        self._add("cpsat", native_plan_of(problem.native, end.steps), f"bound {end.bound_ns} ns")

    def _refine_by_part(
        self, name: str, best: _Candidate, options: SolveOptions, deadline: Deadline
    ) -> None:
        end = added_refinements()[name].improve(
            self._problem, best.plan.steps, options, deadline, self._bound_ns
        )
        self._was_interrupted |= end.was_interrupted
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        self._tried += [(f"{name}: {what}", makespan, note) for what, makespan, note in end.notes]
        self._add(name, native_plan_of(self._problem.native, end.steps), f"bound {end.bound_ns} ns")

    def _improve_neighbourhoods(self, best: _Candidate, deadline: Deadline) -> None:
        if self._neighbourhoods is None:
            engine = load_refinement("lns")
            self._neighbourhoods = engine.NeighbourhoodSearch(self._problem, self._options)
        end = self._neighbourhoods.run(best.plan, deadline, self._bound_ns, self._prices)
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
