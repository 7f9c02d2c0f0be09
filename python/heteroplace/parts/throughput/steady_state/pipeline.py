"""Stages: each device runs one contiguous part of the graph, with the least time per item.

"Efficient Algorithms for Device Placement of DNN Graph Operators" (2020), contiguous splits for
pipelined inference: the devices have an order in which no edge leads back. So a device serves all
of one item before any of the next, several items are under way at once, one in each stage, and a
plan repeated in its own order keeps the pace of its busiest resource. For that copies must not
share what they occupy beyond a pair of memories (congestion "none", or "channel" with a channel per
link). The initial solutions are cuts of an order of tasks (`stage_splits.py`), small graphs are
solved by the mixed-integer programme of `priced_assignment.py`, and last tasks at the border of a
stage are moved.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_loads import placement_loads
from heteroplace.parts.throughput.native.core_throughput import contiguous_splits
from heteroplace.parts.throughput.steady_state.priced_assignment import is_small, solve_assignment
from heteroplace.parts.throughput.steady_state.prices import PRICES, price_bound
from heteroplace.parts.throughput.steady_state.stage_splits import stage_splits
from heteroplace.parts.throughput.steady_state.throughput_solver import (
    MAX_PRICE_EVALUATIONS,
    listed_plan,
)
from heteroplace.simulate.throughput import throughput_ns
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.feasibility import check_possible
from heteroplace.solve.lp.engines import ChosenEngine
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, report, status_of

_NODES_PER_ITERATION = 1 / 200
"""Nodes of the programme for one iteration of a deterministic budget."""
_SPLIT_SHARE = 0.5
"""Part of the time for splits of an order, at most."""
_PRICE_SHARE = 0.3
"""Part of the time for the bound of large graphs, at most."""
_MILP_SHARE = 0.8
"""Part of the time for the programme, at most."""

Score = tuple[int, int]
"""Bytes over capacity, time per item in ns."""


class PipelineSolver:
    """Least time per item with one stage on each device.

    `objective_ns` is the time per item. `bound_ns` holds for all plans; what is proven for plans in
    stages, which is more, is in `candidates`. `SolveOptions.iterations` are placements tried by the
    search.
    """

    name = "pipeline"
    objectives = ("throughput",)
    engines: ClassVar = {"throughput": ("gurobi", "highs")}

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        check_possible(problem)
        return _Run(problem, options).run()


def stage_order(problem: Problem, placement: Sequence[int] | IntArray) -> tuple[int, ...] | None:
    """Return the devices in use in an order in which no edge leads back; None: there is none."""
    devices = [int(device) for device in placement]
    before: dict[int, set[int]] = {device: set() for device in sorted(set(devices))}
    for task, producers in enumerate(problem.graph.predecessors):
        for producer in producers:
            if devices[producer] != devices[task]:
                before[devices[task]].add(devices[producer])
    order: list[int] = []
    while len(order) < len(before):
        ready = [d for d in before if d not in order and before[d] <= set(order)]
        if not ready:
            return None
        order.append(ready[0])
    return tuple(order)


@dataclass
class _Run:
    """One solve: what is known so far."""

    problem: Problem
    options: SolveOptions
    begin: float = field(default_factory=time.perf_counter)
    best: IntArray | None = None
    best_score: Score = (1 << 62, 0)
    bound_ns: int = 0
    """Of all plans."""
    staged_ns: int = 0
    """Of plans in stages."""
    tried: list[tuple[str, int | None, str]] = field(default_factory=list)

    def run(self) -> SolveResult:
        problem = self.problem
        for placement in self._initial():
            self._offer(placement)
        self._report("initial solutions")
        if problem.graph.tasks:
            self._find_prices()
            if is_small(problem, is_contiguous=True) and (self.best is None or self._is_open()):
                self._solve_assignment()
        if self.best is not None and self._is_open():
            self._move_borders()
        if self.best is None or self.best_score[0]:
            raise self._nothing(False)
        self._report("search")
        plan = listed_plan(problem, self.best, f"{PipelineSolver.name} seed {self.options.seed}")
        objective = throughput_ns(problem.graph, problem.cluster, problem.costs, plan)
        status = status_of(objective, self.bound_ns, was_interrupted=False)
        wall = time.perf_counter() - self.begin
        proof = ("stages", objective, f"no stages take less than {self.staged_ns} ns per item")
        return SolveResult(
            *(plan, objective, self.bound_ns, status, PipelineSolver.name, wall),
            candidates=(proof, *self.tried),
        )

    def _initial(self) -> list[IntArray]:
        """Splits along an order of the tasks, and all on one device."""
        native = self.problem.native
        count = len(self.problem.graph.tasks)
        placements: list[IntArray] = []
        if count:
            share = _SPLIT_SHARE if self.options.iterations is None else 1.0
            deadline = Deadline.after(self.options.time_limit_s * share, self.begin)
            placements = contiguous_splits(native) + stage_splits(self.problem, deadline)
        for device in range(len(self.problem.cluster.devices)):
            # Of a graph without tasks these are the only placements.
            if (native.run_ns[:, device] != IMPOSSIBLE).all():
                placements.append(np.full(count, device, dtype=np.int64))
        return placements

    def _score(self, placement: IntArray) -> Score | None:
        """None: it is not in stages, or a copy has no route."""
        if stage_order(self.problem, placement) is None:
            return None
        loads = placement_loads(self.problem.native, placement)
        if loads.num_unreachable:
            return None
        return loads.excess_bytes(self.problem.cluster), loads.item_ns

    def _offer(self, placement: IntArray) -> bool:
        score = self._score(placement)
        if score is None or (self.best is not None and score >= self.best_score):
            return False
        self.best, self.best_score = placement, score
        return True

    def _is_open(self) -> bool:
        return self.best_score[0] > 0 or self.best_score[1] > self.staged_ns

    def _left_s(self) -> float:
        return max(0.01, self.options.time_limit_s - (time.perf_counter() - self.begin))

    def _solve_assignment(self) -> None:
        iterations = self.options.iterations
        nodes = None if iterations is None else 1 + int(iterations * _NODES_PER_ITERATION)
        reference = self.best_score[1] if self.best is not None else self._total_ns()
        limit = self._left_s() * (_MILP_SHARE if iterations is None else 1.0)
        engine = ChosenEngine(self.options)
        assignment = solve_assignment(
            self.problem, reference, limit, nodes, is_contiguous=True, engine=engine
        )
        if assignment.is_impossible:
            raise self._nothing(True)
        self.staged_ns = max(self.staged_ns, assignment.bound_ns)
        self.tried.append(("assignment", None, f"{engine.name}, bound {assignment.bound_ns} ns"))
        if assignment.placement is not None:
            self._offer(assignment.placement)
        self._report("assignment")

    def _total_ns(self) -> int:
        run_ns = self.problem.native.run_ns
        return int(np.where(run_ns == IMPOSSIBLE, 0, run_ns).max(axis=1, initial=0).sum())

    def _find_prices(self) -> None:
        """A bound of all placements, which is one of those in stages too."""
        reference = self.best_score[1] if self.best is not None else self._total_ns()
        limit = self._left_s() * (_PRICE_SHARE if self.options.iterations is None else 1.0)
        prices = price_bound(self.problem, reference, MAX_PRICE_EVALUATIONS, limit)
        self.bound_ns = self.staged_ns = max(self.bound_ns, prices.bound_ns)
        if prices.left_out:
            self.tried.append((PRICES, None, prices.left_out))
        self._report("prices")

    def _move_borders(self) -> None:
        """Move tasks, with their group, to the stages of their neighbours while that is better."""
        groups = np.array(self.problem.native.task_group)
        run_ns = self.problem.native.run_ns
        tried, is_better = 0, True
        while is_better:
            is_better = False
            for task in range(len(groups)):
                for device in self._neighbour_devices(task):
                    if self._is_over(tried) or not self._is_open():
                        return
                    if run_ns[task, device] == IMPOSSIBLE or self.best is None:
                        continue
                    moved = self.best.copy()
                    moved[task if groups[task] < 0 else groups == groups[task]] = device
                    tried += 1
                    is_better = self._offer(moved) or is_better

    def _is_over(self, tried: int) -> bool:
        if self.options.iterations is not None and tried >= self.options.iterations:
            return True
        return time.perf_counter() - self.begin > self.options.time_limit_s

    def _neighbour_devices(self, task: int) -> list[int]:
        graph, best = self.problem.graph, self.best
        if best is None:
            return []
        near = (*graph.predecessors[task], *graph.successors[task])
        return sorted({int(best[other]) for other in near} - {int(best[task])})

    def _report(self, phase: str) -> None:
        best = self.best
        if best is None or self.best_score[0]:
            report(self.options, phase, self.begin, None, self.bound_ns)
            return
        plan = partial(listed_plan, self.problem, best, PipelineSolver.name)
        report(self.options, phase, self.begin, self.best_score[1], self.bound_ns, plan)

    def _nothing(self, is_proven: bool) -> InfeasibleError:
        """The error where there is no plan; SolverLimitError unless that is proven."""
        graph, cluster = self.problem.graph, self.problem.cluster
        opening = "no plan exists" if is_proven else "no plan was found"
        return (InfeasibleError if is_proven else SolverLimitError)(
            f"{opening} for graph {graph.name!r} on cluster {cluster.name!r} with one contiguous "
            f"stage on each device that fits in memory and over its links. Use the solver "
            f"'throughput', which needs no stages, or give more memory or links"
            f"{'.' if is_proven else ', or more time.'}"
        )
