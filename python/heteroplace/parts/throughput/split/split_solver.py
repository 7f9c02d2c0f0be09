"""MILP-SPLIT: modules solved exactly, joined by dynamic programming, with the proven bound.

Ghannane and Abdelfattah, DiviML: A Module-based Heuristic for Mapping Neural Networks onto
Heterogeneous Platforms, section IV, DOI 10.48550/arXiv.2308.00127. A graph with bridges or
articulation points is a chain of modules (`chain_split.py`), and what comes out is optimal if all
that matters is solved in time. Other graphs are cut where a few channels cross
(`channel_split.py`): there the plan is a start for the search, and the bound is recursive.

Unlike DiviML it starts from the best plan of the search, which is never lost; and memory counts:
every plan that is returned fits.
"""

from __future__ import annotations

import time
from functools import partial
from typing import ClassVar

from heteroplace.errors import SolverError
from heteroplace.model.plan import Step
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.simulate import native_plan_of, simulate_steps
from heteroplace.parts.throughput.bounds.subproblem import spine
from heteroplace.parts.throughput.decompose.decomposition import modules_of
from heteroplace.parts.throughput.split.batched_solver import BatchedSplit
from heteroplace.parts.throughput.split.chain_split import ChainSplit
from heteroplace.parts.throughput.split.channel_split import ChannelSplit
from heteroplace.parts.throughput.split.exact import search_and_prove
from heteroplace.parts.throughput.split.pool import Budget, Pool
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.exact.cpsat import run_cpsat
from heteroplace.solve.exact.cpsat_engine import ITERATIONS_PER_DETERMINISTIC_SECOND
from heteroplace.solve.feasibility import no_placement_error, overflow
from heteroplace.solve.problem import (
    MAX_CPSAT_TASKS,
    Problem,
    SolveOptions,
    SolveResult,
    make_result,
    report,
)
from heteroplace.solve.refinement import RefinementEnd
from heteroplace.solve.search.initial_solutions import initial_s
from heteroplace.solve.search.search_solver import begin_solve, run_search

_CHAIN_SEARCH_SHARE = 0.05
"""Share of the time for the search of the whole before a chain is solved module by module."""
_CHANNEL_SEARCH_SHARE = 0.25
"""The same before modules with several channels are solved; and again behind them."""
_MEMORY_TIME_SHARE = 0.5
"""Share of a chain's time that is kept for its memory, if the best plans overflow together."""
_MEMORY_MODULES_SHARE, _MEMORY_CHAIN_SHARE = 0.5, 0.8
"""Shares of that until plans of modules in less memory must be there, and a chain of them; then
comes the whole again."""


class SplitSolver:
    """MILP-SPLIT of DiviML: cuts the graph into modules and solves each exactly."""

    name = "split"
    takes_items = True
    engines: ClassVar = {"latency": ("cpsat",), "items": ("gurobi", "cpsat", "highs")}

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        if options.items > 1:
            return BatchedSplit(problem, options).run()
        deadline = Deadline.after(options.time_limit_s)
        return _Split(problem, options, deadline).run()


def run_split(
    problem: Problem,
    incumbent: tuple[Step, ...],
    options: SolveOptions,
    deadline: Deadline,
    bound_ns: int,
) -> RefinementEnd:
    """Improve a plan that fits by exact solutions of modules, and prove what can be proven."""
    return _Split(problem, options, deadline).improve(incumbent, bound_ns)


class _Split:
    """One solve: the best plan and bound so far, and the clock."""

    def __init__(self, problem: Problem, options: SolveOptions, deadline: Deadline) -> None:
        self._problem = problem
        self._options = options
        self._begin = time.perf_counter()
        self._deadline = deadline
        self._last_s = _CHANNEL_SEARCH_SHARE * deadline.left_s()
        """For the search behind modules with several channels."""
        if options.iterations is not None:
            self._last_s = 0.0
        self._was_interrupted = False
        self._bound_ns = 0
        self._best_ns: int | None = None
        self._steps: tuple[Step, ...] = ()
        self._notes: list[tuple[str, int | None, str]] = []

    def run(self) -> SolveResult:
        problem, options = self._problem, self._options
        initial, self._bound_ns = begin_solve(problem, options, self._begin)
        name, native_plan = initial.first()
        if native_plan.violation == 0:
            self._offer(name, native_plan.steps)
        starting_s = initial_s(problem, options)
        native_plans = [plan for _, plan in initial.native_plans(starting_s)]
        share = _CHAIN_SEARCH_SHARE if len(modules_of(problem).chain) > 1 else _CHANNEL_SEARCH_SHARE
        self._search("search", native_plans or [native_plan], self._part(share))
        if self._best_ns is None:
            self._find_any_plan()
        self._solve_modules()
        return make_result(
            problem,
            problem.native.plan(self._steps, f"split seed {options.seed}"),
            self._bound_ns,
            SplitSolver.name,
            time.perf_counter() - self._begin,
            was_interrupted=self._was_interrupted,
            candidates=tuple(self._notes),
        )

    def improve(self, incumbent: tuple[Step, ...], bound_ns: int) -> RefinementEnd:
        """See `run_split`."""
        self._bound_ns = bound_ns
        self._best_ns = simulate_steps(self._problem.native, incumbent).makespan_ns
        self._steps = incumbent
        self._solve_modules()
        return RefinementEnd(self._steps, self._bound_ns, self._was_interrupted, tuple(self._notes))

    def _find_any_plan(self) -> None:
        """No heuristic plan fits: only the exact model of a small whole may find one."""
        problem, options = self._problem, self._options
        if len(problem.graph.tasks) > MAX_CPSAT_TASKS:
            raise no_placement_error(problem)
        end = run_cpsat(problem, None, options, self._deadline, self._bound_ns)
        if end.steps is None:
            raise no_placement_error(problem, is_proven=end.is_infeasible)
        self._was_interrupted |= end.was_interrupted
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        self._offer("whole", end.steps, "no heuristic plan fits")

    def _solve_modules(self) -> None:
        if self._is_done():
            return
        try:
            if len(modules_of(self._problem).chain) > 1:
                self._solve_chain()
            else:
                self._solve_channels()
        except KeyboardInterrupt:
            self._was_interrupted = True

    def _is_done(self) -> bool:
        return self._was_interrupted or self._best_ns == self._bound_ns

    def _part(self, share: float) -> Deadline:
        return self._deadline.part(share, self._options.iterations)

    def _offer(self, name: str, steps: tuple[Step, ...], note: str = "") -> None:
        """Keep a plan that fits if it is the best so far."""
        time_ns = simulate_steps(self._problem.native, steps).makespan_ns
        self._notes.append((name, time_ns, note))
        if self._best_ns is None or time_ns < self._best_ns:
            self._best_ns, self._steps = time_ns, steps

    def _report(self) -> None:
        steps = self._steps
        report(
            self._options,
            SplitSolver.name,
            self._begin,
            self._best_ns,
            self._bound_ns,
            lambda: self._problem.native.plan(steps, SplitSolver.name),
        )

    def _search(self, name: str, initial: list[NativePlan], deadline: Deadline) -> None:
        end = run_search(self._problem, initial, self._options, deadline, self._bound_ns)
        self._was_interrupted |= end.was_interrupted
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        if end.native_plan.violation == 0:
            self._offer(name, end.native_plan.steps, f"{end.num_evaluations} schedules tried")

    def _pool(self, deadline: Deadline) -> Pool:
        options = self._options
        limit = options.iterations
        work_s = None if limit is None else limit / ITERATIONS_PER_DETERMINISTIC_SECOND
        return Pool(Budget(deadline, work_s, options.seed, options.threads))

    def _solve_chain(self) -> None:
        pool, until_memory = self._pool(self._deadline), self._part(1 - _MEMORY_TIME_SHARE)
        chain = modules_of(self._problem).chain
        split = ChainSplit(self._problem, chain, pool)
        split.start(self._steps)
        while True:
            self._bound_ns = max(self._bound_ns, split.bound_ns())
            lacking = overflow(self._problem, split.steps())
            if not any(lacking):
                self._offer("joined modules", split.steps())
            self._report()
            is_late = any(lacking) and until_memory.is_over()
            if self._is_done() or is_late or not split.improve():
                break
        self._was_interrupted |= pool.was_interrupted
        solves = sum(plans.num_solves for plans in split.classes)
        note = f"{len(chain)} modules, {len(split.classes)} distinct, {solves} exact solves"
        self._notes.append(("chain", split.best_ns(), note))
        if any(lacking) and not self._is_done():
            self._mend_memory(split, lacking, pool)

    def _mend_memory(self, split: ChainSplit, lacking: tuple[int, ...], pool: Pool) -> None:
        """Each module fits, all together do not: memory-constrained plans, then the whole again."""
        pool = pool.rest(self._part(_MEMORY_MODULES_SHARE))
        deadline = self._part(_MEMORY_CHAIN_SHARE)
        steps = split.constrain_memory(lacking, pool, deadline)
        self._was_interrupted |= pool.was_interrupted
        names = [memory.name for memory in self._problem.cluster.memories]
        short = ", ".join(f"{n} {b} bytes" for n, b in zip(names, lacking, strict=True) if b)
        note = f"the best chain lacks {short}"
        name = "memory-constrained modules"
        if steps is None:
            self._notes.append((name, None, f"{note}; no chain was found to fit"))
        else:
            self._offer(name, steps, note)
        self._solve_whole()

    def _solve_whole(self) -> None:
        """The whole at once: exactly if it is small, else by search."""
        if len(self._problem.graph.tasks) > MAX_CPSAT_TASKS:
            self._search("search again", self._native_plans(), self._deadline)
            return
        pool = self._pool(self._deadline)
        if pool.is_over():
            return
        job = partial(search_and_prove, self._problem, self._native_plans(), self._bound_ns)
        proof = pool.run([job])[0]
        self._was_interrupted |= pool.was_interrupted
        self._bound_ns = max(self._bound_ns, proof.bound_ns)
        if proof.steps is not None:
            self._offer("whole", proof.steps)
        self._report()

    def _solve_channels(self) -> None:
        inner = spine(self._problem)
        paths = modules_of(inner).paths
        if not paths:
            self._notes.append(("modules", None, "left out: the graph has no narrow cuts"))
            self._solve_whole()
            return
        pool = self._pool(self._deadline.earlier(self._last_s))
        splits = [ChannelSplit(inner, path, pool) for path in paths]
        for is_thorough in (False, True):
            for split in splits:
                self._prove_modules(split, pool, is_thorough)
        for split in splits:
            note = f"bound {split.bound_ns()} ns over {len(split.patterns)} modules"
            self._notes.append(("modules", None, note))
        initial = self._native_plans()
        if len(inner.graph.tasks) == len(self._problem.graph.tasks):
            splits[0].add_plan(self._steps)
            plan = splits[0].barrier_plan()
            if plan is not None:
                self._notes.append(("barriers", plan[0], f"{len(plan[1])} modules"))
                initial.append(splits[0].without_barriers(plan[1]))
        if not self._is_done():
            until = self._deadline
            if self._last_s and len(self._problem.graph.tasks) <= MAX_CPSAT_TASKS:
                until = until.within(self._last_s)
            self._search("without barriers", initial, until)
        self._prove_small()

    def _prove_small(self) -> None:
        """What the time is left for: modules lose at their boundaries, the whole does not."""
        if (
            self._is_done()
            or self._deadline.is_over()
            or len(self._problem.graph.tasks) > MAX_CPSAT_TASKS
        ):
            return
        try:
            end = run_cpsat(
                self._problem, self._steps, self._options, self._deadline, self._bound_ns
            )
        except SolverError as err:
            self._notes.append(("whole", None, f"left out: {err}"))
            return
        self._was_interrupted |= end.was_interrupted
        self._bound_ns = max(self._bound_ns, end.bound_ns)
        if end.steps is not None:
            self._offer("whole", end.steps)
        self._report()

    def _prove_modules(self, split: ChannelSplit, pool: Pool, is_thorough: bool) -> None:
        """Solve subsets of modules as long as there are any and the budget allows."""
        while not self._is_done():
            self._bound_ns = max(self._bound_ns, split.bound_ns())
            self._report()
            if not split.improve(is_thorough=is_thorough):
                break
            self._was_interrupted |= pool.was_interrupted

    def _native_plans(self) -> list[NativePlan]:
        return [native_plan_of(self._problem.native, self._steps)]
