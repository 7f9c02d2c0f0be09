"""The placement of least time per item in a steady state without batches, with a lower bound.

Bound: Lagrange multipliers, the prices of resources and memories (`prices.py`), profits of tasks
that devices cannot hold where copies occupy them (`subset_bound.py`), and for small graphs a
mixed-integer programme (`priced_assignment.py`). Initial solutions: what comes with the prices
(`convex_combination.py`), contiguous splits, by dynamic programming over ideals where they are few,
those of list schedulers, the solution of the programme. Then local search over loads, in C++:
src/parts/throughput/steady_state/improve.cc. Of measured costs, near ones with fewer changes of
device are preferred (`few_changes.py`). Last, the order: the placement is list-scheduled, by the
longest way to the end; the order does not change the time per item.

Unlike "Efficient Algorithms for Device Placement of DNN Graph Operators" (2020) a device need not
hold a contiguous part of the graph, and copies load what they occupy rather than both devices.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np

from heteroplace.model.collector import paused_collector
from heteroplace.model.plan import Plan
from heteroplace.native.core_arrays import IntArray
from heteroplace.native.core_loads import placement_loads
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import list_schedule, m_topo
from heteroplace.parts.throughput.native.core_throughput import (
    Improvement,
    contiguous_splits,
    ideal_split,
    improve_placements,
)
from heteroplace.parts.throughput.steady_state.convex_combination import combined_placements
from heteroplace.parts.throughput.steady_state.few_changes import with_few_changes
from heteroplace.parts.throughput.steady_state.priced_assignment import is_small, solve_assignment
from heteroplace.parts.throughput.steady_state.prices import PRICES, price_bound
from heteroplace.parts.throughput.steady_state.subset_bound import subset_bound
from heteroplace.simulate.throughput import throughput_ns
from heteroplace.solve.feasibility import check_possible, no_placement_error
from heteroplace.solve.list.order_place import OrderPlaceSolver
from heteroplace.solve.lp.engines import ChosenEngine
from heteroplace.solve.objective import least_gain_ratio
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, report, status_of
from heteroplace.solve.search.initial_solutions import InitialSolutions, initial_s

MAX_PRICE_EVALUATIONS = 400
"""Evaluations of the relaxation; most graphs need fewer than 100."""
IDEALS = "split by ideals"
"""Name of the dynamic programme's plan among the candidates."""
FEW_CHANGES = "few changes of device"
"""Name of a placement that was preferred for them."""
SUBSETS = "subsets"
"""Name of the bound by profits among the candidates."""
MAX_SUBSET_EVALUATIONS = 300
"""Of the knapsacks of all devices; most of what there is comes within 60."""
_SUBSET_SHARE = 0.2
"""Part of the time that is left for them, at most."""
_PRICE_SHARE = 0.3
"""Part of the time for prices, at most."""
_ASSIGNMENT_SHARE = 0.5
"""Part of the time for the mixed-integer programme, at most."""
MAX_IDEALS = 10_000
"""Of a graph that the dynamic programme over ideals is for; it takes some tenths of a second."""
_STAGES_PER_S = 100_000
"""Stages that it looks at, for each second of the time: a tenth of it."""
_MAX_STAGES = 5_000_000
_MAX_ORDERS = 24
"""Of devices, for which contiguous splits are made; all of four."""
_MIN_ORDERS = 4
_SPLIT_TASKS_PER_S = 400_000
"""Tasks of all these splits, for each second of the time: a fifth of it."""
_IDEALS_PER_S = 20_000
"""Ideals for each second of the time, where it is little (`find_throughput`)."""
_NODES_PER_ITERATION = 1 / 200
"""Nodes of the programme for one iteration of a deterministic budget."""
_PROOF_RATIO = 2e-6
"""Gap at which the solve ends: what rounding takes off the bound of the programme."""
_PLAN_S_PER_TASK = 1.2e-5
"""Time set aside for the plan."""
_CHANGES_SHARE = 0.1
"""Of the time of the last search, what is left for fewer changes of device."""
_REPAIR_S = 1.0
"""Time for placements that fit, where the search from all initial solutions found none."""
_REPAIR_MOVES = 20_000
_MAX_TIES = 8
"""Initial solutions of the same time per item, whose runs of one item are compared."""


class ThroughputSolver:
    """Least time per item: prices, convex combinations, exact assignment, local search.

    `SolveOptions.iterations` are moves of the local search. `objective_ns` is the time per item.
    """

    name = "throughput"
    objectives = ("throughput",)
    engines: ClassVar = {"throughput": ("gurobi", "highs")}

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        begin = time.perf_counter()
        check_possible(problem)
        return _Run(problem, options, begin).run()


def find_throughput(problem: Problem, options: SolveOptions) -> SolveResult:
    """As the solver, for callers that want a plan in little time: initial solutions and local
    search, without programmes and bounds, which cannot be stopped in the middle.

    Raises
    ------
    InfeasibleError
        No placement satisfies the constraints, or none was found in time that does.
    """
    begin = time.perf_counter()
    check_possible(problem)
    return _Run(problem, options, begin, is_proving=False).run()


@dataclass
class _Run:
    """One solve: what is known so far."""

    problem: Problem
    options: SolveOptions
    begin: float
    is_proving: bool = True
    """False: see `find_throughput`."""
    bound_ns: int = 0
    initial: list[IntArray] = field(default_factory=list)
    splits: list[IntArray] = field(default_factory=list)
    """Contiguous ones, of the initial solutions."""
    patterns: list[IntArray] = field(default_factory=list)
    tried: list[tuple[str, int | None, str]] = field(default_factory=list)
    item_ns: dict[int, int | None] = field(default_factory=dict)
    """Time per item of an initial solution by its `id`; None: it does not fit."""

    def run(self) -> SolveResult:
        problem = self.problem
        if not problem.graph.tasks:
            return self._result(np.zeros(0, dtype=np.int64), False)
        orders = _SPLIT_TASKS_PER_S * self.options.time_limit_s / len(problem.graph.tasks)
        orders = int(min(_MAX_ORDERS, max(_MIN_ORDERS, orders)))
        self.splits = contiguous_splits(problem.native, orders)[:2]
        uniform = m_topo(problem.native, is_uniform=True).devices(len(problem.graph.tasks))
        self.initial = [*self.splits, uniform, *self._list_schedules()]
        self._split_ideals()
        self._report("initial solutions")
        if self.is_proving:
            self._prove()
        ratio, iterations = least_gain_ratio(problem, self.options), self.options.iterations
        share = 1 - _CHANGES_SHARE if ratio and iterations is None else 1.0
        improvement = self._improve(self.initial, self._left_s() * share, iterations)
        if improvement.violation and not improvement.was_interrupted:
            placed = OrderPlaceSolver().native_plan(problem).devices(len(problem.graph.tasks))
            repair_s = _REPAIR_S if self.is_proving else min(_REPAIR_S, self._left_s())
            improvement = self._improve([placed, improvement.placement], repair_s, _REPAIR_MOVES)
        if improvement.violation:
            raise no_placement_error(problem)
        placement = self._shortest(self._with_few_changes(improvement.placement, ratio))
        return self._result(placement, improvement.was_interrupted)

    def _list_schedules(self) -> list[IntArray]:
        """Placements by list schedulers and METIS; by METIS alone where there is time for little
        else, as its parts have even loads and copy little."""
        starting = InitialSolutions(self.problem, self.options.time_limit_s)
        limit_s = initial_s(self.problem, self.options)
        if limit_s / 2 < starting.partition_s <= limit_s:
            plans = [starting.partition]
        else:
            plans = [plan for _, plan in starting.native_plans(limit_s)]
        return [plan.devices(len(self.problem.graph.tasks)) for plan in plans]

    def _prove(self) -> None:
        """Raise the bound; what comes with it are initial solutions."""
        if is_small(self.problem):
            self._solve_assignment()
        if not self._is_proven():
            self._find_prices()
        if not self._is_proven():
            self._find_subsets()

    def _with_few_changes(self, placement: IntArray, ratio: float) -> IntArray:
        """Where costs are measured, what differs by less than they can be wrong by is equal."""
        item_ns = self._item_ns(placement)
        if not ratio or item_ns is None:
            return placement
        limit_ns = math.floor(item_ns * (1 + ratio))
        changed = with_few_changes(self.problem, placement, self.splits, limit_ns, self._is_over)
        if changed is None:
            return placement
        note = f"instead of {item_ns} ns, within {ratio:.0%}"
        self.tried.append((FEW_CHANGES, self._item_ns(changed), note))
        return changed

    def _shortest(self, placement: IntArray) -> IntArray:
        """The placement of this time per item whose run of one item is the shortest; ties: it."""
        item_ns = self._item_ns(placement)
        ties = [each for each in self.initial if self._initial_ns(each) == item_ns][:_MAX_TIES]
        schedules = [(_listed(self.problem, each).makespan_ns, each) for each in [placement, *ties]]
        return min(schedules, key=lambda entry: entry[0])[1]

    def _is_over(self) -> bool:
        spent = time.perf_counter() - self.begin
        return self.options.iterations is None and spent > self.options.time_limit_s

    def _left_s(self) -> float:
        spent = time.perf_counter() - self.begin
        spare = _PLAN_S_PER_TASK * len(self.problem.graph.tasks)
        return max(0.01, self.options.time_limit_s - spent - spare)

    def _split_ideals(self) -> None:
        most = int(min(_MAX_STAGES, _STAGES_PER_S * self.options.time_limit_s))
        ideals = MAX_IDEALS
        if not self.is_proving:
            ideals = int(min(MAX_IDEALS, _IDEALS_PER_S * self.options.time_limit_s))
        split = ideal_split(self.problem.native, max(1, ideals), most)
        if split.placement is None:
            note = f"left out: {split.num_ideals or 'too many'} ideals, or no stages fit"
            self.tried.append((IDEALS, None, note))
            return
        self.initial.insert(0, split.placement)
        self.splits.insert(0, split.placement)
        note = f"{split.num_ideals} ideals, load {split.load_ns} ns"
        self.tried.append((IDEALS, self._item_ns(split.placement), note))

    def _best(self) -> tuple[int, IntArray] | None:
        """The initial solution of least time per item that fits, and that time; ties: the first."""
        best: tuple[int, IntArray] | None = None
        for one in self.initial:
            item_ns = self._initial_ns(one)
            if item_ns is not None and (best is None or item_ns < best[0]):
                best = item_ns, one
        return best

    def _initial_ns(self, placement: IntArray) -> int | None:
        if id(placement) not in self.item_ns:
            self.item_ns[id(placement)] = self._item_ns(placement)
        return self.item_ns[id(placement)]

    def _item_ns(self, placement: IntArray) -> int | None:
        loads = placement_loads(self.problem.native, placement)
        return loads.item_ns if loads.fits(self.problem.cluster) else None

    def _best_ns(self) -> int | None:
        best = self._best()
        return None if best is None else best[0]

    def _reference_ns(self) -> int:
        """A time per item of the right size."""
        best = self._best_ns()
        return best or max(1, placement_loads(self.problem.native, self.initial[0]).item_ns)

    @property
    def _target_ns(self) -> int:
        """A time per item that is as good as proven: more is not worth a search."""
        return math.floor(self.bound_ns * (1 + _PROOF_RATIO))

    def _is_proven(self) -> bool:
        best = self._best_ns()
        return best is not None and best <= self._target_ns

    def _report(self, phase: str) -> None:
        if self.options.progress is None:
            return
        best = self._best()
        if best is None:
            report(self.options, phase, self.begin, None, self.bound_ns)
        else:
            best_ns, placement = best
            plan = partial(self._plan, placement)
            report(self.options, phase, self.begin, best_ns, self.bound_ns, plan)

    def _solve_assignment(self) -> None:
        iterations = self.options.iterations
        nodes = None if iterations is None else 1 + int(iterations * _NODES_PER_ITERATION)
        limit = self._left_s() * (_ASSIGNMENT_SHARE if iterations is None else 1.0)
        engine = ChosenEngine(self.options)
        reference_ns = self._reference_ns()
        assignment = solve_assignment(self.problem, reference_ns, limit, nodes, engine=engine)
        if assignment.is_impossible:
            raise no_placement_error(self.problem, is_proven=True)
        self.bound_ns = max(self.bound_ns, assignment.bound_ns)
        self.tried.append(("assignment", None, f"{engine.name}, bound {assignment.bound_ns} ns"))
        if assignment.placement is not None:
            self.initial.insert(0, assignment.placement)
        self._report("assignment")

    def _find_prices(self) -> None:
        problem = self.problem
        iterations = self.options.iterations
        # A budget in iterations is not cut short by the clock, save at the very end of the time.
        limit = self._left_s() * (_PRICE_SHARE if iterations is None else 1.0)
        best = self._best_ns()
        prices = price_bound(
            problem,
            self._reference_ns(),
            MAX_PRICE_EVALUATIONS,
            limit,
            should_stop=lambda bound_ns: best is not None and best <= bound_ns,
        )
        self.bound_ns = max(self.bound_ns, prices.bound_ns)
        if prices.left_out:
            self.tried.append((PRICES, None, prices.left_out))
        self.patterns = [placement for _, placement in prices.combination]
        self.initial = combined_placements(problem, prices.combination) + self.initial
        self._report("prices")

    def _find_subsets(self) -> None:
        """A bound above that of the prices, where copies occupy the devices."""
        iterations, best_ns = self.options.iterations, self._best_ns()
        limit = self._left_s() * (_SUBSET_SHARE if iterations is None else 1.0)
        bound = subset_bound(
            self.problem,
            self._reference_ns(),
            MAX_SUBSET_EVALUATIONS,
            limit,
            should_stop=lambda bound_ns: best_ns is not None and best_ns <= bound_ns,
        )
        if bound.num_evaluations:
            self.bound_ns = max(self.bound_ns, bound.bound_ns)
            self.tried.append((SUBSETS, None, f"bound {bound.bound_ns} ns"))
            self._report(SUBSETS)

    def _improve(
        self, initial: list[IntArray], time_limit_s: float, max_moves: int | None
    ) -> Improvement:
        begin = time.perf_counter()

        def progress(_moves: int, best_ns: int) -> bool:
            best = None if best_ns < 0 else best_ns
            report(self.options, "search", begin, best, self.bound_ns)
            return False

        return improve_placements(
            self.problem.native,
            initial,
            self.patterns,
            max_moves=max_moves,
            time_limit_s=time_limit_s,
            seed=self.options.seed,
            threads=self.options.threads,
            bound_ns=self._target_ns,
            progress=None if self.options.progress is None else progress,
        )

    def _result(self, placement: IntArray, was_interrupted: bool) -> SolveResult:
        problem = self.problem
        with paused_collector():
            plan = self._plan(placement)
            objective = throughput_ns(problem.graph, problem.cluster, problem.costs, plan)
        status = status_of(objective, self.bound_ns, was_interrupted)
        wall = time.perf_counter() - self.begin
        return SolveResult(
            plan, objective, self.bound_ns, status, ThroughputSolver.name, wall, tuple(self.tried)
        )

    def _plan(self, placement: IntArray) -> Plan:
        return listed_plan(self.problem, placement, f"throughput seed {self.options.seed}")


def listed_plan(problem: Problem, placement: IntArray, origin: str) -> Plan:
    """Return the list schedule of a placement, longest way to the end first."""
    return problem.native.plan(_listed(problem, placement).steps, origin)


def _listed(problem: Problem, placement: IntArray) -> NativePlan:
    count = len(problem.graph.tasks)
    to_end = [0] * count
    run = problem.native.run_ns[np.arange(count), placement].tolist() if count else []
    for task in range(count - 1, -1, -1):
        to_end[task] += run[task]
        for before in problem.graph.predecessors[task]:
            to_end[before] = max(to_end[before], to_end[task])
    return list_schedule(problem.native, placement.tolist(), to_end)
