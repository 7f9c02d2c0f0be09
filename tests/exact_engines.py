"""Every exact engine as a function, and a check of what it returns."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from heteroplace.model.check import check_plan
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve import Problem, SolveOptions
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.exact.cpsat_engine import solve_by_cpsat
from heteroplace.solve.exact.formulate import formulate
from heteroplace.solve.exact.formulation import Formulation
from heteroplace.solve.exact.incumbent import EngineEnd
from heteroplace.solve.exact.lazy_rows import solve_lazily
from heteroplace.solve.exact.schedule import Schedule, steps_of_schedule
from heteroplace.solve.lp.gurobi import GurobiEngine
from heteroplace.solve.lp.highs import HighsEngine

Engine = Callable[[Formulation, Schedule | None], EngineEnd]
OPTIONS = SolveOptions(threads=1)
TIME_LIMIT_S = 60


def by_cpsat(formulation: Formulation, incumbent: Schedule | None) -> EngineEnd:
    return solve_by_cpsat(formulation, incumbent, OPTIONS, Deadline.after(TIME_LIMIT_S))


def by_highs(formulation: Formulation, incumbent: Schedule | None) -> EngineEnd:
    return solve_lazily(formulation, HighsEngine(), incumbent, OPTIONS, TIME_LIMIT_S)


def by_gurobi(formulation: Formulation, incumbent: Schedule | None) -> EngineEnd:
    return solve_lazily(formulation, GurobiEngine(1, 0), incumbent, OPTIONS, TIME_LIMIT_S)


needs_gurobi = pytest.mark.skipif(
    importlib.util.find_spec("gurobipy") is None, reason="gurobipy is not installed"
)
every_engine = pytest.mark.parametrize(
    "engine",
    [by_cpsat, by_highs, pytest.param(by_gurobi, marks=needs_gurobi)],
    ids=["cpsat", "highs", "gurobi"],
)


def optimum(problem: Problem, engine: Engine, *, dedup: bool = True) -> int | None:
    """Solve without any help, check the plan, and return the proven optimum of the model.

    None: proven infeasible. With `dedup` the plan must have this makespan; without, no longer one.
    """
    formulation = formulate(problem, dedup=dedup)
    end = engine(formulation, None)
    if end.schedule is None:
        assert end.is_infeasible
        return None
    assert end.bound_ns == end.schedule.makespan_ns, end.note
    steps = steps_of_schedule(formulation, end.schedule)
    plan = problem.native.plan(steps, "test")
    check_plan(problem.graph, problem.cluster, problem.costs, plan)
    simulated = simulate_steps(problem.native, steps).makespan_ns
    assert simulated == end.bound_ns if dedup else simulated <= end.bound_ns
    return end.bound_ns
