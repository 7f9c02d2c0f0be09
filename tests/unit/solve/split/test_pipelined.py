"""`auto` for several items: pipelines beside MILP-SPLIT, and bounds that hold for both."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from heteroplace.bench.suites.batches import with_batches
from heteroplace.bench.suites.catalogue import rwnn
from heteroplace.bench.suites.rwnn import RwnnStack
from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.native.arrays import IMPOSSIBLE
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.deadline import NEVER
from heteroplace.solve.split.pipelined import batch_problem, pipelined, promising_sizes
from tests.strategies import random_instance
from tests.unit.solve.batched.test_divi import free, nodes

OPTIONS = SolveOptions(iterations=2_000, threads=1, time_limit_s=30)


def stack() -> Problem:
    return with_batches(rwnn(RwnnStack("er", 10, 2)), 8)


def test_auto_is_never_behind_its_pipelines() -> None:
    problem = stack()
    found = get_solver("auto").solve(problem, replace(OPTIONS, items=8))
    check_plan(problem.graph, problem.cluster, problem.costs, found.plan)
    pipelines = [ns for name, ns, _ in found.candidates if name.startswith("pipeline") and ns]
    assert pipelines and found.objective_ns <= min(pipelines)
    split = get_solver("split").solve(problem, replace(OPTIONS, items=8))
    assert not [name for name, _, _ in split.candidates if name.startswith("pipeline")]
    assert found.objective_ns <= split.objective_ns


def test_equal_budgets_give_equal_plans() -> None:
    problem = stack()
    plans = [get_solver("auto").solve(problem, replace(OPTIONS, items=8)).plan for _ in range(2)]
    assert plans[0].steps == plans[1].steps


@pytest.mark.parametrize("seed", range(12))
def test_bounds_of_auto_hold_for_several_batches_of_a_task(seed: int) -> None:
    """DiviML's programme proves more, since its plans have one batch of a task on a device."""
    problem = with_batches(free(random_instance(Random(seed), 4)), 4)
    try:
        found = get_solver("auto").solve(problem, replace(OPTIONS, items=4))
    except (InfeasibleError, SolverLimitError):
        return
    check_plan(problem.graph, problem.cluster, problem.costs, found.plan)
    assert found.bound_ns <= found.objective_ns


def test_sizes_come_in_the_order_of_what_they_promise() -> None:
    problem = nodes((3, 5, 4, 2))
    # A batch of two takes as long as one: half as many batches.
    assert promising_sizes(problem, 4) == [2, 1]
    assert promising_sizes(problem, 2) == [1], "one batch is no pipeline"
    assert promising_sizes(problem, 3) == [1]
    assert batch_problem(problem, 2).native.run_ns.tolist() == (
        problem.native.batch_run_ns[1].tolist()
    )
    assert (batch_problem(problem, 2).native.run_ns != IMPOSSIBLE).all()


def test_every_size_gives_a_plan_of_all_items() -> None:
    problem = nodes((3, 5, 4, 2))
    options = replace(OPTIONS, items=4)
    sizes = {size: steps for size, steps in pipelined(problem, options, NEVER)}
    assert list(sizes) == [2, 1]
    for steps in sizes.values():
        served = {item for step in steps for item in getattr(step, "items", ())}
        assert served == set(range(4))
