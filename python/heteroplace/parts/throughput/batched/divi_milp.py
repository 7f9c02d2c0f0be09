"""Problem and number of items -> the programme solved: value, bound and batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.errors import SolverError, SolverLicenceError
from heteroplace.model.plan import Step
from heteroplace.parts.throughput.batched.divi_limits import add_memory
from heteroplace.parts.throughput.batched.divi_model import BatchModel, FoundBatch
from heteroplace.parts.throughput.batched.divi_order import add_order
from heteroplace.parts.throughput.batched.divi_rules import BatchRules
from heteroplace.parts.throughput.batched.divi_start import start_values
from heteroplace.parts.throughput.batched.divi_symmetry import add_symmetry
from heteroplace.solve.deadline import NEVER, Deadline, TimeUpError
from heteroplace.solve.lp.cpsat_program import CpSatEngine
from heteroplace.solve.lp.linear_program import (
    INFEASIBLE,
    INTERRUPTED,
    LIMIT,
    MipAnswer,
    MipEngine,
    MipLimits,
)
from heteroplace.solve.problem import Problem, SolveOptions

_BOUND_SLACK = 2e-6
"""Error of an engine's bound that is allowed for, as a part of the horizon: big-M times its
tolerance of integers, and its tolerance of rows."""
_ROUNDING = 1e-3
"""Error of an exact bound, as a part of the step between two makespans."""


@dataclass(frozen=True)
class MilpEnd:
    """What the engine found."""

    value_ns: int | None
    """Makespan in the programme, where copies do not wait for each other; None: no solution."""
    bound_ns: int
    """No solution has a smaller one."""
    batches: tuple[FoundBatch, ...]
    """Of the solution, in order of start."""
    is_infeasible: bool
    """It is proven that there is no solution, within the horizon if one was given."""
    was_interrupted: bool
    num_rows: int
    num_columns: int
    failure: str = ""
    """What the engine said if it gave up."""


def build_model(
    problem: Problem,
    items: int,
    rules: BatchRules,
    *,
    horizon_ns: int | None = None,
    bound_ns: int = 0,
    deadline: Deadline = NEVER,
) -> BatchModel:
    """Return the whole programme. Parameters as `solve_batched_milp`.

    Raises
    ------
    TimeUpError
        The deadline came first.
    """
    model = BatchModel(problem, items, rules, horizon_ns, bound_ns, deadline)
    add_order(model)
    add_memory(model)
    add_symmetry(model)
    return model


def solve_batched_milp(
    problem: Problem,
    items: int,
    rules: BatchRules,
    *,
    time_limit_s: float,
    node_limit: int | None = None,
    horizon_ns: int | None = None,
    bound_ns: int = 0,
    engine: MipEngine | None = None,
    start: Sequence[Step] | None = None,
) -> MilpEnd:
    """Minimise the makespan of `items` items.

    Parameters
    ----------
    time_limit_s
        For building the programme and solving it.
    horizon_ns
        Makespan of a plan that keeps `rules`, from which every big-M comes; None: none is known.
    bound_ns
        A makespan that no plan is below.
    engine
        What solves it; None: CP-SAT.
    start
        Steps of a plan that keeps `rules`, for engines that take a start.

    Raises
    ------
    SolverLicenceError, MissingPackageError
        `engine` cannot be used.
    """
    if not problem.graph.tasks:
        return MilpEnd(0, 0, (), False, False, 0, 0)
    deadline = Deadline.after(time_limit_s)
    try:
        model = build_model(
            problem, items, rules, horizon_ns=horizon_ns, bound_ns=bound_ns, deadline=deadline
        )
    except TimeUpError:
        note = "the time was up before the programme was built"
        return MilpEnd(None, bound_ns, (), False, False, 0, 0, note)
    left = deadline.left_s()
    model.program.cost[model.end] = 1.0
    failure = ""
    try:
        limits = MipLimits(left, 0.0, node_limit)
        values = None if start is None else start_values(model, start)
        end = (engine or CpSatEngine(SolveOptions())).solve(model.program, limits, values)
    except SolverLicenceError:
        raise
    except SolverError as err:
        end, failure = MipAnswer(None, -math.inf, LIMIT), str(err)
    step = model.divisor_ns
    slack_ns = _ROUNDING * step if end.is_exact else _BOUND_SLACK * model.horizon_ns
    proven = model.to_ns(end.bound) - slack_ns
    if math.isfinite(proven):
        # Every makespan is a sum of times.
        bound_ns = max(bound_ns, math.ceil(proven / step) * step)
    value = None
    batches: tuple[FoundBatch, ...] = ()
    if end.values is not None:
        value = round(model.to_ns(float(end.values[model.end])) / step) * step
        batches = tuple(model.read(end.values))
        bound_ns = min(bound_ns, value)
    return MilpEnd(
        value,
        bound_ns,
        batches,
        end.status == INFEASIBLE,
        end.status == INTERRUPTED,
        model.program.num_rows,
        model.program.num_columns,
        failure,
    )
