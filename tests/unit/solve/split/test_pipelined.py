"""`auto` for several items: pipelines beside MILP-SPLIT, and bounds that hold for both."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from heteroplace.model.check import check_plan
from heteroplace.model.plan import Run
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.split.batched_shares import AUTO_SHARES, DIVI_SHARES
from heteroplace.parts.throughput.split.pipelined import (
    MIN_TO_PROVE_S,
    batch_problem,
    pipelined,
    promising_sizes,
)
from heteroplace.parts.throughput.steady_state import throughput_solver as throughput
from heteroplace.parts.throughput.steady_state.priced_assignment import Assignment
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.deadline import NEVER, Deadline
from tests.strategies import random_instance
from tests.unit.solve.batched.test_batched import batched
from tests.unit.solve.batched.test_divi import free, nodes
from zoo.graphs.batches import with_batches
from zoo.graphs.catalogue import rwnn
from zoo.graphs.rwnn import RwnnStack

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
    problem = free(random_instance(Random(seed), 4, max_batch=2))
    found = get_solver("auto").solve(problem, replace(OPTIONS, items=4))
    check_plan(problem.graph, problem.cluster, problem.costs, found.plan)
    assert found.bound_ns <= found.objective_ns


def test_auto_runs_two_batches_of_a_task_on_a_device() -> None:
    """Four items in batches of two take 3 + 3 on the first device, or 9 beside it by DiviML."""
    problem = free(batched([], {"op": ({2: 3}, {2: 9})}, {}, (2,)))
    divi = get_solver("divi").solve(problem, replace(OPTIONS, items=4))
    assert (divi.bound_ns, divi.objective_ns) == (9, 9)
    found = get_solver("auto").solve(problem, replace(OPTIONS, items=4))
    assert (found.bound_ns, found.objective_ns) == (5, 6)


def test_the_optimum_of_one_batch_on_a_device_is_no_bound_of_auto() -> None:
    """Six items: 4 on the first device and 2 on the second take 8; two batches and one take 6."""
    problem = free(batched([], {"op": ({2: 3, 4: 8}, {2: 5, 4: 20})}, {}, (2, 4)))
    best = (Run(0, 0, (0, 1)), Run(0, 0, (2, 3)), Run(0, 1, (4, 5)))
    assert simulate_steps(problem.native, best, 6).makespan_ns == 6
    divi = get_solver("divi").solve(problem, replace(OPTIONS, items=6))
    assert (divi.bound_ns, divi.objective_ns) == (8, 8)
    found = get_solver("auto").solve(problem, replace(OPTIONS, items=6))
    assert found.bound_ns <= 6 <= found.objective_ns <= 8


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


def test_sizes_with_too_many_steps_are_not_begun() -> None:
    problem = nodes((3, 5, 4, 2))
    two_batches = 2 * len(problem.graph.tasks)
    assert promising_sizes(problem, 4, two_batches) == [2]
    assert promising_sizes(problem, 4, two_batches - 1) == []


def test_nothing_is_begun_past_the_deadline() -> None:
    problem = nodes((3, 5, 4, 2))
    timed = replace(OPTIONS, iterations=None, items=4)
    assert not list(pipelined(problem, timed, Deadline.after(-1)))
    # A budget in iterations is not cut short by the clock.
    assert len(list(pipelined(problem, replace(OPTIONS, items=4), Deadline.after(-1)))) == 2


def test_a_pipeline_in_little_time_solves_no_programme(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run on for seconds past their limit where the machine is loaded."""
    asked: list[object] = []
    solve = throughput.solve_assignment

    def noted(*args: Any, **kwargs: Any) -> Assignment:
        asked.append(args)
        return solve(*args, **kwargs)

    monkeypatch.setattr(throughput, "solve_assignment", noted)
    problem = nodes((3, 5, 4, 2))
    timed = replace(OPTIONS, iterations=None, items=4)
    list(pipelined(problem, timed, Deadline.after(MIN_TO_PROVE_S)))
    assert not asked
    list(pipelined(problem, timed, Deadline.after(100 * MIN_TO_PROVE_S)))
    assert asked


def test_auto_tries_every_list_schedule_and_is_not_behind_one() -> None:
    problem = stack()
    found = get_solver("auto").solve(problem, replace(OPTIONS, items=8))
    schedules = [ns for name, ns, _ in found.candidates if name.startswith("list schedule")]
    assert len(schedules) == 3
    one = get_solver("bheft").solve(problem, SolveOptions(items=8, time_limit_s=30))
    assert one.objective_ns in schedules and found.objective_ns <= one.objective_ns


def test_modules_and_annealing_have_as_long_for_auto_as_for_split() -> None:
    lengths = []
    for shares in (DIVI_SHARES, AUTO_SHARES):
        left = (1 - shares.bound) * (1 - shares.pipeline)
        chain = left * shares.chain
        lengths.append((chain, (left - chain) * shares.annealing))
    for divi, auto in zip(*lengths, strict=True):
        assert auto >= divi


def test_every_size_gives_a_plan_of_all_items() -> None:
    problem = nodes((3, 5, 4, 2))
    options = replace(OPTIONS, items=4)
    sizes = {size: steps for size, steps in pipelined(problem, options, NEVER)}
    assert list(sizes) == [2, 1]
    for steps in sizes.values():
        served = {item for step in steps for item in getattr(step, "items", ())}
        assert served == set(range(4))
