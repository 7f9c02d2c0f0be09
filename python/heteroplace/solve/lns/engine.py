"""Large neighbourhood search: stretch after stretch of a plan is solved exactly by CP-SAT.

Shaw, Using constraint programming and local search methods to solve vehicle routing problems, 1998:
free a part, keep the rest, solve the part by constraint programming, keep what is better. Here the
part is a stretch of the schedule, with all its tasks or those of two devices; see `window` for what
the rest asks of it. A new plan is taken only if the simulator finds it shorter and it fits, so the
result is never worse than the plan it began with.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ortools.sat.python import cp_model

from heteroplace.model.plan import Plan
from heteroplace.native.problem import NativePlan
from heteroplace.solve.exact.cpsat_engine import ITERATIONS_PER_DETERMINISTIC_SECOND
from heteroplace.solve.lns.apply import Change, DeviceClass, improve, task_classes
from heteroplace.solve.lns.choose import Chooser, byte_values_fs, whole
from heteroplace.solve.lns.model import FS_PER_NS, SubModel, SubSolution
from heteroplace.solve.lns.neighbourhood import Cut, SubProblem, cut_out
from heteroplace.solve.lns.schedule import Facts, Schedule
from heteroplace.solve.problem import Problem, SolveOptions, report

_PER_ROUND = 8
"""Stretches of one round; fixed, so that the number of threads does not change the result."""
_FIRST_LIMIT = 0.1
"""Deterministic seconds of CP-SAT for a stretch, to begin with."""
_MAX_LIMIT = 30.0
_LEAST_LIMIT = 0.01
_MIN_SIZE, _FIRST_SIZE, _MAX_SIZE = 10, 50, 300
"""Number of tasks that may move in a stretch."""
_GROWTH = 1.25
"""Factor of the size where stretches are solved to the end, and its inverse where they are not."""
_MAX_DRAWS = 20
"""Draws for one place in a round; most fail where all stretches were tried."""
_LEAST_GAIN_RATIO = 1e-6
"""Part of the makespan that a stretch must gain."""


@dataclass(frozen=True)
class LnsEnd:
    """What a large neighbourhood search returned."""

    native_plan: NativePlan
    makespan_ns: int
    """Simulated; never more than that of the plan it began with."""
    num_windows: int
    """Stretches that were solved."""
    num_gains: int
    """Rounds that made the plan shorter."""
    start_ns: int
    """Makespan of the plan it began with."""
    was_interrupted: bool
    """Ctrl-C ended it."""
    is_optimal: bool
    """It is proven that no plan is shorter whose copies leave their tensor's home."""

    @property
    def note(self) -> str:
        """What it achieved, in words."""
        windows = f"{self.num_windows} window{'' if self.num_windows == 1 else 's'}"
        proof = ": proven optimal" if self.is_optimal else ""
        if self.makespan_ns == self.start_ns:
            return f"lns: no shorter plan in {windows}{proof}"
        gain = 1 - self.makespan_ns / self.start_ns
        return f"lns: {gain:.3%} shorter than its start, in {windows}{proof}"


@dataclass(frozen=True)
class _Outcome:
    """What CP-SAT found for one cut."""

    cut: Cut
    solution: SubSolution | None
    is_proven: bool
    """There is no better one."""
    deterministic_s: float


def run_lns(
    problem: Problem,
    native_plan: NativePlan,
    options: SolveOptions,
    time_limit_s: float,
    bound_ns: int = 0,
    prices: tuple[float, ...] = (),
) -> LnsEnd:
    """Improve a plan that fits, until the budget ends or it equals the bound.

    `options.iterations / ITERATIONS_PER_DETERMINISTIC_SECOND` is the deterministic budget of all
    stretches together. `prices` are what the search found a byte of each memory to be worth, in ns;
    without them they are estimated. An interrupt (Ctrl-C) ends it with the best plan so far.
    """
    return _Engine(problem, native_plan, options, time_limit_s, bound_ns, prices).run()


class _Engine:
    def __init__(
        self,
        problem: Problem,
        native_plan: NativePlan,
        options: SolveOptions,
        time_limit_s: float,
        bound_ns: int,
        prices: tuple[float, ...],
    ) -> None:
        self._begin = time.perf_counter()
        self._facts = Facts(problem)
        self._options = options
        self._end = self._begin + time_limit_s
        self._bound_ns = bound_ns
        self._rng = random.Random(options.seed)
        self._best = Schedule(self._facts, native_plan)
        self._start_ns = self._best.makespan_ns
        self._values_fs = byte_values_fs(self._best)
        if any(prices):
            self._values_fs = tuple(round(FS_PER_NS * price) for price in prices)
        self._classes = task_classes(self._facts)
        self._size = float(_FIRST_SIZE)
        self._limit = _FIRST_LIMIT
        self._tried: dict[SubProblem, float] = {}
        """Sub-problems without a better schedule, and the deterministic time that was spent."""
        self._deterministic_s = 0.0
        self._num_windows = 0
        self._num_gains = 0
        self._is_optimal = False
        self._is_exhausted = False
        self._pool = _SolverPool(options)

    def run(self) -> LnsEnd:
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
            self._num_windows,
            self._num_gains,
            self._start_ns,
            interrupted,
            self._is_optimal,
        )

    def _is_over(self) -> bool:
        return (
            self._is_optimal
            or self._is_exhausted
            or not len(self._best)
            or self._best.makespan_ns <= self._bound_ns
            or time.perf_counter() >= self._end
            or self._left_deterministic_s() < _LEAST_LIMIT
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
        outcomes = self._pool.solve(self._facts, cuts, limit, self._least_ns, self._end)
        self._num_windows += len(outcomes)
        self._deterministic_s += sum(max(_LEAST_LIMIT, one.deterministic_s) for one in outcomes)
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
        """What a stretch must gain: of a large plan a part, since there are better ones to find."""
        if len(self._best.run_positions) <= _MAX_SIZE:
            return 1
        return max(1, round(_LEAST_GAIN_RATIO * self._best.makespan_ns))

    def _plan_of(self, native_plan: NativePlan) -> Callable[[], Plan]:
        native = self._facts.problem.native
        return lambda: native.plan(native_plan.steps, f"lns seed {self._options.seed}")

    def _choose(self) -> list[Cut]:
        """Stretches apart from each other that were not tried as long as they would be now."""
        chooser = Chooser(self._best, self._rng, self._values_fs)
        if len(self._best.run_positions) <= self._size:
            cut = cut_out(self._best, whole(self._best))
            return [] if self._was_tried(cut) else [cut]
        cuts: list[Cut] = []
        for _ in range(_PER_ROUND):
            for _ in range(_MAX_DRAWS):
                stretch = chooser.draw(round(self._size), [cut.stretch for cut in cuts])
                if stretch is None:
                    continue
                cut = cut_out(self._best, stretch)
                if not self._was_tried(cut) and all(cut.problem != c.problem for c in cuts):
                    cuts.append(cut)
                    break
        return cuts

    def _was_tried(self, cut: Cut) -> bool:
        return self._tried.get(cut.problem, 0.0) >= self._limit

    def _learn(self, outcomes: list[_Outcome], limit: float) -> None:
        """Remember what has no better schedule, and adapt the size of stretches."""
        num_open = 0
        for one in outcomes:
            num_open += not one.is_proven
            if one.solution is None:
                self._tried[one.cut.problem] = float("inf") if one.is_proven else limit
                is_all = one.cut.stretch == whole(self._best)
                self._is_optimal |= one.is_proven and is_all and self._least_ns == 1
        if 2 * num_open > len(outcomes):
            self._size = max(_MIN_SIZE, self._size / _GROWTH)
        elif num_open == 0:
            self._size = min(_MAX_SIZE, self._size * _GROWTH)

    def _take(self, changes: list[Change]) -> None:
        """Apply changes to their stretches, and to all stretches like these."""
        before = self._best
        candidates = list(changes)
        if changes:
            device_class = DeviceClass(before, self._classes)
            taken = [cut.stretch for cut, _ in changes]
            for cut, solution in changes:
                for other in device_class.others(cut, taken):
                    candidates.append((other, solution))
                    taken.append(other.stretch)
            self._best = improve(before, candidates, before)
        if self._best is not before:
            self._num_gains += 1
            return
        for cut, _ in changes:
            # The model knows less of what lies beside a stretch than the simulator.
            self._tried[cut.problem] = self._limit
        self._limit = min(_MAX_LIMIT, _GROWTH * self._limit)


class _SolverPool:
    """Solves cuts on threads, one thread of CP-SAT for each."""

    def __init__(self, options: SolveOptions) -> None:
        self._options = options
        self._pool = ThreadPoolExecutor(options.threads)
        self._lock = threading.Lock()
        self._running: list[cp_model.CpSolver] = []
        """Guarded by `_lock`."""
        self._is_closed = False
        """Guarded by `_lock`."""

    def close(self) -> None:
        """Stop what runs."""
        with self._lock:
            self._is_closed = True
            for solver in self._running:
                solver.stop_search()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def solve(
        self, facts: Facts, cuts: list[Cut], limit: float, least: int, end: float
    ) -> list[_Outcome]:
        """Return the outcomes in the order of `cuts`; what the time did not reach is open."""
        futures = [self._pool.submit(self._one, facts, cut, limit, least, end) for cut in cuts]
        return [future.result() for future in futures]

    def _one(self, facts: Facts, cut: Cut, limit: float, least: int, end: float) -> _Outcome:
        left = end - time.perf_counter()
        if left <= 0:
            return _Outcome(cut, None, False, 0.0)
        model = SubModel(facts, cut.problem, least)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = self._options.seed
        solver.parameters.max_deterministic_time = limit
        solver.parameters.max_time_in_seconds = max(0.01, end - time.perf_counter())
        # The relaxation of a schedule says next to nothing, and takes most of the time.
        solver.parameters.linearization_level = 0
        # Only the main thread may handle signals.
        solver.parameters.catch_sigint_signal = False
        with self._lock:
            if self._is_closed:
                return _Outcome(cut, None, False, 0.0)
            self._running.append(solver)
        try:
            status = solver.solve(model.model)
        finally:
            with self._lock:
                self._running.remove(solver)
        found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return _Outcome(
            cut,
            model.read(solver) if found else None,
            status in (cp_model.OPTIMAL, cp_model.INFEASIBLE),
            solver.deterministic_time,
        )
