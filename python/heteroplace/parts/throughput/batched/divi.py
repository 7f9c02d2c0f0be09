"""DiviML's batched programme as a solver: exact for small graphs and few items, with a bound.

Several items are served together, each op of all of them in one batch per device at most (DiviML,
section III, arXiv 2308.00127). The best plan of bMET, bGreedy and bHEFT gives the horizon, and
Gurobi and CP-SAT start from it; HiGHS, as scipy offers it, takes no start. Exact where copies do
not wait for each other (congestion "none", no copy engines): elsewhere the bound still holds, and
the plan is what our simulator makes of the batches and their order. Where memory may be short, a
programme with what every plan needs proves the bound, and that with the static rule finds plans.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.plan import Plan, Step
from heteroplace.model.units import format_bytes
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.batched.batch_plan import best_steps
from heteroplace.parts.throughput.batched.divi_limits import may_overflow
from heteroplace.parts.throughput.batched.divi_milp import MilpEnd, solve_batched_milp
from heteroplace.parts.throughput.batched.divi_rules import (
    BatchRules,
    Condition3,
    Measure,
    MemoryRule,
    common_block,
)
from heteroplace.parts.throughput.batched.list_solver import (
    BatchedGreedySolver,
    BatchedHeftSolver,
    BatchedMetSolver,
    batch_bound,
    check_compositions,
)
from heteroplace.parts.throughput.bounds.batched import batched_lower_bound
from heteroplace.parts.throughput.native.core_batches import schedule_batches, unserved_tasks
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.feasibility import fits
from heteroplace.solve.lp.engines import ChosenEngine
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result, report

MAX_SLOT_PAIRS = 150_000
"""Pairs of batches on one device up to which the programme is built. HiGHS does nothing useful with
more than a fifth of them."""
_NODES_PER_ITERATION = 1 / 200
"""Nodes of the programme for one iteration of a deterministic budget."""
_BLOCK_SHARE = 0.5
"""Part of the time for the programme of blocks, which finds plans, at most."""
NEEDED_SHARE = 0.4
"""Part of the time for the programme without tensors, where memory may be short, at most."""
_BOUND_SHARE = 0.25
"""Part of the time for the bounds that need no solver, at most."""
_MILP_SHARE = 0.8
"""Part of the time for the programme, at most; the rest is for bounds of modules."""
_HEURISTIC_SHARE = 0.5
"""Part of the time that is left for each list scheduler, at most."""
_HEURISTICS = (BatchedHeftSolver, BatchedGreedySolver, BatchedMetSolver)


class DiviSolver:
    """The best plan for `SolveOptions.items` items, by DiviML's programme.

    The makespan T of all L items is minimised. Their throughput in DiviML's sense, where a queue of
    items is served before the next one comes, is L / T, at most L over the bound.
    """

    name = "divi"
    takes_items = True
    engines: ClassVar = {"latency": ("gurobi", "cpsat", "highs")}

    def __init__(
        self,
        condition3: Condition3 = "corrected",
        memory: MemoryRule = "held",
        symmetry: Measure = "first",
        rounds: int = 1,
    ) -> None:
        """Choose the form of the programme; see `BatchRules`."""
        self.rules = BatchRules(condition3, memory, symmetry, rounds)

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. `candidates` names the programme's own value and size."""
        return _Run(problem, options, self.rules).run()


@dataclass
class _Run:
    """One solve: what is known so far."""

    problem: Problem
    options: SolveOptions
    rules: BatchRules
    begin: float = field(default_factory=time.perf_counter)
    best: tuple[Step, ...] | None = None
    best_ns: int | None = None
    bound_ns: int = 0
    is_impossible: bool = False
    """It is proven that there is no plan."""
    candidates: list[tuple[str, int | None, str]] = field(default_factory=list)
    end: MilpEnd | None = None

    def __post_init__(self) -> None:
        self._deadline = Deadline.after(self.options.time_limit_s, self.begin)
        self._is_short = may_overflow(self.problem, self.options.items)

    def run(self) -> SolveResult:
        problem, items = self.problem, self.options.items
        if self.rules.rounds == 1:
            check_compositions(problem, items)
        self.bound_ns = batch_bound(problem, items, self._part(_BOUND_SHARE))
        self._find_heuristics()
        for rules, share in self._forms():
            if self._is_open():
                self._solve_milp(rules, share)
        if self.best is not None and self.best_ns != self.bound_ns:
            self._raise_bound()
        if self.best is None:
            raise self._nothing()
        self._report(DiviSolver.name)
        return make_result(
            problem,
            self._plan(self.best),
            self.bound_ns,
            DiviSolver.name,
            time.perf_counter() - self.begin,
            was_interrupted=self._is_interrupted(),
            candidates=tuple(self.candidates),
        )

    def _part(self, share: float) -> Deadline:
        return self._deadline.part(share, self.options.iterations)

    def _forms(self) -> Iterator[tuple[BatchRules, float]]:
        """Forms of the programme in turn, and the part of the time that is left for each."""
        if _is_ours(self.rules):
            block = common_block(self.problem, self.options.items)
            if block > 1:
                yield replace(self.rules, block=block), _BLOCK_SHARE
            if self._is_short and self.rules.memory == "held":
                yield replace(self.rules, memory="needed"), NEEDED_SHARE
        yield self.rules, _MILP_SHARE

    def _find_heuristics(self) -> None:
        """The list schedulers, whose plans keep our rule of memory but perhaps not DiviML's."""
        native, items = self.problem.native, self.options.items
        if self.rules.memory == "published" or unserved_tasks(native, items):
            return
        for solver in _HEURISTICS:
            try:
                limit_s = self._part(_HEURISTIC_SHARE).left_s()
                plan = schedule_batches(native, items, solver.rule, limit_s)
            except SolverLimitError:
                self.candidates.append((solver.name, None, "left out: the time was up"))
                continue
            if plan.violation:
                self.candidates.append((solver.name, None, "overflows a memory or lacks a link"))
                continue
            self.candidates.append((solver.name, self._offer(plan.steps, solver.name), ""))

    def _offer(self, steps: tuple[Step, ...], phase: str) -> int:
        """Keep and report a plan if it fits, which an engine knows within its tolerance, and is the
        best; return its makespan."""
        times = simulate_steps(self.problem.native, steps, self.options.items)
        is_better = self.best_ns is None or times.makespan_ns < self.best_ns
        if is_better and fits(self.problem, times):
            self.best, self.best_ns = steps, times.makespan_ns
            self._report(phase)
        return times.makespan_ns

    def _proves(self, rules: BatchRules) -> bool:
        """Whether a form of the programme misses no plan of this package with its `rounds`."""
        is_whole = rules.condition3 == "corrected" and rules.block == 1
        return is_whole and (
            rules.memory == "needed" or (rules.memory == "held" and not self._is_short)
        )

    def _is_open(self) -> bool:
        """Whether there is more to find; published forms are solved for their value anyway."""
        is_known = self.is_impossible or self.best_ns == self.bound_ns
        return not (self._is_interrupted() or (is_known and _is_ours(self.rules)))

    def _is_interrupted(self) -> bool:
        return self.end is not None and self.end.was_interrupted

    def _solve_milp(self, rules: BatchRules, share: float) -> None:
        """Solve a form of the programme in a part of the time that is left."""
        name = "milp" if rules.block == 1 else f"milp of blocks of {rules.block}"
        name += " with least memory" * (rules.memory == "needed")
        pairs = slot_pairs(self.problem, self.options.items, rules)
        if pairs > MAX_SLOT_PAIRS:
            note = f"not built: {pairs} pairs of batches, at most {MAX_SLOT_PAIRS}"
            self.candidates.append((name, None, note))
            return
        if self._deadline.is_over():
            self.candidates.append((name, None, "left out: the time was up"))
            return
        iterations = self.options.iterations
        engine = ChosenEngine(self.options, takes_whole_numbers=True)
        end = solve_batched_milp(
            self.problem,
            self.options.items,
            rules,
            time_limit_s=self._part(share).left_s(),
            node_limit=None if iterations is None else 1 + int(iterations * _NODES_PER_ITERATION),
            # Plans of the list schedulers need not keep the published conditions.
            horizon_ns=self.best_ns if _is_ours(rules) else None,
            bound_ns=self.bound_ns,
            engine=engine,
            start=self.best if _is_ours(rules) else None,
        )
        self.end = end
        failure = f", {end.failure}" if end.failure else ""
        note = (
            f"{engine.name}, condition 3 {rules.condition3}, {end.num_rows} rows, "
            f"{end.num_columns} columns, bound {end.bound_ns} ns{failure}"
        )
        self.candidates.append((name, end.value_ns, note))
        if self._proves(rules) and not end.is_infeasible:
            self.bound_ns = max(self.bound_ns, end.bound_ns)
        is_ruled_out = rules.memory == "published" or self._proves(rules)
        self.is_impossible |= end.is_infeasible and is_ruled_out and self.best is None
        if end.value_ns is not None:
            self._offer(best_steps(self.problem, end.batches, self.options.items), name)

    def _raise_bound(self) -> None:
        """Solve modules with the time that is left; a budget in iterations has none for it."""
        left = self._deadline.left_s()
        if not left or self.options.iterations is not None or self._is_interrupted():
            return
        bound = batched_lower_bound(
            self.problem,
            self.options.items,
            rounds=self.rules.rounds,
            time_limit_s=left,
            deadline=self._deadline,
        )
        self.bound_ns = max(self.bound_ns, bound.ns)
        self.candidates.append(("bound", None, f"{bound.ns} ns by {bound.source}"))

    def _plan(self, steps: tuple[Step, ...]) -> Plan:
        native, items = self.problem.native, self.options.items
        origin = f"{DiviSolver.name} items {items} condition 3 {self.rules.condition3}"
        return Plan(native.graph_digest, native.cluster_digest, steps, origin, (), items)

    def _report(self, phase: str) -> None:
        best = self.best
        plan = None if best is None else partial(self._plan, best)
        report(self.options, phase, self.begin, self.best_ns, self.bound_ns, plan)

    def _nothing(self) -> InfeasibleError:
        """The error where there is no plan; SolverLimitError unless that is proven."""
        graph, cluster = self.problem.graph, self.problem.cluster
        opening = "no plan exists" if self.is_impossible else "no plan was found in time"
        more = "" if self.is_impossible else ", or more time"
        capacities = ", ".join(f"{m.name} has {format_bytes(m.bytes)}" for m in cluster.memories)
        return (InfeasibleError if self.is_impossible else SolverLimitError)(
            f"{opening} for {self.options.items} items of graph {graph.name!r} on cluster "
            f"{cluster.name!r} that fits in memory and over its links (weights count once for each "
            f"device that runs the task, tensors once for each item); {capacities}. Serve fewer "
            f"items at once, or give more memory or links{more}."
        )


def _is_ours(rules: BatchRules) -> bool:
    """Whether plans of the list schedulers keep the rules."""
    return rules.condition3 == "corrected" and rules.memory != "published"


def slot_pairs(problem: Problem, items: int, rules: BatchRules) -> int:
    """Number of pairs of batches that may be on one device, or on one that shares units."""
    sizes = np.array(problem.costs.batches)
    runs = (problem.native.batch_run_ns[sizes <= items] != IMPOSSIBLE).any(axis=0)
    counts: list[int] = runs.sum(axis=0).tolist()
    slots = [count * min(rules.rounds, items) for count in counts]
    units = [set(ids) for ids in problem.cluster.unit_ids]
    pairs = sum(count * (count - 1) // 2 for count in slots)
    for one in range(len(slots)):
        for other in range(one):
            pairs += slots[one] * slots[other] if units[one] & units[other] else 0
    return pairs
