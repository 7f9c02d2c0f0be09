"""Formulation + engine for mixed-integer programs -> the optimum, with order rows made lazily.

Solve without M5 and M10; wherever the solution runs two activities at once on one resource, add
the rows of this pair; repeat until there are none. Every program on the way is a relaxation, so
its bound holds, and every solution becomes a schedule when its order of starts is kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from heteroplace.model.plan import Step
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve.exact.formulation import Formulation
from heteroplace.solve.exact.incumbent import EngineEnd
from heteroplace.solve.exact.mip_rows import MipRows
from heteroplace.solve.exact.schedule import Schedule, steps_of_schedule
from heteroplace.solve.lp.linear_program import (
    INFEASIBLE,
    INTERRUPTED,
    LIMIT,
    MipAnswer,
    MipEngine,
    MipLimits,
)
from heteroplace.solve.problem import SolveOptions, report

NODES_PER_ITERATION = 1 / 10
"""Nodes of all programs together for one iteration of a deterministic budget."""
_EARLY_GAP_RATIO = 0.05
"""Gap of a solution that is good enough to look for overlaps in."""


def solve_lazily(
    formulation: Formulation,
    engine: MipEngine,
    incumbent: Schedule | None,
    options: SolveOptions,
    time_limit_s: float,
) -> EngineEnd:
    """Solve by `engine` within the time, and within `options.iterations` if they are given.

    Raises
    ------
    SolverError
        The engine gave up.
    """
    return _Rounds(formulation, engine, incumbent, options, time_limit_s).run()


@dataclass
class _Rounds:
    """One solve: what is known so far."""

    formulation: Formulation
    engine: MipEngine
    incumbent: Schedule | None
    options: SolveOptions
    time_limit_s: float
    begin: float = field(default_factory=time.perf_counter)
    num_rounds: int = 0
    gap_ratio: float = _EARLY_GAP_RATIO

    def __post_init__(self) -> None:
        schedule = self.incumbent
        horizon = self.formulation.longest_ns if schedule is None else schedule.makespan_ns
        self.rows = MipRows(self.formulation, horizon)
        self.best = schedule
        self.found: Schedule | None = None
        self.bound_ns = self.formulation.bound_ns
        self.nodes_left: int | None = None
        if self.options.iterations is not None:
            self.nodes_left = max(1, int(self.options.iterations * NODES_PER_ITERATION))

    def run(self) -> EngineEnd:
        status = LIMIT
        try:
            while True:
                answer = self._solve()
                status = answer.status
                if status == INFEASIBLE or answer.values is None:
                    break
                is_final = self._learn(answer)
                if is_final or status in (LIMIT, INTERRUPTED) or self._left_s() <= 0:
                    break
        except KeyboardInterrupt:
            # Between two programs; during one the engine says so itself.
            status = INTERRUPTED
        return self._end(status)

    def _left_s(self) -> float:
        return self.time_limit_s - (time.perf_counter() - self.begin)

    def _solve(self) -> MipAnswer:
        limits = MipLimits(max(0.01, self._left_s()), self.gap_ratio, self.nodes_left)
        start = None if self.best is None else self.rows.values_of(self.best)
        answer = self.engine.solve(self.rows.program, limits, start)
        self.num_rounds += 1
        if self.nodes_left is not None:
            self.nodes_left = max(1, self.nodes_left - answer.num_nodes)
        if answer.status != INFEASIBLE:
            self.bound_ns = max(self.bound_ns, self.rows.bound_ns(answer.bound))
        return answer

    def _learn(self, answer: MipAnswer) -> bool:
        """Take what a solution teaches; True: nothing is left to do."""
        assert answer.values is not None
        schedule = self.rows.read(answer.values)
        if self._fits(schedule):
            self._take(schedule)
        else:
            self.rows.forbid(schedule.chosen)
        best_ns = None if self.best is None else self.best.makespan_ns
        report(self.options, self.engine.name, self.begin, best_ns, self.bound_ns)
        if best_ns is not None and best_ns <= self.bound_ns:
            return True
        pairs = self.rows.overlaps(answer.values)
        for one, two in pairs:
            self.rows.add_pair(one, two)
        if not pairs and self._fits(schedule):
            if self.gap_ratio == 0:
                return True
            self.gap_ratio = 0.0
        return False

    def _steps(self, schedule: Schedule) -> tuple[Step, ...]:
        return steps_of_schedule(self.formulation, schedule)

    def _fits(self, schedule: Schedule) -> bool:
        """Whether M4, which holds to the engine's tolerance only, holds to the byte."""
        problem = self.formulation.problem
        times = simulate_steps(problem.native, self._steps(schedule))
        used = times.used_bytes if self.formulation.charges_tensors else times.held_bytes
        memories = problem.cluster.memories
        return all(need <= memory.bytes for need, memory in zip(used, memories, strict=True))

    def _take(self, schedule: Schedule) -> None:
        if self.best is None or schedule.makespan_ns < self.best.makespan_ns:
            self.best = self.found = schedule
            self.rows.limit_makespan(schedule.makespan_ns)

    def _end(self, status: str) -> EngineEnd:
        best = self.best
        if best is not None:
            self.bound_ns = min(self.bound_ns, best.makespan_ns)
        return EngineEnd(
            self.found,
            self.bound_ns,
            is_infeasible=status == INFEASIBLE and best is None,
            was_interrupted=status == INTERRUPTED,
            note=(
                f"{self.num_rounds} rounds, {self.rows.program.num_columns} columns, "
                f"{self.rows.program.num_rows} rows, {self.rows.num_pairs} pairs ordered"
            ),
        )
