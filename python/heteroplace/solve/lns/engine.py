"""Large neighbourhood search: one neighbourhood after another of a plan is solved by CP-SAT.

Shaw, Using constraint programming and local search methods to solve vehicle routing problems, 1998,
section 2, DOI 10.1007/3-540-49481-2_30: free some of the plan, keep the rest, solve what is free by
constraint programming, keep what is better. Here a neighbourhood is a segment of the schedule, with
all its tasks or those of two devices; see `neighbourhood` for what the rest asks of it. A new plan
is taken only if the simulator finds it shorter and it fits, so the result is never worse than the
plan it began with.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ortools.sat.python import cp_model

from heteroplace.model.plan import Plan
from heteroplace.native.core_arrays import IntArray
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.simulate import simulate_plan
from heteroplace.solve.deadline import Deadline, TimeUpError
from heteroplace.solve.exact.cpsat_engine import ITERATIONS_PER_DETERMINISTIC_SECOND
from heteroplace.solve.exact.one_thread import Effort, Stopper, stop_until_done
from heteroplace.solve.lns.apply import Change, EqualNeighbourhoods, improve, task_classes
from heteroplace.solve.lns.choose import Chooser, byte_values_fs, whole
from heteroplace.solve.lns.fixed_schedule import ProblemLists, SimulatedPlan
from heteroplace.solve.lns.neighbourhood import SubProblem, Subproblem, cut_out
from heteroplace.solve.lns.neighbourhood_model import FS_PER_NS, SubModel, SubSolution
from heteroplace.solve.problem import Problem, SolveOptions, report

_PER_ROUND = 8
"""Neighbourhoods of one round; fixed, so that the number of threads does not change the result."""
_FIRST_LIMIT = 0.1
"""Deterministic seconds of CP-SAT for a neighbourhood, to begin with."""
_MAX_LIMIT = 30.0
_MIN_LIMIT = 0.01
_MIN_SIZE, _FIRST_SIZE, _MAX_SIZE = 10, 50, 300
"""Number of tasks that may move in a neighbourhood."""
_GROWTH = 1.25
"""Factor of the size where all are solved to the end, and its inverse where most are not."""
_MAX_DRAWS = 20
"""Draws for one place in a round; most fail where all neighbourhoods were tried."""
_MIN_GAIN_RATIO = 1e-6
"""Share of the makespan that a neighbourhood must gain."""

_Tried = dict[SubProblem, float]
"""Sub-problems without a better schedule, and the deterministic time that was spent."""


@dataclass(frozen=True)
class LnsEnd:
    """What a large neighbourhood search returned."""

    native_plan: NativePlan
    makespan_ns: int
    """Simulated; never more than that of the plan it began with."""
    num_neighbourhoods: int
    """Neighbourhoods that were solved."""
    start_ns: int
    """Makespan of the plan it began with."""
    was_interrupted: bool
    """Ctrl-C ended it."""
    is_optimal: bool
    """It is proven that no plan is shorter whose copies leave their tensor's home."""

    @property
    def note(self) -> str:
        """What it achieved, in words."""
        neighbourhoods = (
            f"{self.num_neighbourhoods} neighbourhood{'' if self.num_neighbourhoods == 1 else 's'}"
        )
        proof = ": proven optimal" if self.is_optimal else ""
        if self.makespan_ns == self.start_ns:
            return f"lns: no shorter plan in {neighbourhoods}{proof}"
        gain = 1 - self.makespan_ns / self.start_ns
        return f"lns: {gain:.3%} shorter than its start, in {neighbourhoods}{proof}"


@dataclass(frozen=True)
class _Outcome:
    """What CP-SAT found for one cut."""

    cut: Subproblem
    solution: SubSolution | None
    is_proven: bool
    """There is no better one."""
    deterministic_s: float


def run_lns(
    problem: Problem,
    native_plan: NativePlan,
    options: SolveOptions,
    deadline: Deadline,
    bound_ns: int = 0,
    prices: tuple[float, ...] = (),
) -> LnsEnd:
    """Improve a plan in one turn. Parameters as `NeighbourhoodSearch`."""
    return NeighbourhoodSearch(problem, options).run(native_plan, deadline, bound_ns, prices)


class NeighbourhoodSearch:
    """A large neighbourhood search in turns, each from a plan that fits.

    What was tried in vain, and how large neighbourhoods may be, is known in later turns as well.

    Parameters
    ----------
    options
        `iterations / ITERATIONS_PER_DETERMINISTIC_SECOND` is the deterministic budget of all
        neighbourhoods of a turn together.
    """

    def __init__(self, problem: Problem, options: SolveOptions) -> None:
        self._problem, self._options = problem, options
        self._rng = random.Random(options.seed)
        self._size = float(_FIRST_SIZE)
        self._limit = _FIRST_LIMIT
        self._known: dict[bool, tuple[ProblemLists, IntArray, _Tried]] = {}
        """The problem and what was tried of it, memory counted by the static rule or not."""

    def run(
        self,
        native_plan: NativePlan,
        deadline: Deadline,
        bound_ns: int = 0,
        prices: tuple[float, ...] = (),
    ) -> LnsEnd:
        """Improve a plan, until the budget ends or it equals the bound.

        An interrupt (Ctrl-C) ends it with the best plan so far.

        Parameters
        ----------
        prices
            What the search found a byte of each memory to be worth, in ns; (): they are estimated.
        """
        self._begin = time.perf_counter()
        self._deadline, self._bound_ns = deadline, bound_ns
        is_static = _fits_statically(self._problem, native_plan)
        if is_static not in self._known:
            lists = ProblemLists(self._problem, charges_tensors=is_static)
            self._known[is_static] = lists, task_classes(lists), {}
        self._lists, self._classes, self._tried = self._known[is_static]
        self._best = SimulatedPlan(self._lists, native_plan)
        start_ns = self._best.makespan_ns
        self._values_fs = byte_values_fs(self._best)
        if any(prices):
            self._values_fs = tuple(round(FS_PER_NS * price) for price in prices)
        self._deterministic_s = 0.0
        self._num_neighbourhoods = 0
        self._is_optimal = False
        self._is_exhausted = False
        self._pool = _SolverPool(self._options)
        interrupted = False
        try:
            while not self._is_over():
                self._round()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._pool.close()
        best = self._best
        return LnsEnd(
            best.native_plan,
            best.makespan_ns,
            self._num_neighbourhoods,
            start_ns,
            interrupted,
            self._is_optimal,
        )

    def _is_over(self) -> bool:
        return (
            self._is_optimal
            or self._is_exhausted
            or not len(self._best)
            or self._best.makespan_ns <= self._bound_ns
            or self._deadline.is_over()
            or self._left_deterministic_s() < _MIN_LIMIT
        )

    def _left_deterministic_s(self) -> float:
        if self._options.iterations is None:
            return float("inf")
        budget = self._options.iterations / ITERATIONS_PER_DETERMINISTIC_SECOND
        return budget - self._deterministic_s

    def _round(self) -> None:
        cuts = self._choose()
        if not cuts:
            # Everything of this size was tried: look longer, at more.
            self._is_exhausted = self._limit >= _MAX_LIMIT and self._size >= _MAX_SIZE
            self._limit = min(_MAX_LIMIT, 2 * self._limit)
            self._size = min(_MAX_SIZE, _GROWTH * self._size)
            return
        limit = min(self._limit, self._left_deterministic_s() / len(cuts))
        outcomes = self._pool.solve(self._lists, cuts, limit, self._least_ns, self._deadline)
        self._num_neighbourhoods += len(outcomes)
        self._deterministic_s += sum(max(_MIN_LIMIT, one.deterministic_s) for one in outcomes)
        self._learn(outcomes, limit)
        changes = [(one.cut, one.solution) for one in outcomes if one.solution is not None]
        changes.sort(key=lambda change: -change[1].gain_ns)
        self._take(changes)
        report(
            self._options,
            "lns",
            self._begin,
            self._best.makespan_ns,
            self._bound_ns,
            self._plan_of(self._best.native_plan),
        )

    @property
    def _least_ns(self) -> int:
        """What one must gain: a share of a large plan, since there are better ones to find."""
        if len(self._best.run_positions) <= _MAX_SIZE:
            return 1
        return max(1, round(_MIN_GAIN_RATIO * self._best.makespan_ns))

    def _plan_of(self, native_plan: NativePlan) -> Callable[[], Plan]:
        native = self._lists.problem.native
        return lambda: native.plan(native_plan.steps, f"lns seed {self._options.seed}")

    def _choose(self) -> list[Subproblem]:
        """Neighbourhoods apart from each other that were not tried as long as they would be now."""
        chooser = Chooser(self._best, self._rng, self._values_fs)
        if len(self._best.run_positions) <= self._size:
            cut = cut_out(self._best, whole(self._best))
            return [] if self._was_tried(cut) else [cut]
        cuts: list[Subproblem] = []
        for _ in range(_PER_ROUND):
            for _ in range(_MAX_DRAWS):
                neighbourhood = chooser.draw(round(self._size), [cut.neighbourhood for cut in cuts])
                if neighbourhood is None:
                    continue
                cut = cut_out(self._best, neighbourhood)
                if not self._was_tried(cut) and all(cut.problem != c.problem for c in cuts):
                    cuts.append(cut)
                    break
        return cuts

    def _was_tried(self, cut: Subproblem) -> bool:
        return self._tried.get(cut.problem, 0.0) >= self._limit

    def _learn(self, outcomes: list[_Outcome], limit: float) -> None:
        """Remember what has no better schedule, and adapt the size of neighbourhoods."""
        num_open = 0
        for one in outcomes:
            num_open += not one.is_proven
            if one.solution is None:
                self._tried[one.cut.problem] = float("inf") if one.is_proven else limit
                is_all = one.cut.neighbourhood == whole(self._best)
                is_proven = one.is_proven and not self._lists.problem.native.counts_lifetimes
                self._is_optimal |= is_proven and is_all and self._least_ns == 1
        if 2 * num_open > len(outcomes):
            self._size = max(_MIN_SIZE, self._size / _GROWTH)
        elif num_open == 0:
            self._size = min(_MAX_SIZE, self._size * _GROWTH)

    def _take(self, changes: list[Change]) -> None:
        """Apply changes to their neighbourhoods, and to all neighbourhoods like these."""
        before = self._best
        candidates = list(changes)
        if changes:
            equals = EqualNeighbourhoods(before, self._classes)
            taken = [cut.neighbourhood for cut, _ in changes]
            for cut, solution in changes:
                for other in equals.others(cut, taken, self._deadline):
                    candidates.append((other, solution))
                    taken.append(other.neighbourhood)
            self._best = improve(before, candidates, before, self._deadline)
        if self._best is not before:
            return
        for cut, _ in changes:
            # The model knows less of what lies beside a neighbourhood than the simulator.
            self._tried[cut.problem] = self._limit
        self._limit = min(_MAX_LIMIT, _GROWTH * self._limit)


def _fits_statically(problem: Problem, native_plan: NativePlan) -> bool:
    """Whether a plan fits the memories even if nothing is freed."""
    used = simulate_plan(problem.native, native_plan).used_bytes
    return all(u <= m.bytes for u, m in zip(used, problem.cluster.memories, strict=True))


class _SolverPool:
    """Solves cuts on threads, one thread of CP-SAT for each."""

    def __init__(self, options: SolveOptions) -> None:
        self._options = options
        self._pool = ThreadPoolExecutor(options.threads)
        self._stopper = Stopper()
        self._solves: list[Future[_Outcome]] = []
        """Of the latest round."""

    def close(self) -> None:
        """Stop what runs."""
        stop_until_done(self._stopper.stop, [one for one in self._solves if not one.cancel()])
        self._pool.shutdown(wait=True)

    def solve(
        self,
        lists: ProblemLists,
        cuts: list[Subproblem],
        limit: float,
        least: int,
        deadline: Deadline,
    ) -> list[_Outcome]:
        """Return the outcomes in the order of `cuts`; what the time did not reach is open."""
        self._solves = [
            self._pool.submit(self._one, lists, cut, limit, least, deadline) for cut in cuts
        ]
        return [solve.result() for solve in self._solves]

    def _one(
        self, lists: ProblemLists, cut: Subproblem, limit: float, least: int, deadline: Deadline
    ) -> _Outcome:
        try:
            model = SubModel(lists, cut.problem, least, deadline)
        except TimeUpError:
            return _Outcome(cut, None, False, 0.0)
        effort = Effort(deadline, limit, self._options.seed)
        solved = self._stopper.solve(model.model, effort, has_relaxation=False)
        if solved is None:
            return _Outcome(cut, None, False, 0.0)
        solver, status = solved
        has_solution = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return _Outcome(
            cut,
            model.read(solver) if has_solution else None,
            status in (cp_model.OPTIMAL, cp_model.INFEASIBLE),
            solver.deterministic_time,
        )
