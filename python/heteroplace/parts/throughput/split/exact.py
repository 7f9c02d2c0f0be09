"""One module, or any small problem, to the optimum: CP-SAT on one thread that others can stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from heteroplace.model.plan import Step
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.core_search import search_plans
from heteroplace.native.simulate import simulate_plan, simulate_steps
from heteroplace.solve.deadline import TimeUpError
from heteroplace.solve.exact.cpsat_engine import CpSatModel, proven_ns
from heteroplace.solve.exact.formulate import formulate
from heteroplace.solve.exact.one_thread import Effort, Stopper
from heteroplace.solve.exact.schedule import schedule_of_steps, steps_of_schedule
from heteroplace.solve.feasibility import overflow
from heteroplace.solve.problem import Problem

_EVALUATIONS_PER_TASK = 5000
"""Schedules that are tried before a problem is solved exactly."""

_SEARCH_SHARE = 0.25
"""Of the time of a solve."""


@dataclass(frozen=True)
class Proof:
    """What one solve found."""

    steps: tuple[Step, ...] | None
    """The best plan; None: there is none that fits, or the solve did not begin."""
    bound_ns: int
    is_final: bool
    """More time gains nothing: the optimum is known, or the best bound that memory by lifetime lets
    be stated."""
    deterministic_s: float
    """What it took."""


def search_and_prove(
    problem: Problem, initial: Sequence[NativePlan], bound_ns: int, effort: Effort, stopper: Stopper
) -> Proof:
    """Improve plans by search, then prove the best one or find a shorter one. Any thread.

    Parameters
    ----------
    bound_ns
        What is proven already.
    """
    native = problem.native
    end = search_plans(
        native,
        initial,
        max_evaluations=_EVALUATIONS_PER_TASK * len(problem.graph.tasks),
        time_limit_s=effort.deadline.part(_SEARCH_SHARE, effort.deterministic_s).left_s(),
        seed=effort.seed,
        bound_ns=bound_ns,
        finds_bound=False,
    )
    fitting = [
        native_plan for native_plan in (end.native_plan, *initial) if native_plan.violation == 0
    ]
    if not fitting:
        return Proof(None, bound_ns, False, 0.0)
    best = min(fitting, key=lambda plan: simulate_plan(native, plan).makespan_ns)
    return prove(problem, best.steps, bound_ns, effort, stopper)


def prove(
    problem: Problem, incumbent: Sequence[Step], bound_ns: int, effort: Effort, stopper: Stopper
) -> Proof:
    """Look for a plan shorter than `incumbent`, or prove that there is none.

    Parameters
    ----------
    incumbent
        A plan that fits.
    bound_ns
        What is proven already.
    """
    best_ns = simulate_steps(problem.native, incumbent).makespan_ns
    if best_ns <= bound_ns:
        return Proof(tuple(incumbent), bound_ns, True, 0.0)
    # By lifetime more fits than the static rule tells, and a bound must hold for all of it.
    is_static = not problem.native.counts_lifetimes
    try:
        formulation = formulate(
            problem, bound_ns, charges_tensors=is_static, deadline=effort.deadline
        )
        known_schedule = schedule_of_steps(formulation, incumbent)
        model = CpSatModel(formulation, known_schedule, effort.deadline)
    except TimeUpError:
        return Proof(tuple(incumbent), bound_ns, False, 0.0)
    end = stopper.solve(model.model, effort)
    if end is None:
        return Proof(tuple(incumbent), bound_ns, False, 0.0)
    solver, status = end
    if status == cp_model.MODEL_INVALID:  # Its times are too large for CP-SAT.
        return Proof(tuple(incumbent), bound_ns, True, 0.0)
    used = solver.response_proto.deterministic_time
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
        raise AssertionError(f"a model with a plan became {solver.status_name(status)}")
    bound_ns = proven_ns(solver, bound_ns, model.horizon_ns)
    steps = tuple(incumbent)
    if status != cp_model.UNKNOWN:
        plan_steps = steps_of_schedule(formulation, model.read(solver))
        found_ns = simulate_steps(problem.native, plan_steps).makespan_ns
        if found_ns < best_ns and not any(overflow(problem, plan_steps)):
            steps, best_ns = plan_steps, found_ns
    is_final = status == cp_model.OPTIMAL or bound_ns >= best_ns
    return Proof(steps, min(bound_ns, best_ns), is_final, used)
