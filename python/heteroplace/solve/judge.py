"""A plan that somebody has made -> SolveResult: checked, judged by its objective, with a bound."""

from __future__ import annotations

import time
from dataclasses import replace

from heteroplace.errors import SolverError
from heteroplace.model.check import check_plan
from heteroplace.model.plan import Copy, Load, Plan, Run
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.bounds.quick import any_plan_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.objective import objective_ns
from heteroplace.solve.objective_solver import added_objective
from heteroplace.solve.problem import (
    Problem,
    SolveOptions,
    SolveResult,
    check_items_of,
    status_of,
)

REPLAY = "plan_in"
"""`SolveResult.solver` of a plan that was not solved for."""


def replay(problem: Problem, plan: Plan, options: SolveOptions) -> SolveResult:
    """Return a saved plan as if a solver had found it now.

    Raises
    ------
    PlanError
        It breaks a rule of the problem: pins, memories, links.
    SolverError
        It is for another number of items than was asked for, or for several with throughput.
    """
    begin = time.perf_counter()
    num_items(plan, options)
    deadline = Deadline.after(options.time_limit_s, begin)
    result = judge_plan(problem, plan, options, REPLAY, 0.0, deadline)
    return replace(result, wall_s=time.perf_counter() - begin)


def num_items(plan: Plan, options: SolveOptions) -> int:
    """Return the items of a saved plan; SolverError if that is not what was asked for."""
    if options.items not in (1, plan.items):
        raise SolverError(
            f"the plan by {plan.origin!r} is for {plan.items} items, and items is "
            f"{options.items}; leave items out, or solve again without plan_in"
        )
    check_items_of(options.objective, plan.items)
    return plan.items


def judge_plan(
    problem: Problem,
    plan: Plan,
    options: SolveOptions,
    solver: str,
    wall_s: float,
    deadline: Deadline,
    *,
    candidates: tuple[tuple[str, int | None, str], ...] = (),
    was_interrupted: bool = False,
) -> SolveResult:
    """Check a plan and return it with its objective and a bound that is there at once.

    Parameters
    ----------
    deadline
        When the bound ends, after the least that it takes.

    Raises
    ------
    PlanError
        It breaks a rule.
    MissingPackageError
        No installed package bounds this objective; see `added_objective`.
    """
    check_plan(problem.graph, problem.cluster, problem.costs, plan)
    objective = objective_ns(problem, plan, options.objective)
    bound = _bound_ns(problem, plan, options.objective, objective, deadline)
    status = status_of(objective, bound, was_interrupted)
    return SolveResult(plan, objective, bound, status, solver, wall_s, candidates)


def _bound_ns(
    problem: Problem, plan: Plan, objective: str, known_ns: int, deadline: Deadline
) -> int:
    if not problem.graph.tasks:
        return 0
    is_usual = not _goes_own_ways(problem, plan)
    added = added_objective(objective, plan.items)
    if added is not None:
        return added.bound_ns(problem, plan, known_ns, deadline, is_usual=is_usual)
    if not is_usual:
        return any_plan_bound(problem).ns
    return lower_bound(problem, time_limit_s=deadline.left_s()).ns


def _goes_own_ways(problem: Problem, plan: Plan) -> bool:
    """Whether it loads weights, or copies otherwise than from a tensor's home by `Cluster.route`:
    most bounds are not of such plans."""
    graph, cluster = problem.graph, problem.cluster
    runs = {(step.task, step.device) for step in plan.steps if isinstance(step, Run)}
    homes = {(task, cluster.devices[device].memory) for task, device in runs}
    for step in plan.steps:
        if isinstance(step, Load):
            return True
        if not isinstance(step, Copy):
            continue
        producer = graph.tensors[step.tensor].producer
        is_home = step.src == cluster.host if producer is None else (producer, step.src) in homes
        if not is_home or step.route != cluster.route(step.src, step.dst):
            return True
    return False
